"""This project's service over HTTP: texts in, so its template is around what the workloads say."""

from __future__ import annotations

import contextlib
import math
import socket
import subprocess
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.http_client import JsonClient
from benchmarks.messages import STAGES, OperationCost, Profile, Start, Started
from benchmarks.server_process import ServerProcess
from benchmarks.systems.contract import Answer, SystemUnavailableError
from benchmarks.vocabulary import Vocabulary, load_vocabulary
from benchmarks.workloads import Group
from scorer.version import package_version

_START_S = 120.0
_AT_A_TIME = 64
_TEMPLATE = "yes-no"
_QUERY_WORDS = 24


class OursOverHttp:
    """``scorer serve`` with the options as settings of its engine.

    The option ``profile`` puts a clock around every operation.

    A group becomes one request. A body is the document, and tails are questions about it,
    shortened by what the template adds behind the document, so that a question costs as many
    tokens as the workload says. Without a body the head is the query and tails are documents.
    What the reply counts is what is reported.
    """

    is_remote = True

    def __init__(self, start: Start, labels: tuple[int, int]) -> None:
        del labels  # the template names them
        self._vocabulary = load_vocabulary()
        self._open = ExitStack()
        self._base_bytes = _bytes_before_the_model(start.threads)
        options = dict(start.options)
        profiled = options.pop("profile", "") == "yes"
        port, costs_port = _free_port(), _free_port()
        url = f"http://127.0.0.1:{port}"
        self._environ = _settings(start, options, port)
        words = ["benchmarks.profiled_server", f"{costs_port}"] if profiled else ["scorer", "serve"]
        self._server = server = self._open.enter_context(ServerProcess([sys.executable, "-m", *words], self._environ))
        try:
            server.wait_until_ready(url, "/health/ready", timeout_s=_START_S)
        except (TimeoutError, ChildProcessError):
            server.stop()
            raise
        self._client = self._open.enter_context(contextlib.closing(JsonClient(url)))
        self._costs: JsonClient | None = None
        if profiled:
            self._costs = self._open.enter_context(contextlib.closing(JsonClient(f"http://127.0.0.1:{costs_port}")))
        self._steps: dict[str, float] = {}
        self._threads = self._open.enter_context(ThreadPoolExecutor(_AT_A_TIME))
        self._lock = threading.Lock()
        self._computed = 0
        self._added_tokens = self._measure_template()

    def started(self) -> Started:
        settings = ", ".join(f"{name}={value}" for name, value in self._environ.items() if name != "SCORER_MODEL")
        info = self._client.get("/info")
        return Started(
            version=f"radix-scorer {package_version()}",
            settings=settings,
            facts={
                "template": self._added_tokens,
                "pid": self._server.pid,
                "base_bytes": self._base_bytes,
                "weight_bytes": info["weight_bytes"],
                "kv_bytes_per_token": info["kv_bytes_per_token"],
                "pool_tokens": info["num_blocks"] * info["block_size"],
                "step_tokens": info["max_batch_tokens"],
            },
        )

    def submit(self, group: Group, namespace: str) -> Future[Answer]:
        del namespace
        return self._threads.submit(self._ask, request_for(group, self._vocabulary, added_tokens=self._added_tokens))

    def computed_tokens(self) -> int:
        with self._lock:
            return self._computed

    def exact_scores(self, prompts: tuple[tuple[int, ...], ...]) -> tuple[float, ...]:
        del prompts
        raise SystemUnavailableError("the service takes texts, not tokens")

    def forget(self) -> None:
        """Every repeat sends text that the cache has not seen."""

    def profile(self) -> Profile:
        """Costs since the last call; only with the option ``profile``."""
        if self._costs is None:
            raise ValueError("the service runs without the option profile=yes")
        operations = msgspec.convert(self._costs.get("/"), dict[str, OperationCost])
        before, self._steps = self._steps, step_sums(self._client.text("/metrics").decode())
        since = {name: value - before.get(name, 0.0) for name, value in self._steps.items()}
        stages = {name: since[f"sum {name}"] for name in STAGES}
        return Profile(operations=operations, stages=stages, steps=round(since["count prefill"]))

    def close(self) -> None:
        self._open.close()

    def _ask(self, request: dict[str, Any]) -> Answer:
        reply = self._client.post("/v1/batches/score", request)
        usages = [result["usage"] for result in reply["results"]]
        computed = tuple(int(usage["computed_tokens"]) for usage in usages)
        with self._lock:
            self._computed += sum(computed)
        return Answer(
            log_odds=tuple(_log_odds(result["score"]) for result in reply["results"]),
            cached_by_row=tuple(int(usage["cached_tokens"]) for usage in usages),
            computed_by_row=computed,
            received=int(reply["usage"]["prompt_tokens"]),
            forward_s=reply["timings"]["prefill_ms"] / 1000,
        )

    def _measure_template(self) -> int:
        """Tokens that a new question of one word costs on a cached document, less that word."""
        words = list(self._vocabulary.words)
        document = " ".join(words[:_QUERY_WORDS])
        for query in (words[-1], words[-2]):
            request = {"template": _TEMPLATE, "queries": [query], "documents": [document], "order": "document_first"}
            answer = self._ask(request)
        return answer.computed_by_row[0] - 1


