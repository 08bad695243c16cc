from __future__ import annotations

from typing import Any

import msgspec
import pytest

from engine import EngineFault, OutOfCapacity
from scorer.dialects.error_forms import ErrorForm, native_error, sglang_error, tei_error, vllm_error
from scorer.errors import InvalidValue, MalformedBody, NotReady, UnknownModel, UnsupportedMedia, failure_of

WRONG = InvalidValue("`top_n`: expected `int` >= 1", field="top_n", value=0, limit=1)
BUSY = OutOfCapacity("full", retry_after_s=2.0)


def written(form: ErrorForm, error: Exception) -> tuple[int, Any]:
    wire = form(failure_of(error, request_id="r1"))
    return wire.status, msgspec.to_builtins(wire.body)


def test_the_native_form_says_everything() -> None:
    assert written(native_error, WRONG) == (
        422,
        {
            "error": {
                "code": "invalid_value",
                "message": "`top_n`: expected `int` >= 1",
                "retryable": False,
                "request_id": "r1",
                "field": "top_n",
                "value": 0,
                "limit": 1,
            }
        },
    )


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (WRONG, 400, "BadRequestError"),
        (MalformedBody("not JSON"), 400, "BadRequestError"),
        (UnknownModel("no such model"), 404, "NotFoundError"),
        (UnsupportedMedia("not JSON"), 415, "UnsupportedMediaTypeError"),
        (BUSY, 429, "TooManyRequestsError"),
        (KeyError("secret"), 500, "InternalServerError"),
        (NotReady("loading"), 503, "ServiceUnavailableError"),
    ],
)
def test_vllm_nests_and_sglang_does_not(error: Exception, status: int, kind: str) -> None:
    failure = failure_of(error, request_id="r1")
    detail = {"message": failure.message, "type": kind, "param": failure.field, "code": status}

    assert written(vllm_error, error) == (status, {"error": detail})
    assert written(sglang_error, error) == (status, {"object": "error", **detail})


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (WRONG, 422, "Validation"),
        (InvalidValue("none", field="texts", value=0, limit=1), 400, "Empty"),
        (BUSY, 429, "Overloaded"),
        (KeyError("secret"), 424, "Backend"),
        (NotReady("loading"), 503, "Unhealthy"),
        (EngineFault("step failed"), 503, "Unhealthy"),
    ],
)
def test_tei_has_kinds_of_its_own(error: Exception, status: int, kind: str) -> None:
    message = failure_of(error, request_id="r1").message

    assert written(tei_error, error) == (status, {"error": message, "error_type": kind})
