from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from benchmarks.aims_report import aims_section
from benchmarks.comparison import against_best
from benchmarks.messages import OperationCost, Profile
from benchmarks.profile_series import profile_series
from benchmarks.records import CacheRecord, DriftRecord, MemoryRecord, PhaseRecord, ProfileRecord, Record
from benchmarks.series import phase_series
from benchmarks.sweep import SweepPoint
from tests.helpers.phase_records import phase_record as phase
from tests.helpers.report_tables import rows_of


@dataclass(frozen=True, slots=True)
class Shown:
    """Rows of the section by their first cell: aim, measured, met."""

    rows: dict[str, list[str]]


def shown(
    records: Sequence[Record] = (),
    *,
    phases: Sequence[PhaseRecord] = (),
    profiles: Sequence[ProfileRecord] = (),
    points: Sequence[SweepPoint] = (),
) -> Shown:
    text = aims_section(records, phase_series(phases), against_best(phases), profile_series(profiles), points)
    return Shown({name: rest for name, *rest in rows_of(text, "## Aims")})


@pytest.mark.parametrize(("wall_s", "met"), [(1.0, "yes"), (1.05, "NO")])
def test_ratio_to_the_best_other_system_is_held_against_its_floor(wall_s: float, met: str) -> None:
    found = shown(phases=[phase("ours", wall_s), phase("vllm", 1.1), phase("hf-prefix", 9.0)])

    assert found.rows["W1 cold: ours ÷ best other (vllm)"][::2] == ["≥ 1.1", met]


@pytest.mark.parametrize(("latencies_s", "met"), [((0.01, 0.01, 0.019), "yes"), ((0.01, 0.01, 0.021), "NO")])
def test_tail_of_a_question_over_http_is_held_against_its_median(latencies_s: tuple[float, ...], met: str) -> None:
    found = shown(phases=[phase("ours-http", 1.0, workload="W4", name="warm", latencies_s=latencies_s)])

    assert found.rows["W4: p99 ÷ p50 over HTTP"][2] == met
    assert "W4: p50 over HTTP ÷ forward pass" not in found.rows


def test_question_over_http_is_held_against_its_forward_pass() -> None:
    record = phase("ours-http", 1.0, workload="W4", name="warm", latencies_s=(0.03,), forwards_s=(0.01,))

    assert shown(phases=[record]).rows["W4: p50 over HTTP ÷ forward pass"] == ["≤ 2.0", "3.00", "NO"]


def test_position_computed_twice_misses_the_aim() -> None:
    assert shown(phases=[phase("ours", 1.0)]).rows["computed ÷ unique, all phases"][1:] == ["1.250–1.250", "NO"]


def profiled(workload: str, name: str, *, system: str = "ours") -> ProfileRecord:
    operations = {
        "linear": OperationCost(0.5, 1, 1),
        "linear_large": OperationCost(0.5, 1, 400_000_000_000),
        "attend": OperationCost(0.25, 1, 100_000_000_000),
    }
    stages = dict.fromkeys(("schedule", "prefill", "readout", "commit"), 0.0)
    return ProfileRecord(
        workload=workload,
        phase=name,
        system=system,
        repeat=0,
        num_rows=1,
        wall_s=1.0,
        calibration=(1000.0, 1000.0),
        profile=Profile(operations=operations, stages=stages, steps=1),
    )


def test_profile_is_held_against_ceiling_rate_and_share() -> None:
    found = shown(
        profiles=[
            profiled("W1", "cold"),
            profiled("W1", "cold", system="ours-http"),
            profiled("W2", "warm"),
            profiled("W3", "warm"),
        ]
    ).rows

    assert found["W1: linear layers of ≥ 512 rows ÷ calibration"] == ["≥ 85%", "80%", "NO"]
    assert found["W3 warm: attention, GFLOP/s"] == ["≥ 380", "400 (400–400)", "yes"]
    assert found["W1 cold: everything else, ours"][2] == found["W1 cold: everything else, ours-http"][2] == "NO"
    assert found["W2 warm: everything else, ours"] == ["≤ 30%", "25% (25%–25%)", "yes"]


def test_sweep_must_be_explained_by_attention() -> None:
    points = [
        SweepPoint(tokens=tokens, question_ms=1.0, attention_ms=tokens * 0.08, rest_ms=tokens * 0.02)
        for tokens in (100, 200)
    ]

    assert shown(points=points).rows["sweep: slope explained by attention"] == ["≥ 90%", "80%", "NO"]


def memory(*, growth: int = 0, kv: int = 100) -> MemoryRecord:
    return MemoryRecord(
        system="ours",
        base_bytes=1000,
        weight_bytes=4000,
        pool_bytes=4000,
        workspace_bytes=1000,
        kv_bytes_per_token=kv,
        kv_bytes_by_formula=100,
        requests=(1, 2, 3, 4),
        computed=(40, 80, 120, 160),
        resident_bytes=(9000, 9000, 11_000, 11_000 + growth),
    )


def test_memory_is_held_against_formula_parts_and_growth() -> None:
    fine, wrong = shown([memory()]).rows, shown([memory(growth=600, kv=101)]).rows

    assert [met for _, _, met in fine.values()] == ["yes", "yes", "yes"]
    assert wrong["ours: KV bytes a token"] == ["100", "101", "NO"]
    assert wrong["ours: resident set ÷ its parts"] == ["≤ 1.15", "1.16", "NO"]
    assert wrong["ours: growth over the second half of 4 requests"] == ["≤ 1%", "6.0%", "NO"]


def test_hit_rate_and_drift_are_held_against_their_limits() -> None:
    cache = CacheRecord(
        system="ours",
        share=0.1,
        pool_tokens=1,
        realised=0.6,
        optimum=0.66,
        by_recency=0.6,
        by_frequency=0.6,
        rows_per_s=1.0,
    )
    drifts = [DriftRecord(system, "transformers float32", 0.02, 0.2, 0) for system in ("ours", "vllm")]

    found = shown([cache, *drifts]).rows

    assert found["W6, pool 10%: points short of Belady"] == ["≤ 5", "6.0", "NO"]
    assert found["log-odds, mean difference"][2] == "yes"
    assert found["log-odds, largest difference"][2] == "NO"
    assert len(found) == 3, "others' drift is no aim of ours"


def test_run_that_measured_none_of_them_says_nothing() -> None:
    assert aims_section([], [], [], [], []) == ""
