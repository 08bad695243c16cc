"""The repeats of one phase on one system, together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.records import PhaseRecord
from benchmarks.summary import Spread, spread


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """What the repeats of a phase say; token counts are those of one repeat.

    Repeats in which the machine was not idle count only if they are the most: a lucky one among
    them would say little.

    Args:
        rate: Rows a second.
        pace: Rows a second for every GFLOP/s of the calibration around the same repeat.
        gemm_gflops: The calibration around the repeats, median.
        mark: Footnote signs for the reader.
        rows_run: Rows of one repeat that were run.
        latencies_s: Of all repeats that count.
        forwards_s: Time in forward passes of each request of them; empty where a system does not tell.
        client_s: Processor time of the client, median; None in process.
        groups_per_s: Requests a second, median: sent in an open loop, finished otherwise.
        late_s: Worst delay between a request's due time and its sending.
    """

    workload: str
    phase: str
    system: str
    rate: Spread
    pace: Spread
    gemm_gflops: float
    mark: str
    rows_run: int
    received: int
    computed: int | None
    unique: int | None
    attended: int | None
    latencies_s: tuple[float, ...]
    forwards_s: tuple[float, ...]
    client_s: float | None
    groups_per_s: float
    late_s: float


def phase_series(records: Sequence[PhaseRecord]) -> list[Series]:
    """Series by workload, phase and system, in the order in which these first came."""
    grouped: defaultdict[tuple[str, str, str], list[PhaseRecord]] = defaultdict(list)
    for record in records:
        grouped[record.workload, record.phase, record.system].append(record)
    phases = list(dict.fromkeys((workload, phase) for workload, phase, _ in grouped))
    systems = list(dict.fromkeys(system for _, _, system in grouped))
    order = sorted(grouped, key=lambda key: (phases.index(key[:2]), systems.index(key[2])))
    order.sort(key=lambda key: key[0] == "SWEEP")
    return [_series(grouped[key]) for key in order]


def _series(records: Sequence[PhaseRecord]) -> Series:
    quiet = [record for record in records if record.idle]
    enough = 2 * len(quiet) >= len(records)
    good = quiet if enough else records
    first = good[0]
    clients = [record.result.client_s for record in good if record.result.client_s is not None]
    mark = "" if enough else "*"
    if first.result.num_rows < first.num_rows:
        mark += "†"
    return Series(
        workload=first.workload,
        phase=first.phase,
        system=first.system,
        rate=spread([record.rows_per_s for record in good]),
        pace=spread([record.rows_per_s / record.gemm_gflops for record in good]),
        gemm_gflops=spread([record.gemm_gflops for record in good]).median,
        mark=mark,
        rows_run=first.result.num_rows,
        received=first.result.received,
        computed=first.result.computed,
        unique=first.work.unique if first.work else None,
        attended=first.work.attended if first.work else None,
        latencies_s=tuple(latency for record in good for latency in record.result.latencies_s),
        forwards_s=tuple(seconds for record in good for seconds in record.result.forwards_s),
        client_s=spread(clients).median if clients else None,
        groups_per_s=spread([record.groups / record.result.wall_s for record in good]).median,
        late_s=max(record.result.late_s for record in good),
    )
