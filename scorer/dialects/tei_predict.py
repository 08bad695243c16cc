"""text-embeddings-inference's predict: a score for every label of each pair."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, TypeAlias

from msgspec import Meta, Struct

from scorer.dialects.dialect import Dialect
from scorer.dialects.error_forms import tei_error
from scorer.dialects.schema import ReadoutSpec, ScoreRequest
from scorer.dialects.score_parts import all_scores, check_alike
from scorer.dialects.tei_rerank import Direction, side_of
from scorer.errors import InvalidValue
from scorer.http.json_body import StrictDecoder
from scorer.scoring.batch import BatchPlan, ScoredBatch
from scorer.scoring.readouts import LabelPlan
from scorer.scoring.scores import ItemScore

Inputs: TypeAlias = Annotated[list[str | Annotated[list[str], Meta(min_length=1, max_length=2)]], Meta(min_length=1)]

_LEAST = 1e-7


class TeiPredictRequest(Struct, frozen=True):
    """One pair or several; unknown fields are ignored. The template is the one for labels, as on the native route."""

    inputs: Annotated[
        str | Inputs,
        Meta(description="`[query, document]` or a list of such pairs. A text alone is a document without a query."),
    ]
    truncate: Annotated[
        bool | None, Meta(description="Cut documents that do not fit (also null). `false`: such a pair is an error.")
    ] = None
    truncation_direction: Annotated[
        Direction | None,
        Meta(description="What a document that is cut loses: its end (also null) or its beginning."),
    ] = "right"
    raw_scores: Annotated[bool | None, Meta(description="Logarithms of the probabilities instead of them.")] = False

    @property
    def batch(self) -> list[list[str]] | None:
        """The inputs if they are several; None: there is one."""
        nested = [each for each in self.inputs if isinstance(each, list)]
        return nested or None

    @property
    def texts(self) -> Sequence[Sequence[str]]:
        if self.batch is not None:
            return self.batch
        return [[self.inputs] if isinstance(self.inputs, str) else [str(each) for each in self.inputs]]


class TeiPrediction(Struct, frozen=True):
    """One label. There is one for each label, the most probable first."""

    score: float
    label: str


def tei_predict_dialect() -> Dialect[TeiPredictRequest]:
    return Dialect(
        decode=StrictDecoder(TeiPredictRequest).decode,
        to_request=_to_request,
        reply=_reply,
        error_form=tei_error,
        partial=False,
    )


def _to_request(spoken: TeiPredictRequest) -> ScoreRequest:
    check_alike(spoken.inputs, "inputs")
    pairs = spoken.texts
    if len(pairs[0]) > 2:  # of a batch, the decoder has counted
        raise InvalidValue(
            "one text or a pair is wanted; several stand in lists of their own",
            field="inputs",
            value=len(pairs[0]),
            limit=2,
        )
    return ScoreRequest(
        queries=["" if len(texts) == 1 else texts[0] for texts in pairs],
        documents=[texts[-1] for texts in pairs],
        pairs=[(index, index) for index in range(len(pairs))],
        readout=ReadoutSpec(kind="labels"),
        truncate="error" if spoken.truncate is False else "document",
        truncation_side=side_of(spoken.truncation_direction),
    )


def _reply(spoken: TeiPredictRequest, batch: ScoredBatch) -> list[TeiPrediction] | list[list[TeiPrediction]]:
    scores = all_scores(batch, queries="inputs", documents="inputs")
    predictions = [_predictions(score, batch.plan, raw=spoken.raw_scores is True) for score in scores]
    return predictions[0] if spoken.batch is None else predictions


def _predictions(score: ItemScore, plan: BatchPlan, *, raw: bool) -> list[TeiPrediction]:
    labels = score.labels or {_only_label(plan): score.relevance}
    shares = sorted(labels.items(), key=lambda entry: -entry[1])
    return [TeiPrediction(score=_log(share) if raw else share, label=label) for label, share in shares]


def _only_label(plan: BatchPlan) -> str:
    """The label of a template that has one, whose logit is the score."""
    readout = plan.readouts[0]
    assert isinstance(readout, LabelPlan), "labels were asked for"
    return readout.labels[readout.positive]


def _log(share: float) -> float:
    return round(math.log(max(share, _LEAST)), 6)
