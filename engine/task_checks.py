"""Refuses tasks that can never run or would read outside of a table."""

from __future__ import annotations

import numpy as np

from engine.errors import InvalidTask
from engine.records import (
    EngineInfo,
    GenerateTask,
    LabelReadout,
    LikelihoodReadout,
    Row,
    Sampling,
    TokenIds,
    TokenReadout,
)

_SEED_LIMIT = 2**63


def check_row(row: Row, index: int, info: EngineInfo) -> None:
    """Check a row of a task.

    Raises:
        InvalidTask: names the row.
    """
    length = len(row.tokens)
    if not 1 <= length <= info.max_row_tokens:
        raise InvalidTask(f"row {index} has {length} tokens; the limit is 1 to {info.max_row_tokens}", row=index)
    _check_tokens(row.tokens, info, what=f"row {index}", index=index)
    kept = row.keep_tokens + row.spare_tokens
    if row.keep_tokens < 0 or row.spare_tokens < 0 or kept > length:
        raise InvalidTask(f"row {index} keeps {kept} tokens; it has {length}", row=index)
    match row.readout:
        case LabelReadout(label_ids=ids):
            wanted = list(ids)
            if not wanted or len(set(wanted)) != len(wanted):
                raise InvalidTask(f"row {index} has labels {wanted}; distinct ids are needed, at least 1", row=index)
        case LikelihoodReadout(target_ids=target):
            wanted = target.tolist()
            if not 1 <= len(wanted) <= length:
                raise InvalidTask(f"row {index} has {len(wanted)} target tokens; 1 to {length} are possible", row=index)
        case TokenReadout(sampling=sampling, branches=branches):
            wanted = []
            if not branches:
                raise InvalidTask(f"row {index} chooses a token for no branch; at least 1 is needed", row=index)
            _check_sampling(sampling)
    for token in wanted:
        if not 0 <= token < info.vocab_size:
            raise InvalidTask(f"row {index} reads token {token}; ids are 0 to {info.vocab_size - 1}", row=index)


def check_generation(task: GenerateTask, info: EngineInfo) -> None:
    """Check a generation.

    Raises:
        InvalidTask: says what is out of its limits.
    """
    for name, count in (("num_branches", task.num_branches), ("max_tokens", task.max_tokens)):
        if count < 1:
            raise InvalidTask(f"{name} is {count}; at least 1 is needed")
    longest = len(task.tokens) + task.max_tokens - 1  # the last token of a branch is never run
    if not len(task.tokens) or longest > info.max_row_tokens:
        raise InvalidTask(
            f"a prompt of {len(task.tokens)} tokens and {task.max_tokens} to come; "
            f"the prompt needs at least 1, and both together may have {info.max_row_tokens + 1}"
        )
    _check_tokens(task.tokens, info, what="the prompt", index=None)
    _check_sampling(task.sampling)


def _check_tokens(tokens: TokenIds, info: EngineInfo, *, what: str, index: int | None) -> None:
    # without their sign, negative ids are the greatest: one pass over the tokens tells
    if int(tokens.view(np.uint32).max()) >= info.vocab_size:
        low, high = int(tokens.min()), int(tokens.max())
        bad = low if low < 0 else high
        raise InvalidTask(f"{what} has token {bad}; ids are 0 to {info.vocab_size - 1}", row=index)


def _check_sampling(sampling: Sampling) -> None:
    if not 0.0 <= sampling.temperature < float("inf"):
        raise InvalidTask(f"temperature is {sampling.temperature}; it must be finite and not negative")
    if not 0.0 < sampling.top_p <= 1.0:
        raise InvalidTask(f"top_p is {sampling.top_p}; it must be above 0 and at most 1")
    if sampling.top_k < 0:
        raise InvalidTask(f"top_k is {sampling.top_k}; it must not be negative")
    if not 0 <= sampling.seed < _SEED_LIMIT:
        raise InvalidTask(f"seed is {sampling.seed}; it must be 0 to {_SEED_LIMIT - 1}")
