"""Queries of a request that are read alike, and what becomes of them: prompts, readouts, items."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from scorer.calibration.calibration import Calibration
from scorer.dialects.schema import QueryItem, ReadoutSpec, ScoreRequest, TextItem
from scorer.errors import InvalidValue
from scorer.scoring.batch import Pair
from scorer.scoring.item_plan import ItemPlan
from scorer.scoring.prompt_types import PairPrompt, PromptError, PromptLimits
from scorer.scoring.prompts import PromptBuilder, PromptInputError
from scorer.scoring.readouts import ReadoutPlan
from scorer.templates.types import Debias, Listed, Order


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ask:
    """Pairs of a request under one template and one readout.

    Args:
        places: Index of each of ``pairs`` among the pairs of the request.
        field: What comes before the name of a field of the readout in messages.
        num_options: How many options each query has; 0: none.
    """

    request: ScoreRequest
    builder: PromptBuilder
    spec: ReadoutSpec
    calibration: Calibration | None
    order: Order
    places: Sequence[int]
    pairs: Sequence[Pair]
    field: str
    num_options: int
    max_row_tokens: int

    @property
    def lists(self) -> Listed | None:
        """What the prompt lists."""
        return self.builder.template.listing.of if self.builder.template.listing else None

    @property
    def debias(self) -> Debias:
        """Which orders are averaged.

        Raises:
            InvalidValue: the prompt lists nothing whose order could be changed.
        """
        template = self.builder.template
        if self.spec.debias == "auto":
            return template.debias
        if self.spec.debias != "none" and not template.permutable:
            raise InvalidValue(
                f"template {template.id} lists neither labels nor texts, so there is no order to change",
                field="readout.debias",
            )
        return self.spec.debias

    def limits(self, readouts: Sequence[ReadoutPlan], *, whole_documents: bool = False) -> PromptLimits:
        """Lengths for prompts with these readouts.

        Args:
            whole_documents: What stands in the place of the document is not to be cut.
        """
        request = self.request
        return PromptLimits(
            max_prompt_tokens=self.max_row_tokens - max(readout.extra_tokens for readout in readouts),
            max_document_tokens=None if whole_documents else request.max_tokens_per_doc,
            max_query_tokens=request.max_tokens_per_query,
            truncate_documents=request.truncate == "document" and not whole_documents,
            truncation_side=request.truncation_side,
        )

    @contextmanager
    def blaming(self) -> Iterator[None]:
        """Have errors name the field of the request that they come from."""
        try:
            yield
        except PromptInputError as error:
            field = f"{self.field}readout.{error.param}" if error.param.startswith("labels") else error.param
            raise InvalidValue(str(error), field=field) from error
        except InvalidValue as error:
            if not self.field or error.field is None or not error.field.startswith("readout"):
                raise
            raise InvalidValue(
                str(error), field=f"{self.field}{error.field}", value=error.value, limit=error.limit
            ) from error


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Draft:
    """The prompts of an ask.

    Args:
        prompts, readouts: Side by side.
        items: For each pair of the ask, with places among these prompts; None: one prompt each.
    """

    prompts: Sequence[PairPrompt | PromptError]
    readouts: Sequence[ReadoutPlan]
    items: Sequence[ItemPlan] | None = None

    @property
    def num_rows(self) -> int:
        return sum(readout.branches * count for readout, count in Counter(self.readouts).items())


def check_room(num_prompts: int, readout: ReadoutPlan, room: int, *, field: str, why: str) -> None:
    """Refuse what needs too many rows before its prompts are built.

    Raises:
        InvalidValue: there is no room; ``why`` says what the prompts are for.
    """
    num_rows = num_prompts * readout.branches
    if num_rows > room:
        if readout.branches > 1:
            why = f"{why} with {readout.branches} labels of several tokens"
            field = "readout.labels"
        raise InvalidValue(
            f"{why} make {num_rows} prompts, the limit is {room}", field=field, value=num_rows, limit=room
        )


def text_of(item: str | TextItem | QueryItem) -> str:
    return item if isinstance(item, str) else item.text