def request_for(group: Group, vocabulary: Vocabulary, *, added_tokens: int) -> dict[str, Any]:
    """The native request that asks what ``group`` asks.

    Args:
        added_tokens: What the template adds behind a document, besides the question.
    """
    text = vocabulary.text
    common = {"template": _TEMPLATE}
    if group.body:
        questions = [tail[: max(1, len(tail) - added_tokens)] for tail in group.tails]
        texts = {"documents": [text(group.body)], "queries": [text(question) for question in questions]}
        return {**common, **texts, "order": "document_first"}
    documents = [text(tail) for tail in group.tails]
    if group.head:
        return {**common, "queries": [text(group.head)], "documents": documents, "order": "query_first"}
    # rows that share nothing: each has a query of its own, cut from its beginning
    return {
        **common,
        "queries": [text(tail[:_QUERY_WORDS]) for tail in group.tails],
        "documents": [text(tail[_QUERY_WORDS:]) for tail in group.tails],
        "pairs": [[place, place] for place in range(len(group.tails))],
        "order": "document_first",
    }


def step_sums(exposition: str) -> dict[str, float]:
    """Seconds and number of steps by phase, from the service's metrics."""
    return {
        f"{sample.name.rpartition('_')[2]} {sample.labels['phase']}": sample.value
        for family in text_string_to_metric_families(exposition)
        if family.name == "scorer_step_duration_seconds"
        for sample in family.samples
        if "le" not in sample.labels
    }


def _bytes_before_the_model(threads: int) -> int:
    """Memory of a process that has imported what the service does and has loaded nothing."""
    code = (
        "import os, scorer.app, scorer.server, engine.runner;"
        "from benchmarks.idle import resident_bytes; from benchmarks.systems.ours import touch_libraries;"
        f"touch_libraries({threads}); print(resident_bytes(os.getpid()))"
    )
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return int(found.stdout)


def _settings(start: Start, options: dict[str, str], port: int) -> dict[str, str]:
    settings = {
        "SCORER_MODEL": start.model,
        "SCORER_PORT": str(port),
        "SCORER_LOG_LEVEL": "warning",
        "SCORER_MAX_CONCURRENT_REQUESTS": "1000",
        "SCORER_REQUEST_TIMEOUT_S": "3600",
        "SCORER_ENGINE__NUM_THREADS": str(start.threads),
    }
    return {**settings, **{f"SCORER_ENGINE__{name.upper()}": value for name, value in options.items()}}


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _log_odds(probability: float) -> float:
    inside = min(max(probability, 1e-6), 1 - 1e-6)  # the service rounds to six digits
    return math.log(inside / (1 - inside))
