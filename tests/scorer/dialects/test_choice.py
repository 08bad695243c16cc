from __future__ import annotations

from typing import Any

import msgspec
import pytest

from scorer.dialects.choice import DialectChoice
from scorer.dialects.dialect import Dialect
from scorer.dialects.error_forms import ErrorForm, tei_error, vllm_error
from scorer.errors import InvalidValue
from scorer.http.json_body import StrictDecoder


class Body(msgspec.Struct):
    texts: list[str]


def dialect(error_form: ErrorForm) -> Dialect[Any]:
    def never(*_: Any) -> Any:
        raise AssertionError

    return Dialect(decode=StrictDecoder(Body).decode, to_request=never, reply=never, error_form=error_form)


FIRST, SECOND, THIRD = dialect(tei_error), dialect(tei_error), dialect(vllm_error)
CHOICE = DialectChoice(
    [
        (frozenset({"query", "documents", "query[0].id"}), THIRD),
        (frozenset({"query", "documents"}), FIRST),
        (frozenset({"query", "texts"}), SECOND),
    ],
    error_form=tei_error,
)


def test_keys_tell_which_dialect_is_spoken_and_other_keys_do_not_matter() -> None:
    assert CHOICE.choose(b'{"query": "q", "texts": ["d"], "raw_scores": true}') is SECOND
    for query in (b"[[]]", b"[]", b"{}", b'[{"text": 1}]', b'[1, {"id": 1}]'):
        assert CHOICE.choose(b'{"documents": 1, "texts": 2, "query": ' + query + b"}") is FIRST


def test_keys_of_no_dialect_are_refused_with_the_fewest_that_would_do() -> None:
    with pytest.raises(InvalidValue) as refused:
        CHOICE.choose(b'{"query": "q"}')

    assert str(refused.value) == "the body must have `documents` and `query`, or `query` and `texts`"


def test_a_key_of_the_first_element_of_a_list_may_tell() -> None:
    assert CHOICE.choose(b'{"query": [{"id": 1}, 2], "documents": 3}') is THIRD


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"[" * 5000, b"NaN"])
def test_what_is_no_object_is_left_to_the_first_with_the_form_of_the_route(body: bytes) -> None:
    assert CHOICE.choose(body) is FIRST
