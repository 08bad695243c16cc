"""Runs of our systems alone: a cache that is too small, memory over many requests, the profile."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from benchmarks.aims import MOST_GROWTH, MOST_RESIDENT
from benchmarks.flops import ModelCost
from benchmarks.idle import resident_bytes
from benchmarks.messages import PhaseResult, Profile, ReadProfile, RunPhase
from benchmarks.offline_optimum import best_hits
from benchmarks.online_policies import frequency_hits, recency_hits
from benchmarks.progress import tell
from benchmarks.records import CacheRecord, FaultRecord, MemoryRecord, ProfileRecord, RecordFile
from benchmarks.session import Session
from benchmarks.vocabulary import Vocabulary
from benchmarks.worker_process import WorkerProcess
from benchmarks.workloads import Phase, Workload, variant, warm_up_phase

_SHARES = (0.1, 0.3)
_MEMORY_POOL_BYTES = 512 << 20
_PROFILE_POOL_BYTES = 1 << 30
_MEMORY_READINGS = 20


def run_cache(session: Session, workload: Workload, *, corpus: int, cost: ModelCost, record_file: RecordFile) -> None:
    """W6: hit rates with a pool of some shares of the documents, beside the best possible.

    Args:
        corpus: How many documents there are, asked for or not.
    """
    phase = workload.phases[0]
    bodies = [group.body for group in phase.groups]
    head, length = len(phase.groups[0].head), len(bodies[0])
    for share in _SHARES:
        pool_bytes = int(share * corpus * length) * cost.kv_bytes_per_token
        with session.extra_system("ours", pool_bytes=str(pool_bytes)) as (worker, started), worker.awake():
            result = worker.ask(RunPhase(phase, "W6"), PhaseResult)
        pool_tokens = started.facts["pool_tokens"]
        found = sum(min(max(0, cached - head), length) for cached in result.cached_by_row)
        best = best_hits(bodies, item_units=length, capacity_units=pool_tokens)
        wanted = len(bodies) * length
        whole = pool_tokens // length
        record = CacheRecord(
            system="ours",
            share=share,
            pool_tokens=pool_tokens,
            realised=found / wanted,
            optimum=best / wanted,
            by_recency=recency_hits(bodies, capacity=whole) / len(bodies),
            by_frequency=frequency_hits(bodies, capacity=whole) / len(bodies),
            rows_per_s=result.num_rows / result.wall_s,
        )
        record_file.add(record)
        tell(f"W6, pool {share:.0%}: hit rate {record.realised:.1%}, the best possible {record.optimum:.1%}")
        told, ran = sum(result.computed_by_row), result.computed
        if told + sum(result.cached_by_row) != result.received or told != ran:
            message = f"W6: {ran} computed, {told} told, {sum(result.cached_by_row)} cached of {result.received} tokens"
            record_file.add(FaultRecord("ours", message))


def run_memory(
    session: Session,
    workload: Workload,
    *,
    systems: Iterable[str],
    requests: int,
    cost: ModelCost,
    record_file: RecordFile,
) -> None:
    """Resident sets while W6's requests come again and again, with a small pool that is full soon.

    Args:
        systems: Which of ours, in process and over HTTP.
    """
    groups = workload.phases[0].groups
    share = max(1, requests // _MEMORY_READINGS)
    for system in systems:
        counts, sizes, computed = [], [], [0]
        with session.extra_system(system, pool_bytes=str(_MEMORY_POOL_BYTES)) as (worker, started):
            pid = started.facts.get("pid", worker.pid)
            for first in range(0, requests, share):
                part = [groups[place % len(groups)] for place in range(first, min(first + share, requests))]
                with worker.awake():
                    phase = Phase("requests", "one_by_one", tuple(part))
                    result = worker.ask(RunPhase(phase, "memory"), PhaseResult)
                computed.append(computed[-1] + sum(result.computed_by_row))
                counts.append(first + len(part))
                sizes.append(resident_bytes(pid))
                tell(f"MEMORY {system}: {sizes[-1] / 2**20:,.0f} MiB after {counts[-1]} requests")
        record = MemoryRecord(
            system,
            base_bytes=started.facts["base_bytes"],
            weight_bytes=started.facts["weight_bytes"],
            pool_bytes=started.facts["pool_tokens"] * started.facts["kv_bytes_per_token"],
            workspace_bytes=cost.workspace_bytes(started.facts["step_tokens"]),
            kv_bytes_per_token=started.facts["kv_bytes_per_token"],
            kv_bytes_by_formula=cost.kv_bytes_per_token,
            requests=tuple(counts),
            computed=tuple(computed[1:]),
            resident_bytes=tuple(sizes),
        )
        record_file.add(record)
        for message in _memory_faults(record):
            record_file.add(FaultRecord(system, message))


def _memory_faults(record: MemoryRecord) -> list[str]:
    faults = []
    if record.kv_bytes_per_token != record.kv_bytes_by_formula:
        faults.append(f"{record.kv_bytes_per_token} bytes of KV per token; {record.kv_bytes_by_formula} by formula")
    if record.excess > MOST_RESIDENT:
        faults.append(
            f"{max(record.resident_bytes):,} bytes are resident; "
            f"{record.expected_bytes:,} and {MOST_RESIDENT - 1:.0%} more are expected"
        )
    if record.growth_bytes is not None and record.growth_bytes > MOST_GROWTH * record.expected_bytes:
        faults.append(
            f"the resident set grew by {record.growth_bytes:,.0f} bytes over the second half of "
            f"{record.requests[-1]:,} requests; {MOST_GROWTH:.0%} of {record.expected_bytes:,} are let pass"
        )
    return faults


def run_profile(
    session: Session,
    plan: Mapping[str, Sequence[Workload]],
    vocabulary: Vocabulary,
    record_file: RecordFile,
    *,
    repeats: int,
) -> None:
    """Time in every operation, phase by phase, on systems with clocks around them.

    Args:
        plan: Workloads by system: ours in process, or over HTTP.
    """
    for system, workloads in plan.items():
        with session.extra_system(system, profile="yes", pool_bytes=str(_PROFILE_POOL_BYTES)) as (worker, _):
            for repeat in range(repeats):
                for workload in workloads:
                    words = variant(workload, repeat, vocabulary)
                    with worker.awake():
                        warm_up = warm_up_phase(vocabulary, repeat)
                        worker.ask(RunPhase(warm_up, f"warm-up/{workload.name}/{repeat}"), PhaseResult)
                    for record in _profile_phases(session, worker, words, system=system, repeat=repeat):
                        record_file.add(record)
                tell(f"PROFILE {system} #{repeat + 1} is done")


def _profile_phases(
    session: Session, worker: WorkerProcess, workload: Workload, *, system: str, repeat: int
) -> Iterator[ProfileRecord]:
    before = session.gauge.check().gemm_gflops
    for phase in workload.phases:
        with worker.awake():
            worker.ask(ReadProfile(), Profile)
            result = worker.ask(RunPhase(phase, f"{workload.name}/{repeat}"), PhaseResult)
            profile = worker.ask(ReadProfile(), Profile)
        if phase.kind == "fill":
            continue
        after = session.gauge.check().gemm_gflops
        yield ProfileRecord(
            workload=workload.name,
            phase=phase.name,
            system=system,
            repeat=repeat,
            num_rows=result.num_rows,
            wall_s=result.wall_s,
            calibration=(before, after),
            profile=profile,
        )
        before = after
