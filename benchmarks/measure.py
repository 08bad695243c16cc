"""Runs a phase against a system, in the system's own process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import Future
from itertools import accumulate

from benchmarks.messages import PhaseResult, RunPhase
from benchmarks.systems.contract import Answer, System
from benchmarks.workloads import Group


def run_phase(system: System, command: RunPhase) -> PhaseResult:
    """Run a phase once and say what it took."""
    phase = command.phase
    computed_before, client_before = system.computed_tokens(), time.process_time()
    began = time.perf_counter()
    latencies: Sequence[float] = ()
    late = 0.0
    if phase.kind == "one_by_one":
        groups: Sequence[Group] = [single for group in phase.groups for single in _singles(group)]
        answers, latencies = _one_by_one(system, groups, command.namespace)
    elif phase.kind == "open_loop" and command.rate is not None:
        groups = phase.groups
        due = [place / command.rate for place in accumulate(phase.gaps)]
        answers, latencies, late = asyncio.run(_open_loop(system, groups, due, command.namespace))
    else:
        groups = phase.groups
        futures = [system.submit(group, command.namespace) for group in groups]
        answers = [future.result() for future in futures]
    wall = time.perf_counter() - began
    computed_after = system.computed_tokens()
    computed = None
    if computed_before is not None and computed_after is not None:
        computed = computed_after - computed_before
    received = [
        group.prompt_tokens if answer.received is None else answer.received
        for group, answer in zip(groups, answers, strict=True)
    ]
    return PhaseResult(
        wall_s=wall,
        num_rows=sum(len(answer.log_odds) for answer in answers),
        received=sum(received),
        computed=computed,
        client_s=time.process_time() - client_before if system.is_remote else None,
        log_odds=tuple(score for answer in answers for score in answer.log_odds),
        cached_by_row=tuple(tokens for answer in answers for tokens in answer.cached_by_row),
        computed_by_row=tuple(tokens for answer in answers for tokens in answer.computed_by_row),
        latencies_s=tuple(latencies),
        forwards_s=tuple(answer.forward_s for answer in answers if answer.forward_s is not None),
        late_s=late,
    )


def _singles(group: Group) -> list[Group]:
    return [Group(group.head, group.body, (tail,)) for tail in group.tails]


def _one_by_one(system: System, groups: Sequence[Group], namespace: str) -> tuple[list[Answer], list[float]]:
    answers, latencies = [], []
    for group in groups:
        began = time.perf_counter()
        answers.append(system.submit(group, namespace).result())
        latencies.append(time.perf_counter() - began)
    return answers, latencies


async def _open_loop(
    system: System, groups: Sequence[Group], due: Sequence[float], namespace: str
) -> tuple[list[Answer], list[float], float]:
    """Send each group when it is due, never later because an answer is.

    Latency runs from the moment a group was due, not from when it was sent, so that a stall
    of the system or of the client is not left out.
    """
    began = time.perf_counter()

    async def ask(group: Group, at: float) -> tuple[Answer, float, float]:
        await asyncio.sleep(at - (time.perf_counter() - began))
        late = time.perf_counter() - began - at
        ended: Future[float] = Future()
        future = system.submit(group, namespace)
        future.add_done_callback(lambda _: ended.set_result(time.perf_counter() - began))
        answer = await asyncio.wrap_future(future)
        return answer, ended.result() - at, late

    outcomes = await asyncio.gather(*(ask(group, at) for group, at in zip(groups, due, strict=True)))
    answers, latencies, lateness = zip(*outcomes, strict=True)
    return list(answers), list(latencies), max(lateness)
