from __future__ import annotations

import json
import multiprocessing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from scorer.offline.result_file import Header, ResultFile, ResultFileError, line_hash

HEADER = Header(
    format="scorer-results@1",
    model="tiny",
    revision="abc",
    template="query-likelihood@1",
    template_sha256="0123",
    dtype="float32",
    max_document_tokens=None,
)


def result(line: int) -> dict[str, Any]:
    return {"line": line, "input_sha256": line_hash(b"%d" % line), "score": line / 2}


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with results of the input lines 1 and 2."""
    path = tmp_path / "out.jsonl"
    with ResultFile(path, HEADER) as results:
        results.append([result(1), result(2)])
    return path


def test_a_new_file_begins_with_what_made_it(path: Path) -> None:
    assert lines(path) == [msgspec.to_builtins(HEADER), result(1), result(2)]


def test_an_opened_file_knows_what_is_done_and_is_continued_at_its_end(path: Path) -> None:
    with ResultFile(path, HEADER) as results:
        done = dict(results.done)
        results.append([result(3)])

    assert done == {1: line_hash(b"1"), 2: line_hash(b"2")}
    assert [line.get("line") for line in lines(path)] == [None, 1, 2, 3]


def test_a_file_cut_at_any_byte_is_continued_without_loss_or_repetition(path: Path) -> None:
    whole = path.read_bytes()
    ends = [index + 1 for index, byte in enumerate(whole) if byte == ord("\n")]

    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        with ResultFile(path, HEADER) as results:
            done = set(results.done)
            results.append(result(line) for line in (1, 2) if line not in done)

        assert done == {line for line in (1, 2) if size >= ends[line]}
        assert path.read_bytes() == whole


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model", "other"),
        ("revision", "abd"),
        ("template", "yes-no@1"),
        ("template_sha256", "4567"),
        ("dtype", "bfloat16"),
        ("max_document_tokens", 9),
        ("calibration", "mine@1"),
    ],
)
def test_results_of_another_model_template_type_or_cut_are_not_continued(path: Path, name: str, value: object) -> None:
    before = path.read_bytes()
    other = msgspec.structs.replace(HEADER, **{name: value})

    with pytest.raises(ResultFileError, match=rf"made with {name} .*, now {value!r}: .*name another file"):
        ResultFile(path, other)

    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "content", [b"a note without a line end", b"a note\n", b'{"line": 1}\n{"line": 2}', b'{"other"']
)
def test_a_file_of_something_else_is_refused_and_left_as_it_is(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(content)

    with pytest.raises(ResultFileError, match="was not written by `scorer score`"):
        ResultFile(path, HEADER)

    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"not json\n", r"out\.jsonl:4 is not a result"),
        (b'{"line": "3"}\n', r"out\.jsonl:4 is not a result"),
        (json.dumps(result(2)).encode() + b"\n", r"out\.jsonl:4: input line 2 has a result already"),
    ],
)
def test_a_damaged_file_is_refused_with_the_line(path: Path, line: bytes, message: str) -> None:
    damaged = path.read_bytes() + line + b"torn"
    path.write_bytes(damaged)

    with pytest.raises(ResultFileError, match=message):
        ResultFile(path, HEADER)

    assert path.read_bytes() == damaged


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(ResultFileError, match=r"none/out\.jsonl cannot be opened: No such file"):
        ResultFile(tmp_path / "none/out.jsonl", HEADER)


@dataclass
class Attempt:
    """Opens the file in a process of its own."""

    path: Path

    def __call__(self, answers: Any) -> None:
        try:
            with ResultFile(self.path, HEADER):
                answers.put("opened")
        except ResultFileError as error:
            answers.put(str(error))


def test_two_processes_cannot_write_the_same_file(path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()

    def attempt() -> str:
        process = context.Process(target=Attempt(path), args=(answers,))
        process.start()
        answer: str = answers.get(timeout=60)
        process.join(timeout=60)
        return answer

    with ResultFile(path, HEADER):
        while_open = attempt()
    after = attempt()

    assert "being written by another process" in while_open
    assert after == "opened"
