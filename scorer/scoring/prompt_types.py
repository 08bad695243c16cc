"""What the text side hands to the service: token ids of pairs, and what could not be built."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from msgspec import Struct

from engine import TokenIds
from scorer.dialects.schema import TruncationSide


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptLimits:
    """Lengths in tokens that a pair must respect.

    Args:
        max_prompt_tokens: Longest context plus target.
        max_document_tokens: Longest document; longer ones are cut or refused. None: no limit.
        max_query_tokens: Longest query. A query is never cut unless this is given.
        truncate_documents: Cut a document that does not fit; otherwise the pair is refused.
        truncation_side: ``right``: its end goes. ``left``: its beginning.
    """

    max_prompt_tokens: int
    max_document_tokens: int | None = None
    max_query_tokens: int | None = None
    truncate_documents: bool = True
    truncation_side: TruncationSide = "right"


class PairPrompt(Struct, frozen=True, kw_only=True, eq=False, gc=False):
    """Token ids of one (query, document) pair under one template.

    A struct, as there is one for each of the thousands of pairs of a batch.

    Args:
        context: Everything that precedes the place where the score is read.
        target: Likelihood templates: the span whose probability is the score. Otherwise None.
        reusable_tokens: Length of the part of ``context`` that other pairs are likely to
            share: up to the start of the slot that varies last.
        truncated_tokens: Document tokens that were cut.
        truncated_query_tokens: Query tokens that were cut because the caller asked for it.
    """

    context: TokenIds
    target: TokenIds | None
    reusable_tokens: int
    truncated_tokens: int = 0
    truncated_query_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptError:
    """Why a pair has no prompt. ``slot`` is the piece of text to blame."""

    code: Literal["query_too_long", "document_too_long", "options_too_long", "prompt_too_long", "empty_target"]
    slot: Literal["query", "document", "options", "instruction", "system"]
    message: str
    tokens: int
    limit: int
