"""The host waits for a device once in a step: for its readouts.

Steps run on tensors that have no content, with launches that do nothing. Whatever asks for a number
(a comparison, an index by a mask, a copy back) fails there, and what goes to the device is looked at.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import engine.replay
from engine.checkpoint import Checkpoint
from engine.kv_pool import KvPool
from engine.model import Decoder
from engine.prefix_cache import PrefixCache
from engine.records import LabelReadout, Row, Sampling, ScoreTask, TokenReadout
from engine.replay import record_steps
from engine.row_order import order_rows
from engine.scheduler import Scheduler
from engine.sequence import TaskState
from engine.step import StepRunner
from kernels.triton import TritonKernels, kernel_set
from tests.helpers.no_device import launch_nothing
from tests.helpers.tiny import tiny_checkpoint, tiny_config
from tests.helpers.tries import make_row

VOCABULARY = 97
BLOCK_SIZE, NUM_BLOCKS = 4, 256
NOWHERE = torch.device("meta")


class Uploads(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts what goes from the host to the device, and how much of it is waited for."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.num = self.num_waited = 0

    def __torch_dispatch__(
        self, func: Any, types: Sequence[Any], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        sources = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if isinstance(out, Tensor) and out.device == NOWHERE and any(source.device != NOWHERE for source in sources):
            self.num += 1
            self.num_waited += not (
                kwargs.get("non_blocking") or (func._schema.name == "aten::copy_" and any(args[2:]))
            )
        return out


class Again:
    """Records by running anew; counts."""

    def __init__(self) -> None:
        self.num_replays = 0

    def record(self, run: Callable[[], Tensor]) -> Callable[[], Tensor]:
        def replay() -> Tensor:
            self.num_replays += 1
            return run()

        return replay


def steps_on_nothing(
    checkpoint: Checkpoint, kernels: TritonKernels, recorder: Again | None
) -> tuple[StepRunner, Scheduler]:
    cache = PrefixCache(num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE)
    scheduler = Scheduler(cache, step_tokens=64)
    pool = KvPool(checkpoint.config, num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, dtype=torch.bfloat16, device=NOWHERE)
    decoder = Decoder(checkpoint.config, checkpoint.weights.to(NOWHERE), kernels)
    replays = None
    if recorder is not None:
        replays = record_steps(decoder, pool, kernels, recorder, block_size=BLOCK_SIZE, step_tokens=64)
    steps = StepRunner(decoder=decoder, pool=pool, cache=cache, scheduler=scheduler, kernels=kernels, replays=replays)
    return steps, scheduler


def rows_of_every_kind() -> list[Row]:
    rng = random.Random(0)

    def tokens(count: int) -> list[int]:
        return [rng.randrange(VOCABULARY) for _ in range(count)]

    prefix = tokens(40)
    samplings = [
        Sampling(),
        Sampling(temperature=1.0, seed=1),
        Sampling(temperature=0.7, top_k=5, top_p=0.9),
        Sampling(temperature=0.7, top_p=0.9),
    ]
    chosen = [
        Row(
            tokens=np.array([*prefix, *tokens(3)], dtype=np.int32),
            readout=TokenReadout(sampling=sampling, branches=(0, 1, 5)),
            keep_tokens=40,
        )
        for sampling in samplings
    ]
    whole = Row(
        tokens=np.array([*prefix, *tokens(9)], dtype=np.int32),
        readout=LabelReadout(label_ids=(3, 4), log_sum_exp=True),
        keep_tokens=40,
    )
    return [make_row([*prefix, *tokens(5)]), whole, make_row([*prefix, *tokens(8)], target=4), *chosen]


@torch.inference_mode()
@pytest.mark.parametrize("recorder", [None, Again()], ids=["launched", "replayed"])
def test_a_step_waits_for_its_readouts_alone_and_for_all_at_once(
    recorder: Again | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched = launch_nothing(90, monkeypatch)
    monkeypatch.setattr(kernel_set, "interpreted", lambda: True)
    kernels = TritonKernels("cpu", split_below=264)
    kernels._arch, kernels._device = 90, NOWHERE
    monkeypatch.setattr(engine.replay, "_try_out", lambda *_: None)  # it asks for numbers, before any request
    checkpoint = tiny_checkpoint(tiny_config(), dtype=torch.bfloat16)
    steps, scheduler = steps_on_nothing(checkpoint, kernels, recorder)
    copies: list[int] = []

    def copied(tensor: Tensor) -> Tensor:
        assert tensor.device == NOWHERE
        copies.append(tensor.numel())
        return torch.zeros(tensor.shape, dtype=tensor.dtype)

    def uploaded(*_: object, **__: object) -> Tensor:
        pytest.fail("a tensor of Python numbers is copied while the host waits")

    monkeypatch.setattr(Tensor, "cpu", copied)
    monkeypatch.setattr(torch, "tensor", uploaded)
    rows = rows_of_every_kind()
    task = TaskState(
        ScoreTask(task_id="t", namespace="a", rows=tuple(rows)), 0, Future(), order_rows([row.tokens for row in rows])
    )
    scheduler.add(task)
    reads = []
    with Uploads() as uploads:
        while not task.finished:
            done = steps.run()
            assert done is not None
            reads.append(done[1].read_rows)

    assert len(reads) > 1
    assert len(copies) == sum(1 for read in reads if read)
    assert recorder is None or recorder.num_replays == len(reads)
    assert uploads.num >= 2 * len(reads)
    assert uploads.num_waited == 0
    assert {name for name, _ in launched} >= {"tree_attention_kernel", "store_kv_kernel", "label_logits_kernel"}
