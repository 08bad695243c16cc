"""The native route in lines: the same results as in one object, each as soon as it is known."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncGenerator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from litestar.testing import TestClient

from engine import DeadlineExceeded, EngineFault, OutOfCapacity, ScoreResult, ScoreTask
from scorer.dialects.native import native_dialect
from scorer.dialects.score_stream import PART_ROWS, stream_lines
from scorer.http.admission import Admission
from scorer.http.request_record import RequestRecord
from scorer.metrics import Metrics
from scorer.model_host import ModelHost
from scorer.service import ScoringService
from tests.helpers.fake_engine import FakeEngine
from tests.helpers.service import PATIENCE_S, SCORE, client_of, fake_application, fake_model, sample, service
from tests.helpers.tiny_service import tiny_service

NDJSON = "application/x-ndjson"
LINES = {"accept": NDJSON}
MANY = {"queries": ["what?", "who?"], "documents": [f"text {number}" for number in range(PART_ROWS)]}
"""Two parts."""


class EndingEngine(FakeEngine):
    """Ends the tasks after the first with an error, or refuses them."""

    def __init__(self, *, fail: Exception | None = None, refuse: Exception | None = None, first: int = 1) -> None:
        super().__init__()
        self._fail, self._refuse, self._first = fail, refuse, first

    def submit(self, task: ScoreTask) -> Future[ScoreResult]:
        late = len(self.tasks) >= self._first
        self.fail_with = self._fail if late else None
        self.refuse_with = self._refuse if late else None
        return super().submit(task)


def ask(client: TestClient[Any], body: object, **headers: str) -> httpx.Response:
    return client.post(SCORE, json=body, headers=LINES | headers)


def lines_of(reply: httpx.Response) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The results and the last line."""
    assert reply.status_code == 200
    assert reply.headers["content-type"].startswith(NDJSON)
    *results, end = map(json.loads, reply.text.splitlines())
    assert end["object"] == "score_batch.end"
    return results, end


def test_lines_are_the_results_of_the_object_whatever_the_number_of_parts() -> None:
    for body in ({"queries": ["q"], "documents": ["a", "b"]}, MANY):
        with service() as client:
            wanted = client.post(SCORE, json=body).json()
        with service() as client:
            results, end = lines_of(ask(client, body))

        by_index = sorted(results, key=lambda each: each["index"])
        assert [each["index"] for each in by_index] == list(range(len(wanted["results"])))
        for got, want in zip(by_index, wanted["results"], strict=True):
            assert {key: got[key] for key in got if key != "usage"} == {
                key: want[key] for key in want if key != "usage"
            }
            assert got["usage"]["prompt_tokens"] == want["usage"]["prompt_tokens"]
        assert end["counts"] == wanted["counts"]
        assert end["usage"]["prompt_tokens"] == wanted["usage"]["prompt_tokens"]
        assert {end[key] for key in ("model", "template", "order", "readout")} == {
            wanted[key] for key in ("model", "template", "order", "readout")
        }


def test_token_counts_of_lines_and_end_add_up() -> None:
    with service() as client:
        results, end = lines_of(ask(client, MANY))

    usage = end["usage"]
    assert usage["prompt_tokens"] == (
        usage["prompt_tokens_details"]["cached_tokens"] + usage["shared_tokens"] + usage["computed_tokens"]
    )
    for name in ("prompt_tokens", "shared_tokens", "computed_tokens"):
        assert usage[name] == sum(each["usage"][name] for each in results)


def test_pairs_go_in_as_lines_and_come_out_either_way() -> None:
    body = '{"top_n": 1}\n{"query": "q", "document": "a"}\n{"query": "q", "document": {"id": "d2", "text": "b"}}\n'
    with service() as client:
        whole = client.post(SCORE, content=body, headers={"content-type": NDJSON})
        results, end = lines_of(client.post(SCORE, content=body, headers={"content-type": NDJSON} | LINES))

    assert whole.status_code == 200
    assert whole.json()["object"] == "score_batch"
    assert [each["score"] for each in results] == [each["score"] for each in whole.json()["results"]]
    assert end["counts"]["ok"] == 2


def test_only_the_native_route_takes_lines() -> None:
    body = '{"query": "q", "documents": ["a"]}'
    with service() as client:
        reply = client.post("/v1/rerank", content=body, headers={"content-type": NDJSON})

    assert reply.status_code == 415


class Streaming:
    """A service with an engine that holds its tasks, and the record of one request."""

    def __init__(self) -> None:
        self.engine = FakeEngine(held=True)
        self.admission = Admission(max_requests=1, max_buffered_bytes=1000)
        self.service = ScoringService(
            host=cast(ModelHost, SimpleNamespace(require=lambda: fake_model(self.engine))),
            admission=self.admission,
            metrics=Metrics(),
            max_pairs=1000,
            request_timeout_s=PATIENCE_S,
        )
        self.record = RequestRecord(request_id="r", method="POST")

    async def begin(self) -> tuple[AsyncGenerator[bytes, None], list[Future[ScoreResult]]]:
        """The stream of ``MANY`` with its first chunk, and the task of the engine that is left."""
        lines = stream_lines(self.service, json.dumps(MANY).encode(), native_dialect(), self.record)
        first = asyncio.ensure_future(anext(lines))
        while self.engine.num_pending < 2:
            await asyncio.sleep(0)
        _, second = list(self.engine._pending)
        self.engine._end(second)
        chunk = await asyncio.wait_for(first, PATIENCE_S)
        assert [json.loads(line)["index"] for line in chunk.splitlines()] == list(range(PART_ROWS, 2 * PART_ROWS))
        return lines, list(self.engine._pending)


