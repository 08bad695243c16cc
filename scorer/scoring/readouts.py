"""What a request wants to be read, settled against its template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from engine import TokenIds
from scorer.calibration.calibration import Calibration, Platt
from scorer.dialects.schema import ReadoutSpec
from scorer.errors import InvalidValue
from scorer.scoring.label_orders import LabelOrder
from scorer.scoring.prompts import PromptBuilder
from scorer.templates.types import ReadoutKind, Scoring, Template

_PROBABILITY: Final = Scoring()

Answers: TypeAlias = Literal["labels", "options", "documents"]
"""What the labels of a prompt stand for."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LabelPlan:
    """Probabilities of labels.

    Args:
        ids: Tokens of each label, in the order of ``labels``; distinct, none begins another.
        positive: Index of the label whose probability is the score. Of options and documents it is
            not known before they are read.
        scoring: How the labels become a score.
        platt: Maps the score to a probability; None: the scale of ``scoring``.
    """

    labels: tuple[str, ...]
    ids: tuple[TokenIds, ...]
    positive: int
    answers: Answers = "labels"
    label_mass: bool = False
    normalise: Literal["labels", "vocabulary"] = "labels"
    temperature: float = 1.0
    scoring: Scoring = _PROBABILITY
    platt: Platt | None = None

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

    platt: Platt | None = None

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


def settle_readout(spec: ReadoutSpec, builder: PromptBuilder, calibration: Calibration | None = None) -> ReadoutPlan:
    """The readout of a request under the template of ``builder``, which lists no texts.

    Raises:
        InvalidValue: an option has no meaning for this readout, or the labels cannot be told
            apart by their tokens.
        PromptInputError: a label has no tokens of its own.
    """
    platt = calibration.platt if calibration else None
    if builder.template.readout == "likelihood":
        _refuse_label_options(spec)
        return LikelihoodPlan(platt)
    template = builder.template
    labels = tuple(spec.labels) if spec.labels is not None else template.labels
    own = set(labels) == set(template.labels)
    scoring = _scoring(spec, labels, template)
    _check_labels(spec, labels, scoring)
    ids = tuple(builder.label_ids(labels))
    _refuse_prefixes(labels, ids)
    temperature = calibration.temperature if calibration and spec.temperature == 1.0 else spec.temperature
    return LabelPlan(
        labels=labels,
        ids=ids,
        positive=_positive(spec, labels, template.positive),
        label_mass=spec.label_mass,
        normalise=spec.normalise,
        temperature=temperature,
        scoring=scoring,
        platt=platt if own and spec.values is None else None,
    )


def settle_listing(
    spec: ReadoutSpec, builder: PromptBuilder, order: LabelOrder, calibration: Calibration | None = None
) -> LabelPlan:
    """The readout of a prompt that lists texts in this order; its labels are in the order of the request.

    Raises:
        InvalidValue: an option has no meaning for listed texts.
    """
    template = builder.template
    assert template.listing is not None, "only templates that list texts are settled here"
    plain = ReadoutSpec()
    for name in ("labels", "positive", "values"):
        if getattr(spec, name) != getattr(plain, name):
            raise InvalidValue(
                f"template {template.id} calls the {template.listing.of} by letters of its own; leave {name} out",
                field=f"readout.{name}",
            )
    _check_temperature(spec)
    count = len(order)
    shown = tuple(builder.label_ids(template.labels[:count]))
    place = {index: place for place, index in enumerate(order)}
    return LabelPlan(
        labels=template.labels[:count],
        ids=tuple(shown[place[index]] for index in range(count)),
        positive=0,
        answers=template.listing.of,
        label_mass=spec.label_mass,
        normalise=spec.normalise,
        temperature=calibration.temperature if calibration and spec.temperature == 1.0 else spec.temperature,
        platt=calibration.platt if calibration and template.listing.of == "documents" else None,
    )


def _scoring(spec: ReadoutSpec, labels: Sequence[str], template: Template) -> Scoring:
    """The scoring of the request's values, or the template's, which belongs to the template's labels."""
    scoring = template.scoring if set(labels) == set(template.labels) else _PROBABILITY
    if spec.values is not None:
        if len(spec.values) != len(labels):
            raise InvalidValue(
                f"{len(spec.values)} values for {len(labels)} labels",
                field="readout.values",
                value=len(spec.values),
                limit=len(labels),
            )
        if len(set(spec.values)) < 2:
            raise InvalidValue("all values are alike, so the score would say nothing", field="readout.values")
        scoring = Scoring(kind="expected", values=tuple(spec.values))
    elif scoring.kind == "expected":
        worth = dict(zip(template.labels, scoring.values, strict=True))
        scoring = replace(scoring, values=tuple(worth[label] for label in labels))
    if scoring.kind == "expected" and spec.positive is not None:
        raise InvalidValue("with values the score is their mean, not one label's probability", field="readout.positive")
    return scoring


def _check_labels(spec: ReadoutSpec, labels: Sequence[str], scoring: Scoring) -> None:
    if len(labels) < 2 and spec.normalise == "labels" and scoring.kind != "logit":
        raise InvalidValue(
            "a single label always has probability 1 among the labels; give two, or normalise over the vocabulary",
            field="readout.labels",
            value=len(labels),
            limit=2,
        )
    _check_temperature(spec)


def _check_temperature(spec: ReadoutSpec) -> None:
    if spec.normalise == "vocabulary" and spec.temperature != 1.0:
        raise InvalidValue(
            "a temperature can only be applied to labels that are normalised among themselves",
            field="readout.temperature",
            value=spec.temperature,
            limit=1.0,
        )


def _positive(spec: ReadoutSpec, labels: Sequence[str], default: str | None) -> int:
    if spec.positive is not None:
        if spec.positive not in labels:
            raise InvalidValue("the positive label is not one of the labels", field="readout.positive")
        return labels.index(spec.positive)
    return labels.index(default) if default in labels else 0


def _refuse_label_options(spec: ReadoutSpec) -> None:
    plain = ReadoutSpec()
    for name in ("labels", "positive", "label_mass", "normalise", "temperature", "values"):
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
