"""What a request wants to be read, settled against its template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from engine import TokenIds
from scorer.errors import InvalidValue
from scorer.prompts import PromptBuilder
from scorer.schema import ReadoutSpec
from scorer.template_types import ReadoutKind


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LabelPlan:
    """Probabilities of labels.

    Args:
        ids: Tokens of each label, in the order of ``labels``; distinct, none begins another.
        positive: Index of the label whose probability is the score.
    """

    labels: tuple[str, ...]
    ids: tuple[TokenIds, ...]
    positive: int
    label_mass: bool = False
    normalise: Literal["labels", "vocabulary"] = "labels"
    temperature: float = 1.0

    @property
    def single_tokens(self) -> bool:
        """Whether one row per prompt reads all labels."""
        return all(len(ids) == 1 for ids in self.ids)

    @property
    def extra_tokens(self) -> int:
        """How many positions the longest label adds to the prompt."""
        return max(map(len, self.ids)) - 1

    @property
    def branches(self) -> int:
        """Rows for each prompt."""
        return 1 if self.single_tokens else len(self.labels)


@dataclass(frozen=True, slots=True)
class LikelihoodPlan:
    """Log-probability of the target that the template marks."""

    @property
    def extra_tokens(self) -> int:
        return -1  # the last token of the target is read, never run

    @property
    def branches(self) -> int:
        return 1


ReadoutPlan: TypeAlias = LabelPlan | LikelihoodPlan


def wanted_kind(spec: ReadoutSpec) -> ReadoutKind | None:
    """The readout that a request insists on; None leaves it to the template."""
    if spec.kind != "auto":
        return spec.kind
    return None if spec.labels is None else "labels"


def settle_readout(spec: ReadoutSpec, builder: PromptBuilder) -> ReadoutPlan:
    """The readout of a request under the template of ``builder``.

    Raises:
        InvalidValue: an option has no meaning for this readout, or the labels cannot be told
            apart by their tokens.
        PromptInputError: a label has no tokens of its own.
    """
    if builder.template.readout == "likelihood":
        _refuse_label_options(spec)
        return LikelihoodPlan()
    labels = tuple(spec.labels) if spec.labels is not None else builder.template.labels
    if len(labels) < 2 and spec.normalise == "labels":
        raise InvalidValue(
            "a single label always has probability 1 among the labels; give two, or normalise over the vocabulary",
            field="readout.labels",
            value=len(labels),
            limit=2,
        )
    if spec.normalise == "vocabulary" and spec.temperature != 1.0:
        raise InvalidValue(
            "a temperature can only be applied to labels that are normalised among themselves",
            field="readout.temperature",
            value=spec.temperature,
            limit=1.0,
        )
    ids = tuple(builder.label_ids(labels))
    _refuse_prefixes(labels, ids)
    return LabelPlan(
        labels=labels,
        ids=ids,
        positive=_positive(spec, labels, builder.template.positive),
        label_mass=spec.label_mass,
        normalise=spec.normalise,
        temperature=spec.temperature,
    )


def _positive(spec: ReadoutSpec, labels: Sequence[str], default: str | None) -> int:
    if spec.positive is not None:
        if spec.positive not in labels:
            raise InvalidValue("the positive label is not one of the labels", field="readout.positive")
        return labels.index(spec.positive)
    return labels.index(default) if default in labels else 0


def _refuse_label_options(spec: ReadoutSpec) -> None:
    plain = ReadoutSpec()
    for name in ("labels", "positive", "label_mass", "normalise", "temperature"):
        if getattr(spec, name) != getattr(plain, name):
            raise InvalidValue(f"{name} has no meaning for a likelihood", field=f"readout.{name}")


def _refuse_prefixes(labels: Sequence[str], ids: Sequence[TokenIds]) -> None:
    """A label whose tokens begin those of another can never be the less likely one of the two."""
    tuples = [tuple(each.tolist()) for each in ids]
    for shorter, start in zip(labels, tuples, strict=True):
        for index, longer in enumerate(tuples):
            if len(start) < len(longer) and longer[: len(start)] == start:
                raise InvalidValue(
                    f"the tokens of label {shorter!r} begin those of {labels[index]!r}, so the two cannot be compared; "
                    f"word one of them differently",
                    field=f"readout.labels[{index}]",
                )
