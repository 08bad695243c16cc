from __future__ import annotations

import pytest

from scorer.dialects.ndjson import decode_lines
from scorer.dialects.schema import CacheSpec, QueryItem, ScoreRequest, TextItem
from scorer.errors import InvalidValue, MalformedBody


def test_a_line_is_a_pair_and_texts_that_repeat_are_one() -> None:
    body = b"""
        {"query": "q", "document": "a"}
        {"query": "q", "document": {"id": "d2", "text": "b"}}

        {"query": {"text": "other", "id": "q2"}, "document": "a"}
    """

    assert decode_lines(body) == ScoreRequest(
        queries=["q", QueryItem(text="other", id="q2")],
        documents=["a", TextItem(text="b", id="d2")],
        pairs=[(0, 0), (0, 1), (1, 0)],
    )


def test_texts_that_differ_in_their_names_are_two() -> None:
    body = b'{"query": "q", "document": {"id": "1", "text": "a"}}\n{"query": "q", "document": {"id": "2", "text": "a"}}'

    assert len(decode_lines(body).documents) == 2


def test_the_first_line_may_hold_what_a_batch_has_beside_texts() -> None:
    body = b'{"top_n": 2, "order": "query_first", "cache": {"keep": "none"}}\r\n{"query": "q", "document": "a"}\r\n'

    assert decode_lines(body) == ScoreRequest(
        queries=["q"], documents=["a"], pairs=[(0, 0)], top_n=2, order="query_first", cache=CacheSpec(keep="none")
    )


@pytest.mark.parametrize(
    ("body", "kind", "field", "words"),
    [
        (b"", InvalidValue, "body", "no line"),
        (b'{"top_n": 1}\n', InvalidValue, "body", "no line"),
        (b'{"query": "q"}', InvalidValue, "lines[0].document", "line 1"),
        (b'{"query": "q", "document": "d"}\n\n{"query": 5, "document": "d"}', InvalidValue, "lines[2].query", "line 3"),
        (b'{"query": "q", "document": "d"}\n{"top_n": 1}', InvalidValue, "lines[1].top_n", "line 2"),
        (b'{"query": "q", "document": "d", "x": 1}', InvalidValue, "lines[0].x", "line 1"),
        (b'{"top_n": 0}\n{"query": "q", "document": "d"}', InvalidValue, "lines[0].top_n", "line 1"),
        (b'{"queries": ["q"], "documents": ["d"]}', InvalidValue, "lines[0].queries", "line 1"),
        (b'{"query": "q", "document": "d"}\n{', MalformedBody, "lines[1]", "line 2"),
        (b'{"query": "q", "document": "d", "query": "q"}', MalformedBody, "lines[0].query", "twice"),
    ],
)
def test_a_wrong_line_is_named(body: bytes, kind: type[InvalidValue], field: str, words: str) -> None:
    with pytest.raises(kind) as caught:
        decode_lines(body)

    assert caught.value.field == field
    assert words in str(caught.value)
