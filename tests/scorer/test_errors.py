from __future__ import annotations

import pytest
from litestar.exceptions import MethodNotAllowedException, NotFoundException

from engine import DeadlineExceeded, EngineError, EngineFault, OutOfCapacity
from scorer.errors import ANSWERS, INTERNAL, ErrorBody, InvalidValue, NotReady, Refusal, answer_for, reply_to


def leaves(kind: type[Exception]) -> set[type[Exception]]:
    below = kind.__subclasses__()
    return set().union(*map(leaves, below)) if below else {kind}


@pytest.mark.parametrize("root", [EngineError, Refusal])
def test_every_error_has_an_answer(root: type[Exception]) -> None:
    assert leaves(root) - set(ANSWERS) == set()


def test_codes_are_distinct() -> None:
    codes = [answer.code for answer in [*ANSWERS.values(), INTERNAL]]

    assert len(set(codes)) == len(codes)


def test_what_is_not_in_the_table_is_a_fault_without_details() -> None:
    reply = reply_to(KeyError("secret"), request_id="r")

    assert (reply.status, reply.outcome, reply.body.error.code) == (500, "fault", "internal_error")
    assert "secret" not in reply.body.error.message


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
    assert reply_to(error, request_id="r").headers.get("retry-after") == seconds


def test_field_value_and_limit_are_passed_on() -> None:
    reply = reply_to(InvalidValue("too long", field="queries[0]", value=9, limit=5), request_id="r")

    error = reply.body.error
    assert (error.field, error.value, error.limit, error.request_id) == ("queries[0]", 9, 5, "r")


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (NotFoundException(), 404, "not_found"),
        (MethodNotAllowedException(headers={"allow": "GET"}), 405, "method_not_allowed"),
    ],
)
def test_errors_of_the_framework_take_the_same_form(error: Exception, status: int, code: str) -> None:
    reply = reply_to(error, request_id="r")

    assert (reply.status, reply.outcome, reply.body.error.code) == (status, "invalid", code)
    assert isinstance(reply.body, ErrorBody)
