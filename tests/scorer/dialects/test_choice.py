from __future__ import annotations

from typing import Any

import msgspec
import pytest

from scorer.dialects.choice import DialectChoice
from scorer.dialects.dialect import Dialect
from scorer.dialects.error_forms import tei_error, vllm_error
from scorer.errors import InvalidValue
from scorer.http.json_body import StrictDecoder


class Body(msgspec.Struct):
    texts: list[str]


def dialect() -> Dialect[Any]:
    def never(*_: Any) -> Any:
        raise AssertionError

    return Dialect(decode=StrictDecoder(Body).decode, to_request=never, reply=never, error_form=vllm_error)


FIRST, SECOND = dialect(), dialect()
CHOICE = DialectChoice(
    [(frozenset({"query", "documents"}), FIRST), (frozenset({"query", "texts"}), SECOND)], error_form=tei_error
)


def test_keys_tell_which_dialect_is_spoken_and_other_keys_do_not_matter() -> None:
    assert CHOICE.choose(b'{"query": "q", "texts": ["d"], "raw_scores": true}') is SECOND
    assert CHOICE.choose(b'{"documents": 1, "query": [[]], "texts": 2}') is FIRST


def test_keys_of_no_dialect_are_refused_with_all_that_would_do() -> None:
    with pytest.raises(InvalidValue, match="they are documents, query; query, texts"):
        CHOICE.choose(b'{"query": "q"}')


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"[" * 5000, b"NaN"])
def test_what_is_no_object_is_left_to_the_first_to_refuse(body: bytes) -> None:
    assert CHOICE.choose(body) is FIRST
