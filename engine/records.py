"""What crosses the engine's thread: frozen records of token ids and numbers, no tensors.

What there is one of for every row is a struct: it is made much faster than a frozen dataclass, and
the collector need not look at it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
from msgspec import Struct

TokenIds: TypeAlias = npt.NDArray[np.int32]
"""One-dimensional, treated as immutable by everyone."""

TaskEnd: TypeAlias = Literal["ok", "partial", "deadline", "cancelled", "closed", "fault"]

BranchEnd: TypeAlias = Literal["stop", "length", "deadline", "non_finite"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelReadout:
    """Read the logits of a few tokens at the last position of the row.

    Args:
        label_ids: Distinct ids in ``[0, vocabulary)``, at least one.
        log_sum_exp: Also read the softmax denominator over the whole vocabulary, so that
            full-vocabulary probabilities and the label mass can be derived.
    """

    label_ids: tuple[int, ...]
    log_sum_exp: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LikelihoodReadout:
    """Read the log-probability of a target span.

    The last ``len(target_ids)`` positions of the row predict the target, one token each: the
    row holds the context followed by the target without its last token.
    """

    target_ids: TokenIds


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How a token is chosen from the distribution at the last position of a row.

    What is drawn depends on ``seed``, the branch and the number of the token in it, and on
    nothing else that runs.

    Args:
        temperature: Divides the logits; 0: always the most probable token (of equals, the lowest id).
        top_k: Only the most probable ``top_k`` tokens; 0: all.
        top_p: Only the most probable tokens that together reach this share, in ``(0, 1]``.
        seed: In ``[0, 2**63)``.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenReadout:
    """Choose a token to follow the row, once for each of its branches.

    Args:
        branches: Numbers of the branches that have said the same so far, at least one.
        place: How many tokens they have said.
    """

    sampling: Sampling
    branches: tuple[int, ...] = (0,)
    place: int = 0


Readout: TypeAlias = LabelReadout | LikelihoodReadout | TokenReadout


class Row(Struct, frozen=True, kw_only=True, eq=False, gc=False):
    """One token sequence with one readout.

    Args:
        tokens: Positions that the model runs, at least one.
        keep_tokens: How many of them, from the first, are worth keeping in the cache. The
            rest is computed and forgotten.
        spare_tokens: How many after those stay until the task ends.
    """

    tokens: TokenIds
    readout: Readout
    keep_tokens: int
    spare_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScoreTask:
    """Rows that are answered together. They need not share a prefix.

    Args:
        task_id: Names the request. Tasks of one name that wait or run at the same time are parts of
            it: what one of them computes is shared with the others, and no hit.
        namespace: Root of the prefix tree; rows of different namespaces share nothing.
        deadline_s: ``time.monotonic()`` value after which no further row is started.
    """

    task_id: str
    namespace: str
    rows: tuple[Row, ...]
    deadline_s: float | None = None


class TokenListener(Protocol):
    """Told of every token, on the engine's thread: must be quick. If it raises, its task fails."""

    def on_token(self, branch: int, token: int) -> bool:
        """Whether ``branch`` goes on after ``token``."""
        ...

    def on_end(self, branch: int, end: BranchEnd) -> None:
        """No token follows in ``branch``. Not told when the whole task ends before its branches do."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GenerateTask:
    """Branches of a few tokens that continue one prompt.

    Args:
        tokens: The prompt, at least one. It is stored once and stays in the cache; what the branches
            say leaves it when the task ends.
        num_branches: At least one.
        max_tokens: Longest branch, at least 1.
        end_ids: Tokens that end a branch and are not part of it.
        deadline_s: ``time.monotonic()`` value after which no further token is computed.
    """

    task_id: str
    namespace: str
    tokens: TokenIds
    sampling: Sampling
    listener: TokenListener
    num_branches: int = 1
    max_tokens: int = 16
    end_ids: frozenset[int] = frozenset()
    deadline_s: float | None = None


class LabelOutcome(Struct, frozen=True, kw_only=True, gc=False):
    """Raw float32 logits in the order of ``label_ids``; natural-log denominator if asked for."""

    logits: tuple[float, ...]
    log_sum_exp: float | None


class LikelihoodOutcome(Struct, frozen=True, kw_only=True, gc=False):
    """Natural log-probability of each target token, in order."""

    log_probs: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenOutcome:
    """The token chosen for each branch, and its natural log-probability at temperature 1."""

    token_ids: tuple[int, ...]
    log_probs: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unscored:
    """The row has no score: its deadline passed, or what came out was not a finite number."""

    reason: Literal["deadline", "non_finite"]


Outcome: TypeAlias = LabelOutcome | LikelihoodOutcome | TokenOutcome | Unscored


class RowUsage(Struct, frozen=True, kw_only=True, gc=False):
    """Where the positions of a row came from: ``prompt = cached + shared + computed``, always.

    Args:
        prompt_tokens: Positions that steps have settled: all of a row that has a score, fewer of
            one that ran out of time.
        cached_tokens: In the tree before the first step of the request.
        shared_tokens: Computed since then, for another row of the request or for one that runs beside it.
        computed_tokens: Run for this row.
        recomputed_tokens: Run again for this row, since they were evicted between two steps of its
            task. Not among the others, which count a position once.
    """

    prompt_tokens: int
    cached_tokens: int = 0
    shared_tokens: int = 0
    computed_tokens: int = 0
    recomputed_tokens: int = 0


def sum_usage(usages: Sequence[RowUsage]) -> RowUsage:
    """The usage of several rows as if they were one."""
    if len(usages) == 1:
        return usages[0]
    return RowUsage(
        prompt_tokens=sum(usage.prompt_tokens for usage in usages),
        cached_tokens=sum(usage.cached_tokens for usage in usages),
        shared_tokens=sum(usage.shared_tokens for usage in usages),
        computed_tokens=sum(usage.computed_tokens for usage in usages),
        recomputed_tokens=sum(usage.recomputed_tokens for usage in usages),
    )


class RowResult(Struct, frozen=True, kw_only=True, gc=False):
    outcome: Outcome
    usage: RowUsage


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStats:
    """What a task cost. All times in seconds; a task that never ran has zero prefill.

    Tokens are sums over its rows, see :class:`RowUsage`.
    """

    task_id: str
    end: TaskEnd
    num_rows: int
    prompt_tokens: int = 0
    cached_tokens: int = 0
    shared_tokens: int = 0
    computed_tokens: int = 0
    recomputed_tokens: int = 0
    kept_tokens: int = 0  # positions newly written to the cache
    generated_tokens: int = 0
    num_steps: int = 0
    queue_s: float = 0.0  # submitted to first step
    prefill_s: float = 0.0  # forward passes of the steps this task was in
    readout_s: float = 0.0
    first_score_s: float | None = None  # submitted to first outcome known
    total_s: float = 0.0  # submitted to end


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreResult:
    """``rows`` in the order of the task's rows."""

    rows: tuple[RowResult, ...]
    stats: TaskStats


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchResult:
    """What one branch said: ``log_probs`` are natural and at temperature 1."""

    token_ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    end: BranchEnd


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateResult:
    """``branches`` in order of their numbers. The prompt counts once in ``stats``, whatever their number."""

    branches: tuple[BranchResult, ...]
    stats: TaskStats


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStats:
    """What one forward pass did."""

    num_rows: int
    num_tasks: int
    computed_tokens: int
    kept_tokens: int
    read_rows: int
    evicted_tokens: int
    num_spans: int
    schedule_s: float
    prefill_s: float
    readout_s: float
    commit_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSnapshot:
    """State of the engine at the end of its last step, and its queue as it is; cheap to read from any thread.

    ``free_blocks + cached_blocks + pinned_blocks == num_blocks``. Pinned: needed by a task
    that is under way. Cached: reusable, and the first to go when room is needed.
    """

    num_blocks: int = 0
    free_blocks: int = 0
    cached_blocks: int = 0
    pinned_blocks: int = 0
    cached_tokens: int = 0
    num_nodes: int = 0
    queued_tasks: int = 0  # submitted and not ended
    queued_tokens: int = 0  # uncached positions those tasks still have to run


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """What is fixed once the engine has started."""

    model: str
    revision: str  # content hash of the checkpoint, short
    dtype: str
    linear_dtype: str  # in which linear layers multiply
    kv_dtype: str
    device: str
    kernels: str
    vocab_size: int  # width of the logits
    num_layers: int
    weight_bytes: int  # of the weights as they are held
    kv_bytes_per_token: int
    block_size: int
    num_blocks: int
    max_row_tokens: int
    step_tokens: int
    max_queued_tokens: int
    warm_up_s: float  # time to compile kernels at start; 0 where none are
    replayed_tokens: tuple[int, ...]  # sizes of steps that are replayed from a recording, ascending


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineHealth:
    """``alive`` is false once the engine thread has died or was closed."""

    alive: bool
    accepting: bool
    reason: str = ""
    snapshot: EngineSnapshot = field(default_factory=EngineSnapshot)
