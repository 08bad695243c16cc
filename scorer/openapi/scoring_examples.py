"""Requests and answers of the score-shaped routes as the OpenAPI document shows them."""

from __future__ import annotations

from typing import Any, Final

_ID: Final = "5f0c1d6e8b7a4c0f9d3e2b1a6c5d4e3f"
_QUERY: Final = "Who wrote the opera Fidelio?"
_DOCUMENTS: Final = ["Fidelio is the only opera by Ludwig van Beethoven.", "The Danube flows through ten countries."]
_RAW_QUERY: Final = "<|im_start|>user\nDoes this text name a composer? Reply with Yes or No only.\n\n"
_RAW_ITEMS: Final = [f"{text}<|im_end|>\n<|im_start|>assistant\n" for text in _DOCUMENTS]


def _usage(prompt_tokens: int, cached_tokens: int) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens,
        "completion_tokens": 0,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
        "completion_tokens_details": None,
    }


def vllm_score_requests(queries: str, documents: str) -> dict[str, Any]:
    """The same request in one of the spellings."""
    return {
        f"{queries}_and_{documents}": {
            "summary": f"One and many, as `{queries}` and `{documents}`",
            "value": {queries: _QUERY, documents: _DOCUMENTS},
        }
    }


VLLM_SCORE_RESPONSE: Final[dict[str, Any]] = {
    "id": f"score-{_ID}",
    "object": "list",
    "created": 1767225600,
    "model": "SmolLM2-135M-Instruct",
    "data": [
        {"index": 0, "object": "score", "score": 0.180498},
        {"index": 1, "object": "score", "score": 0.01630521},
    ],
    "usage": _usage(93, 20),
}

GENERATIVE_REQUESTS: Final[dict[str, Any]] = {
    "texts": {
        "summary": "Texts; the probability of the first label",
        "value": {"query": _RAW_QUERY, "items": _RAW_ITEMS, "label_token_ids": [402, 318]},
    },
    "token_ids": {
        "summary": "Token ids; shares of the whole vocabulary",
        "value": {
            "query": [1, 260, 300],
            "items": [[301, 302], [303]],
            "label_token_ids": [402],
            "apply_softmax": False,
        },
    },
}

GENERATIVE_RESPONSE: Final[dict[str, Any]] = {
    "id": f"generative-scoring-{_ID}",
    "object": "list",
    "created": 1767225600,
    "model": "SmolLM2-135M-Instruct",
    "data": [
        {"index": 0, "object": "score", "score": 0.8176235},
        {"index": 1, "object": "score", "score": 0.3021442},
    ],
    "usage": _usage(71, 0),
}

SGLANG_SCORE_REQUESTS: Final[dict[str, Any]] = {
    "label_token_ids": {
        "summary": "SGLang: texts, two labels, shares of the labels",
        "value": {"query": _RAW_QUERY, "items": _RAW_ITEMS, "label_token_ids": [402, 318], "apply_softmax": True},
    },
    "token_ids": {
        "summary": "SGLang: token ids, labels for each item, shares of the whole vocabulary",
        "value": {"query": [1, 260, 300], "items": [[301, 302], [303]], "label_token_ids": [[402, 318], [402]]},
    },
}

SGLANG_SCORE_RESPONSE: Final[dict[str, Any]] = {
    "scores": [[0.8176235, 0.1823765], [0.3021442, 0.6978558]],
    "model": "SmolLM2-135M-Instruct",
    "usage": _usage(71, 0),
    "object": "scoring",
    "pooled_hidden_states": None,
    "token_logprobs": None,
}

TEI_PREDICT_REQUESTS: Final[dict[str, Any]] = {
    "pair": {"summary": "One pair", "value": {"inputs": [_QUERY, _DOCUMENTS[0]]}},
    "pairs": {"summary": "Several pairs", "value": {"inputs": [[_QUERY, text] for text in _DOCUMENTS]}},
}

TEI_PREDICT_RESPONSE: Final[list[dict[str, Any]]] = [
    {"score": 0.8176235, "label": "Yes"},
    {"score": 0.1823765, "label": "No"},
]

DECISIONS_REQUESTS: Final[dict[str, Any]] = {
    "questions": {
        "summary": "A predicate, a choice and a score about one input",
        "value": {
            "model": "SmolLM2-135M-Instruct",
            "input": _DOCUMENTS[0],
            "questions": [
                {"type": "predicate", "name": "composer", "instructions": "The text names a composer."},
                {
                    "type": "choice",
                    "name": "topic",
                    "instructions": "What is the text about?",
                    "choices": [{"value": "music"}, {"value": "rivers", "description": "waters and their courses"}],
                },
                {
                    "type": "score",
                    "instructions": "How technical is the text?",
                    "levels": [{"label": "not at all"}, {"label": "somewhat"}, {"label": "very"}],
                },
            ],
        },
    }
}

