from __future__ import annotations

from typing import Any

import msgspec
import pytest

from engine import EngineFault, OutOfCapacity
from scorer.dialects.cohere_rerank import cohere_error
from scorer.dialects.error_forms import (
    ErrorForm,
    detail_error,
    native_error,
    openai_error,
    sglang_error,
    tei_error,
    vllm_error,
)
from scorer.dialects.infinity_rerank import infinity_error
from scorer.dialects.sglang_systemone import sglang_systemone_error
from scorer.dialects.voyage_rerank import voyage_error
from scorer.errors import ANSWERS, InvalidValue, MalformedBody, NotReady, UnknownModel, UnsupportedMedia, failure_of

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


@pytest.mark.parametrize(
    "form", [cohere_error, infinity_error, openai_error, sglang_error, sglang_systemone_error, tei_error, voyage_error]
)
def test_every_error_of_the_table_has_a_body_in_every_form(form: ErrorForm) -> None:
    for kind in ANSWERS:
        status, body = written(form, kind("words"))
        assert 400 <= status < 600
        assert "words" in str(body)


def test_infinity_repeats_the_status_that_it_has() -> None:
    status, body = written(infinity_error, WRONG)

    assert status == body["error"]["code"] == 422


@pytest.mark.parametrize(
    ("error", "status", "loc", "kind"),
    [
        (WRONG, 422, ["top_n"], "invalid_value"),
        (InvalidValue("wrong", field="documents[3].text"), 422, ["documents", 3, "text"], "invalid_value"),
        (MalformedBody("not JSON", field="body"), 422, [], "malformed_json"),
    ],
)
def test_details_say_where_a_body_is_wrong(error: Exception, status: int, loc: list[Any], kind: str) -> None:
    detail = {"detail": [{"loc": ["body", *loc], "msg": str(error), "type": kind}]}

    assert written(detail_error, error) == (status, detail)
    assert written(sglang_systemone_error, error) == (status, detail)


def test_details_of_headers_do_not_blame_the_body() -> None:
    _, body = written(detail_error, UnsupportedMedia("not JSON", field="content-type"))

    assert body["detail"][0]["loc"] == ["header", "content-type"]


def test_system_one_of_sglang_has_details_for_bodies_only() -> None:
    assert written(sglang_systemone_error, BUSY) == written(sglang_error, BUSY)
