from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scorer.evaluation.label_sets import is_label_set, read_label_set
from scorer.evaluation.set_lines import EvalSetError

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples/label-set"
DATA = ROOT.parent / "shared/data"
QUESTION = {"id": "q", "text": "which?", "options": ["a", "b"], "label": 1}
DOCUMENT = {"document": "d", "questions": [QUESTION]}
TEXT = {"id": "t", "text": "a text", "options": ["a", "b", "c"], "label": 0}


def write(folder: Path, *lines: dict[str, Any]) -> Path:
    (folder / "items.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return folder


def test_documents_with_questions_and_texts_with_labels_are_read(tmp_path: Path) -> None:
    found = read_label_set(write(tmp_path, DOCUMENT, TEXT))

    assert is_label_set(tmp_path)
    assert [document.text for document in found.documents] == ["d", "a text"]
    assert [(each.id, each.text, each.label) for each in found.questions] == [("q", "which?", 1), ("t", "", 0)]
    assert found.questions[1].options == ("a", "b", "c")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (QUESTION | {"label": 2}, r"items\.jsonl:1: the label of 'q' is 2; it has 2 options"),
        (QUESTION | {"label": -1}, "the label of 'q' is -1"),
        (QUESTION | {"options": ["a"]}, "'q' needs 2 to 26 options"),
        (QUESTION | {"options": ["a", "a"]}, "no two alike"),
        (QUESTION | {"options": ["a", ""]}, "none empty"),
        (QUESTION | {"options": [str(number) for number in range(27)]}, "2 to 26"),
        ({"document": "d", "questions": [QUESTION, QUESTION]}, "the id 'q' occurs a second time"),
        ({"document": "d"}, "wanted document and questions"),
        ({"id": "q", "text": "x", "options": ["a", "b"]}, "wanted document and questions"),
        ({"document": "d", "questions": [{"id": "q", "text": "x", "answer": "a"}]}, "`options`"),
        ({"document": "d", "questions": []}, "the file has no questions"),
    ],
)
def test_what_is_wrong_is_named_by_file_and_line(tmp_path: Path, line: dict[str, Any], message: str) -> None:
    with pytest.raises(EvalSetError, match=message):
        read_label_set(write(tmp_path, line))


def test_a_folder_without_items_is_none(tmp_path: Path) -> None:
    assert not is_label_set(tmp_path)
    with pytest.raises(EvalSetError, match="cannot be read"):
        read_label_set(tmp_path)


def test_the_commonest_answer_is_counted_by_text_where_all_options_are_alike(tmp_path: Path) -> None:
    swapped = [
        TEXT | {"id": "1", "options": ["a", "b"], "label": 0},
        TEXT | {"id": "2", "options": ["b", "a"], "label": 1},
        TEXT | {"id": "3", "options": ["a", "b"], "label": 1},
    ]
    different = [TEXT | {"id": str(number), "options": [str(number), "x"], "label": 0} for number in range(3)]

    assert read_label_set(write(tmp_path, *swapped)).constant_accuracy == pytest.approx(2 / 3)
    assert read_label_set(write(tmp_path, *different)).constant_accuracy == 1.0


def test_the_example_is_a_label_set() -> None:
    assert len(read_label_set(EXAMPLE).questions) == 7


@pytest.mark.parametrize(
    ("name", "num_documents", "num_questions", "constant"),
    [
        ("scifact-verdict", 376, 967, 0.391),
        ("pubmedqa", 500, 500, 0.552),
        ("clinc-domains", 600, 600, 0.100),
        ("sentence-polarity", 600, 600, 0.500),
        ("onestopqa-paragraphs", 162, 486, 0.267),
        ("quality-stories", 12, 161, 0.292),
    ],
)
def test_sets_beside_the_repository_are_read(
    name: str, num_documents: int, num_questions: int, constant: float
) -> None:
    if not (DATA / name).is_dir():
        pytest.skip(f"the data set {name} is not here")
    found = read_label_set(DATA / name)

    assert (len(found.documents), len(found.questions)) == (num_documents, num_questions)
    assert found.constant_accuracy == pytest.approx(constant, abs=0.0005)
