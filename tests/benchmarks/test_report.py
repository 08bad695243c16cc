from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.flops import ModelCost
from benchmarks.messages import OperationCost, Profile
from benchmarks.records import (
    CacheRecord,
    CalibrationRecord,
    DriftRecord,
    FaultRecord,
    MemoryRecord,
    ProfileRecord,
    Record,
    RecordFile,
    RunRecord,
    SystemRecord,
    read_records,
)
from benchmarks.report import report
from benchmarks.series import phase_series
from tests.helpers.phase_records import phase_record as phase
from tests.helpers.report_tables import rows_of
from tests.helpers.tiny import tiny_config

COST = ModelCost(config=tiny_config())
RUN = RunRecord("2026-01-01", {"processor": "a processor"}, "a model", COST, "tiny", 2, 3, {"W1": "abc"})


def shown(records: Sequence[Record], *, ceiling: float) -> str:
    return report([*records, CalibrationRecord((ceiling / 2, ceiling, ceiling * 3))])


def test_throughput_is_the_median_beside_the_ratio_to_each_system() -> None:
    records: list[Record] = [
        RUN,
        *(phase("ours", wall, repeat=repeat) for repeat, wall in enumerate((1.0, 2.0, 5.0))),
        phase("vllm", 4.0, repeat=1),
    ]

    ours, vllm = rows_of(shown(records, ceiling=100.0), "## Throughput")

    assert ours[:6] == ["W1 cold", "ours", "5.00 (2.00–10.0)", "3", "", "900"]
    assert vllm[:6] == ["W1 cold", "vllm", "2.50 (2.50–2.50)", "1", "2.00 (2.00–2.00)", "900"]
    assert ours[6:8] == ["0.250", "1.250"]


def test_repeats_beside_other_work_count_only_if_they_are_the_most() -> None:
    even = phase_series([phase("ours", 1.0), phase("ours", 9.0, idle=False)])
    busy = phase_series([phase("ours", 1.0), *[phase("ours", 5.0, idle=False)] * 2])

    assert (even[0].rate.count, even[0].rate.median, even[0].mark) == (1, 10.0, "")
    assert (busy[0].rate.count, busy[0].rate.median, busy[0].mark) == (3, 2.0, "*")


def test_phase_that_was_cut_is_marked() -> None:
    assert phase_series([phase("hf-pad", 1.0, rows_run=4)])[0].mark == "†"


def test_latencies_of_all_repeats_are_taken_together() -> None:
    records: list[Record] = [
        RUN,
        phase("ours", 1.0, workload="W4", name="warm", latencies_s=tuple(place / 1000 for place in range(1, 51))),
        phase("ours", 1.0, workload="W4", name="warm", latencies_s=tuple(place / 1000 for place in range(51, 101))),
        phase("ours-http", 1.0, workload="W4", name="warm", latencies_s=(0.1,), forwards_s=(0.04,)),
    ]

    ours, over_http = rows_of(shown(records, ceiling=100.0), "## W4")

    assert ours[:7] == ["ours", "100", "50.0", "99.0", "100", "", "0.50"]
    assert over_http[:7] == ["ours-http", "1", "100", "100", "100", "40.0", "1.00"]


def test_open_loop_shows_what_was_sent_and_how_late() -> None:
    records: list[Record] = [
        RUN,
        phase("ours", 2.0, workload="W7", name="capacity"),
        phase("ours", 10.0, workload="W7", name="30%", latencies_s=(0.1, 0.2)),
    ]

    capacity, third = rows_of(shown(records, ceiling=100.0), "## W7")

    assert capacity[:3] == ["ours", "capacity", "2.50"]
    assert third == ["ours", "30%", "0.500", "2", "100", "200", "0"]


def test_hit_rate_stands_beside_the_best_possible() -> None:
    cache = CacheRecord(
        system="ours",
        share=0.1,
        pool_tokens=60_000,
        realised=0.55,
        optimum=0.61,
        by_recency=0.54,
        by_frequency=0.58,
        rows_per_s=20.0,
    )
    records: list[Record] = [RUN, cache]

    (row,) = rows_of(shown(records, ceiling=100.0), "## W6")

    assert row == ["10%", "60,000", "55.0%", "61.0%", "6.0", "54.0%", "58.0%", "20.0"]


