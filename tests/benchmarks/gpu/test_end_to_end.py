"""The whole-engine part of the GPU benchmark, on a CPU and a tiny model."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from benchmarks.gpu import __main__ as command
from benchmarks.gpu.end_to_end import BATCHES, SMALL, BadScores, Batch, Run
from benchmarks.gpu.models import MODELS
from engine.config import EngineConfig
from engine.model_config import ModelConfig
from tests.helpers.tiny import tiny_config

CPU = EngineConfig(dtype="float32", pool_bytes=1 << 22, step_tokens=256)
BATCH = Batch(name="three rows", prefix_tokens=20, rows=3, shortest=2, longest=5)


def run(config: ModelConfig) -> Run:
    return Run("tiny", config, CPU, torch.float32)


def test_a_line_holds_both_rates() -> None:
    started = run(replace(tiny_config(), query_key_norm=True))
    try:
        cells = [cell.strip() for cell in started.measure(BATCH, repeats=2).strip("|").split("|")]
    finally:
        started.close()

    assert cells[0] == "three rows"
    assert cells[1] == "-"
    assert all(float(rate) > 0 for rate in cells[2:4])
    assert cells[4] == "-"


def test_a_row_without_a_finite_score_stops_the_run() -> None:
    started = run(tiny_config(query_scale=float("nan")))
    try:
        with pytest.raises(BadScores, match="three rows: row 0 ended as Unscored"):
            started.measure(BATCH, repeats=1)
    finally:
        started.close()


@pytest.mark.parametrize(("name", "billions"), [("Qwen3-0.6B", 0.6), ("Qwen3-4B", 4.0), ("Qwen3-8B", 8.2)])
def test_the_shapes_have_the_parameters_of_their_models(name: str, billions: float) -> None:
    assert MODELS[name].num_parameters / 1e9 == pytest.approx(billions, abs=0.06)


def test_nothing_new_is_started_when_the_time_is_over(capsys: pytest.CaptureFixture[str]) -> None:
    assert command._end_to_end("", repeats=1, deadline=0.0)
    assert capsys.readouterr().out.count("left out, the time is over") == len(MODELS)


def test_the_small_batch_is_measured_with_graphs_and_without(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Told:
        def __init__(self, _name: str, _config: ModelConfig, settings: EngineConfig, _dtype: torch.dtype) -> None:
            self.graphs = settings.cuda_graphs

        def measure(self, batch: Batch, *, repeats: int) -> str:
            return f"{batch.name}: {self.graphs} {repeats}"

        def close(self) -> None: ...

    monkeypatch.setattr(command, "Run", Told)

    assert command._end_to_end("0.6B", repeats=2, deadline=float("inf"))
    lines = [line for line in capsys.readouterr().out.splitlines() if line.endswith(" 2")]
    assert lines == [*(f"{batch.name}: auto 2" for batch in (*BATCHES, SMALL)), f"{SMALL.name}: off 2"]


def test_a_bad_score_is_told_and_fails(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    class Bad:
        def __init__(self, *_: object) -> None: ...

        def measure(self, batch: Batch, *, repeats: int) -> str:
            raise BadScores(f"{batch.name}: row 0")

        def close(self) -> None: ...

    monkeypatch.setattr(command, "Run", Bad)

    assert not command._end_to_end("0.6B", repeats=1, deadline=float("inf"))
    assert "WRONG: rerank, 100 documents: row 0" in capsys.readouterr().out
