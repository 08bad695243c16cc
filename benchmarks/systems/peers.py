"""Other servers that can score token ids: llama.cpp and vLLM."""

from __future__ import annotations

import contextlib
import itertools
import math
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

from benchmarks.http_client import JsonClient
from benchmarks.messages import Start, Started
from benchmarks.server_process import ServerProcess, split_command
from benchmarks.systems.contract import Answer, SystemUnavailableError
from benchmarks.systems.futures import combined
from benchmarks.workloads import Group

_START_S = 900.0
_CLOSE_TOKENS = 6


class _Server:
    """A server at ``start.options['url']``, started with ``start.options['start']`` if that is given."""

    is_remote = True
    health = "/health"
    default_url = ""

    def __init__(self, start: Start, labels: tuple[int, int]) -> None:
        self._labels = labels
        self._options = start.options
        url = start.options.get("url", self.default_url)
        self._open = ExitStack()
        self.client = self._open.enter_context(contextlib.closing(JsonClient(url)))
        if command := start.options.get("start"):
            server = self._open.enter_context(ServerProcess(*split_command(command)))
            try:
                server.wait_until_ready(url, self.health, timeout_s=_START_S)
            except (TimeoutError, ChildProcessError):
                server.stop()
                raise

    @property
    def settings(self) -> str:
        return self._options.get("start") or f"running at {self._options.get('url', self.default_url)}"

    def exact_scores(self, prompts: tuple[tuple[int, ...], ...]) -> tuple[float, ...]:
        del prompts
        raise SystemUnavailableError("a server has the dtype it was started with")

    def forget(self) -> None:
        """Every repeat sends text that no cache has seen."""

    def close(self) -> None:
        self._open.close()


class LlamaCpp(_Server):
    """llama.cpp's server, one request a row, as many at a time as it has slots."""

    default_url = "http://127.0.0.1:8312"

    def __init__(self, start: Start, labels: tuple[int, int]) -> None:
        super().__init__(start, labels)
        self._properties: dict[str, Any] = self.client.get("/props")
        self._slots = int(self._properties["total_slots"])
        self._threads = self._open.enter_context(ThreadPoolExecutor(self._slots))
        self._lock = threading.Lock()
        self._computed = 0

    def started(self) -> Started:
        version = f"llama.cpp {self._properties.get('build_info', '')}"
        return Started(version=version, settings=f"{self.settings}; {self._slots} slots", facts={})

    def submit(self, group: Group, namespace: str) -> Future[Answer]:
        del namespace
        return combined([self._threads.submit(self._row, group.prefix + tail) for tail in group.tails], _rows_answer)

    def computed_tokens(self) -> int:
        with self._lock:
            return self._computed

    def _row(self, prompt: tuple[int, ...]) -> tuple[float, int, int]:
        """One bias lifts both labels above everything else, so the two that are left hold their odds."""
        reply = self.client.post(
            "/completion",
            {
                "prompt": prompt,
                "n_predict": 1,
                "cache_prompt": True,
                "samplers": ["top_k", "temperature"],
                "top_k": 2,
                "temperature": 1.0,
                "n_probs": 2,
                "post_sampling_probs": True,
                "logit_bias": [[label, 100.0] for label in self._labels],
            },
        )
        found = {entry["id"]: entry["prob"] for entry in reply["completion_probabilities"][0]["top_probs"]}
        first, second = (max(found.get(label, 0.0), 1e-12) for label in self._labels)
        cached, computed = int(reply["timings"]["cache_n"]), int(reply["timings"]["prompt_n"])
        with self._lock:
            self._computed += computed
        return math.log(first / second), cached, computed


class Vllm(_Server):
    """vLLM's generative scoring: one request a group, many at a time."""

    default_url = "http://127.0.0.1:8311"
    _at_a_time = 32

    def __init__(self, start: Start, labels: tuple[int, int]) -> None:
        super().__init__(start, labels)
        self._model = self.client.get("/v1/models")["data"][0]["id"]
        self._version = self.client.get("/version")["version"]
        self._threads = self._open.enter_context(ThreadPoolExecutor(self._at_a_time))

    def started(self) -> Started:
        return Started(version=f"vllm {self._version}", settings=self.settings, facts={})

    def submit(self, group: Group, namespace: str) -> Future[Answer]:
        """A request needs a part that its rows share; rows that share nothing go one by one, cut
        before the tokens that all of them end with."""
        del namespace
        if group.prefix:
            parts = [self._threads.submit(self._ask, group.prefix, group.tails)]
        else:
            parts = [
                self._threads.submit(self._ask, tail[:-_CLOSE_TOKENS], (tail[-_CLOSE_TOKENS:],)) for tail in group.tails
            ]
        return combined(parts, lambda scores: Answer(log_odds=tuple(itertools.chain.from_iterable(scores))))

    def computed_tokens(self) -> int | None:
        """Prompt tokens less those that its prefix cache had, from its own counters."""
        counters = _counters(self.client.text("/metrics").decode())
        prompt, hits = (counters.get(f"vllm:{name}_total") for name in ("prompt_tokens", "prefix_cache_hits"))
        return None if prompt is None or hits is None else int(prompt - hits)

    def _ask(self, prefix: tuple[int, ...], tails: tuple[tuple[int, ...], ...]) -> list[float]:
        reply = self.client.post(
            "/generative_scoring",
            {
                "model": self._model,
                "query": prefix,
                "items": tails,
                "label_token_ids": self._labels,
                "apply_softmax": True,
            },
        )
        return [_logit(row["score"]) for row in sorted(reply["data"], key=lambda row: int(row["index"]))]


def _rows_answer(rows: list[tuple[float, int, int]]) -> Answer:
    log_odds, cached, computed = zip(*rows, strict=True)
    return Answer(log_odds=log_odds, cached_by_row=cached, computed_by_row=computed)


def _counters(exposition: str) -> dict[str, float]:
    """Sums of the samples of every counter in a Prometheus text."""
    totals: dict[str, float] = {}
    for line in exposition.splitlines():
        if line and not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            name = name.partition("{")[0]
            totals[name] = totals.get(name, 0.0) + float(value)
    return totals


def _logit(probability: float) -> float:
    inside = min(max(probability, 1e-12), 1 - 1e-12)
    return math.log(inside / (1 - inside))
