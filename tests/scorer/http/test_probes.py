from __future__ import annotations

import threading
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics

from scorer.model_host import LoadedModel
from tests.helpers.fake_engine import FakeEngine
from tests.helpers.service import SCORE, client_of, fake_application, fake_model, sample, service, until

BODY = {"queries": ["q"], "documents": ["d"]}


def test_live_answers_while_the_model_loads_and_ready_says_why_not() -> None:
    may_load = threading.Event()

    def load() -> LoadedModel:
        may_load.wait(20)
        return fake_model(FakeEngine())

    application = fake_application(FakeEngine(), load=load)
    with client_of(application, settled=False) as client:
        live, ready, score, info = (
            client.get(path) for path in ("/health/live", "/health/ready", "/v1/models", "/info")
        )
        refused = client.post(SCORE, json=BODY)
        may_load.set()
        until(lambda: client.get("/health/ready").status_code == 200)
        accepted = client.post(SCORE, json=BODY)

    assert live.status_code == 200
    assert ready.status_code == 503
    assert ready.json() == {"status": "not_ready", "phase": "loading", "reason": "the model is loading"}
    assert {score.status_code, info.status_code, refused.status_code} == {503}
    assert refused.json()["error"]["code"] == "not_ready"
    assert refused.json()["error"]["retryable"] is True
    assert int(refused.headers["retry-after"]) >= 1
    assert accepted.status_code == 200


def test_a_model_that_cannot_be_loaded_is_neither_live_nor_ready_and_the_runner_is_told() -> None:
    def load() -> LoadedModel:
        raise FileNotFoundError("model.safetensors is missing")

    application = fake_application(FakeEngine(), load=load)
    told = threading.Event()
    application.host.call_on_failure(told.set)
    with client_of(application) as client:
        live, ready = client.get("/health/live"), client.get("/health/ready")

    assert told.is_set()
    assert application.host.has_failed
    assert live.status_code == 503
    assert ready.json()["phase"] == "failed"
    assert "model.safetensors is missing" in ready.json()["reason"]


def test_a_failed_self_test_keeps_the_service_from_being_ready_and_is_exported() -> None:
    with service_that_fails_its_test(self_test="require") as client:
        ready, refused = client.get("/health/ready"), client.post(SCORE, json=BODY)
        passed = sample(client, "scorer_selftest_passed")
        live = client.get("/health/live")

    assert ready.status_code == 503
    assert ready.json()["phase"] == "self_test_failed"
    assert "golden pair" in ready.json()["reason"]
    assert refused.status_code == 503
    assert live.status_code == 200
    assert passed == 0


def test_a_failed_self_test_may_be_reported_only() -> None:
    with service_that_fails_its_test(self_test="report") as client:
        accepted = client.post(SCORE, json=BODY)
        passed = sample(client, "scorer_selftest_passed")

    assert accepted.status_code == 200
    assert passed == 0


def test_a_passed_self_test_is_exported() -> None:
    with service() as client:
        assert sample(client, "scorer_selftest_passed") == 1


def service_that_fails_its_test(**settings: Any) -> Any:
    return client_of(fake_application(FakeEngine(), fault="golden pair 1 has no score", **settings))


def test_b036_a_dead_engine_fails_liveness_and_readiness() -> None:
    engine = FakeEngine()
    with service(engine) as client:
        engine.alive = False
        live, ready, refused = client.get("/health/live"), client.get("/health/ready"), client.post(SCORE, json=BODY)

    assert live.status_code == 503
    assert live.json() == {"status": "dead"}
    assert ready.status_code == 503
    assert refused.status_code == 503


def test_an_engine_that_accepts_nothing_is_not_ready_but_alive() -> None:
    engine = FakeEngine()
    with service(engine) as client:
        engine.accepting = False
        assert client.get("/health/live").status_code == 200
        assert client.get("/health/ready").status_code == 503


def test_models_names_the_served_one() -> None:
    with service() as client:
        reply = client.get("/v1/models").json()

    assert reply["object"] == "list"
    assert [(model["id"], model["max_model_len"]) for model in reply["data"]] == [("fake", 2048)]


def test_a_model_is_found_by_its_name_and_no_other_is() -> None:
    with service() as client:
        found, missing = client.get("/v1/models/fake"), client.get("/v1/models/some/other")
        listed = client.get("/v1/models").json()["data"]

    assert found.json() == listed[0]
    assert missing.status_code == 404
    assert missing.json()["error"] == {
        "message": "the model that is served is fake",
        "type": "invalid_request_error",
        "param": "model",
        "code": "model_not_found",
    }


