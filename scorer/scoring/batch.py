"""One request between decoding and the reply: what is to be scored, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from msgspec import Struct

from engine import Row, RowUsage, TaskStats
from scorer.dialects.schema import ItemStatus
from scorer.metrics import ItemOutcome
from scorer.scoring.item_plan import ItemPlan
from scorer.scoring.prompt_types import PairPrompt, PromptError
from scorer.scoring.readouts import LabelPlan, ReadoutPlan
from scorer.scoring.scores import ItemScore
from scorer.templates.types import Order

Pair: TypeAlias = tuple[int, int]
"""Index of the query, index of the document."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BatchPlan:
    """A request, tokenised.

    Args:
        template: ``name@version``, that of the first pair if there are several.
        templates: That of each pair, if there are several; otherwise None.
        prompts, readouts: One for each pair, or as ``items`` says.
        items: How each pair is scored from its prompts; None: each from the one at its own place.
        calibration: ``name@version`` of what changed some score.
        rows: Those of all prompts that could be built; a prompt has ``branches`` of its readout,
            which stand together.
    """

    template: str
    order: Order
    pairs: Sequence[Pair]
    prompts: Sequence[PairPrompt | PromptError]
    readouts: Sequence[ReadoutPlan]
    rows: tuple[Row, ...]
    items: Sequence[ItemPlan] | None = None
    templates: Sequence[str] | None = None
    calibration: str | None = None

    @property
    def is_complete(self) -> bool:
        """Whether every prompt could be built."""
        return not any(isinstance(prompt, PromptError) for prompt in self.prompts)

    @property
    def num_numbers(self) -> int:
        """How many pairs and probabilities an answer is made of: a measure of the time that takes."""
        read = (len(each.labels) if isinstance(each, LabelPlan) else 1 for each in self.readouts)
        return len(self.pairs) + sum(read)


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemFault:
    """Why a pair has no score."""

    status: ItemStatus
    outcome: ItemOutcome
    code: str
    message: str
    retryable: bool
    field: str | None = None
    value: int | None = None
    limit: int | None = None


class ScoredItem(Struct, frozen=True, kw_only=True, gc=False):
    """What became of one pair: a score or a fault.

    Args:
        usage: Sum over the rows of the pair; None if it had none.
    """

    index: int
    result: ItemScore | ItemFault
    usage: RowUsage | None
    truncated_tokens: int

    @property
    def score(self) -> ItemScore | None:
        return self.result if isinstance(self.result, ItemScore) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTimes:
    """Seconds. ``ttft_s`` is arrival to the first score known, None without a score."""

    tokenise_s: float
    queue_s: float
    prefill_s: float
    readout_s: float
    ttft_s: float | None
    total_s: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScoredBatch:
    """The answer to a request, in no wire form yet. ``items`` are in the order of the pairs."""

    request_id: str
    model: str
    plan: BatchPlan
    items: list[ScoredItem]
    stats: TaskStats | None
    times: BatchTimes

    @property
    def usage(self) -> TaskStats:
        """What the engine counted; all zero if it was not needed."""
        return self.stats or TaskStats(task_id=self.request_id, end="ok", num_rows=0)

    @property
    def faults(self) -> list[ItemFault]:
        """Those of the pairs that have no score."""
        return [item.result for item in self.items if isinstance(item.result, ItemFault)]

    @property
    def truncated_tokens(self) -> int:
        return sum([item.truncated_tokens for item in self.items])

    @property
    def outcome(self) -> Literal["ok", "partial"]:
        return "partial" if self.faults else "ok"
