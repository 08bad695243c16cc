from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from scorer.evaluation.ranking_sets import read_ranking_set
from scorer.evaluation.set_lines import EvalSetError

ROOT = Path(__file__).parents[3]
DATA = ROOT.parent / "shared/data"

DOCS = [{"id": "d1", "text": "one"}, {"id": "d2", "text": "two", "title": "ignored"}]
QUERIES = [{"id": "q1", "text": "which?"}, {"id": "q2", "text": "what?"}]
CANDIDATES = [{"qid": "q2", "docids": ["d1"]}, {"qid": "q1", "docids": ["d2", "d1"]}]
QRELS = "q1\td1\t1\nq2\td2\t2\nq2\td1\t0\n"


def write(
    folder: Path,
    *,
    docs: Sequence[Mapping[str, object]] = DOCS,
    queries: Sequence[Mapping[str, object]] = QUERIES,
    candidates: Sequence[Mapping[str, object]] = CANDIDATES,
    qrels: str = QRELS,
) -> Path:
    for name, rows in (("docs", docs), ("queries", queries), ("bm25_top50", candidates)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "qrels.tsv").write_text(qrels)
    return folder


def test_reads_queries_in_file_order_with_their_candidates_and_grades(tmp_path: Path) -> None:
    ranking_set = read_ranking_set(write(tmp_path))

    assert ranking_set.name == tmp_path.name
    assert ranking_set.documents == {"d1": "one", "d2": "two"}
    assert [query.id for query in ranking_set.queries] == ["q1", "q2"]
    assert ranking_set.queries[0].candidates == ("d2", "d1")
    assert ranking_set.queries[1].grades == {"d2": 2, "d1": 0}


def test_blank_lines_and_windows_line_ends_are_no_error(tmp_path: Path) -> None:
    write(tmp_path, qrels=QRELS.replace("\n", "\r\n") + "\r\n")
    (tmp_path / "docs.jsonl").write_text("\n" + "\n\n".join(map(json.dumps, DOCS)))

    ranking_set = read_ranking_set(tmp_path)

    assert ranking_set.documents == {"d1": "one", "d2": "two"}
    assert ranking_set.queries[0].grades == {"d1": 1}


@pytest.mark.parametrize("name", ["queries.jsonl", "bm25_top50.jsonl", "qrels.tsv"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    (write(tmp_path) / name).unlink()

    with pytest.raises(EvalSetError, match=rf"{name} cannot be read: No such file"):
        read_ranking_set(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"docs": []}, r"docs\.jsonl: the file has no lines"),
        ({"docs": [*DOCS, DOCS[0]]}, r"docs\.jsonl:3: the id 'd1' occurs a second time"),
        ({"docs": [{"id": "d1", "text": " \n"}]}, r"docs\.jsonl:1: the text of 'd1' is empty"),
        ({"docs": [{"_id": "d1", "text": "one"}]}, r"docs\.jsonl:1: .*missing required field `id`"),
        ({"queries": [{"id": 1, "text": "?"}]}, r"queries\.jsonl:1: .*`str`.*`\$\.id`"),
        ({"candidates": CANDIDATES[:1]}, r"bm25_top50\.jsonl: query 'q1' has no candidates"),
        ({"candidates": [{"qid": "q1", "docids": []}]}, r"bm25_top50\.jsonl:1: query 'q1' has no candidates"),
        ({"candidates": [*CANDIDATES, CANDIDATES[0]]}, r"bm25_top50\.jsonl:3: query 'q2' occurs a second time"),
        ({"candidates": [{"qid": "q1", "docids": ["d1", "d1"]}]}, r":1: document 'd1' is listed twice for query 'q1'"),
        ({"candidates": [{"qid": "q1", "docids": ["d9"]}]}, r":1: there is no document with the id 'd9'"),
        ({"candidates": [{"qid": "q9", "docids": ["d1"]}]}, r":1: there is no query with the id 'q9'"),
        ({"qrels": "q1\td1\t1\n"}, r"qrels\.tsv: query 'q2' has no relevant document"),
        ({"qrels": "q1\td1\t1\nq2\td1\t0\n"}, r"qrels\.tsv: query 'q2' has no relevant document"),
        ({"qrels": QRELS + "q2\td1\t1\n"}, r"qrels\.tsv:4: document 'd1' is judged twice for query 'q2'"),
        ({"qrels": "q1 d1 1\n"}, r"qrels\.tsv:1: query id, document id and a grade"),
        ({"qrels": "q1\td1\tyes\n"}, r"qrels\.tsv:1: query id, document id and a grade"),
        ({"qrels": "q1\td9\t1\n"}, r"qrels\.tsv:1: there is no document with the id 'd9'"),
    ],
)
def test_what_is_wrong_is_named_with_file_and_line(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    write(tmp_path, **changes)  # type: ignore[arg-type]

    with pytest.raises(EvalSetError, match=message):
        read_ranking_set(tmp_path)


def test_a_line_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    (write(tmp_path) / "queries.jsonl").write_bytes(b'{"id": "q1", "text": "a"}\n{"id": "q2", "text": "\xff"}\n')

    with pytest.raises(EvalSetError, match=r"queries\.jsonl:2: the line is not UTF-8"):
        read_ranking_set(tmp_path)


def test_the_set_of_the_examples_is_in_the_form() -> None:
    ranking_set = read_ranking_set(ROOT / "examples/ranking-set")

    assert len(ranking_set.queries) == 10
    assert {len(query.candidates) for query in ranking_set.queries} == {20}


@pytest.mark.parametrize(
    ("name", "num_documents", "num_queries", "num_relevant"),
    [
        ("scifact", 3066, 100, 108),
        ("hotpotqa", 994, 100, 200),
        ("cranfield", 1398, 225, 1611),
        ("xquad-retrieval", 240, 396, 396),
    ],
)
def test_reads_real_sets_whole(name: str, num_documents: int, num_queries: int, num_relevant: int) -> None:
    if not (DATA / name).is_dir():
        pytest.skip(f"the data set {name} is not here")

    ranking_set = read_ranking_set(DATA / name)

    assert len(ranking_set.documents) == num_documents
    assert len(ranking_set.queries) == num_queries
    assert sum(len(query.grades) for query in ranking_set.queries) == num_relevant
