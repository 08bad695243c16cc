from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from scorer.dialects.schema import ScoreRequest
from scorer.offline.pair_lines import InputError, LineInfo, PairLine, read_lines, scan_lines

PAIR = b'{"query": "q", "document": "d"}'
BATCH = b'{"queries": ["a", "b"], "documents": ["c", "d", "e"]}'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "in.jsonl"


def test_pairs_and_batches_may_stand_in_one_file(path: Path) -> None:
    path.write_bytes(PAIR + b"\n" + BATCH + b'\n{"query": "r", "document": "e", "id": 7}')

    (_, first), (_, second), (_, third) = read_lines(path)

    assert first == PairLine(query="q", document="d")
    assert isinstance(second, ScoreRequest)
    assert second.documents == ["c", "d", "e"]
    assert third == PairLine(query="r", document="e", id=7)


def test_a_line_is_known_by_its_number_its_hash_and_its_pairs(path: Path) -> None:
    chosen = BATCH.replace(b"}", b', "pairs": [[0, 0], [1, 2]]}')
    path.write_bytes(b"\n" + PAIR + b"\r\n  \n" + BATCH + b"\n" + chosen)

    def sha256(line: bytes) -> str:
        return hashlib.sha256(line).hexdigest()[:16]

    assert scan_lines(path) == [
        LineInfo(2, sha256(PAIR), 1),
        LineInfo(4, sha256(BATCH), 6),
        LineInfo(5, sha256(chosen), 2),
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{", r"in\.jsonl:2: not a JSON object"),
        (b'["q", "d"]', r"in\.jsonl:2: not a JSON object"),
        (b"[" * 100_000, r"in\.jsonl:2: not a JSON object"),
        (b'{"query": "q"}', r"in\.jsonl:2: read as a pair .*`document` is missing"),
        (b'{"query": "q", "document": null}', r"in\.jsonl:2: read as a pair .*`document`"),
        (b'{"query": "q", "document": "d", "text": "e"}', r"in\.jsonl:2: read as a pair .*`text` is not a field"),
        (b'{"query": "q", "query": "r", "document": "d"}', r"in\.jsonl:2: read as a pair .*`query` occurs twice"),
        (b'{"query": "q", "document": "\xff"}', r"in\.jsonl:2: (not a JSON object|read as a pair .*not valid JSON)"),
        (b'{"query": "q", "document": "\\ud800"}', r"in\.jsonl:2: (not a JSON object|read as a pair .*not valid JSON)"),
        (b'{"queries": ["q"]}', r"in\.jsonl:2: read as a batch: `documents` is missing"),
        (b'{"query": "q", "documents": ["d"]}', r"in\.jsonl:2: read as a batch: `query` is not a field"),
        (b'{"queries": ["q"], "documents": []}', r"in\.jsonl:2: read as a batch: `documents`"),
    ],
)
def test_the_first_wrong_line_is_named_with_what_is_wrong(path: Path, line: bytes, message: str) -> None:
    path.write_bytes(PAIR + b"\n" + line + b"\n{")

    with pytest.raises(InputError, match=message):
        scan_lines(path)


@pytest.mark.parametrize("content", [b"", b"\n \n"])
def test_a_file_without_lines_is_an_error(path: Path, content: bytes) -> None:
    path.write_bytes(content)

    with pytest.raises(InputError, match=r"in\.jsonl has no lines to score"):
        scan_lines(path)


def test_a_file_that_is_not_there_is_named(path: Path) -> None:
    with pytest.raises(InputError, match=r"in\.jsonl cannot be read: No such file"):
        scan_lines(path)


def test_the_pairs_of_the_examples_are_in_the_form() -> None:
    lines = scan_lines(Path(__file__).parents[3] / "examples/pairs.jsonl")

    assert [line.num_pairs for line in lines] == [1] * 24
