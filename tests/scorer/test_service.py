"""What happens between admission and the answer: deadlines, refusals, faults, departures."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from litestar.testing import TestClient

from engine import DeadlineExceeded, EngineClosed, EngineFault, InvalidTask, OutOfCapacity
from scorer.app import Application
from scorer.scoring.batch_plan import plan_batch
from scorer.scoring.batch_results import scored_batch
from tests.helpers.fake_engine import FakeEngine
from tests.helpers.service import RERANK, SCORE, client_of, fake_application, sample, service, until

BODY: dict[str, Any] = {"queries": ["q"], "documents": ["d", "e", "f"]}


@contextmanager
def in_flight(client: TestClient[Any], engine: FakeEngine, count: int) -> Iterator[list[httpx.Response]]:
    """``count`` requests wait in the engine during the block; their replies are there after it."""
    replies: list[httpx.Response] = []
    engine.held = True
    with ThreadPoolExecutor(count) as pool:
        waiting = [pool.submit(client.post, SCORE, json=BODY) for _ in range(count)]
        until(lambda: engine.num_pending == count)
        try:
            yield replies
        finally:
            engine.held = False
            engine.release()
        replies += [each.result() for each in waiting]


@pytest.mark.parametrize(
    ("error", "status", "code", "outcome"),
    [
        (EngineFault("a step failed"), 503, "engine_fault", "fault"),
        (EngineClosed("draining"), 503, "engine_closed", "unavailable"),
        (DeadlineExceeded("too late"), 504, "deadline_exceeded", "deadline"),
    ],
)
def test_a_task_that_ends_without_a_result_is_answered_by_the_table(
    error: Exception, status: int, code: str, outcome: str
) -> None:
    engine = FakeEngine()
    engine.fail_with = error
    with service(engine) as client:
        reply = client.post(SCORE, json=BODY)
        counted = sample(client, "scorer_request_duration_seconds_count", route=SCORE, outcome=outcome)
        lost = sample(client, "scorer_items_total", outcome="deadline" if status == 504 else "failed")

    assert reply.status_code == status
    assert reply.json()["error"]["code"] == code
    assert counted == 1
    assert lost == 3


@pytest.mark.parametrize("route", [SCORE, RERANK])
def test_a_full_queue_is_429_with_a_whole_number_of_seconds(route: str) -> None:
    engine = FakeEngine()
    engine.refuse_with = OutOfCapacity("the queue is full", retry_after_s=3.2)
    with service(engine) as client:
        reply = client.post(route, json=BODY | {"query": "q"} if route == RERANK else BODY)

    assert reply.status_code == 429
    assert reply.headers["retry-after"] == "4"
    assert reply.json()["error"]["retryable"] is True


def test_a_task_that_can_never_run_is_the_clients_to_change() -> None:
    engine = FakeEngine()
    engine.refuse_with = InvalidTask("row 0 has 9000 tokens", row=0)
    with service(engine) as client:
        assert client.post(SCORE, json=BODY).status_code == 422


def test_after_a_fault_the_next_request_is_served() -> None:
    engine = FakeEngine()
    engine.fail_with = EngineFault("a step failed")
    with service(engine) as client:
        client.post(SCORE, json=BODY)
        engine.fail_with = None
        assert client.post(SCORE, json=BODY).status_code == 200


def test_pairs_that_the_deadline_overtook_are_unscored_and_the_others_are_answered() -> None:
    engine = FakeEngine()
    engine.late = {1, 2}
    with service(engine) as client:
        reply = client.post(SCORE, json=BODY)

    results = reply.json()["results"]
    assert reply.status_code == 200
    assert [each["status"] for each in results] == ["ok", "unscored", "unscored"]
    assert results[1]["error"]["code"] == "deadline_exceeded"
    assert results[1]["error"]["retryable"] is True
    assert reply.json()["counts"] == {"ok": 1, "error": 0, "unscored": 2}


def test_the_deadline_of_a_task_counts_from_arrival_and_has_a_default() -> None:
    engine = FakeEngine()
    before = time.monotonic()
    with service(engine, request_timeout_s=30.0) as client:
        client.post(SCORE, json=BODY | {"deadline_ms": 1500})
        client.post(SCORE, json=BODY)
    after = time.monotonic()

    asked, standard = (task.deadline_s for task in engine.tasks)
    assert asked is not None
    assert standard is not None
    assert before + 1.5 <= asked <= after + 1.5
    assert before + 30 <= standard <= after + 30


def test_a_step_that_never_ends_does_not_hold_the_request_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scorer.service._GRACE_S", 0.05)
    monkeypatch.setattr("scorer.service._WATCH_S", 0.01)
    engine = FakeEngine(held=True)
    with service(engine) as client:
        reply = client.post(SCORE, json=BODY | {"deadline_ms": 1})

        assert reply.status_code == 504
        assert engine.num_pending == 0
        assert engine.num_cancelled == 1


def test_b036_requests_that_wait_for_a_dead_engine_are_answered() -> None:
    engine = FakeEngine()
    with service(engine) as client, in_flight(client, engine, 3) as replies:
        engine.alive = False
        until(lambda: engine.num_pending == 0)

    assert [reply.status_code for reply in replies] == [503] * 3
    assert {reply.json()["error"]["code"] for reply in replies} == {"engine_closed"}


def test_b036_time_to_first_score_is_recorded_once_for_each_request_that_got_one() -> None:
    engine = FakeEngine()
    engine.first_score_s = 0.3
    with service(engine) as client:
        for _ in range(8):
            client.post(SCORE, json=BODY)
        engine.fail_with = EngineFault("a step failed")
        for _ in range(2):
            client.post(SCORE, json=BODY)

        assert sample(client, "scorer_ttft_seconds_count") == 8
        assert sample(client, "scorer_ttft_seconds_bucket", le="0.25") == 0
        assert sample(client, "scorer_ttft_seconds_sum") >= 2.4
        assert sample(client, "scorer_request_duration_seconds_count", route=SCORE, outcome="ok") == 8
        assert sample(client, "scorer_request_duration_seconds_count", route=SCORE, outcome="fault") == 2
        for stage in ("tokenise", "queue", "prefill", "readout", "respond"):
            assert sample(client, "scorer_stage_duration_seconds_count", stage=stage) == 8


def test_b036_the_top_bucket_is_not_below_the_request_limit() -> None:
    with service(request_timeout_s=300.0) as client:
        client.post(SCORE, json=BODY)

        assert sample(client, "scorer_ttft_seconds_bucket", le="300.0") == 1


def test_b035_one_document_and_a_list_of_one_meet_the_same_limit() -> None:
    single = {"query": "q", "documents": ["d"]}
    listed = {"queries": ["q"], "documents": ["d"]}
    engine = FakeEngine()
    with service(engine, max_concurrent_requests=8) as client:
        with in_flight(client, engine, 8) as replies:
            refused = [client.post(RERANK, json=single) for _ in range(4)] + [
                client.post(SCORE, json=listed) for _ in range(4)
            ]
        after = [client.post(RERANK, json=single), client.post(SCORE, json=listed)]

    assert [reply.status_code for reply in replies] == [200] * 8
    for reply in refused:
        assert reply.status_code == 429
        assert int(reply.headers["retry-after"]) >= 1
        assert reply.json()["error"]["code"] == "overloaded"
        assert (reply.json()["error"]["value"], reply.json()["error"]["limit"]) == (8, 8)
    assert [reply.status_code for reply in after] == [200, 200]


def test_b035_a_burst_is_answered_with_200_or_429_and_leaves_nothing_behind() -> None:
    application = fake_application(FakeEngine(), max_concurrent_requests=2)
    with client_of(application) as client, ThreadPoolExecutor(16) as pool:
        statuses = {reply.status_code for reply in pool.map(lambda _: client.post(SCORE, json=BODY), range(64))}

        assert statuses <= {200, 429}
        assert 200 in statuses
        assert application.admission.num_requests == 0
        assert application.admission.buffered_bytes == 0


def test_tokenising_does_not_hold_up_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    planned, may_plan = threading.Event(), threading.Event()
    plan = plan_batch

    def slow(*arguments: Any, **options: Any) -> Any:
        planned.set()
        assert may_plan.wait(20)
        return plan(*arguments, **options)

    monkeypatch.setattr("scorer.scoring.request_plan.plan_batch", slow)
    with service() as client, ThreadPoolExecutor(1) as pool:
        scoring = pool.submit(client.post, SCORE, json=BODY)
        assert planned.wait(20)
        assert client.get("/health/live").status_code == 200
        assert not scoring.done()
        may_plan.set()
        assert scoring.result().status_code == 200


@pytest.mark.parametrize(("num_documents", "in_a_thread"), [(1, False), (32, False), (33, True)])
def test_only_a_short_answer_is_made_on_the_event_loop(
    monkeypatch: pytest.MonkeyPatch, num_documents: int, in_a_thread: bool
) -> None:
    threads: list[str] = []

    def recorded(*arguments: Any, **options: Any) -> Any:
        threads.append(threading.current_thread().name)
        return scored_batch(*arguments, **options)

    monkeypatch.setattr("scorer.service.scored_batch", recorded)
    body = {"queries": ["q"], "documents": ["d"] * num_documents, "template": "yes-no"}
    with service() as client:
        assert client.post(SCORE, json=body).status_code == 200

    (thread,) = threads
    assert thread.startswith("asyncio_") == in_a_thread


class Connection:
    """An ASGI connection that sends a body and can then be closed."""

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body
        self._gone = asyncio.Event()
        self.sent: list[Any] = []
        self.scope = {
            "type": "http", "method": "POST", "path": SCORE, "raw_path": SCORE.encode(), "query_string": b"",
            "headers": [(b"content-type", b"application/json")], "scheme": "http", "http_version": "1.1",
            "server": ("127.0.0.1", 80), "client": ("127.0.0.1", 1), "root_path": "", "asgi": {"version": "3.0"},
            "extensions": {}, "state": {},
        }  # fmt: skip

    async def receive(self) -> Any:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.sent.append(message)

    def close(self) -> None:
        self._gone.set()


async def _reached(condition: Any) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.001)


def _run(scenario: Any, application: Application) -> None:
    async def main() -> None:
        application.host.start()
        await _reached(lambda: application.host.phase == "ready")
        await scenario()
        assert application.admission.num_requests == 0
        assert application.admission.buffered_bytes == 0

    asyncio.run(main())


BYTES = b'{"queries":["q"],"documents":["d"]}'


def test_b025_a_client_that_leaves_frees_what_the_engine_holds() -> None:
    engine = FakeEngine(held=True)
    application = fake_application(engine)

    async def scenario() -> None:
        for number in range(1, 21):
            connection = Connection(BYTES)
            serving = asyncio.ensure_future(application.asgi(connection.scope, connection.receive, connection.send))
            await _reached(lambda: engine.num_pending == 1)
            connection.close()
            await serving
            assert engine.num_pending == 0
            assert engine.num_cancelled == number
            assert connection.sent[0]["status"] == 499

    _run(scenario, application)


def test_b025_a_client_that_leaves_while_its_request_is_tokenised_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = FakeEngine(held=True)
    application = fake_application(engine)
    planning, may_plan = threading.Event(), threading.Event()
    plan = plan_batch

    def slow(*arguments: Any, **options: Any) -> Any:
        planning.set()
        assert may_plan.wait(20)
        return plan(*arguments, **options)

    monkeypatch.setattr("scorer.scoring.request_plan.plan_batch", slow)

    async def scenario() -> None:
        connection = Connection(BYTES)
        serving = asyncio.ensure_future(application.asgi(connection.scope, connection.receive, connection.send))
        await _reached(planning.is_set)
        connection.close()
        await serving
        may_plan.set()
        await _reached(lambda: engine.num_cancelled == 1)
        assert engine.num_pending == 0

    _run(scenario, application)


def test_b025_a_client_that_leaves_before_its_turn_costs_no_tokenising(monkeypatch: pytest.MonkeyPatch) -> None:
    application = fake_application(FakeEngine())
    may_plan = threading.Event()
    num_planned = 0
    plan = plan_batch

    def slow(*arguments: Any, **options: Any) -> Any:
        nonlocal num_planned
        num_planned += 1
        assert may_plan.wait(20)
        return plan(*arguments, **options)

    monkeypatch.setattr("scorer.scoring.request_plan.plan_batch", slow)

    async def scenario() -> None:
        connections = [Connection(BYTES) for _ in range(30)]
        serving = [asyncio.ensure_future(application.asgi(each.scope, each.receive, each.send)) for each in connections]
        await _reached(lambda: application.admission.num_requests == 30)
        for connection in connections:
            connection.close()
        await asyncio.gather(*serving)
        may_plan.set()
        after = Connection(BYTES)
        await application.asgi(after.scope, after.receive, after.send)
        assert after.sent[0]["status"] == 200
        assert num_planned < 30

    _run(scenario, application)