DECISIONS_RESPONSE: Final[dict[str, Any]] = {
    "model": "SmolLM2-135M-Instruct",
    "answers": [
        {"type": "predicate", "name": "composer", "probability": 0.8176235},
        {
            "type": "choice",
            "name": "topic",
            "choice": "music",
            "probabilities": [{"value": "music", "probability": 0.9}, {"value": "rivers", "probability": 0.1}],
            "confidence": 0.81,
        },
        {
            "type": "score",
            "name": None,
            "score": 0.6,
            "probabilities": [
                {"value": 0, "label": "not at all", "probability": 0.5},
                {"value": 1, "label": "somewhat", "probability": 0.4},
                {"value": 2, "label": "very", "probability": 0.1},
            ],
            "confidence": 0.45,
        },
    ],
    "usage": {
        "input_tokens": 172,
        "input_tokens_details": {"cached_tokens": 17, "cache_write_tokens": 0},
        "output_tokens": 0,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 172,
    },
}

SYSTEMONE_REQUESTS: Final[dict[str, Any]] = {
    "questions": {
        "summary": "Three kinds of questions about a state",
        "value": {
            "state": {"title": "Fidelio", "text": _DOCUMENTS[0]},
            "instructions": "You sort entries of an encyclopedia.",
            "questions": {
                "topic": {
                    "type": "choice",
                    "instructions": "What is the text about?",
                    "criteria": {"music": None, "rivers": "waters and their courses"},
                },
                "composer": {"type": "noul", "instructions": "Does the text name a composer?"},
                "depth": {
                    "type": "score",
                    "instructions": "How technical is the text?",
                    "criteria": ["not at all", "somewhat", "very"],
                },
            },
        },
    }
}

SYSTEMONE_RESPONSE: Final[dict[str, Any]] = {
    "id": f"decision-{_ID}",
    "object": "structured_decision",
    "created": 1767225600,
    "model": "SmolLM2-135M-Instruct",
    "answers": {
        "topic": {
            "type": "choice",
            "choice": "music",
            "probabilities": {"music": 0.9, "rivers": 0.1},
            "confidence": 0.81,
            "x_label_mass": 0.9,
        },
        "composer": {
            "type": "noul",
            "noul": 0.8,
            "probabilities": {"yes": 0.8, "no": 0.2},
            "confidence": 0.56,
            "x_label_mass": 0.7,
        },
        "depth": {
            "type": "score",
            "score": 0.6,
            "legend": {"0": "not at all", "1": "somewhat", "2": "very"},
            "probabilities": {"0": 0.5, "1": 0.4, "2": 0.1},
            "confidence": 0.45,
            "x_label_mass": 0.9,
        },
    },
    "usage": {"input_tokens": 172, "output_tokens": 0},
    "diagnostics": {
        "topic": {"label_mass": 0.9, "argmax_is_label": True},
        "composer": {"label_mass": 0.7, "argmax_is_label": True},
        "depth": {"label_mass": 0.9, "argmax_is_label": True},
    },
    "joint": False,
}

SGLANG_DECISIONS_REQUESTS: Final[dict[str, Any]] = {
    "sglang": {
        "summary": "SGLang: a choice, a score and a yes-or-no question about one input",
        "value": {
            "input": _DOCUMENTS[0],
            "questions": [
                {
                    "id": "topic",
                    "type": "choice",
                    "question": "What is the text about?",
                    "options": [{"name": "music"}, {"name": "rivers", "description": "waters and their courses"}],
                },
                {
                    "id": "depth",
                    "type": "score",
                    "question": "How technical is the text?",
                    "levels": ["not at all", "somewhat", "very"],
                },
                {"id": "composer", "type": "yes_no", "question": "Does the text name a composer?"},
            ],
            "prompt_format_version": 1,
        },
    }
}

SGLANG_DECISIONS_RESPONSE: Final[dict[str, Any]] = {
    "object": "decisions",
    "model": "SmolLM2-135M-Instruct",
    "prompt_format_version": 1,
    "answers": {
        "topic": {
            "type": "choice",
            "probabilities": {"music": 0.9, "rivers": 0.1},
            "label_mass": 0.9,
            "choice": "music",
        },
        "depth": {
            "type": "score",
            "probabilities": {"0": 0.5, "1": 0.4, "2": 0.1},
            "label_mass": 0.9,
            "score": 0.6,
        },
        "composer": {"type": "yes_no", "probabilities": {"yes": 0.8, "no": 0.2}, "label_mass": 0.7},
    },
    "usage": _usage(172, 17),
}

SGLANG_SYSTEMONE_REQUESTS: Final[dict[str, Any]] = {
    "sglang": {
        "summary": "Two kinds of questions about a state",
        "value": {
            "model": "SmolLM2-135M-Instruct",
            "state": {"title": "Fidelio", "text": _DOCUMENTS[0]},
            "questions": {
                "topic": {
                    "type": "choice",
                    "instructions": "What is the text about?",
                    "criteria": {"music": None, "rivers": "waters and their courses"},
                },
                "composer": {"type": "noul", "instructions": "Does the text name a composer?"},
            },
        },
    }
}

SGLANG_SYSTEMONE_RESPONSE: Final[dict[str, Any]] = {
    "model": "SmolLM2-135M-Instruct",
    "answers": {
        "topic": {
            "type": "choice",
            "choice": "music",
            "confidence": 0.8,
            "probabilities": {"music": 0.9, "rivers": 0.1},
            "x_label_mass": 0.9,
        },
        "composer": {"type": "noul", "noul": 0.8, "x_label_mass": 0.7},
    },
    "usage": {"input_tokens": 118, "output_tokens": 0},
}
