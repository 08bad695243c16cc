"""Ranking sets: queries, documents, judgements and the candidates of a first stage, read from one folder.

The form is described in ``docs/ranking-sets.md``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from scorer.evaluation.set_lines import EvalSetError, json_lines, text_lines

DOCUMENTS = "docs.jsonl"
QUERIES = "queries.jsonl"
JUDGEMENTS = "qrels.tsv"
CANDIDATES = "bm25_top50.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankingQuery:
    """One query with what is known about it.

    Args:
        candidates: Ids of documents in the order of the first stage, best first; distinct.
        grades: Grade of every document judged for the query; at least one is above 0.
    """

    id: str
    text: str
    candidates: tuple[str, ...]
    grades: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankingSet:
    """``documents`` by id, in the order of their file; every id that a query names is there."""

    name: str
    documents: Mapping[str, str]
    queries: tuple[RankingQuery, ...]


class _Text(msgspec.Struct, frozen=True):
    id: str
    text: str


class _Candidates(msgspec.Struct, frozen=True):
    qid: str
    docids: list[str]


def read_ranking_set(folder: Path) -> RankingSet:
    """The ranking set in ``folder``, named after it.

    Raises:
        EvalSetError: a file is missing or unreadable, a line is not in the form, an id occurs
            twice or is not known, a text is empty, or a query has no candidates or nothing
            relevant.
    """
    if not (folder / DOCUMENTS).exists():
        raise EvalSetError(f"{folder} has neither {DOCUMENTS}, as ranking sets do, nor items.jsonl, as label sets do")
    documents = _read_texts(folder / DOCUMENTS)
    queries = _read_texts(folder / QUERIES)
    candidates = _read_candidates(folder / CANDIDATES, queries, documents)
    grades = _read_judgements(folder / JUDGEMENTS, queries, documents)
    for query in queries:
        if query not in candidates:
            raise EvalSetError(f"{folder / CANDIDATES}: query {query!r} has no candidates")
        if not any(grade > 0 for grade in grades[query].values()):
            raise EvalSetError(f"{folder / JUDGEMENTS}: query {query!r} has no relevant document")
    return RankingSet(
        name=folder.resolve().name,
        documents=documents,
        queries=tuple(
            RankingQuery(id=query, text=text, candidates=candidates[query], grades=grades[query])
            for query, text in queries.items()
        ),
    )


def _read_texts(path: Path) -> dict[str, str]:
    texts: dict[str, str] = {}
    for where, row in json_lines(path, _Text):
        if row.id in texts:
            raise EvalSetError(f"{where}: the id {row.id!r} occurs a second time")
        if not row.text.strip():
            raise EvalSetError(f"{where}: the text of {row.id!r} is empty")
        texts[row.id] = row.text
    if not texts:
        raise EvalSetError(f"{path}: the file has no lines")
    return texts


def _read_candidates(
    path: Path, queries: Mapping[str, str], documents: Mapping[str, str]
) -> dict[str, tuple[str, ...]]:
    candidates: dict[str, tuple[str, ...]] = {}
    for where, row in json_lines(path, _Candidates):
        _check_known(where, "query", row.qid, queries)
        if row.qid in candidates:
            raise EvalSetError(f"{where}: query {row.qid!r} occurs a second time")
        if not row.docids:
            raise EvalSetError(f"{where}: query {row.qid!r} has no candidates")
        if repeated := _repeated(row.docids):
            raise EvalSetError(f"{where}: document {repeated!r} is listed twice for query {row.qid!r}")
        for document in row.docids:
            _check_known(where, "document", document, documents)
        candidates[row.qid] = tuple(row.docids)
    return candidates


def _read_judgements(path: Path, queries: Mapping[str, str], documents: Mapping[str, str]) -> dict[str, dict[str, int]]:
    grades: dict[str, dict[str, int]] = {query: {} for query in queries}
    for where, line in text_lines(path):
        fields = line.decode().split("\t")
        if len(fields) != 3 or not fields[2].isascii() or not fields[2].isdigit():
            raise EvalSetError(f"{where}: query id, document id and a grade (0 or more) are wanted, parted by tabs")
        query, document, grade = fields
        _check_known(where, "query", query, queries)
        _check_known(where, "document", document, documents)
        if document in grades[query]:
            raise EvalSetError(f"{where}: document {document!r} is judged twice for query {query!r}")
        grades[query][document] = int(grade)
    return grades


def _check_known(where: str, kind: str, wanted: str, known: Mapping[str, str]) -> None:
    if wanted not in known:
        raise EvalSetError(f"{where}: there is no {kind} with the id {wanted!r}")


def _repeated(ids: Sequence[str]) -> str | None:
    seen: set[str] = set()
    for each in ids:
        if each in seen:
            return each
        seen.add(each)
    return None
