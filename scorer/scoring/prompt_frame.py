"""Prompts with everything in place that pairs share: made once, filled by many requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

import numpy as np

from engine import TokenIds
from scorer.scoring.prompt_texts import FilledPart, PairSlot, PairText, PairTexts
from scorer.templates.layout import SpecialToken
from scorer.tokens.text_tokens import TextEncoder, TextPiece, read_only_ids


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PromptFrame:
    """What the prompts of all pairs have in common, tokenised. Immutable, so requests may share it.

    Args:
        shared: Ids in the order of the prompt; none at the places where a text of the pair comes.
        texts: The texts of a pair, in the order of the prompt.
        places: Where each of ``texts`` comes among ``shared``.
        number: Index into ``texts``, by slot.
        fillings: For each of ``texts``, what of a pair it depends on.
        last_slot: The slot that comes last.
    """

    shared: Sequence[TokenIds]
    shared_tokens: int
    texts: Sequence[PairText]
    places: Sequence[int]
    number: Mapping[PairSlot, int]
    fillings: Sequence[Callable[[PairTexts], object]]
    last_slot: PairSlot


def make_frame(parts: Sequence[FilledPart], encoder: TextEncoder) -> PromptFrame:
    """The frame of a filled layout, in which some text has a place for the pair's own."""
    joined = _joined(parts, encoder)
    texts = [part for part in joined if isinstance(part, PairText)]
    shared = [read_only_ids(()) if isinstance(part, PairText) else part for part in joined]
    return PromptFrame(
        shared=shared,
        shared_tokens=sum(map(len, shared)),
        texts=texts,
        places=[place for place, part in enumerate(joined) if isinstance(part, PairText)],
        number={slot: number for number, part in enumerate(texts) for slot in part.slots},
        fillings=[attrgetter(*part.slots) for part in texts],
        last_slot=texts[0].tracked,
    )


def _joined(parts: Sequence[FilledPart], encoder: TextEncoder) -> list[TokenIds | PairText]:
    """The parts with the ids of everything that is the same in all pairs, neighbours made one."""
    encoded = encoder.encode([part for part in parts if isinstance(part, TextPiece)])
    joined: list[TokenIds | PairText] = []
    for part in parts:
        if isinstance(part, PairText):
            joined.append(part)
            continue
        ids = read_only_ids([part.id]) if isinstance(part, SpecialToken) else encoded[part].ids
        last = joined[-1] if joined else None
        if isinstance(last, np.ndarray):
            joined[-1] = np.concatenate([last, ids])
        else:
            joined.append(ids)
    return joined
