"""The recorder against a stand-in for the graphs of ``torch.cuda``; test_on_device.py has real ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from engine.config import EngineConfig
from engine.cuda_graphs import CudaRecorder, find_recorder

CUDA = torch.device("cuda", 0)


class FakeCuda:
    """Writes down in what order things happen, and on which stream."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.events: list[str] = []
        self._here = self.Stream(self, "default")
        fake = self

        class Graph:
            def replay(self) -> None:
                fake.events.append("replay")

        monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 7))
        monkeypatch.setattr(torch.cuda, "Stream", lambda _device: self.Stream(self, "side"))
        monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: self._here)
        monkeypatch.setattr(torch.cuda, "stream", self.on_stream)
        monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
        monkeypatch.setattr(torch.cuda, "graph", self.graph)

    class Stream:
        def __init__(self, fake: FakeCuda, name: str) -> None:
            self._fake, self.name = fake, name

        def wait_stream(self, other: FakeCuda.Stream) -> None:
            self._fake.events.append(f"{self.name} waits for {other.name}")

    @contextmanager
    def on_stream(self, stream: FakeCuda.Stream) -> Iterator[None]:
        self.events.append(f"on {stream.name}")
        yield
        self.events.append(f"off {stream.name}")

    @contextmanager
    def graph(self, _graph: object, *, pool: tuple[int, int], stream: FakeCuda.Stream) -> Iterator[None]:
        self.events.append(f"record on {stream.name} in {pool}")
        yield
        self.events.append("recorded")


def test_work_is_run_once_then_recorded_in_the_common_memory_and_only_replayed_after_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake = FakeCuda(monkeypatch)
    recorder = CudaRecorder(CUDA)

    def run() -> Tensor:
        fake.events.append("run")
        return torch.zeros(3)

    replays = [recorder.record(run) for _ in range(2)]
    first = ["side waits for default", "on side", "run", "off side", "default waits for side"]
    assert fake.events == 2 * [*first, "record on side in (0, 7)", "run", "recorded"]

    fake.events.clear()
    outs = [replays[0]() for _ in range(2)]
    assert fake.events == ["replay", "replay"]
    assert outs[0] is outs[1]
    assert replays[1]() is not outs[0]


def test_only_a_gpu_records_and_only_where_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeCuda(monkeypatch)

    assert find_recorder(EngineConfig(), torch.device("cpu")) is None
    assert find_recorder(EngineConfig(device="cuda", cuda_graphs="off"), CUDA) is None
    assert isinstance(find_recorder(EngineConfig(device="cuda"), CUDA), CudaRecorder)
