"""In which orders labels or listed texts are shown, so that the place of an answer does not decide it."""

from __future__ import annotations

from typing import TypeAlias

from scorer.templates.types import Debias

LabelOrder: TypeAlias = tuple[int, ...]
"""``order[place]`` is the index of what stands at ``place``."""


def label_orders(count: int, debias: Debias) -> list[LabelOrder]:
    """The orders that are averaged; the first is the one of the request.

    ``reverse``: forwards and backwards. ``rotate``: as many orders as there are labels, in which
    each of them stands at each place once.
    """
    plain = tuple(range(count))
    match debias:
        case "none":
            return [plain]
        case "reverse":
            return [plain, plain[::-1]] if count > 1 else [plain]
        case "rotate":
            return [plain[shift:] + plain[:shift] for shift in range(max(1, count))]
