from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scorer.errors import Unauthenticated
from scorer.http.callers import Callers, KeyFileError, read_key_file
from tests.helpers.fake_engine import FakeEngine
from tests.helpers.service import SCORE, sample, service, until
from tests.helpers.tiny_service import tiny_service

OURS, THEIRS = "0123456789abcdef", "fedcba9876543210"
TEXT = " ".join(f"word{number}" for number in range(40))
ROUTES: list[tuple[str, dict[str, Any], dict[str, str]]] = [
    (SCORE, {"queries": ["q"], "documents": [TEXT]}, {}),
    (SCORE, {"queries": ["q"], "documents": [TEXT]}, {"accept": "application/x-ndjson"}),
    ("/v1/rerank", {"query": "q", "documents": [TEXT]}, {}),
    ("/score", {"text_1": "q", "text_2": TEXT, "cache_salt": "a"}, {}),
    ("/generative_scoring", {"query": TEXT, "items": [" a"], "label_token_ids": [5], "cache_salt": "a"}, {}),
    ("/v1/generate", {"prompt": TEXT, "max_tokens": 1}, {}),
]

CACHED, COMPUTED = "scorer_cached_tokens_total", "scorer_computed_tokens_total"


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text(f"# who may call\nsearch {OURS}\n\nsearch   {OURS}-new \nother {THEIRS}\n", encoding="utf-8")
    return path


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def test_a_key_names_its_tenant_and_a_tenant_may_have_several(key_file: Path) -> None:
    callers = Callers(keys=read_key_file(key_file))

    assert callers.tenant_of(bearer(OURS)) == callers.tenant_of(bearer(f"{OURS}-new")) == "search"
    assert callers.tenant_of({"authorization": f"bearer  {THEIRS} "}) == "other"


@pytest.mark.parametrize(
    "headers", [{}, bearer(""), bearer(OURS[:-1]), bearer(OURS.upper()), {"authorization": OURS}, {"x-api-key": OURS}]
)
def test_without_a_known_key_nobody_is_let_in(key_file: Path, headers: dict[str, str]) -> None:
    with pytest.raises(Unauthenticated) as caught:
        Callers(keys=read_key_file(key_file)).tenant_of(headers)

    assert OURS[:-1].lower() not in str(caught.value).lower()


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("", "has no key"),
        ("# nothing\n\n", "has no key"),
        (f"search {OURS}\n{THEIRS}\n", "line 2: wanted TENANT KEY"),
        (f"our search {OURS}\n", "line 1: wanted TENANT KEY"),
        ("search short\n", "line 1: the key has 5 characters, at least 16"),
        (f"search {OURS}\nother {OURS}\n", "line 2: this key is that of another tenant"),
        (f"search é{OURS}\n", "line 1: wanted TENANT KEY"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_without_a_key_in_the_message(
    tmp_path: Path, text: str, wrong: str
) -> None:
    path = tmp_path / "keys"
    path.write_text(text, encoding="utf-8")

    with pytest.raises(KeyFileError, match=wrong) as caught:
        read_key_file(path)
    assert OURS not in str(caught.value)
    assert THEIRS not in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match="missing-keys"):
        read_key_file(tmp_path / "missing-keys")


def test_a_gateway_names_the_tenant_in_its_header() -> None:
    callers = Callers(header="x-tenant")

    assert callers.tenant_of({"x-tenant": "org_1|auth0@example.com"}) == "org_1|auth0@example.com"
    for wrong in ({}, {"x-tenant": ""}, {"x-tenant": "a b"}, {"x-tenant": "a" * 129}):
        with pytest.raises(Unauthenticated, match="x-tenant"):
            callers.tenant_of(wrong)


def test_by_default_nobody_is_asked_and_nothing_is_parted() -> None:
    assert Callers().tenant_of(bearer("whatever")) is None


@pytest.mark.parametrize(("path", "body", "headers"), ROUTES)
def test_every_scoring_route_asks_for_a_key_and_runs_nothing_without(
    key_file: Path, path: str, body: dict[str, Any], headers: dict[str, str]
) -> None:
    engine = FakeEngine()
    with service(engine, api_keys_file=str(key_file)) as client:
        refused = client.post(path, json=body, headers=headers)
        wrong = client.post(path, json=body, headers=headers | bearer("not a key of ours"))
        probes = [client.get(probe).status_code for probe in ("/health", "/health/live", "/metrics", "/docs")]
        errors = sample(client, "scorer_errors_total", code="unauthenticated")

    assert (refused.status_code, wrong.status_code) == (401, 401)
    assert refused.headers["www-authenticate"] == "Bearer"
    assert not engine.tasks
    assert probes == [200] * 4
    assert errors == 2


def test_a_refused_caller_reads_it_in_the_form_of_the_dialect(key_file: Path) -> None:
    with service(api_keys_file=str(key_file)) as client:
        native = client.post(SCORE, json={}).json()
        vllm = client.post("/score", json={}).json()

    assert native["error"]["code"] == "unauthenticated"
    assert (vllm["error"]["code"], vllm["error"]["type"]) == (401, "UnauthorizedError")


@pytest.mark.parametrize(("path", "body", "headers"), ROUTES)
def test_b022_nobody_meets_the_cache_of_another_tenant(
    key_file: Path, path: str, body: dict[str, Any], headers: dict[str, str]
) -> None:
    with tiny_service(api_keys_file=str(key_file)) as client:

        def cached(key: str) -> float:
            before, computed = (sample(client, name) for name in (CACHED, COMPUTED))
            assert client.post(path, json=body, headers=headers | bearer(key)).status_code == 200
            until(lambda: sample(client, COMPUTED) > computed)  # counted just after the answer, and last
            return sample(client, CACHED) - before

        counts = [cached(key) for key in (OURS, THEIRS, THEIRS, OURS, f"{OURS}-new")]

    assert counts[:2] == [0, 0]
    assert all(count > 0 for count in counts[2:])


def test_b022_tenants_of_a_gateway_are_parted_too() -> None:
    body = {"queries": ["q"], "documents": [TEXT]}
    with tiny_service(tenant_header="X-Tenant") as client:
        cached = [
            int(client.post(SCORE, json=body, headers={"x-tenant": name}).headers["x-cached-tokens"])
            for name in ("one", "two", "two", "one")
        ]

    assert cached[:2] == [0, 0]
    assert all(count > 0 for count in cached[2:])