def test_a_part_is_answered_while_the_engine_still_holds_another() -> None:
    async def scenario() -> None:
        streaming = Streaming()
        lines, (left,) = await streaming.begin()
        assert streaming.admission.num_requests == 1
        streaming.engine._end(left)
        rest = [chunk async for chunk in lines]

        assert [json.loads(line)["index"] for line in rest[0].splitlines()] == list(range(PART_ROWS))
        assert json.loads(rest[1])["counts"]["ok"] == 2 * PART_ROWS
        assert streaming.admission.num_requests == 0
        assert streaming.record.num_pairs == 2 * PART_ROWS

    asyncio.run(scenario())


def test_when_the_reader_leaves_the_rest_is_cancelled_and_the_place_given_back() -> None:
    async def scenario() -> None:
        streaming = Streaming()
        lines, _ = await streaming.begin()
        await lines.aclose()

        assert streaming.engine.num_cancelled == 1
        assert streaming.admission.num_requests == 0

    asyncio.run(scenario())


def test_with_top_n_the_best_come_first_and_pairs_without_a_score_last() -> None:
    engine = FakeEngine()
    engine.poison = {5: math.nan}
    with service(engine) as client:
        wanted = client.post(SCORE, json=MANY | {"queries": ["q"], "top_n": 3}).json()["results"]
        results, end = lines_of(ask(client, MANY | {"queries": ["q"], "top_n": 3}))

    assert [each["index"] for each in results] == [each["index"] for each in wanted]
    assert end["counts"] == {"ok": PART_ROWS - 1, "error": 1, "unscored": 0}


def test_pairs_that_the_deadline_overtook_are_unscored() -> None:
    with service(EndingEngine(fail=DeadlineExceeded("late"))) as client:
        results, end = lines_of(ask(client, MANY))

    assert [each["status"] for each in results] == ["ok"] * PART_ROWS + ["unscored"] * PART_ROWS
    assert end["counts"] == {"ok": PART_ROWS, "error": 0, "unscored": PART_ROWS}


def test_a_fault_after_the_first_result_is_one_of_its_pairs() -> None:
    with service(EndingEngine(fail=EngineFault("broken"))) as client:
        results, end = lines_of(ask(client, MANY))
        lost = sample(client, "scorer_items_total", outcome="failed")

    assert {each["error"]["code"] for each in results[PART_ROWS:]} == {"engine_fault"}
    assert end["counts"]["error"] == lost == PART_ROWS


@pytest.mark.parametrize(("error", "status"), [(DeadlineExceeded("late"), 504), (EngineFault("broken"), 503)])
def test_an_error_before_the_first_result_is_the_answer(error: Exception, status: int) -> None:
    with service(EndingEngine(fail=error, first=0)) as client:
        reply = ask(client, MANY)
        again = sample(client, "scorer_ttft_seconds_count")

    assert reply.status_code == status
    assert reply.json()["error"]["code"]
    assert again == 0


def test_parts_are_taken_all_or_none() -> None:
    engine = EndingEngine(refuse=OutOfCapacity("full"))
    engine.held = True
    with service(engine) as client:
        reply = ask(client, MANY)

    assert reply.status_code == 429
    assert engine.num_pending == 0
    assert engine.num_cancelled == 1


def test_pairs_with_a_fault_of_their_own_are_lines_too() -> None:
    with service() as client:
        results, end = lines_of(ask(client, {"queries": ["", "q"], "documents": ["a"]}))

    assert sorted((each["index"], each["status"]) for each in results) == [(0, "error"), (1, "ok")]
    assert end["counts"] == {"ok": 1, "error": 1, "unscored": 0}


@pytest.mark.parametrize("body", [{"queries": []}, {"queries": ["q"], "documents": ["d"], "model": "other"}])
def test_refusals_are_answered_as_ever(body: dict[str, Any]) -> None:
    with service() as client:
        reply = ask(client, body)

    assert reply.status_code in {404, 422}
    assert reply.json()["error"]["code"]


def test_the_place_among_the_requests_under_way_is_given_back() -> None:
    application = fake_application(FakeEngine(), max_concurrent_requests=1)
    with client_of(application) as client:
        for _ in range(3):
            lines_of(ask(client, MANY))

        assert application.admission.num_requests == 0
        assert application.admission.buffered_bytes == 0


@pytest.mark.parametrize("options", [{}, {"readout": {"labels": ["yes sir", "no sir"]}}, {"cache": {"keep": "none"}}])
def test_over_a_real_engine_lines_and_object_agree(options: dict[str, Any]) -> None:
    body = MANY | options
    with tiny_service() as client:
        wanted = client.post(SCORE, json=body).json()["results"]
        results, end = lines_of(ask(client, body))

    results.sort(key=lambda each: each["index"])
    assert [each["score"] for each in results] == pytest.approx([each["score"] for each in wanted], rel=1e-5)
    assert end["counts"]["ok"] == len(wanted)
