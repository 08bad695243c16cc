"""Records of a phase as a run of the benchmarks would leave them."""

from __future__ import annotations

from benchmarks.messages import PhaseResult
from benchmarks.records import PhaseRecord
from benchmarks.token_counts import Work


def phase_record(
    system: str,
    wall_s: float,
    *,
    workload: str = "W1",
    name: str = "cold",
    repeat: int = 0,
    idle: bool = True,
    calibration: tuple[float, float] = (900.0, 900.0),
    rows_run: int = 10,
    latencies_s: tuple[float, ...] = (),
    forwards_s: tuple[float, ...] = (),
) -> PhaseRecord:
    """Ten rows in five requests: 4,000 tokens, 1,000 computed of which 800 are unique."""
    result = PhaseResult(wall_s, rows_run, 4000, 1000, None, (), latencies_s=latencies_s, forwards_s=forwards_s)
    return PhaseRecord(
        workload=workload,
        phase=name,
        system=system,
        repeat=repeat,
        variant=0,
        idle=idle,
        others=0.0,
        calibration=calibration,
        groups=5,
        num_rows=10,
        work=Work(received=4000, unique=800, attended=90_000),
        result=result,
    )
