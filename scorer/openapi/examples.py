"""Requests and answers as they are shown in the OpenAPI document."""

from __future__ import annotations

import json
from typing import Any, Final

SCORE_REQUESTS: Final[dict[str, Any]] = {
    "one_query": {
        "summary": "One query, candidates of a retriever, the best two",
        "value": {
            "queries": [{"id": "q1", "text": "Who wrote the opera Fidelio?"}],
            "documents": [
                {"id": "d1", "text": "Fidelio is the only opera by Ludwig van Beethoven."},
                {"id": "d2", "text": "The Danube flows through ten countries."},
                "The Vienna State Opera was built in 1869.",
            ],
            "top_n": 2,
        },
    },
    "one_document": {
        "summary": "One document, many questions: the document is computed once",
        "value": {
            "queries": ["Who wrote Fidelio?", "Is it an opera?", "When was it first performed?"],
            "documents": ["Fidelio is the only opera by Ludwig van Beethoven. It was first performed in 1805."],
        },
    },
    "labels": {
        "summary": "Labels of one's own, chosen pairs, the mass of all labels",
        "value": {
            "queries": ["Who wrote the opera Fidelio?", "Which rivers flow through Vienna?"],
            "documents": ["Fidelio is the only opera by Ludwig van Beethoven.", "The Danube flows through Vienna."],
            "pairs": [[0, 0], [1, 1]],
            "template": "yes-no@1",
            "readout": {"kind": "labels", "labels": ["Yes", "No"], "positive": "Yes", "label_mass": True},
            "deadline_ms": 500,
        },
    },
    "questions": {
        "summary": "Questions of several kinds about one text; it is computed once, and each question is a branch",
        "value": {
            "documents": ["The parcel came a week late and the lamp in it was broken. I want my money back."],
            "instruction": "Read the customer's letter.",
            "queries": [
                {"id": "angry", "text": "Is the customer angry?", "template": "yes-no"},
                {
                    "id": "wish",
                    "text": "What does the customer want?",
                    "options": ["A new lamp", "The money back", "An apology"],
                    "readout": {"debias": "rotate"},
                },
                {"id": "tone", "text": "What is the tone?", "readout": {"labels": ["friendly", "neutral", "hostile"]}},
                {"id": "urgency", "text": "How urgent is it?", "template": "graded"},
            ],
        },
    },
    "listwise": {
        "summary": "Documents compared with each other in one prompt",
        "value": {
            "queries": ["Who wrote the opera Fidelio?"],
            "documents": ["Fidelio is the only opera by Ludwig van Beethoven.", "The Danube flows through Vienna."],
            "template": "listwise",
            "readout": {"debias": "reverse"},
        },
    },
    "long_documents": {
        "summary": "A long document by its best part, less what the model reads from no document",
        "value": {
            "queries": ["Who wrote the opera Fidelio?"],
            "documents": ["Fidelio is the only opera by Ludwig van Beethoven. It was first performed in 1805."],
            "chunking": {"max_tokens": 256, "overlap_tokens": 32, "combine": "max"},
            "readout": {"content_free": "N/A"},
        },
    },
}

SCORE_RESPONSE: Final[dict[str, Any]] = {
    "id": "5f0c1d6e8b7a4c0f9d3e2b1a6c5d4e3f",
    "object": "score_batch",
    "model": "SmolLM2-135M-Instruct",
    "template": "query-likelihood@1",
    "order": "document_first",
    "readout": "likelihood",
    "calibration": None,
    "created": 1767225600,
    "results": [
        {
            "index": 0,
            "query_index": 0,
            "document_index": 0,
            "query_id": "q1",
            "document_id": "d1",
            "status": "ok",
            "score": -1.71203,
            "relevance": 0.1804987,
            "log_prob_sum": -13.6962,
            "target_tokens": 8,
            "usage": {
                "prompt_tokens": 48,
                "cached_tokens": 20,
                "shared_tokens": 0,
                "computed_tokens": 28,
                "truncated_tokens": 0,
            },
        },
        {
            "index": 1,
            "query_index": 0,
            "document_index": 1,
            "query_id": "q1",
            "document_id": "d2",
            "status": "error",
            "error": {
                "code": "document_too_long",
                "message": "the document has 9000 tokens; 8100 fit, and truncation is off",
                "retryable": False,
                "field": "documents[1]",
                "value": 9000,
                "limit": 8100,
            },
        },
    ],
    "counts": {"ok": 1, "error": 1, "unscored": 0},
    "usage": {
        "prompt_tokens": 48,
        "completion_tokens": 0,
        "total_tokens": 48,
        "prompt_tokens_details": {"cached_tokens": 20, "cache_write_tokens": 19},
        "shared_tokens": 0,
        "computed_tokens": 28,
        "truncated_tokens": 0,
    },
    "timings": {
        "tokenize_ms": 0.412,
        "queue_ms": 0.061,
        "prefill_ms": 21.7,
        "readout_ms": 0.9,
        "ttft_ms": 23.4,
        "total_ms": 23.6,
    },
}

SCORE_LINES: Final = """\
{"top_n": 1}
{"query": "Who wrote the opera Fidelio?", "document": "Fidelio is the only opera by Ludwig van Beethoven."}
{"query": "Who wrote the opera Fidelio?", "document": {"id": "d2", "text": "The Danube flows through ten countries."}}
"""

_END: Final = {name: value for name, value in SCORE_RESPONSE.items() if name != "results"} | {
    "object": "score_batch.end",
    "timings": {"tokenize_ms": 0.412, "queue_ms": 0.061, "ttft_ms": 23.4, "total_ms": 23.6},
}
SCORE_STREAM: Final = "".join(json.dumps(line) + "\n" for line in [*SCORE_RESPONSE["results"], _END])
