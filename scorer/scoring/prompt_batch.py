"""The pairs of one request: every distinct text is tokenised once, what is too long is cut."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from msgspec import Struct

from scorer.dialects.schema import TruncationSide
from scorer.scoring.prompt_frame import PromptFrame
from scorer.scoring.prompt_texts import PairSlot, PairTexts, RenderedText
from scorer.scoring.prompt_types import PairPrompt, PromptError, PromptLimits
from scorer.tokens.text_tokens import EncodedText, TextEncoder, TextPiece

_Outcome: TypeAlias = PairPrompt | PromptError


@dataclass(frozen=True, slots=True)
class _FittedQuery:
    text: str
    cut_tokens: int = 0


class _Draft(Struct, frozen=True, eq=False, gc=False):
    """A pair whose prompt is not known to fit yet.

    Args:
        rendered: The texts of this pair, in the order of the prompt.
        cut_query_tokens: Cut from the query.
        uncut_tokens: Tokens of the document before it was cut; None: it is whole.
    """

    index: int
    texts: PairTexts
    rendered: tuple[RenderedText, ...]
    cut_query_tokens: int
    uncut_tokens: int | None = None


class PromptBatch:
    """Builds prompts in one frame. Made for one request and used by one thread.

    Args:
        has_target: The end of the prompt, from the query's first token, is the target.
        longest_shared_slot: What to blame if there is no room even without query and document.
    """

    def __init__(
        self,
        frame: PromptFrame,
        *,
        encoder: TextEncoder,
        limits: PromptLimits,
        has_target: bool,
        longest_shared_slot: Literal["system", "instruction"],
    ) -> None:
        self._frame = frame
        self._encoder = encoder
        self._limits = limits
        self._has_target = has_target
        self._longest_shared_slot: Literal["system", "instruction"] = longest_shared_slot
        self._encoded: dict[TextPiece, EncodedText] = {}
        self._rendered: dict[tuple[int, object], RenderedText] = {}

    def build(self, pairs: Sequence[PairTexts]) -> list[_Outcome]:
        """The prompt of each pair, or why it has none, in order."""
        outcomes: dict[int, _Outcome] = {}
        drafts: list[_Draft] = []
        queries = self._fit_queries({texts.query for texts in pairs})
        for index, texts in enumerate(pairs):
            fitted = queries[texts.query]
            if isinstance(fitted, PromptError):
                outcomes[index] = fitted
            else:
                shown = texts if fitted.text is texts.query else texts._replace(query=fitted.text)
                drafts.append(self._draft(index, shown, cut_query_tokens=fitted.cut_tokens))
        while drafts:
            drafts = self._settle(drafts, outcomes)
        return [outcomes[index] for index in range(len(pairs))]

    def _settle(self, drafts: list[_Draft], outcomes: dict[int, _Outcome]) -> list[_Draft]:
        """Record the outcome of every draft that has one; the others, with a shorter document, are returned."""
        for cut in (False, True):
            chosen = [draft for draft in drafts if (draft.uncut_tokens is not None) == cut]
            self._encode((text.piece for draft in chosen for text in draft.rendered), spans=cut)
        tight: list[_Draft] = []
        for draft in drafts:
            if draft.uncut_tokens is None and self._surely_fits(draft):
                outcomes[draft.index] = self._prompt(draft, cut_tokens=0)
            else:
                tight.append(draft)
        self._encode((self._text(draft, "document").piece for draft in tight), spans=True)
        again: list[_Draft] = []
        for draft in tight:
            fitted = self._fit_document(draft)
            if isinstance(fitted, _Draft):
                again.append(fitted)
            else:
                outcomes[draft.index] = fitted
        return again

    def _fit_queries(self, queries: Iterable[str]) -> dict[str, _FittedQuery | PromptError]:
        """Each query, cut if the caller gave a limit, counted beside an empty document."""
        limit = self._limits.max_query_tokens
        fitted: dict[str, _FittedQuery | PromptError] = {}
        pending = {query: query for query in queries}
        if self._has_target and "" in pending:
            del pending[""]
            fitted[""] = _empty_target()
        if limit is None:
            return fitted | {query: _FittedQuery(query) for query in pending}
        uncut: dict[str, int] = {}
        while pending:
            drafts = {query: self._draft(0, PairTexts(text, "")) for query, text in pending.items()}
            self._encode((self._text(draft, "query").piece for draft in drafts.values()), spans=True)
            pending = {}
            for query, draft in drafts.items():
                tokens = self._slot_tokens(draft, "query")
                uncut.setdefault(query, tokens)
                if tokens <= limit:
                    whole = draft.texts.query == query
                    fitted[query] = _FittedQuery(draft.texts.query, 0 if whole else _lost(uncut[query], tokens))
                elif shorter := self._cut(draft, "query", keep_tokens=limit):
                    pending[query] = shorter
                else:
                    message = f"the first character of the query has more than {limit} tokens, the limit"
                    fitted[query] = _too_long("query", uncut[query], limit, message)
        return fitted

    def _fit_document(self, draft: _Draft) -> _Outcome | _Draft:
        """The outcome of a draft, or the draft with a document that is shorter."""
        tokens = self._slot_tokens(draft, "document")
        room = self._limits.max_prompt_tokens - (self._total(draft) - tokens)
        limit = self._limits.max_document_tokens
        allowed = room if limit is None else min(room, limit)
        uncut = tokens if draft.uncut_tokens is None else draft.uncut_tokens
        if tokens <= allowed:
            return self._prompt(draft, cut_tokens=0 if draft.uncut_tokens is None else _lost(uncut, tokens))
        if room <= 0:
            return self._no_room(draft, others=self._total(draft) - tokens)
        if not self._limits.truncate_documents:
            message = f"the document has {tokens} tokens; {allowed} fit, and truncation is off"
            return _too_long("document", tokens, allowed, message)
        side = self._limits.truncation_side
        shorter = self._cut(draft, "document", keep_tokens=allowed, side=side)
        if not shorter:
            end = "first" if side == "right" else "last"
            message = f"the document has {uncut} tokens; its {end} character does not fit into {allowed}"
            return _too_long("document", uncut, allowed, message)
        texts = draft.texts._replace(document=shorter)
        return self._draft(draft.index, texts, cut_query_tokens=draft.cut_query_tokens, uncut_tokens=uncut)

    def _no_room(self, draft: _Draft, *, others: int) -> PromptError:
        """Who is to blame when ``others``, all tokens but the document's, leave no room for it."""
        limit = self._limits.max_prompt_tokens
        own: tuple[PairSlot, ...] = tuple(slot for slot in ("query", "options") if slot in self._frame.number)
        self._encode([self._text(draft, slot).piece for slot in own], spans=True)
        lengths = {slot: self._slot_tokens(draft, slot) for slot in own}
        tokens = sum(lengths.values())
        room = limit - (others - tokens) - (1 if draft.texts.document else 0)
        if room > 0:
            what = "the query has" if len(own) == 1 else "query and options have"
            message = f"{what} {tokens} tokens; the prompt has room for {room} beside a document"
            return _too_long(max(own, key=lengths.__getitem__), tokens, room, message)
        slot = self._longest_shared_slot
        message = f"system text, instruction and template have {others - tokens} tokens of {limit}, the limit"
        return PromptError(code="prompt_too_long", slot=slot, message=message, tokens=others - tokens, limit=limit)

    def _cut(self, draft: _Draft, slot: PairSlot, *, keep_tokens: int, side: TruncationSide = "right") -> str:
        """The text of a slot without the characters that have a token beyond ``keep_tokens``.

        Args:
            side: Where the text is cut: tokens are counted from the other one.
        """
        rendered = self._text(draft, slot)
        spans = self._encoded[rendered.piece].spans
        assert spans is not None, "only texts with spans are cut"
        start, end = rendered.slots[slot]
        first, last = spans.covering(start, end)
        if side == "left":
            return rendered.piece.text[min(end, int(spans.ends[last - keep_tokens - 1])) : end]
        return rendered.piece.text[start : max(start, int(spans.starts[first + keep_tokens]))]

    def _slot_tokens(self, draft: _Draft, slot: PairSlot) -> int:
        rendered = self._text(draft, slot)
        spans = self._encoded[rendered.piece].spans
        assert spans is not None, "only texts with spans are counted"
        first, last = spans.covering(*rendered.slots[slot])
        return last - first

    def _surely_fits(self, draft: _Draft) -> bool:
        limit = self._limits.max_document_tokens
        around = len(self._encoded[self._text(draft, "document").piece].ids)
        return self._total(draft) <= self._limits.max_prompt_tokens and (limit is None or around <= limit)

    def _prompt(self, draft: _Draft, *, cut_tokens: int) -> _Outcome:
        frame = self._frame
        parts = list(frame.shared)
        for place, text in zip(frame.places, draft.rendered, strict=True):
            parts[place] = self._encoded[text.piece].ids
        last = frame.number[frame.last_slot]
        before = sum(map(len, parts[: frame.places[last]]))
        reusable_tokens = before + self._encoded[draft.rendered[last].piece].lead_tokens
        ids = np.concatenate(parts)
        ids.flags.writeable = False
        if self._has_target and reusable_tokens == len(ids):
            return _empty_target()
        return PairPrompt(
            context=ids[:reusable_tokens] if self._has_target else ids,
            target=ids[reusable_tokens:] if self._has_target else None,
            reusable_tokens=reusable_tokens,
            truncated_tokens=cut_tokens,
            truncated_query_tokens=draft.cut_query_tokens,
        )

    def _total(self, draft: _Draft) -> int:
        return self._frame.shared_tokens + sum([len(self._encoded[text.piece].ids) for text in draft.rendered])

    def _text(self, draft: _Draft, slot: PairSlot) -> RenderedText:
        return draft.rendered[self._frame.number[slot]]

    def _draft(
        self, index: int, texts: PairTexts, *, cut_query_tokens: int = 0, uncut_tokens: int | None = None
    ) -> _Draft:
        rendered = tuple([self._render(number, texts) for number in range(len(self._frame.texts))])
        return _Draft(index, texts, rendered, cut_query_tokens, uncut_tokens)

    def _render(self, number: int, texts: PairTexts) -> RenderedText:
        """A text, made once for all pairs that fill it alike: most have one of two in common with others."""
        key = (number, self._frame.fillings[number](texts))
        rendered = self._rendered.get(key)
        if rendered is None:
            rendered = self._rendered[key] = self._frame.texts[number].render(texts)
        return rendered

    def _encode(self, pieces: Iterable[TextPiece], *, spans: bool) -> None:
        wanted = {
            piece for piece in pieces if piece not in self._encoded or (spans and self._encoded[piece].spans is None)
        }
        if wanted:
            self._encoded.update(self._encoder.encode(wanted, spans=spans))


def _lost(before: int, after: int) -> int:
    """Tokens that a cut text has lost; at least one, though what is left may share a token with the text around it."""
    return max(1, before - after)


def _empty_target() -> PromptError:
    message = "the query has no tokens, so it has no likelihood"
    return PromptError(code="empty_target", slot="query", message=message, tokens=0, limit=1)


_TOO_LONG: dict[PairSlot, Literal["query_too_long", "document_too_long", "options_too_long"]] = {
    "query": "query_too_long",
    "document": "document_too_long",
    "options": "options_too_long",
}


def _too_long(slot: PairSlot, tokens: int, limit: int, message: str) -> PromptError:
    return PromptError(code=_TOO_LONG[slot], slot=slot, message=message, tokens=tokens, limit=limit)
