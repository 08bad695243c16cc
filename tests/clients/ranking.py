"""Real queries with candidates of a retriever, and the order that the native route gives them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from benchmarks.http_client import JsonClient

_SET: Final = Path(__file__).parents[2] / "examples" / "ranking-set"
_NUM_QUERIES: Final = 2
_NUM_DOCUMENTS: Final = 8
_TOP_N: Final = 3


def native_rankings(client: JsonClient) -> list[dict[str, Any]]:
    """What each client is asked to rank: ``query``, ``documents``, ``top_n``, and the ``order`` wanted.

    The first is asked for whole, the others for the best few. Everything is scored once before, so
    that clients and native route meet the same cache: in bfloat16 a near tie may fall the other
    way when a prompt is computed in other pieces.
    """
    texts = {each["id"]: each["text"].strip() for each in _lines("docs.jsonl")}
    queries = {each["id"]: each["text"] for each in _lines("queries.jsonl")}
    cases = []
    for number, candidates in enumerate(_lines("bm25_top50.jsonl")[:_NUM_QUERIES]):
        documents = [texts[name] for name in candidates["docids"][:_NUM_DOCUMENTS]]
        top_n = _TOP_N if number else len(documents)
        query = queries[candidates["qid"]]
        body = {"queries": [query], "documents": documents, "top_n": top_n}
        client.post("/v1/batches/score", body)
        results = client.post("/v1/batches/score", body)["results"]
        order = [each["document_index"] for each in results]
        cases.append({"query": query, "documents": documents, "top_n": top_n, "order": order})
    return cases


def _lines(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (_SET / name).read_text(encoding="utf-8").splitlines()]
