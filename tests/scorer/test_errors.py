from __future__ import annotations

from typing import get_args

import pytest
from litestar.exceptions import MethodNotAllowedException, NotFoundException

from engine import DeadlineExceeded, EngineError, EngineFault, OutOfCapacity
from scorer.errors import ANSWERS, INTERNAL, InvalidValue, NotReady, Refusal, answer_for, failure_of
from scorer.metrics import ErrorCode


def leaves(kind: type[Exception]) -> set[type[Exception]]:
    below = kind.__subclasses__()
    return set().union(*map(leaves, below)) if below else {kind}


@pytest.mark.parametrize("root", [EngineError, Refusal])
def test_every_error_has_an_answer(root: type[Exception]) -> None:
    assert leaves(root) - set(ANSWERS) == set()


def test_codes_are_distinct() -> None:
    codes = [answer.code for answer in [*ANSWERS.values(), INTERNAL]]

    assert len(set(codes)) == len(codes)


def test_every_code_has_a_series_and_no_series_is_without_a_code() -> None:
    of_the_framework = {"not_found", "method_not_allowed", "other"}

    assert set(get_args(ErrorCode)) == {a.code for a in [*ANSWERS.values(), INTERNAL]} | of_the_framework


def test_what_is_not_in_the_table_is_a_fault_without_details() -> None:
    failure = failure_of(KeyError("secret"), request_id="r")

    assert (failure.status, failure.outcome, failure.code) == (500, "fault", "internal_error")
    assert "secret" not in failure.message


def test_a_subclass_is_answered_as_its_base() -> None:
    class Special(OutOfCapacity):
        pass

    assert answer_for(Special("x")).code == "out_of_capacity"


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        (OutOfCapacity("x", retry_after_s=0.2), "1"),
        (OutOfCapacity("x", retry_after_s=2.1), "3"),
        (NotReady("x"), "1"),
        (NotReady("x", retry_after_s=0.0), "1"),
        (DeadlineExceeded("x"), None),
        (EngineFault("x"), None),
        (InvalidValue("x"), None),
    ],
)
def test_retry_after_is_a_whole_number_of_seconds_where_it_makes_sense(error: Exception, seconds: str | None) -> None:
    assert failure_of(error, request_id="r").headers.get("retry-after") == seconds


def test_field_value_and_limit_are_passed_on() -> None:
    failure = failure_of(InvalidValue("too long", field="queries[0]", value=9, limit=5), request_id="r")

    assert (failure.field, failure.value, failure.limit, failure.request_id) == ("queries[0]", 9, 5, "r")


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (NotFoundException(), 404, "not_found"),
        (MethodNotAllowedException(headers={"allow": "GET"}), 405, "method_not_allowed"),
    ],
)
def test_errors_of_the_framework_have_an_answer_too(error: Exception, status: int, code: str) -> None:
    failure = failure_of(error, request_id="r")

    assert (failure.status, failure.outcome, failure.code) == (status, "invalid", code)