def test_profile_gives_rates_and_shares_that_add_up() -> None:
    profile = Profile(
        operations={
            "linear": OperationCost(0.5, 10, 200_000_000_000),
            "linear_large": OperationCost(0.25, 5, 125_000_000_000),
            "attend": OperationCost(0.2, 4, 40_000_000_000),
            "swiglu": OperationCost(0.05, 4, 0),
            "label_logits": OperationCost(0.01, 1, 0),
        },
        stages={"schedule": 0.02, "prefill": 0.8, "readout": 0.02, "commit": 0.01},
        steps=4,
    )
    record = ProfileRecord(
        workload="W1",
        phase="cold",
        system="ours",
        repeat=0,
        num_rows=10,
        wall_s=1.0,
        calibration=(900.0, 1100.0),
        profile=profile,
    )
    text = shown([RUN, record], ceiling=100.0)

    rates, shares = rows_of(text, "## Profile")[0], rows_of(text, "## Profile")[-1]

    assert rates[:5] == ["W1 cold", "ours", "1", "4", "200"]
    assert rates[5:] == ["400 (400–400)", "40%", "500 (500–500)", "50%", "200 (200–200)", "20%", "30%"]
    assert shares[:5] == ["W1 cold", "ours", "1.00", "50.0%", "20.0%"]
    assert shares[5].startswith("5.0% (swiglu 5.0%, label_logits 1.0%")
    assert shares[6:] == ["5.0%", "5.0%", "15.0%"]


def test_memory_is_held_against_its_parts() -> None:
    record = MemoryRecord(
        "ours",
        base_bytes=100 << 20,
        weight_bytes=200 << 20,
        pool_bytes=50 << 20,
        workspace_bytes=50 << 20,
        kv_bytes_per_token=64,
        kv_bytes_by_formula=64,
        requests=(1, 2, 3, 4),
        computed=(1 << 20,) * 4,
        resident_bytes=(300 << 20, 420 << 20, 440 << 20, (440 << 20) + 64),
    )

    text = shown([RUN, record], ceiling=100.0)

    assert rows_of(text, "## Memory")[-1] == ["resident after 4 requests", "440.0"]
    assert "Largest resident set ÷ sum: 1.10. Growth over the second half of the requests: 64 bytes." in text


def test_rounds_of_ours_beside_all_and_of_its_other_forms_beside_the_best_are_listed() -> None:
    walls = {"ours": 1.0, "ours-http": 2.0, "vllm": 4.0, "hf-prefix": 8.0}
    records: list[Record] = [RUN, *(phase(system, wall) for system, wall in walls.items())]

    rows = rows_of(shown(records, ceiling=100.0), "## Rounds")

    assert [(own, other, ratio) for _, own, other, _, ratio, *_ in rows] == [
        ("ours", "ours-http", "2.00"),
        ("ours", "vllm", "4.00"),
        ("ours", "hf-prefix", "8.00"),
        ("ours-http", "vllm", "2.00"),
    ]


def test_faults_are_loud_and_their_absence_is_said() -> None:
    fault = FaultRecord("ours", "W1 cold #1: 9 positions were computed, 8 are unique")

    assert "## FAULTS\n\n- ours: W1 cold #1" in shown([RUN, fault], ceiling=100.0)
    assert "No faults" in shown([RUN], ceiling=100.0)


def test_drift_is_shown() -> None:
    records: list[Record] = [RUN, DriftRecord("vllm", "transformers float32", 0.0841, 0.188, 0)]

    (row,) = rows_of(shown(records, ceiling=100.0), "## Log-odds")

    assert row == ["vllm", "0.084", "0.188", "0", "transformers float32"]


def test_run_that_was_cut_short_has_no_report() -> None:
    with pytest.raises(ValueError, match="did not come to its end"):
        report([RUN, phase("ours", 1.0)])


def test_records_come_back_from_their_file(tmp_path: Path) -> None:
    record_file = RecordFile(tmp_path / "new" / "records.jsonl")
    wanted: list[Record] = [RUN, SystemRecord("ours", "1", "s", {"a": 1}), phase("ours", 1.0), FaultRecord("a", "b")]
    for record in wanted:
        record_file.add(record)

    assert read_records(tmp_path / "new" / "records.jsonl") == wanted


def test_run_of_which_nothing_can_be_drawn_leaves_no_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the picture needs matplotlib")
    from benchmarks.plot import draw

    drawn = draw([RUN, CalibrationRecord((900.0,))], tmp_path / "picture.png")

    assert not drawn
    assert not (tmp_path / "picture.png").exists()


def test_picture_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the picture needs matplotlib")
    from benchmarks.plot import draw

    records: list[Record] = [
        RUN,
        phase("ours", 1.0),
        phase("vllm", 2.0),
        phase("ours", 1.0, workload="W4", name="warm", latencies_s=(0.1, 0.2)),
        phase("ours", 1.0, workload="W7", name="30%", latencies_s=(0.1, 0.2)),
        phase("ours", 1.0, workload="SWEEP", name="250"),
        phase("ours", 1.0, workload="SWEEP", name="500"),
    ]

    records.append(CalibrationRecord((900.0,)))

    drawn = draw(records, tmp_path / "picture.png")

    assert drawn
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
