"""What the harness and the processes of the systems say to each other: one JSON line each way."""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from benchmarks.workloads import Phase

STAGES: Final = ("schedule", "prefill", "readout", "commit")
"""Of a step of our engine, in their order."""


class Start(msgspec.Struct, frozen=True, tag=True):
    """Load ``system``; the first command of every process.

    Args:
        options: What the command line says about this system, as text.
    """

    system: str
    model: str
    threads: int
    options: dict[str, str]


class ScorePrompts(msgspec.Struct, frozen=True, tag=True):
    """Score whole prompts; ``exact`` asks for float32 weights and activations."""

    prompts: tuple[tuple[int, ...], ...]
    exact: bool = False


class RunPhase(msgspec.Struct, frozen=True, tag=True):
    """Run ``phase`` and time it.

    Args:
        namespace: Systems that can keep caches apart use the one of this name.
        rate: Open loop: groups a second. An open-loop phase without a rate is run together.
    """

    phase: Phase
    namespace: str
    rate: float | None = None


class Forget(msgspec.Struct, frozen=True, tag=True):
    """Drop caches, where the system has a way to."""


class ReadProfile(msgspec.Struct, frozen=True, tag=True):
    """Say what operations took since this was last asked."""


class MeasureGemm(msgspec.Struct, frozen=True, tag=True):
    """Time matrix products for about ``seconds``; needs no system."""

    threads: int
    seconds: float


class Stop(msgspec.Struct, frozen=True, tag=True):
    """End the process."""


Command: TypeAlias = Start | ScorePrompts | RunPhase | Forget | ReadProfile | MeasureGemm | Stop


class Started(msgspec.Struct, frozen=True, tag=True):
    """Versions and settings of a system that is ready.

    Args:
        facts: Numbers about memory or limits that a report wants.
    """

    version: str
    settings: str
    facts: dict[str, int]


class Scores(msgspec.Struct, frozen=True, tag=True):
    log_odds: tuple[float, ...]


class PhaseResult(msgspec.Struct, frozen=True, tag=True):
    """What a phase took and gave.

    Args:
        num_rows: Rows that were run; a slow system may run only the first of each group.
        received: Tokens of the prompts that were run, as the system counts them.
        computed: Positions that were run, padding included; None where a system does not say.
        client_s: Processor time of the process that asked, where the system is a server.
        log_odds: In the order of groups and rows.
        cached_by_row: Where the system tells.
        computed_by_row: Where the system tells.
        latencies_s: Of each row (one by one) or each group (open loop); in an open loop from
            the moment it was due, so that waiting behind others counts.
        forwards_s: Time in forward passes of each request, where the system tells.
        late_s: Open loop: how long after it was due a group was sent, at worst.
    """

    wall_s: float
    num_rows: int
    received: int
    computed: int | None
    client_s: float | None
    log_odds: tuple[float, ...]
    cached_by_row: tuple[int, ...] = ()
    computed_by_row: tuple[int, ...] = ()
    latencies_s: tuple[float, ...] = ()
    forwards_s: tuple[float, ...] = ()
    late_s: float = 0.0


class OperationCost(msgspec.Struct, frozen=True):
    """Time in one kind of operation; ``flop`` is 0 where nobody counts them."""

    seconds: float
    calls: int
    flop: int


class Profile(msgspec.Struct, frozen=True, tag=True):
    """Where the time of the steps went.

    Args:
        operations: By name; ``linear`` holds all matrix products of the layers and
            ``linear_large`` those of at least 512 rows among them.
        stages: Seconds in the stages of all steps.
    """

    operations: dict[str, OperationCost]
    stages: dict[str, float]
    steps: int


class GemmRate(msgspec.Struct, frozen=True, tag=True):
    """GFLOP/s of bfloat16 matrix products, (2048 x 576) times (576 x 3072): median of the readings."""

    gflops: float


class Done(msgspec.Struct, frozen=True, tag=True):
    """Nothing to say."""


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The command raised; the process goes on."""

    error: str
    trace: str


Reply: TypeAlias = Started | Scores | PhaseResult | Profile | GemmRate | Done | Failed
