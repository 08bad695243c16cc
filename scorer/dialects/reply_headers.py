"""What every answer says in headers, whatever dialect its body is in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from scorer.scoring.batch import ScoredBatch

TOKEN_HEADERS: Final = {
    "x-cached-tokens": "Tokens found in the cache.",
    "x-computed-tokens": "Tokens that the model ran.",
}
BATCH_HEADERS: Final = {
    **TOKEN_HEADERS,
    "x-truncated-tokens": "Tokens cut from the texts of the request.",
    "x-compute-characters": "Characters of the texts of the request.",
    "x-compute-tokens": "Tokens of all prompts.",
    "x-compute-time": "Milliseconds from arrival to answer.",
    "x-total-time": "Milliseconds from arrival to answer.",
    "x-tokenization-time": "Milliseconds of making tokens of texts.",
    "x-queue-time": "Milliseconds until the first step.",
    "x-inference-time": "Milliseconds that the model ran.",
}
"""Name and meaning of each header. Sizes and times are under the names of text-embeddings-inference."""


def token_headers(cached_tokens: int, computed_tokens: int) -> dict[str, str]:
    """Where the tokens of an answer came from."""
    return dict(zip(TOKEN_HEADERS, (str(cached_tokens), str(computed_tokens)), strict=True))


def batch_headers(batch: ScoredBatch, *, num_characters: int) -> Mapping[str, str]:
    """What all pairs of a request took; times in whole milliseconds.

    Args:
        num_characters: Of all texts of the request.
    """
    usage, times = batch.usage, batch.times
    return {
        **token_headers(usage.cached_tokens, usage.computed_tokens),
        "x-truncated-tokens": str(batch.truncated_tokens),
        "x-compute-characters": str(num_characters),
        "x-compute-tokens": str(usage.prompt_tokens),
        "x-compute-time": _ms(times.total_s),
        "x-total-time": _ms(times.total_s),
        "x-tokenization-time": _ms(times.tokenise_s),
        "x-queue-time": _ms(times.queue_s),
        "x-inference-time": _ms(times.prefill_s + times.readout_s),
    }


def _ms(seconds: float) -> str:
    return str(round(seconds * 1000))
