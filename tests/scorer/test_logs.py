from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from scorer.http.request_record import RequestRecord
from scorer.http.trace_context import TraceContext
from scorer.logs import configure, log_request


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    before = root.handlers, root.level
    target = io.StringIO()
    configure("info", target)
    yield target
    root.handlers, level = before
    root.setLevel(level)


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_record_is_one_line_whatever_it_holds(stream: io.StringIO) -> None:
    logging.getLogger("x").info("two\nlines %s", '"quoted"', extra={"fields": {"number": 1}})

    (line,) = lines(stream)
    assert line["message"] == 'two\nlines "quoted"'
    assert line["number"] == 1
    assert (line["level"], line["logger"]) == ("info", "x")


def test_an_exception_is_part_of_its_line(stream: io.StringIO) -> None:
    logging.getLogger("x").error("it failed", exc_info=ValueError("broken"))

    (line,) = lines(stream)
    assert "ValueError: broken" in str(line["exception"])


@pytest.mark.parametrize(
    ("scoring", "route", "status", "num_lines"),
    [
        (True, "/v1/rerank", 200, 1),
        (False, "/health/ready", 200, 0),
        (False, "/health/ready", 503, 0),
        (False, "unmatched", 404, 1),
    ],
)
def test_scoring_and_strays_are_logged_and_probes_are_not(
    stream: io.StringIO, *, scoring: bool, route: str, status: int, num_lines: int
) -> None:
    record = RequestRecord(request_id="r", method="GET", scoring=scoring)
    log_request(record, route=route, status=status)

    assert len(lines(stream)) == num_lines


def test_a_line_names_the_trace_and_the_span_that_called(stream: io.StringIO) -> None:
    trace = TraceContext(trace_id="a" * 32, span_id="b" * 16)
    record = RequestRecord(request_id="r", method="POST", scoring=True, trace=trace)
    log_request(record, route="/v1/rerank", status=200)

    (line,) = lines(stream)
    assert (line["trace_id"], line["parent_span_id"]) == ("a" * 32, "b" * 16)


def test_what_is_not_known_is_left_out(stream: io.StringIO) -> None:
    log_request(RequestRecord(request_id="r", method="POST", scoring=True), route="/v1/rerank", status=503)

    (line,) = lines(stream)
    assert line["request_id"] == "r"
    assert "pairs" not in line
    assert "trace_id" not in line
    assert "error" not in line
