"""Prompts to the rows of an engine task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import numpy as np

from engine import LabelReadout, LikelihoodReadout, Row, TokenIds
from scorer.scoring.prompt_types import PairPrompt, PromptError
from scorer.scoring.readouts import LabelPlan, ReadoutPlan

Keep: TypeAlias = Literal["auto", "prefix", "all", "none"]


def plan_rows(
    prompts: Sequence[PairPrompt | PromptError], readouts: Sequence[ReadoutPlan], keep: Keep
) -> tuple[Row, ...]:
    """The rows that score ``prompts``, each with its readout; a prompt that could not be built has none.

    Labels of one token each are read together at the end of one row. Otherwise every label is
    a branch: the prompt, followed by the label without its last token.
    """
    built = [prompt for prompt in prompts if isinstance(prompt, PairPrompt)]
    common_tokens = _common_tokens([prompt.context for prompt in built]) if keep == "prefix" else 0
    # what all prompts with one readout are asked; None: each prompt is asked for texts of its own
    asked = {readout: _label_readout(readout) for readout in set(readouts)}
    rows: list[Row] = []
    for prompt, readout in zip(prompts, readouts, strict=True):
        if isinstance(prompt, PromptError):
            continue
        match keep:
            case "none":
                keep_tokens = 0
            case "prefix":
                keep_tokens = common_tokens
            case "auto":
                keep_tokens = prompt.reusable_tokens
            case "all":
                keep_tokens = len(prompt.context)
        read = asked[readout]
        if read is not None:
            rows.append(Row(tokens=prompt.context, readout=read, keep_tokens=keep_tokens))
        else:
            rows += _likelihood_rows(prompt, readout, keep_tokens, whole=keep == "all")
    return tuple(rows)


def _label_readout(readout: ReadoutPlan) -> LabelReadout | None:
    """How one row reads all labels; None if one cannot."""
    if not isinstance(readout, LabelPlan) or not readout.single_tokens:
        return None
    return LabelReadout(label_ids=tuple(int(ids[0]) for ids in readout.ids), log_sum_exp=_needs_denominator(readout))


def _likelihood_rows(prompt: PairPrompt, readout: ReadoutPlan, keep_tokens: int, *, whole: bool) -> list[Row]:
    context = prompt.context
    if isinstance(readout, LabelPlan):
        return [
            Row(tokens=_join(context, ids), readout=LikelihoodReadout(target_ids=ids), keep_tokens=keep_tokens)
            for ids in readout.ids
        ]
    assert prompt.target is not None, "a likelihood template gives every prompt a target"
    tokens = _join(context, prompt.target)
    kept = len(tokens) if whole else keep_tokens
    return [Row(tokens=tokens, readout=LikelihoodReadout(target_ids=prompt.target), keep_tokens=kept)]


def _needs_denominator(readout: LabelPlan) -> bool:
    return readout.label_mass or readout.normalise == "vocabulary"


def _join(context: TokenIds, target: TokenIds) -> TokenIds:
    return np.concatenate([context, target[:-1]])


def _common_tokens(contexts: Sequence[TokenIds]) -> int:
    """Length of the longest prefix that all contexts have; 0 if there are none."""
    if not contexts:
        return 0
    common = contexts[0]
    for context in contexts[1:]:
        length = min(len(common), len(context))
        differing = np.flatnonzero(common[:length] != context[:length])
        common = common[: differing[0] if len(differing) else length]
    return len(common)
