"""The tuner with a clock that is made up: what it writes is what launches are chosen by."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from benchmarks.gpu import tune as command
from benchmarks.gpu.check import CheckFailed
from benchmarks.gpu.tune import ROW_BUCKETS, SPAN_BUCKETS, candidates, compiled_refusal, table, tune
from benchmarks.gpu.workloads import Workload
from kernels.triton.tuning import COMPILED, FOLDER, Launch, LaunchKey, choose_launch, load_rules

FAST_FEW = Launch(tile_rows=16, tile_keys=64, num_warps=4, num_stages=3)
FAST_MANY = Launch(tile_rows=128, tile_keys=32, num_warps=8, num_stages=2)
SPILLS = Launch(tile_rows=64, tile_keys=64, num_warps=4, num_stages=5)


def refuse(_workload: Workload, launch: Launch) -> str | None:
    return "spills" if launch == SPILLS else None


def prepare(workload: Workload) -> command.Seconds:
    """Few rows like one launch, many another; the one that spills would beat both."""
    few = workload.num_tokens * workload.shape.num_heads // workload.shape.num_kv_heads <= 1024

    def seconds(launch: Launch) -> float:
        assert launch != SPILLS
        return 1e-3 if launch == (FAST_FEW if few else FAST_MANY) else 2e-3

    return seconds


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Tables with one for sm_90 beside the compiled one."""
    said: list[str] = []
    rules = tune(90, ["0.6B"], refuse=refuse, prepare=prepare, say=said.append)
    shutil.copy(FOLDER / COMPILED, tmp_path)
    (tmp_path / "sm_90.toml").write_text(table(rules, "a card, a day"))

    assert len(rules) == len(ROW_BUCKETS) * len(SPAN_BUCKETS)
    assert said[0] == "0.6B 64x64 4w 5s: refused: spills"
    return tmp_path


def key(**changes: int) -> LaunchKey:
    return LaunchKey(
        **{  # type: ignore[arg-type]
            "arch": 90,
            "head_dim": 128,
            "element_bytes": 2,
            "group": 2,
            "rows": 600,
            "longest_span": 300,
            **changes,
        }
    )


def test_the_table_is_written_read_and_used(folder: Path) -> None:
    rules = load_rules(folder)

    assert choose_launch(key(), rules) == FAST_FEW
    assert choose_launch(key(rows=1024, longest_span=100_000), rules) == FAST_FEW
    assert choose_launch(key(rows=1025), rules) == FAST_MANY
    assert choose_launch(key(rows=10**6, longest_span=10), rules) == FAST_MANY


@pytest.mark.parametrize(
    "changes", [{"arch": 100}, {"arch": 80}, {"head_dim": 64}, {"group": 4}, {"element_bytes": 4}, {"quantised": True}]
)
def test_other_shapes_keep_the_compiled_rules(folder: Path, changes: dict[str, int]) -> None:
    assert choose_launch(key(**changes), load_rules(folder)) == choose_launch(key(**changes))


def test_a_table_with_a_name_that_no_rule_has_is_refused(tmp_path: Path) -> None:
    (tmp_path / "sm_90.toml").write_text("[[rule]]\nmin_arch = 90\nmax_head_size = 128\nlaunch = [64, 64, 4, 3]\n")

    with pytest.raises(ValueError, match=r"sm_90\.toml: .*max_head_size.* is no rule"):
        load_rules(tmp_path)


def test_a_wrong_result_stops_the_tuning() -> None:
    def wrong(_: Workload) -> command.Seconds:
        def seconds(_launch: Launch) -> float:
            raise CheckFailed("largest error 1.0")

        return seconds

    with pytest.raises(CheckFailed):
        tune(90, ["0.6B"], refuse=refuse, prepare=wrong)


def test_candidates_hold_what_is_shipped_for_bulk_work() -> None:
    found = candidates()

    assert len(found) == len(set(found))
    assert choose_launch(key(rows=10**5, longest_span=10**4)) in found
    assert choose_launch(key(arch=80, rows=10**5, longest_span=10**4)) in found


def test_spills_and_shared_memory_are_read_from_the_compiled_code() -> None:
    workload = Workload(name="any", model="0.6B", prefix_tokens=16, row_tokens=(1,))
    sound = Launch(tile_rows=16, tile_keys=32, num_warps=4, num_stages=2)
    spilling = Launch(tile_rows=64, tile_keys=64, num_warps=4, num_stages=3)

    assert compiled_refusal(80, 1 << 20)(workload, sound) is None
    assert "spill instructions" in str(compiled_refusal(80, 1 << 20)(workload, spilling))
    assert "B of shared memory; 1024 there" in str(compiled_refusal(80, 1024)(workload, sound))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")
def test_without_a_device_nothing_is_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert command.main(["--output", str(tmp_path / "table.toml")]) == 2
    assert capsys.readouterr().err == "no CUDA device here: nothing was tuned\n"
    assert list(tmp_path.iterdir()) == []
