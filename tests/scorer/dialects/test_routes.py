"""The native route, from body to reply, over a fake engine."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from scorer.dialects.schema import MAX_COUNT
from tests.helpers.fake_engine import FakeEngine
from tests.helpers.service import SCORE, sample, service

QUERIES = ["what is a tree?", "who is there?"]
DOCUMENTS = ["a tree is a plant", {"id": "d2", "text": "nobody is there"}, "something else"]
BODY: dict[str, Any] = {"queries": QUERIES, "documents": DOCUMENTS}


def test_scores_every_query_with_every_document_queries_outer() -> None:
    with service() as client:
        reply = client.post(SCORE, json=BODY)

    assert reply.status_code == 200
    results = reply.json()["results"]
    assert [(each["query_index"], each["document_index"]) for each in results] == [
        (0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)
    ]  # fmt: skip
    assert [each["index"] for each in results] == list(range(6))
    assert [each["document_id"] for each in results] == [None, "d2", None, None, "d2", None]
    assert all(each["status"] == "ok" and math.isfinite(each["score"]) for each in results)


def test_scores_the_pairs_that_are_listed_in_their_order() -> None:
    with service() as client:
        everything = client.post(SCORE, json=BODY).json()["results"]
        chosen = client.post(SCORE, json=BODY | {"pairs": [[1, 2], [0, 0]]}).json()["results"]

    assert [(each["query_index"], each["document_index"]) for each in chosen] == [(1, 2), (0, 0)]
    assert [each["score"] for each in chosen] == [everything[5]["score"], everything[0]["score"]]


def test_top_n_gives_the_best_first_and_failed_pairs_after_them() -> None:
    engine = FakeEngine()
    engine.poison = {4: math.nan}
    with service(engine) as client:
        everything = client.post(SCORE, json=BODY).json()["results"]
        best = client.post(SCORE, json=BODY | {"top_n": 2}).json()

    scored = sorted((each for each in everything if each["status"] == "ok"), key=lambda each: -each["score"])
    assert [each["index"] for each in best["results"]] == [scored[0]["index"], scored[1]["index"], 4]
    assert best["counts"] == {"ok": 5, "error": 1, "unscored": 0}


def test_equal_scores_keep_the_order_of_their_index() -> None:
    with service() as client:
        reply = client.post(SCORE, json={"queries": ["q"], "documents": ["same", "same", "same"], "top_n": 3})

    assert [each["index"] for each in reply.json()["results"]] == [0, 1, 2]


def test_likelihood_gives_mean_sum_and_length_of_the_target() -> None:
    with service() as client:
        result = client.post(SCORE, json={"queries": ["a question"], "documents": ["text"]}).json()["results"][0]

    assert result["target_tokens"] > 1
    assert result["score"] == pytest.approx(result["log_prob_sum"] / result["target_tokens"], rel=1e-5)
    assert "labels" not in result
    assert "label_mass" not in result


def test_labels_give_shares_that_add_up_and_the_positive_one_is_the_score() -> None:
    readout = {"kind": "labels", "labels": ["Yes", "No"], "positive": "No", "label_mass": True}
    with service() as client:
        reply = client.post(SCORE, json=BODY | {"readout": readout}).json()

    assert reply["template"] == "yes-no@1"
    assert reply["readout"] == "labels"
    for result in reply["results"]:
        assert sum(result["labels"].values()) == pytest.approx(1.0, abs=1e-6)
        assert result["score"] == result["labels"]["No"]
        assert result["label"] == max(result["labels"], key=result["labels"].__getitem__)
        assert 0 < result["label_mass"] <= 1


def test_usage_adds_up_for_every_pair_and_for_the_batch() -> None:
    with service() as client:
        cold = client.post(SCORE, json=BODY)
        warm = client.post(SCORE, json=BODY)

    for reply in (cold, warm):
        usage = reply.json()["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        assert usage["prompt_tokens"] == cached + usage["shared_tokens"] + usage["computed_tokens"]
        assert usage["total_tokens"] == usage["prompt_tokens"]
        assert reply.headers["x-cached-tokens"] == str(cached)
        assert reply.headers["x-computed-tokens"] == str(usage["computed_tokens"])
        for result in reply.json()["results"]:
            item = result["usage"]
            assert item["prompt_tokens"] == item["cached_tokens"] + item["shared_tokens"] + item["computed_tokens"]
        for name in ("shared_tokens", "computed_tokens"):
            assert usage[name] == sum(result["usage"][name] for result in reply.json()["results"])
    assert cold.headers["x-cached-tokens"] == "0"
    assert int(warm.headers["x-cached-tokens"]) > 0
    assert warm.json()["results"] != []


def test_warm_scores_equal_cold_scores() -> None:
    with service() as client:
        replies = [client.post(SCORE, json=BODY).json()["results"] for _ in range(2)]

    assert [each["score"] for each in replies[0]] == [each["score"] for each in replies[1]]


def test_timings_are_those_that_the_engine_reports() -> None:
    with service() as client:
        timings = client.post(SCORE, json=BODY).json()["timings"]

    assert (timings["queue_ms"], timings["prefill_ms"], timings["readout_ms"]) == (2.0, 10.0, 3.0)
    assert timings["ttft_ms"] >= 1.0  # of which the engine says 1 ms
    assert timings["total_ms"] > 0


def test_b010_a_score_that_is_not_finite_is_an_error_of_its_pair_alone() -> None:
    engine = FakeEngine()
    with service(engine) as client:
        whole = client.post(SCORE, json=BODY).json()["results"]
        for poison in (math.nan, math.inf, -math.inf):
            engine.poison = {1: poison}
            reply = client.post(SCORE, json=BODY)
            results = reply.json()["results"]

            assert reply.status_code == 200
            assert results[1]["status"] == "error"
            assert results[1]["error"]["code"] == "non_finite_score"
            assert "score" not in results[1]
            assert '"score":null' not in reply.text.replace(" ", "")
            assert [each["score"] for each in results if each["index"] != 1] == [
                each["score"] for each in whole if each["index"] != 1
            ]
        assert sample(client, "scorer_items_total", outcome="non_finite") == 3


@pytest.mark.parametrize("readout", [{"labels": ["Yes", "No"]}, {"labels": ["yes sir", "no sir"], "label_mass": True}])
def test_b010_holds_for_labels_of_one_token_and_of_several(readout: dict[str, Any]) -> None:
    engine = FakeEngine()
    with service(engine) as client:
        for poison in (math.nan, math.inf, -math.inf):
            engine.poison = {0: poison}
            results = client.post(SCORE, json=BODY | {"readout": readout}).json()["results"]

            assert results[0]["status"] == "error"
            assert all(each["status"] == "ok" for each in results[1:])


def test_b011_labels_that_share_their_first_token_are_scored_over_all_their_tokens() -> None:
    engine = FakeEngine()
    with service(engine) as client:
        reply = client.post(SCORE, json=BODY | {"readout": {"labels": ["the query", "the question"]}})

    assert reply.status_code == 200
    assert len(engine.tasks[0].rows) == 2 * 6
    for result in reply.json()["results"]:
        first, second = result["labels"].values()
        assert first != second
        assert first + second == pytest.approx(1.0, abs=1e-6)


def test_labels_with_the_same_tokens_are_refused_by_name() -> None:
    with service() as client:
        reply = client.post(SCORE, json=BODY | {"readout": {"labels": ["Yes", "No", "Yes"]}})

    assert reply.status_code == 422
    assert reply.json()["error"]["field"] == "readout.labels[2]"
    assert reply.json()["error"]["message"].count("Yes") == 2


def test_a_label_that_begins_another_one_is_refused() -> None:
    with service() as client:
        reply = client.post(SCORE, json=BODY | {"readout": {"labels": ["Yes", "Yes the"]}})

    assert reply.status_code == 422
    assert reply.json()["error"]["field"] == "readout.labels[1]"


@pytest.mark.parametrize(
    ("readout", "field"),
    [
        ({"kind": "likelihood", "labels": ["a", "b"]}, "readout.labels"),
        ({"kind": "likelihood", "label_mass": True}, "readout.label_mass"),
        ({"temperature": 2.0}, "readout.temperature"),
        ({"labels": ["Yes"]}, "readout.labels"),
        ({"labels": ["Yes", "No"], "positive": "Maybe"}, "readout.positive"),
        ({"labels": ["Yes", "No"], "normalise": "vocabulary", "temperature": 2.0}, "readout.temperature"),
        ({"labels": ["Yes", ""]}, "readout.labels[1]"),
        ({"labels": []}, "readout.labels"),
        ({"kind": "generate"}, "readout.kind"),
        ({"labels": ["Yes", "No"], "temperature": 0}, "readout.temperature"),
        ({"labels": ["Yes", "No"], "temperature": 1e-300}, "readout.temperature"),
    ],
)
def test_readout_options_that_make_no_sense_are_refused(readout: dict[str, Any], field: str) -> None:
    with service() as client:
        reply = client.post(SCORE, json=BODY | {"readout": readout})

    assert reply.status_code == 422
    assert reply.json()["error"]["field"] == field


def test_a_template_that_is_read_otherwise_is_refused() -> None:
    with service() as client:
        named = client.post(SCORE, json=BODY | {"template": "query-likelihood", "readout": {"labels": ["Yes", "No"]}})
        unknown = client.post(SCORE, json=BODY | {"template": "nothing@7"})
        file = client.post(SCORE, json=BODY | {"template": "/etc/passwd.toml"})

    assert named.status_code == 422
    assert named.json()["error"]["field"] == "readout.kind"
    assert unknown.status_code == 422
    assert "yes-no@1" in unknown.json()["error"]["message"]
    assert file.json()["error"] | {"request_id": ""} == unknown.json()["error"] | {"request_id": ""}


def test_an_order_that_the_template_lacks_is_refused() -> None:
    with service() as client:
        lacking = client.post(SCORE, json=BODY | {"order": "query_first"})
        having = client.post(SCORE, json=BODY | {"order": "query_first", "template": "yes-no"})

    assert lacking.status_code == 422
    assert lacking.json()["error"]["field"] == "order"
    assert having.json()["order"] == "query_first"


def test_instruction_and_system_text_change_the_prompt() -> None:
    with service() as client:
        plain, told, framed = (
            client.post(SCORE, json=BODY | extra).json()["results"][0]["score"]
            for extra in ({}, {"instruction": "Be strict."}, {"system": "You are strict."})
        )

    assert len({plain, told, framed}) == 3


def test_temperature_one_changes_nothing_and_a_high_one_evens_out() -> None:
    def shares(temperature: float) -> list[float]:
        readout = {"labels": ["Yes", "No"], "temperature": temperature}
        return list(client.post(SCORE, json=BODY | {"readout": readout}).json()["results"][0]["labels"].values())

    with service() as client:
        base, hot = shares(1.0), shares(100.0)
        plain = client.post(SCORE, json=BODY | {"readout": {"labels": ["Yes", "No"]}}).json()["results"][0]["labels"]

    assert base == list(plain.values())
    assert abs(hot[0] - 0.5) < abs(base[0] - 0.5)


def test_b006_an_over_long_document_meets_the_same_end_alone_and_among_others() -> None:
    long = "alpha beta " * 300
    limits = {"max_tokens_per_doc": 50}
    with service() as client:
        for options, status in ((limits, "ok"), (limits | {"truncate": "error"}, "error")):
            alone, first, last = (
                client.post(SCORE, json={"queries": ["q"], "documents": documents} | options).json()["results"]
                for documents in ([long], [long, "b", "c"], ["b", "c", long])
            )

            for result in (alone[0], first[0], last[2]):
                assert result["status"] == status
            if status == "ok":
                assert alone[0]["score"] == first[0]["score"] == last[2]["score"]
                assert alone[0]["usage"]["truncated_tokens"] == first[0]["usage"]["truncated_tokens"] > 0
            else:
                assert last[2]["error"] == first[0]["error"] | {"field": "documents[2]"}
                assert last[2]["error"]["code"] == "document_too_long"
                assert last[2]["error"]["value"] > last[2]["error"]["limit"] == 50
                assert all(each["status"] == "ok" for each in last[:2])


def test_a_query_that_does_not_fit_is_an_error_of_its_pairs_alone() -> None:
    engine = FakeEngine(max_row_tokens=200)
    with service(engine) as client:
        body = {"queries": ["alpha " * 500, "fine"], "documents": ["a", "b"]}
        results = client.post(SCORE, json=body).json()["results"]

    assert [each["status"] for each in results] == ["error", "error", "ok", "ok"]
    assert results[0]["error"]["field"] == "queries[0]"
    assert results[0]["error"]["code"] == "query_too_long"


def test_a_batch_without_any_prompt_needs_no_engine() -> None:
    engine = FakeEngine()
    with service(engine) as client:
        reply = client.post(SCORE, json={"queries": [""], "documents": ["a"]})

    assert reply.status_code == 200
    assert reply.json()["counts"] == {"ok": 0, "error": 1, "unscored": 0}
    assert reply.json()["results"][0]["error"]["code"] == "empty_target"
    assert reply.json()["timings"]["ttft_ms"] is None
    assert engine.tasks == []


def test_b007_empty_and_blank_documents_have_scores_of_their_own() -> None:
    documents = ["", "   ", "\n\t", "real text"]
    with service() as client:
        results = client.post(SCORE, json={"queries": ["what?"], "documents": documents}).json()["results"]
        alone = client.post(SCORE, json={"queries": ["what?"], "documents": ["real text"]}).json()["results"]

    assert [each["index"] for each in results] == [0, 1, 2, 3]
    assert all(math.isfinite(each["score"]) for each in results)
    assert results[3]["score"] == alone[0]["score"]


def test_pairs_that_point_nowhere_are_refused_with_their_path() -> None:
    with service() as client:
        query = client.post(SCORE, json=BODY | {"pairs": [[0, 0], [2, 0]]}).json()["error"]
        document = client.post(SCORE, json=BODY | {"pairs": [[0, 3]]}).json()["error"]

    assert (query["field"], query["value"], query["limit"]) == ("pairs[1][0]", 2, 1)
    assert (document["field"], document["value"], document["limit"]) == ("pairs[0][1]", 3, 2)


def test_more_pairs_than_allowed_are_refused_before_they_are_made() -> None:
    with service(max_pairs=5) as client:
        everything = client.post(SCORE, json=BODY)
        listed = client.post(SCORE, json=BODY | {"pairs": [[0, 0]] * 6})
        branches = client.post(
            SCORE, json=BODY | {"pairs": [[0, 0]] * 3, "readout": {"labels": ["the query", "the question"]}}
        )

    assert everything.status_code == listed.status_code == branches.status_code == 422
    assert [everything.json()["error"][name] for name in ("field", "value", "limit")] == ["documents", 6, 5]
    assert [listed.json()["error"][name] for name in ("field", "value", "limit")] == ["pairs", 6, 5]
    assert [branches.json()["error"][name] for name in ("field", "value", "limit")] == ["readout.labels", 6, 5]


@pytest.mark.parametrize("top_n", [None, 1, 3, 6, 1000])
def test_top_n_within_its_bounds(top_n: int | None) -> None:
    with service() as client:
        results = client.post(SCORE, json=BODY | {"top_n": top_n}).json()["results"]

    assert len(results) == min(top_n or 6, 6)


@pytest.mark.parametrize("top_n", [0, -1, True, 2.0, "2", 2**63, 2**64, MAX_COUNT + 1])
def test_b014_top_n_outside_its_bounds_is_refused(top_n: object) -> None:
    with service() as client:
        reply = client.post(SCORE, json=BODY | {"top_n": top_n})

    assert reply.status_code == 422
    assert reply.json()["error"]["field"] == "top_n"


@pytest.mark.parametrize(
    ("extra", "field"),
    [
        ({"what": 1}, "what"),
        ({"readout": {"what": 1}}, "readout.what"),
        ({"cache": {"ttl_s": 60}}, "cache.ttl_s"),
        ({"documents": ["a", {"ref": "segment"}]}, "documents[1].ref"),
        ({"documents": ["a", {"text": "b", "what": 1}]}, "documents[1].what"),
        ({"label_token_ids": [1, 2**63]}, "label_token_ids"),
    ],
)
def test_unknown_fields_are_refused_with_their_path(extra: dict[str, Any], field: str) -> None:
    with service() as client:
        reply = client.post(SCORE, json=BODY | extra)

    assert reply.status_code == 422
    assert reply.json()["error"]["field"] == field


@pytest.mark.parametrize(
    ("extra", "field"),
    [
        ({"queries": []}, "queries"),
        ({"documents": "text"}, "documents"),
        ({"documents": [1]}, "documents[0]"),
        ({"documents": [None]}, "documents[0]"),
        ({"pairs": "some"}, "pairs"),
        ({"pairs": []}, "pairs"),
        ({"pairs": [[0]]}, "pairs[0]"),
        ({"pairs": [[0, -1]]}, "pairs[0][1]"),
        ({"deadline_ms": 0}, "deadline_ms"),
        ({"deadline_ms": 1.5}, "deadline_ms"),
        ({"deadline_ms": 60_001}, "deadline_ms"),
        ({"max_tokens_per_doc": 0}, "max_tokens_per_doc"),
        ({"truncate": True}, "truncate"),
        ({"order": "none"}, "order"),
        ({"request_id": "two words"}, "request_id"),
        ({"cache": {"keep": "some"}}, "cache.keep"),
    ],
)
def test_wrong_types_and_values_are_refused_with_their_path(extra: dict[str, Any], field: str) -> None:
    with service() as client:
        reply = client.post(SCORE, json=BODY | extra)

    assert reply.status_code == 422
    assert reply.json()["error"]["field"] == field
    assert reply.json()["error"]["retryable"] is False


def test_another_model_is_not_found() -> None:
    with service() as client:
        wrong = client.post(SCORE, json=BODY | {"model": "gpt"})
        right = client.post(SCORE, json=BODY | {"model": "fake"})

    assert wrong.status_code == 404
    assert wrong.json()["error"]["code"] == "model_not_found"
    assert wrong.json()["error"]["limit"] == "fake"
    assert right.status_code == 200


def test_the_request_id_comes_from_the_body_then_the_header_then_anew() -> None:
    with service() as client:
        both = client.post(SCORE, json=BODY | {"request_id": "body-1"}, headers={"x-request-id": "header-1"})
        header = client.post(SCORE, json=BODY, headers={"x-request-id": "header-1"})
        bad = client.post(SCORE, json=BODY, headers={"x-request-id": "no good!"})

    assert both.json()["id"] == both.headers["x-request-id"] == "body-1"
    assert header.json()["id"] == header.headers["x-request-id"] == "header-1"
    assert bad.json()["id"] == bad.headers["x-request-id"] != "no good!"


@pytest.mark.parametrize(
    ("keep", "kept_rows"), [("none", [0, 0]), ("all", ["whole", "whole"]), ("auto", ["document", "document"])]
)
def test_cache_keep_says_how_much_of_each_prompt_stays(keep: str, kept_rows: list[int | str]) -> None:
    engine = FakeEngine()
    with service(engine) as client:
        client.post(SCORE, json={"queries": ["q one", "q two"], "documents": ["text"], "cache": {"keep": keep}})

    rows = engine.tasks[0].rows
    for row, kept in zip(rows, kept_rows, strict=True):
        if kept == "whole":
            assert row.keep_tokens == len(row.tokens)
        elif kept == "document":
            assert 0 < row.keep_tokens < len(row.tokens)
            assert (row.tokens[: row.keep_tokens] == rows[0].tokens[: row.keep_tokens]).all()
        else:
            assert row.keep_tokens == 0


def test_cache_keep_prefix_keeps_what_all_pairs_have_in_common() -> None:
    engine = FakeEngine()
    with service(engine) as client:
        client.post(SCORE, json={"queries": ["q"], "documents": ["one", "two"], "cache": {"keep": "prefix"}})
        client.post(SCORE, json={"queries": ["q"], "documents": ["one", "two"]})

    common, documents = (task.rows for task in engine.tasks)
    kept = common[0].keep_tokens
    assert common[1].keep_tokens == kept < documents[0].keep_tokens
    assert common[0].tokens[:kept].tolist() == common[1].tokens[:kept].tolist()
    assert common[0].tokens[kept] != common[1].tokens[kept]


def test_b022_nothing_of_a_body_but_a_salt_chooses_the_namespace() -> None:
    engine = FakeEngine()
    with service(engine) as client:
        client.post(SCORE, json=BODY)
        client.post(SCORE, json=BODY | {"request_id": "other", "system": "x", "instruction": "y"})
        client.post("/v1/rerank", json={"query": "q", "documents": ["d"], "user": "me"})
        client.post(SCORE, json=BODY | {"cache": {"key": "rev2"}})

    *plain, salted = (task.namespace for task in engine.tasks)
    assert set(plain) == {"rev1"}
    assert re.fullmatch(r"rev1/[0-9a-f]{64}", salted)  # below the one that the service chose, never another one