def test_info_has_what_clients_of_text_embeddings_inference_read() -> None:
    with service(max_pairs=77, max_concurrent_requests=5) as client:
        info = client.get("/info").json()

    assert (info["model_id"], info["served_model_name"], info["model_sha"]) == ("fake", "fake", "rev1")
    assert info["model_type"] == {"reranker": {"id2label": {"0": "Yes", "1": "No"}, "label2id": {"Yes": 0, "No": 1}}}
    assert (info["max_client_batch_size"], info["max_concurrent_requests"], info["max_input_length"]) == (77, 5, 2048)
    assert (info["max_batch_tokens"], info["max_batch_requests"], info["auto_truncate"]) == (64, None, True)
    assert {"model_dtype", "tokenization_workers", "version", "sha", "docker_label"} <= info.keys()


def test_info_tells_the_limits_that_requests_meet() -> None:
    with service(max_pairs=7, max_body_bytes=5000, request_timeout_s=2.0) as client:
        info = client.get("/info").json()
        too_many = client.post(SCORE, json={"queries": ["q"], "documents": ["d"] * 8})
        too_late = client.post(SCORE, json=BODY | {"deadline_ms": 2001})

    limits = info["limits"]
    assert (limits["max_pairs"], limits["max_body_bytes"], limits["max_deadline_ms"]) == (7, 5000, 2000)
    assert limits["max_prompt_tokens"] == 2048
    assert info["cuda_graphs"] == [16, 32]
    assert info["templates"][0] == info["default_template"] == "query-likelihood@1"
    assert {"yes-no@1", "listwise@1"} <= set(info["templates"])
    assert too_many.json()["error"]["limit"] == limits["max_pairs"]
    assert too_late.json()["error"]["limit"] == limits["max_deadline_ms"]


def test_metrics_come_as_text_or_as_openmetrics() -> None:
    with service() as client:
        client.post(SCORE, json=BODY)
        text = client.get("/metrics")
        openmetrics = client.get("/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})

    assert text.headers["content-type"].startswith("text/plain")
    assert openmetrics.headers["content-type"].startswith("application/openmetrics-text")
    assert not text.text.startswith('"')
    families = open_metrics(openmetrics.text)  # type: ignore[no-untyped-call]  # the library has no types for it
    assert {family.name for family in families} >= {
        "scorer_items",
        "scorer_request_duration_seconds",
    }


def test_requests_are_counted_by_route_and_outcome_and_probes_are_not() -> None:
    engine = FakeEngine()
    with service(engine) as client:
        client.get("/health/live")
        client.post(SCORE, json=BODY)
        client.post(SCORE, json={})
        client.get("/nowhere/at/all")
        engine.late = {0}
        client.post(SCORE, json={"queries": ["q"], "documents": ["d", "e"]})
        counted = {
            (route, outcome): sample(client, "scorer_request_duration_seconds_count", route=route, outcome=outcome)
            for route in (SCORE, "unmatched", "/health/live", "/nowhere/at/all")
            for outcome in ("ok", "partial", "invalid")
        }

    assert {key: count for key, count in counted.items() if count} == {
        (SCORE, "ok"): 1,
        (SCORE, "partial"): 1,
        (SCORE, "invalid"): 1,
        ("unmatched", "invalid"): 1,
    }


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/v1/nothing", 404), ("GET", SCORE, 405)])
def test_unknown_routes_and_methods_are_answered_in_the_same_form(method: str, path: str, status: int) -> None:
    with service() as client:
        reply = client.request(method, path)

    assert reply.status_code == status
    assert reply.json()["error"]["request_id"] == reply.headers["x-request-id"]
    if status == 405:
        assert "POST" in reply.headers["allow"]


def test_errors_are_counted_by_the_code_that_the_client_got() -> None:
    with service() as client:
        codes = [
            client.post(SCORE, json={}).json()["error"]["code"],
            client.post(SCORE, json=BODY | {"deadline_ms": 10**9}).json()["error"]["code"],
            client.post(SCORE, content=b"{").status_code,
            client.get("/nowhere").json()["error"]["code"],
            client.post(SCORE, json=BODY).status_code,
        ]
        counted = {
            code: sample(client, "scorer_errors_total", code=code) for code in ("invalid_value", "not_found", "other")
        }

    assert codes == ["invalid_value", "invalid_value", 415, "not_found", 200]
    assert counted == {"invalid_value": 2, "not_found": 1, "other": 0}


def test_readiness_is_also_where_probes_of_other_services_look() -> None:
    engine = FakeEngine()
    with service(engine) as client:
        well = client.get("/health")
        engine.accepting = False
        ill = client.get("/health")

    assert (well.status_code, ill.status_code) == (200, 503)
    assert well.json()["status"] == "ready"
