"""Generations: a body in; text out, whole or as it comes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from engine import BranchResult, GenerateResult, GenerateTask
from scorer.dialects.native import milliseconds
from scorer.dialects.schema import PromptTokensDetails, Timings
from scorer.errors import NoFiniteScore
from scorer.generation.branch_texts import BranchText, BranchTexts
from scorer.generation.plan import GenerationPlan, plan_generation
from scorer.generation.schema import (
    GenerateChoice,
    GenerateEnd,
    GenerateRequest,
    GenerateResponse,
    GenerateText,
    GenerateUsage,
)
from scorer.http.json_body import StrictDecoder
from scorer.http.request_record import RequestRecord
from scorer.metrics import Metrics
from scorer.model_host import LoadedModel, ModelHost
from scorer.scoring.scores import rounded
from scorer.service import engine_result, time_allowed_s


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReadGeneration:
    """A request that was read and is not in the engine yet."""

    plan: GenerationPlan
    model: LoadedModel
    deadline_s: float
    tokenise_s: float


class GenerationService:
    """Reads generations and hands them to the engine. Belongs to the event loop."""

    def __init__(self, *, host: ModelHost, metrics: Metrics, request_timeout_s: float) -> None:
        self._host = host
        self._metrics = metrics
        self._request_timeout_s = request_timeout_s
        self._decoder = StrictDecoder(GenerateRequest)

    async def read(self, body: bytes, record: RequestRecord) -> ReadGeneration:
        """Decode and tokenise in a worker thread.

        Raises:
            Refusal: see :mod:`scorer.errors`.
        """
        model = self._host.require()
        return await asyncio.to_thread(self._read, body, model, record)

    @contextmanager
    def running(self, read: ReadGeneration, record: RequestRecord) -> Iterator[Generation]:
        """The generation, in the engine; what the engine holds for it is given up when the block ends.

        Raises:
            EngineError: the engine does not take it.
        """
        generation = Generation(read, record, self._metrics)
        try:
            yield generation
        finally:
            generation.give_up()

    def _read(self, body: bytes, model: LoadedModel, record: RequestRecord) -> ReadGeneration:
        request = self._decoder.decode(body)
        record.request_id = request.request_id or record.request_id
        deadline_s = record.started_s + time_allowed_s(request.deadline_ms, self._request_timeout_s)
        began_s = time.monotonic()
        plan = plan_generation(request, model)
        return ReadGeneration(plan=plan, model=model, deadline_s=deadline_s, tokenise_s=time.monotonic() - began_s)


class Generation:
    """One request in the engine. Answered once: by :meth:`whole`, or by :meth:`begun` and :meth:`parts`.

    Raises:
        EngineError: the engine does not take it.
    """

    def __init__(self, read: ReadGeneration, record: RequestRecord, metrics: Metrics) -> None:
        self._read = read
        self._record = record
        self._metrics = metrics
        self._pieces: asyncio.Queue[GenerateText | None] = asyncio.Queue()
        self._first: GenerateText | None = None
        self._texts = self._listen()
        self._submitted_s = time.monotonic()
        future = read.model.engine.generate(self._task())
        self._waiting = asyncio.ensure_future(engine_result(future, read.model.engine, read.deadline_s))
        self._waiting.add_done_callback(lambda _: self._pieces.put_nowait(None))

    def give_up(self) -> None:
        """Let the engine drop it, if it has not ended."""
        self._waiting.cancel()

    async def whole(self) -> GenerateResponse:
        """Wait for all choices.

        Raises:
            EngineError, NoFiniteScore: there is no text to answer with.
        """
        result = await self._waiting
        self._texts.close(result)
        self._note(result)
        plan = self._read.plan
        return GenerateResponse(
            id=self._record.request_id,
            object="generation",
            model=self._read.model.name,
            template=plan.template,
            seed=plan.sampling.seed,
            created=int(time.time()),
            choices=[
                _choice(index, own.text, branch)
                for index, (own, branch) in enumerate(zip(self._texts.branches, result.branches, strict=True))
            ],
            usage=self._usage(result),
            timings=self._timings(result),
        )

    async def begun(self) -> None:
        """Wait for the first piece of text, so that what fails before it is an error like any other.

        Raises:
            EngineError, NoFiniteScore: there is no text to answer with.
        """
        self._first = await self._pieces.get()
        if self._first is None or self._first.finish_reason == "non_finite":
            _check_finite(await self._waiting)

    async def parts(self) -> AsyncIterator[GenerateText | GenerateEnd]:
        """The pieces of text as they come, from the first; at last what they cost.

        Raises:
            EngineError: the rest is lost.
        """
        piece = self._first
        while piece is not None:
            yield piece
            piece = await self._pieces.get()
        result = await self._waiting
        for rest in self._texts.close(result):
            yield rest
        self._note(result)
        yield GenerateEnd(
            id=self._record.request_id,
            object="generation.usage",
            model=self._read.model.name,
            template=self._read.plan.template,
            seed=self._read.plan.sampling.seed,
            created=int(time.time()),
            usage=self._usage(result),
            timings=self._timings(result),
        )

    def _listen(self) -> BranchTexts:
        loop = asyncio.get_running_loop()
        plan, decode = self._read.plan, self._read.model.texts.decode
        prompt = plan.tokens.tolist()
        branches = [BranchText(decode, prompt, plan.request.stop) for _ in range(plan.request.n)]

        def tell(piece: GenerateText) -> None:
            loop.call_soon_threadsafe(self._pieces.put_nowait, piece)

        return BranchTexts(branches, tell)

    def _task(self) -> GenerateTask:
        plan = self._read.plan
        return GenerateTask(
            task_id=self._record.request_id,
            namespace=self._read.model.namespace_for(self._record.tenant, plan.request.cache_salt),
            tokens=plan.tokens,
            sampling=plan.sampling,
            listener=self._texts,
            num_branches=plan.request.n,
            max_tokens=plan.request.max_tokens,
            end_ids=plan.end_ids,
            deadline_s=self._read.deadline_s,
        )

    def _note(self, result: GenerateResult) -> None:
        """Write down for the log and the metrics what became of it."""
        _check_finite(result)
        record, stats = self._record, result.stats
        record.prompt_tokens = stats.prompt_tokens
        record.cached_tokens = stats.cached_tokens
        record.computed_tokens = stats.computed_tokens
        whole = all(branch.end in {"stop", "length"} for branch in result.branches)
        record.outcome = "ok" if whole else "partial"
        ttft_s = self._ttft_s(result)
        if ttft_s is not None:
            self._metrics.observe_ttft(ttft_s)
        self._metrics.observe_stage("tokenise", self._read.tokenise_s)
        self._metrics.observe_stage("queue", stats.queue_s)
        self._metrics.observe_stage("prefill", stats.prefill_s)
        self._metrics.observe_stage("readout", stats.readout_s)

    def _ttft_s(self, result: GenerateResult) -> float | None:
        first_s = result.stats.first_score_s
        return None if first_s is None else self._submitted_s - self._record.started_s + first_s

    def _usage(self, result: GenerateResult) -> GenerateUsage:
        stats, prompt_tokens = result.stats, len(self._read.plan.tokens)
        return GenerateUsage(
            prompt_tokens=prompt_tokens,
            completion_tokens=stats.generated_tokens,
            total_tokens=prompt_tokens + stats.generated_tokens,
            prompt_tokens_details=PromptTokensDetails(
                cached_tokens=stats.cached_tokens, cache_write_tokens=stats.kept_tokens
            ),
            computed_tokens=stats.computed_tokens,
        )

    def _timings(self, result: GenerateResult) -> Timings:
        stats, ttft_s = result.stats, self._ttft_s(result)
        return Timings(
            tokenize_ms=milliseconds(self._read.tokenise_s),
            queue_ms=milliseconds(stats.queue_s),
            prefill_ms=milliseconds(stats.prefill_s),
            readout_ms=milliseconds(stats.readout_s),
            ttft_ms=None if ttft_s is None else milliseconds(ttft_s),
            total_ms=milliseconds(self._record.elapsed_s()),
        )


def _choice(index: int, text: str, branch: BranchResult) -> GenerateChoice:
    return GenerateChoice(
        index=index,
        text=text,
        finish_reason=branch.end,
        completion_tokens=len(branch.token_ids),
        log_prob_sum=rounded(sum(branch.log_probs)),
    )


def _check_finite(result: GenerateResult) -> None:
    """Raises :class:`NoFiniteScore` if the model gave nothing but numbers that are not finite."""
    if all(branch.end == "non_finite" and not branch.token_ids for branch in result.branches):
        raise NoFiniteScore("the model gave NaN or infinity for the first token")
