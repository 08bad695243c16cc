"""Records what is launched on a CUDA device, and launches it again as one."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from engine.config import EngineConfig


def find_recorder(config: EngineConfig, device: torch.device) -> CudaRecorder | None:
    """What records steps on ``device``, if ``config`` wants it and it can be done there."""
    return CudaRecorder(device) if device.type == "cuda" and config.cuda_graphs == "auto" else None


class CudaRecorder:
    """Implements :class:`engine.replay.Recorder` with CUDA graphs.

    All graphs take their memory from one pool, so that they need what the largest of them needs. What one
    returns is therefore good until any of them is replayed.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._memory = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def record(self, run: Callable[[], Tensor]) -> Callable[[], Tensor]:
        self._run_once(run)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._memory, stream=self._stream):
            out = run()

        def replay() -> Tensor:
            graph.replay()
            return out

        return replay

    def _run_once(self, run: Callable[[], Tensor]) -> None:
        """What is made when it is first needed, such as binaries and workspaces, cannot be made while recording."""
        here = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(here)
        with torch.cuda.stream(self._stream):
            run()
        here.wait_stream(self._stream)
