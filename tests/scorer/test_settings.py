from __future__ import annotations

import pytest

from scorer.settings import Settings, SettingsError, explained, load, override


def test_without_variables_everything_is_at_its_default() -> None:
    assert load({"PATH": "/bin", "OTHER_SCORER_PORT": "1"}) == Settings()
    assert Settings().host == "127.0.0.1"


def test_every_kind_of_value_is_read() -> None:
    settings = load(
        {
            "SCORER_MODEL": "/models/1",
            "SCORER_PORT": "9000",
            "SCORER_BODY_TIMEOUT_S": "2.5",
            "SCORER_SELF_TEST": "report",
            "SCORER_ENGINE__BLOCK_SIZE": "32",
            "SCORER_ENGINE__DTYPE": "float32",
            "SCORER_ENGINE__POOL_BYTES": "1000000",
        }
    )

    assert (settings.model, settings.port, settings.body_timeout_s) == ("/models/1", 9000, 2.5)
    assert settings.self_test == "report"
    assert (settings.engine.block_size, settings.engine.dtype, settings.engine.pool_bytes) == (32, "float32", 1_000_000)


def test_a_model_may_be_called_like_a_number_or_null() -> None:
    assert load({"SCORER_MODEL": "7"}).model == "7"
    assert load({"SCORER_MODEL": "null"}).model == "null"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SCORER_PROT", "9000"),
        ("SCORER_port", "9000"),
        ("SCORER_", "9000"),
        ("SCORER_ENGINE", "fast"),
        ("SCORER_ENGINE__BLOCKSIZE", "16"),
        ("SCORER_BLOCK_SIZE", "16"),
        ("SCORER_PORT", "http"),
        ("SCORER_PORT", "80.5"),
        ("SCORER_PORT", ""),
        ("SCORER_PORT", "65536"),
        ("SCORER_BODY_TIMEOUT_S", "nan"),
        ("SCORER_BODY_TIMEOUT_S", "inf"),
        ("SCORER_BODY_TIMEOUT_S", "0"),
        ("SCORER_SELF_TEST", "no"),
        ("SCORER_ENGINE__BLOCK_SIZE", "0"),
        ("SCORER_ENGINE__BLOCK_SIZE", "-1"),
        ("SCORER_ENGINE__DTYPE", "float16"),
        ("SCORER_MAX_BUFFERED_BYTES", "2000"),
    ],
)
def test_a_wrong_name_or_value_stops_the_start_and_is_named(name: str, value: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load({name: value})

    assert name in str(caught.value)


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("SCORER_PROT", "SCORER_PORT"),
        ("SCORER_port", "SCORER_PORT"),
        ("SCORER_ENGINE__BLOCKSIZE", "SCORER_ENGINE__BLOCK_SIZE"),
        ("SCORER_POOL_BYTES", "SCORER_ENGINE__POOL_BYTES"),
    ],
)
def test_a_wrong_name_is_answered_with_the_nearest_right_one(wrong: str, meant: str) -> None:
    with pytest.raises(SettingsError, match=rf"called {wrong}; did you mean {meant}\?"):
        load({wrong: "1"})


def test_bytes_may_be_written_as_a_size() -> None:
    settings = load({"SCORER_MAX_BODY_BYTES": "16MiB", "SCORER_ENGINE__POOL_BYTES": "1.5 GiB"})

    assert (settings.max_body_bytes, settings.engine.pool_bytes) == (16 * 2**20, 3 * 2**29)


@pytest.mark.parametrize("size", ["big", "1e9", "8 parsecs", "-1GiB"])
def test_what_is_no_size_is_refused_with_an_example_of_one(size: str) -> None:
    with pytest.raises(SettingsError, match=rf"SCORER_ENGINE__POOL_BYTES is '{size}'; .* such as 4GiB"):
        load({"SCORER_ENGINE__POOL_BYTES": size})


def test_values_that_do_not_fit_together_are_refused() -> None:
    with pytest.raises(SettingsError, match=r"SCORER_MAX_BUFFERED_BYTES is 5000.*at least max_body_bytes, 6000"):
        load({"SCORER_MAX_BODY_BYTES": "6000", "SCORER_MAX_BUFFERED_BYTES": "5000"})


@pytest.mark.parametrize("name", ["", "x tenant", "x-tenant:", "tenänt"])
def test_a_tenant_header_that_is_no_header_is_refused(name: str) -> None:
    with pytest.raises(SettingsError, match="SCORER_TENANT_HEADER"):
        load({"SCORER_TENANT_HEADER": name})


def test_tenants_are_told_apart_by_keys_or_by_a_gateway_and_not_by_both() -> None:
    with pytest.raises(SettingsError, match=r"SCORER_TENANT_HEADER goes without api_keys_file"):
        load({"SCORER_TENANT_HEADER": "x-tenant", "SCORER_API_KEYS_FILE": "/keys"})


@pytest.mark.parametrize("tenants", [{"SCORER_API_KEYS_FILE": "/keys"}, {"SCORER_TENANT_HEADER": "x-tenant"}])
def test_a_cache_is_not_warmed_for_tenants_who_would_not_find_it(tenants: dict[str, str]) -> None:
    with pytest.raises(SettingsError, match=r"SCORER_WARM_FILE goes without"):
        load(tenants | {"SCORER_WARM_FILE": "/warm.jsonl"})


def test_the_directory_of_models_is_not_a_setting_of_the_service() -> None:
    assert load({"SCORER_MODELS_DIR": "/models"}) == Settings()


def test_options_go_before_settings_where_they_are_given() -> None:
    settings = load({"SCORER_PORT": "9000", "SCORER_HOST": "0.0.0.0"})

    assert override(settings, port=1234, host=None).port == 1234
    assert override(settings, port=1234, host=None).host == "0.0.0.0"
    with pytest.raises(SettingsError):
        override(settings, port=70_000)


def test_every_variable_is_explained_with_a_default_that_can_be_read_back() -> None:
    settings = explained()
    environ = {setting.name: setting.default for setting in settings if setting.default != "unset"}

    assert len(settings) > 20
    assert [setting.name for setting in settings if not setting.text] == []
    assert load(environ) == Settings()
