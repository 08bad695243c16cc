"""Runs of our engine alone: a cache that is too small, memory over many requests, the profile."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.flops import ModelCost
from benchmarks.idle import resident_bytes
from benchmarks.messages import PhaseResult, Profile, ReadProfile, RunPhase
from benchmarks.offline_optimum import best_hits
from benchmarks.progress import tell
from benchmarks.records import CacheRecord, FaultRecord, MemoryRecord, ProfileRecord, RecordFile
from benchmarks.session import Session
from benchmarks.vocabulary import Vocabulary
from benchmarks.workloads import Phase, Workload, warm_up_phase

_SHARES = (0.1, 0.3)
_MEMORY_POOL_BYTES = 512 << 20
_MEMORY_READINGS = 20
_MOST_EXCESS = 1.15
PROFILED = ("W1", "W2", "W3", "W4", "W5")


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
        with session.extra_system(pool_bytes=str(pool_bytes)) as (worker, started), worker.awake():
            result = worker.ask(RunPhase(phase, "W6"), PhaseResult)
        pool_tokens = started.facts["pool_tokens"]
        found = sum(min(max(0, cached - head), length) for cached in result.cached_by_row)
        best = best_hits(bodies, item_units=length, capacity_units=pool_tokens)
        wanted = len(bodies) * length
        record = CacheRecord("ours", share, pool_tokens, found / wanted, best / wanted, result.num_rows / result.wall_s)
        record_file.add(record)
        tell(f"W6, pool {share:.0%}: hit rate {record.realised:.1%}, the best possible {record.optimum:.1%}")
        told, ran = sum(result.computed_by_row), result.computed
        if told + sum(result.cached_by_row) != result.received or told != ran:
            message = f"W6: {ran} computed, {told} told, {sum(result.cached_by_row)} cached of {result.received} tokens"
            record_file.add(FaultRecord("ours", message))


def run_memory(
    session: Session, workload: Workload, *, requests: int, cost: ModelCost, record_file: RecordFile
) -> None:
    """Resident set while W6's requests come again and again, with a small pool that is full soon."""
    groups = workload.phases[0].groups
    share = max(1, requests // _MEMORY_READINGS)
    counts, sizes = [], []
    with session.extra_system(pool_bytes=str(_MEMORY_POOL_BYTES)) as (worker, started):
        for first in range(0, requests, share):
            part = [groups[place % len(groups)] for place in range(first, min(first + share, requests))]
            with worker.awake():
                worker.ask(RunPhase(Phase("requests", "one_by_one", tuple(part)), "memory"), PhaseResult)
            counts.append(first + len(part))
            sizes.append(resident_bytes(worker.pid))
            tell(f"MEMORY: {sizes[-1] / 2**20:,.0f} MiB after {counts[-1]} requests")
    record = MemoryRecord(
        "ours",
        base_bytes=started.facts["base_bytes"],
        weight_bytes=cost.weight_bytes,
        pool_bytes=started.facts["pool_tokens"] * started.facts["kv_bytes_per_token"],
        workspace_bytes=cost.workspace_bytes(started.facts["step_tokens"]),
        kv_bytes_per_token=started.facts["kv_bytes_per_token"],
        kv_bytes_by_formula=cost.kv_bytes_per_token,
        requests=tuple(counts),
        resident_bytes=tuple(sizes),
    )
    record_file.add(record)
    if record.kv_bytes_per_token != record.kv_bytes_by_formula:
        message = f"{record.kv_bytes_per_token} bytes of KV per token; {record.kv_bytes_by_formula} by formula"
        record_file.add(FaultRecord("ours", message))
    if max(sizes) > _MOST_EXCESS * record.expected_bytes:
        message = f"{max(sizes):,} bytes are resident; {record.expected_bytes:,} and 15 % more are expected"
        record_file.add(FaultRecord("ours", message))


def run_profile(
    session: Session, workloads: Sequence[Workload], vocabulary: Vocabulary, record_file: RecordFile
) -> None:
    """Time in every operation, phase by phase, on an engine with clocks around them."""
    with session.extra_system(profile="yes", pool_bytes=str(1 << 30)) as (worker, _):
        for place, workload in enumerate(workload for workload in workloads if workload.name in PROFILED):
            rate = session.gauge.check().gemm_gflops
            with worker.awake():
                worker.ask(RunPhase(warm_up_phase(vocabulary, place), f"warm-up/{place}"), PhaseResult)
                for phase in workload.phases:
                    worker.ask(ReadProfile(), Profile)
                    result = worker.ask(RunPhase(phase, workload.name), PhaseResult)
                    profile = worker.ask(ReadProfile(), Profile)
                    record_file.add(ProfileRecord(workload.name, phase.name, "ours", result.wall_s, rate, profile))
            tell(f"PROFILE {workload.name} is done")
