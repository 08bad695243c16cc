"""What a run leaves behind: one record a line, in the order in which things happened."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import msgspec

from benchmarks.flops import ModelCost
from benchmarks.messages import PhaseResult, Profile
from benchmarks.summary import slope
from benchmarks.token_counts import Work


class RunRecord(msgspec.Struct, frozen=True, tag="run"):
    """The circumstances of a run.

    Args:
        cost: Shape of the model, from which every formula is worked out.
        workloads: SHA-256 of the token ids of each.
    """

    date: str
    machine: dict[str, str | int]
    model: str
    cost: ModelCost
    size: str
    threads: int
    repeats: int
    workloads: dict[str, str]


class CalibrationRecord(msgspec.Struct, frozen=True, tag="calibration"):
    """Rates of the calibration product over the run, in GFLOP/s."""

    readings: tuple[float, ...]


class SystemRecord(msgspec.Struct, frozen=True, tag="system"):
    system: str
    version: str
    settings: str
    facts: dict[str, int]


class DriftRecord(msgspec.Struct, frozen=True, tag="drift"):
    """Distance of a system's log-odds from a reference's on the check prompts."""

    system: str
    reference: str
    mean: float
    largest: float
    flips: int


class PhaseRecord(msgspec.Struct, frozen=True, tag="phase"):
    """One timed phase.

    Args:
        variant: Which wording of the workload was run.
        idle: The machine was idle before and after.
        others: Processors that others used, before or after, whichever was more.
        calibration: Rates of the calibration product before and after, in GFLOP/s.
        groups: Requests of the phase.
        num_rows: Rows of the whole phase; ``result.num_rows`` of them were run.
        work: What a perfect prefix cache would compute; None where it is not what is asked
            (the cache is too small on purpose, or the service wraps texts of its own around).
    """

    workload: str
    phase: str
    system: str
    repeat: int
    variant: int
    idle: bool
    others: float
    calibration: tuple[float, float]
    groups: int
    num_rows: int
    work: Work | None
    result: PhaseResult

    @property
    def rows_per_s(self) -> float:
        return self.result.num_rows / self.result.wall_s

    @property
    def gemm_gflops(self) -> float:
        """How fast the machine was around the phase."""
        return statistics.fmean(self.calibration)


class ProfileRecord(msgspec.Struct, frozen=True, tag="profile"):
    """Where a phase's time went, from a run with clocks around every operation.

    Args:
        calibration: Rates of the calibration product before and after, in GFLOP/s.
    """

    workload: str
    phase: str
    system: str
    repeat: int
    num_rows: int
    wall_s: float
    calibration: tuple[float, float]
    profile: Profile

    @property
    def gemm_gflops(self) -> float:
        """How fast the machine was around the phase."""
        return statistics.fmean(self.calibration)


class CacheRecord(msgspec.Struct, frozen=True, tag="cache"):
    """Hit rates of a cache that holds ``share`` of the documents, by document tokens.

    Args:
        optimum: Of a cache that knows all requests ahead.
        by_recency, by_frequency: Of caches of whole documents that know the past only.
    """

    system: str
    share: float
    pool_tokens: int
    realised: float
    optimum: float
    by_recency: float
    by_frequency: float
    rows_per_s: float


class MemoryRecord(msgspec.Struct, frozen=True, tag="memory"):
    """Resident set over many requests.

    Args:
        base_bytes: The process with its libraries, before the model.
        computed: Positions run until the end of each share of the requests.
        resident_bytes: After each share.
    """

    system: str
    base_bytes: int
    weight_bytes: int
    pool_bytes: int
    workspace_bytes: int
    kv_bytes_per_token: int
    kv_bytes_by_formula: int
    requests: tuple[int, ...]
    computed: tuple[int, ...]
    resident_bytes: tuple[int, ...]

    @property
    def expected_bytes(self) -> int:
        """The sum of the parts."""
        return self.base_bytes + self.weight_bytes + self.pool_bytes + self.workspace_bytes

    @property
    def excess(self) -> float:
        """Largest resident set over the sum of the parts."""
        return max(self.resident_bytes) / self.expected_bytes

    @property
    def growth_bytes(self) -> float | None:
        """Rise of the least-squares line through the second half of the readings, over that half.

        None if the pool was not full before: until then it grows into memory that is counted already.
        """
        half = len(self.requests) // 2
        requests, sizes = self.requests[half:], self.resident_bytes[half:]
        pool_tokens = self.pool_bytes // self.kv_bytes_per_token
        if len(requests) < 2 or self.computed[half] < pool_tokens:
            return None
        return slope(requests, sizes) * (requests[-1] - requests[0])


class FaultRecord(msgspec.Struct, frozen=True, tag="fault"):
    """Something that must not be; a run with one of these fails."""

    system: str
    message: str


Record: TypeAlias = (
    RunRecord
    | CalibrationRecord
    | SystemRecord
    | DriftRecord
    | PhaseRecord
    | ProfileRecord
    | CacheRecord
    | MemoryRecord
    | FaultRecord
)


def ceiling_gflops(records: Sequence[Record]) -> float:
    """What the machine's matrix products reached: the median of all readings of the run.

    Raises:
        ValueError: the run ended before it could say.
    """
    for record in records:
        if isinstance(record, CalibrationRecord):
            return statistics.median(record.readings)
    raise ValueError("the records hold no calibration; the run did not come to its end")


class RecordFile:
    """Keeps the records of a run and appends each to a file of JSON lines as it comes."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self.records: list[Record] = []

    def add(self, record: Record) -> None:
        self.records.append(record)
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(record) + b"\n")


def read_records(path: Path) -> list[Record]:
    """The records of an earlier run."""
    decoder: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)
    return [decoder.decode(line) for line in path.read_bytes().splitlines()]
