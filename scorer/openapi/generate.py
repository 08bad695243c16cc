"""Generation in the OpenAPI document."""

from __future__ import annotations

from typing import Any, Final

from scorer.generation.schema import GenerateEnd, GenerateRequest, GenerateResponse, GenerateText
from scorer.openapi.operations import ScoringOperation, Spoken

_REQUESTS: Final[dict[str, Any]] = {
    "template": {
        "summary": "An answer to a question about a document, the most probable token each time",
        "value": {
            "query": "Who wrote the opera Fidelio?",
            "document": "Fidelio is the only opera by Ludwig van Beethoven.",
            "template": "yes-no@1",
            "instruction": "Answer the question about the text in one word.",
            "max_tokens": 8,
        },
    },
    "questions": {
        "summary": "Questions that a document answers, each drawn on its own",
        "value": {
            "document": "Fidelio is the only opera by Ludwig van Beethoven.",
            "template": "query-likelihood@1",
            "max_tokens": 24,
            "n": 4,
            "temperature": 0.9,
            "top_p": 0.95,
            "seed": 7,
        },
    },
    "prompt": {
        "summary": "A prompt of one's own, three choices that a seed reproduces, ended by a line break",
        "value": {
            "prompt": "Rewrite as a web search.\nQuestion: who wrote fidelio and when?\nSearch:",
            "max_tokens": 24,
            "n": 3,
            "temperature": 0.8,
            "top_p": 0.95,
            "top_k": 50,
            "seed": 7,
            "stop": ["\n"],
        },
    },
}
_RESPONSE: Final[dict[str, Any]] = {
    "id": "6f0d5b1c",
    "object": "generation",
    "model": "SmolLM2-135M-Instruct",
    "template": "yes-no@1",
    "seed": 2891336453,
    "created": 1767225600,
    "choices": [
        {
            "index": 0,
            "text": "Beethoven",
            "finish_reason": "stop",
            "completion_tokens": 3,
            "log_prob_sum": -1.204,
        }
    ],
    "usage": {
        "prompt_tokens": 58,
        "completion_tokens": 3,
        "total_tokens": 61,
        "prompt_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 58},
        "computed_tokens": 61,
    },
    "timings": {
        "tokenize_ms": 0.388,
        "queue_ms": 0.058,
        "prefill_ms": 71.2,
        "readout_ms": 30.5,
        "ttft_ms": 48.1,
        "total_ms": 103.4,
    },
}
_EVENT: Final = {"event": "text", "data": '{"index":0,"text":"Beet","finish_reason":null}'}

GENERATE_OPERATION: Final = ScoringOperation(
    paths=("/v1/generate",),
    operation_id="generate",
    summary="Continue a prompt by a few tokens, in one or several choices",
    description=(
        "The prompt is stored once for all choices and stays in the cache; what the choices say leaves it. With "
        "`stream` the answer is a stream of server-sent events: `text` (GenerateText) for each piece of a choice, and "
        "at last `usage` (GenerateEnd). What fails before the first piece is an error like any other; after it, the "
        "last event is `error`, with the same body. When the deadline passes, what is there by then is the answer. "
        "Unknown fields are refused."
    ),
    spoken=(Spoken(request=GenerateRequest, reply=GenerateResponse, requests=_REQUESTS, answer=_RESPONSE),),
    events=(GenerateText, GenerateEnd),
    event_example=_EVENT,
)
