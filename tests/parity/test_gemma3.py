"""A real Gemma 3, 270M in four bits: ids and logits of transformers, reuse beyond its window, service over HTTP."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.http_client import JsonClient
from benchmarks.server_process import ServerProcess
from engine.checkpoint import load_checkpoint
from engine.records import BranchEnd, GenerateTask, LabelReadout, LikelihoodReadout, Row, Sampling, ScoreResult
from engine.runner import EngineThread
from scorer.tokens.tokenizer_files import load_tokenizer
from tests.helpers.gguf_reading import read_gguf_once
from tests.helpers.plain_model import numbers, numbers_from
from tests.helpers.ports import reserved_port
from tests.helpers.prompt_cases import TEXTS
from tests.helpers.prompts import real_prompts
from tests.helpers.tiny import running, score, tiny_engine

pytestmark = pytest.mark.model

TRANSFORMERS_TOLERANCE = 1e-3
# label logits of random texts lie around 20 here: a float32 sum in another order moves them by more than elsewhere
REUSE_TOLERANCE = 5e-4
STEP_TOKENS = 256
GENERATED_TOKENS = 12
TARGET_TOKENS = 40
BOS = 2
START_S = 300.0


@pytest.fixture(scope="module", autouse=True)
def judges_read_their_file_once() -> Iterator[None]:
    with read_gguf_once():
        yield


@pytest.fixture(scope="module")
def judge(gemma3_path: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(
        gemma3_path.parent, gguf_file=gemma3_path.name, dtype=torch.float32, attn_implementation="eager"
    )


@pytest.fixture(scope="module")
def exact(gemma3_path: Path) -> Iterator[EngineThread]:
    checkpoint = load_checkpoint(gemma3_path, torch.float32)
    with running(tiny_engine(checkpoint, num_blocks=300, block_size=16, step_tokens=STEP_TOKENS)) as engine:
        yield engine


def rows_beyond_the_window(judge: Any) -> list[Row]:
    """Rows that leave a prefix longer than the window at its end, inside a block, and within the last window."""
    vocabulary, window = judge.config.vocab_size, judge.config.sliding_window
    rng = np.random.default_rng(0)
    prefix = [BOS, *rng.integers(4, vocabulary, size=window + 150).tolist()]
    assert len(prefix) > 2 * STEP_TOKENS
    rows = []
    for cut, size in ((len(prefix), 30), (len(prefix), 1), (len(prefix) - 7, 20), (window // 2, 9)):
        ids = np.array([*prefix[:cut], *rng.integers(4, vocabulary, size=size).tolist()], dtype=np.int32)
        rows.append(Row(tokens=ids, readout=LabelReadout(label_ids=tuple(range(0, vocabulary, 500))), keep_tokens=cut))
    ids = np.array(prefix, dtype=np.int32)
    rows.append(Row(tokens=ids[:-1], readout=LikelihoodReadout(target_ids=ids[-TARGET_TOKENS:]), keep_tokens=0))
    return rows


def judged(judge: Any, row: Row) -> list[float]:
    with torch.inference_mode():
        logits = judge(torch.from_numpy(row.tokens).long()[None], logits_to_keep=TARGET_TOKENS).logits[0]
    return numbers_from(logits, row)


def all_numbers(result: ScoreResult) -> list[list[float]]:
    return [numbers(row.outcome) for row in result.rows]


def greatest_difference(found: Sequence[Sequence[float]], wanted: Sequence[Sequence[float]]) -> float:
    pairs = zip(found, wanted, strict=True)
    return max(abs(a - b) for left, right in pairs for a, b in zip(left, right, strict=True))


@pytest.fixture(scope="module")
def tokenizer(gemma3_path: Path) -> Tokenizer:
    return load_tokenizer(gemma3_path).tokenizer


def test_ids_are_those_of_transformers(gemma3_path: Path, tokenizer: Tokenizer) -> None:
    judge = AutoTokenizer.from_pretrained(gemma3_path.parent, gguf_file=gemma3_path.name)

    for text in (*TEXTS, *real_prompts(5), "a     b\n\n\n\n<b>\u00a0c</b>\t<end_of_turn>\n"):
        assert tokenizer.encode(text).ids == judge(text, add_special_tokens=False).input_ids, text


def test_logits_are_those_of_transformers_however_rows_beyond_the_window_are_run(
    exact: EngineThread, judge: Any
) -> None:
    """Rows are longer than a step, so all of them run in chunks."""
    rows = rows_beyond_the_window(judge)
    wanted = [judged(judge, row) for row in rows]

    alone = [all_numbers(score(exact, [row], namespace=f"alone {n}"))[0] for n, row in enumerate(rows)]
    cold, warm = (score(exact, rows, namespace="together") for _ in range(2))

    assert greatest_difference(alone, wanted) <= TRANSFORMERS_TOLERANCE
    for result in (cold, warm):
        assert greatest_difference(all_numbers(result), alone) <= REUSE_TOLERANCE
    suffixes = [len(row.tokens) - row.keep_tokens for row in rows[:-1]]
    assert cold.stats.computed_tokens == max(row.keep_tokens for row in rows) + sum(suffixes)
    assert warm.stats.computed_tokens == sum(suffixes) + TARGET_TOKENS


class Deaf:
    """Listens to nothing."""

    def on_token(self, _branch: int, _token: int) -> bool:
        return True

    def on_end(self, _branch: int, _end: BranchEnd) -> None: ...


def test_greedy_generation_is_that_of_transformers(exact: EngineThread, judge: Any, tokenizer: Tokenizer) -> None:
    prompts = [[BOS, *tokenizer.encode(text).ids] for text in ("The capital of France is", *real_prompts(2))]
    futures = [
        exact.generate(
            GenerateTask(
                task_id=str(number),
                namespace="generate",
                tokens=np.array(ids, dtype=np.int32),
                sampling=Sampling(),
                listener=Deaf(),
                num_branches=2,
                max_tokens=GENERATED_TOKENS,
                end_ids=frozenset(),
            )
        )
        for number, ids in enumerate(prompts)
    ]

    for ids, future in zip(prompts, futures, strict=True):
        mask = torch.ones(1, len(ids), dtype=torch.int64)
        with torch.inference_mode():
            whole = judge.generate(
                torch.tensor([ids]),
                attention_mask=mask,
                min_new_tokens=GENERATED_TOKENS,
                max_new_tokens=GENERATED_TOKENS,
                do_sample=False,
            )
        for branch in future.result(timeout=300).branches:
            assert list(branch.token_ids) == whole[0, len(ids) :].tolist()


def test_the_service_passes_its_self_test_and_ranks_over_http(gemma3_path: Path) -> None:
    body = {
        "query": "Who wrote the opera Fidelio?",
        "documents": [
            "The Danube flows through ten countries.",
            "Fidelio is the only opera by Ludwig van Beethoven.",
            "Bees turn nectar into honey.",
        ],
    }
    settings = {"SCORER_ENGINE__POOL_BYTES": str(2**26), "SCORER_LOG_LEVEL": "warning"}
    with contextlib.ExitStack() as stack:
        port = stack.enter_context(reserved_port())
        command = [sys.executable, "-m", "scorer", "serve", "--model", str(gemma3_path), "--port", str(port)]
        server = stack.enter_context(ServerProcess(command, settings))
        url = f"http://127.0.0.1:{port}"
        client = stack.enter_context(contextlib.closing(JsonClient(url)))
        server.wait_until_ready(url, "/health/ready", timeout_s=START_S)
        cold, warm = (client.post("/v1/rerank", body) for _ in range(2))
        metrics = client.text("/metrics")

    assert b"scorer_selftest_passed 1.0" in metrics.splitlines()
    assert cold["results"][0]["index"] == 1
    assert [each["index"] for each in warm["results"]] == [each["index"] for each in cold["results"]]
    assert cold["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert warm["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
