"""Requests and answers of the rerank-shaped routes, as they are shown in the OpenAPI document."""

from __future__ import annotations

from typing import Any, Final

_ID: Final = "5f0c1d6e8b7a4c0f9d3e2b1a6c5d4e3f"
_MODEL: Final = "SmolLM2-135M-Instruct"
_QUERY: Final = "Who wrote the opera Fidelio?"
_BEST: Final = "Fidelio is the only opera by Ludwig van Beethoven."
_TEXTS: Final = [_BEST, "The Danube flows through ten countries."]
_RELEVANCE: Final = 0.180498
_LOG_ODDS: Final = -1.512977

RERANK_REQUESTS: Final[dict[str, Any]] = {
    "documents": {
        "summary": "Jina, vLLM, Cohere v1",
        "value": {"query": _QUERY, "documents": _TEXTS, "top_n": 1, "return_documents": True},
    }
}

RERANK_RESPONSE: Final[dict[str, Any]] = {
    "id": _ID,
    "object": "list",
    "model": _MODEL,
    "results": [{"index": 0, "relevance_score": _RELEVANCE, "document": {"text": _BEST}}],
    "usage": {
        "prompt_tokens": 93,
        "completion_tokens": 0,
        "total_tokens": 93,
        "prompt_tokens_details": {"cached_tokens": 20, "cache_write_tokens": 36},
        "shared_tokens": 20,
        "computed_tokens": 53,
        "truncated_tokens": 0,
    },
    "meta": {
        "api_version": {"version": "1"},
        "billed_units": {"search_units": 1},
        "tokens": {"input_tokens": 93, "output_tokens": 0},
        "cached_tokens": 20,
    },
}

VOYAGE_REQUESTS: Final[dict[str, Any]] = {
    "voyage": {
        "summary": "Voyage",
        "value": {"query": _QUERY, "documents": _TEXTS, "model": _MODEL, "top_k": 1, "return_documents": True},
    }
}

VOYAGE_RESPONSE: Final[dict[str, Any]] = {
    "object": "list",
    "data": [{"index": 0, "relevance_score": _RELEVANCE, "document": _BEST}],
    "model": _MODEL,
    "usage": {"total_tokens": 93},
}

INFINITY_REQUESTS: Final[dict[str, Any]] = {
    "infinity": {
        "summary": "Infinity",
        "value": {"query": _QUERY, "documents": _TEXTS, "raw_scores": True, "top_n": 1},
    }
}

INFINITY_RESPONSE: Final[dict[str, Any]] = {
    "object": "rerank",
    "results": [{"relevance_score": _LOG_ODDS, "index": 0}],
    "model": _MODEL,
    "usage": {"prompt_tokens": 93, "total_tokens": 93},
    "id": f"infinity-{_ID}",
    "created": 1767225600,
}

TEI_REQUESTS: Final[dict[str, Any]] = {
    "texts": {
        "summary": "text-embeddings-inference",
        "value": {"query": _QUERY, "texts": _TEXTS, "return_text": True},
    }
}

TEI_RESPONSE: Final[list[dict[str, Any]]] = [
    {"index": 0, "score": _RELEVANCE, "text": _BEST},
    {"index": 1, "score": 0.0183156, "text": _TEXTS[1]},
]

VLLM_REQUESTS: Final[dict[str, Any]] = {
    "vllm": {
        "summary": "vLLM",
        "value": {"query": _QUERY, "documents": _TEXTS, "top_n": 1, "cache_salt": "tenant-7", "use_activation": True},
    }
}

VLLM_RESPONSE: Final[dict[str, Any]] = {
    "id": f"rerank-{_ID}",
    "model": _MODEL,
    "usage": {"prompt_tokens": 93, "total_tokens": 93},
    "results": [{"index": 0, "document": {"text": _BEST, "multi_modal": None}, "relevance_score": _RELEVANCE}],
}

JINA_REQUESTS: Final[dict[str, Any]] = {
    "jina": {
        "summary": "Jina",
        "value": {"model": "jina-reranker-v3", "query": _QUERY, "documents": [{"text": _BEST, "id": 7}, _TEXTS[1]]},
    }
}

JINA_RESPONSE: Final[dict[str, Any]] = {
    "model": _MODEL,
    "object": "list",
    "usage": {"total_tokens": 93, "prompt_tokens": 93},
    "results": [
        {"index": 0, "relevance_score": _RELEVANCE, "document": {"text": _BEST, "id": 7}},
        {"index": 1, "relevance_score": 0.0183156, "document": {"text": _TEXTS[1]}},
    ],
}

SGLANG_REQUESTS: Final[dict[str, Any]] = {
    "sglang": {
        "summary": "SGLang",
        "value": {"query": _QUERY, "documents": _TEXTS, "instruct": "Find the composer.", "top_n": 1},
    }
}

SGLANG_RESPONSE: Final[list[dict[str, Any]]] = [
    {
        "score": _RELEVANCE,
        "index": 0,
        "meta_info": {"id": _ID, "prompt_tokens": 47, "cached_tokens": 20, "truncated_tokens": 0},
        "document": _BEST,
    }
]

COHERE_REQUESTS: Final[dict[str, Any]] = {
    "cohere": {
        "summary": "Cohere v2",
        "value": {"model": _MODEL, "query": _QUERY, "documents": _TEXTS, "top_n": 1},
    }
}

COHERE_RESPONSE: Final[dict[str, Any]] = {
    "id": _ID,
    "results": [{"index": 0, "relevance_score": _RELEVANCE}],
    "meta": {
        "api_version": {"version": "2"},
        "billed_units": {"search_units": 1},
        "tokens": {"input_tokens": 93, "output_tokens": 0},
        "cached_tokens": 20,
    },
}

NVIDIA_REQUESTS: Final[dict[str, Any]] = {
    "nvidia": {
        "summary": "NVIDIA",
        "value": {"query": {"text": _QUERY}, "passages": [{"text": text} for text in _TEXTS], "top_k": 1},
    }
}

NVIDIA_RESPONSE: Final[dict[str, Any]] = {
    "rankings": [{"index": 0, "logit": _LOG_ODDS}],
    "usage": {"prompt_tokens": 93, "total_tokens": 93},
}
