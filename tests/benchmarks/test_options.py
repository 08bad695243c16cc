from __future__ import annotations

import pytest

from benchmarks.options import OptionsError, parse
from benchmarks.systems.catalogue import ALL_WORKLOADS, SPECS, TITLES


def test_without_arguments_everything_is_run_five_times() -> None:
    options = parse([])

    assert options.workloads == (*ALL_WORKLOADS, "PROFILE")
    assert [spec.name for spec in options.systems] == ["ours", "ours-http", "ours-int8", "hf-prefix", "hf-pad"]
    assert (options.repeats, options.retries, options.size, options.reference) == (5, 2, "full", True)
    assert options.time_limit_s is None


def test_time_limit_is_in_minutes_and_leaves_the_number_of_repeats_to_the_clock() -> None:
    limited, both = parse(["--time-limit", "1.5"]), parse(["--time-limit", "1.5", "--repeats", "3"])

    assert (limited.time_limit_s, limited.repeats) == (90.0, 20)
    assert both.repeats == 3


def test_quick_is_one_repeat_of_small_w1_and_w2_beside_transformers() -> None:
    options = parse(["--quick"])

    assert options.workloads == ("W1", "W2")
    assert [spec.name for spec in options.systems] == ["ours", "hf-prefix"]
    assert (options.repeats, options.retries, options.size, options.reference) == (1, 0, "quick", False)


def test_quick_can_be_narrowed_and_lengthened() -> None:
    options = parse(["--quick", "--only", "W3", "--systems", "ours", "--repeats", "2"])

    assert options.workloads == ("W3",)
    assert [spec.name for spec in options.systems] == ["ours"]
    assert options.repeats == 2


def test_peer_that_is_given_joins_the_run_with_its_address() -> None:
    options = parse(["--vllm", "http://127.0.0.1:9", "--llamacpp-start", "serve it --port 8312"])
    by_name = {spec.name: spec.options for spec in options.systems}

    assert by_name["vllm"] == {"url": "http://127.0.0.1:9"}
    assert by_name["llamacpp"] == {"start": "serve it --port 8312"}


def test_another_ours_takes_settings_of_the_engine() -> None:
    options = parse(["--ours", "small:step_tokens=512,block_size=32", "--pool-mib", "64"])
    by_name = {spec.name: spec for spec in options.systems}

    assert by_name["ours-small"].kind == "ours"
    assert by_name["ours-small"].options == {"step_tokens": "512", "block_size": "32", "pool_bytes": str(64 << 20)}
    assert by_name["ours"].options == {"pool_bytes": str(64 << 20)}


def test_ours_in_8_bits_is_there_by_name_and_can_be_told_more() -> None:
    (known,) = parse(["--systems", "ours-int8"]).systems
    told = [spec for spec in parse(["--ours", "int8:step_tokens=512"]).systems if spec.name == "ours-int8"]

    assert known.options["linear_dtype"] == "int8"
    assert [spec.options["step_tokens"] for spec in told] == ["512"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "W1,W9"], "no workload is called W9; there are W1, W2"),
        (["--only", ","], "no workload is called ','"),
        (["--systems", "theirs"], "no system is called theirs; there are ours"),
        (["--ours", "fast"], "--ours is 'fast'; wanted NAME:KEY=VALUE"),
        (["--ours", "fast:step_tokens="], "wanted NAME:KEY=VALUE"),
        (["--repeats", "0"], "--repeats is 0; it must be between 1 and 20"),
        (["--retries", "9"], "--retries is 9"),
        (["--time-limit", "0"], "--time-limit is 0.0; it must be more than 0 minutes"),
    ],
)
def test_what_is_not_there_is_named(arguments: list[str], message: str) -> None:
    with pytest.raises(OptionsError) as caught:
        parse(arguments)

    assert message in str(caught.value)


def test_every_system_has_a_title_and_known_workloads() -> None:
    assert set(TITLES) == set(SPECS)
    assert all(spec.workloads <= set(ALL_WORKLOADS) for spec in SPECS.values())
