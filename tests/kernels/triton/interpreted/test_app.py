"""The whole service on the Triton set, from a checkpoint to HTTP: the scores of the CPU set."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest

from engine.config import EngineConfig
from scorer.app import build_application, load_model
from scorer.metrics import Metrics
from scorer.settings import Settings
from tests.helpers.llama_files import save_folder, tiny_llama
from tests.helpers.service import RERANK, SCORE, client_of
from tests.helpers.word_tokenizers import loaded

TOLERANCE = 1e-4
PAIRS = {"queries": ["what is a tree?", "who is there?"], "documents": ["a tree is a plant", "nobody"]}
REQUESTS: list[tuple[str, dict[str, Any]]] = [
    (SCORE, PAIRS),
    (SCORE, PAIRS),
    (SCORE, PAIRS | {"queries": PAIRS["queries"][:1], "readout": {"labels": ["Yes", "No"]}}),
    (RERANK, {"query": PAIRS["queries"][1], "documents": [*PAIRS["documents"], "somebody is"]}),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer = loaded("smollm")
    folder = save_folder(tiny_llama(vocab_size=tokenizer.vocab_size), tmp_path_factory.mktemp("models") / "Tiny")
    tokenizer.tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def answers(model: Path, kernels: Literal["cpu", "triton"], kv_dtype: Literal["auto", "int8"]) -> list[Any]:
    engine = EngineConfig(kernels=kernels, kv_dtype=kv_dtype, dtype="float32", pool_bytes=2**21, num_threads=1)
    settings, metrics = Settings(model=str(model), engine=engine), Metrics()
    # the golden pairs would take the interpreter longer than all requests
    application = build_application(settings, metrics, lambda: load_model(settings, {}, metrics), test=lambda _: None)
    with client_of(application) as client:
        assert client.get("/health/ready").status_code == 200
        # a set for a CPU adds to its name when it has native operations
        assert client.get("/info").json()["kernels"].startswith(kernels)
        requests = REQUESTS if kv_dtype == "auto" else REQUESTS[:2]
        return [client.post(path, json=body).json() for path, body in requests]


def scores(answer: Any) -> list[float]:
    """Every score of an answer, in the order of its items."""
    results = sorted(answer["results"], key=lambda result: result["index"])
    return [result["score"] if "score" in result else result["relevance_score"] for result in results]


@pytest.mark.parametrize("kv_dtype", ["auto", "int8"])
def test_scores_over_http_are_those_of_the_cpu_set(model: Path, kv_dtype: Literal["auto", "int8"]) -> None:
    judged, ours = (answers(model, kernels, kv_dtype) for kernels in ("cpu", "triton"))

    for one, other in zip(judged, ours, strict=True):
        assert scores(other) == pytest.approx(scores(one), abs=TOLERANCE, rel=TOLERANCE)
        assert other["usage"] == one["usage"]
    assert ours[1]["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
