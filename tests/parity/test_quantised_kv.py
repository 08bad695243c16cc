"""Keys and values in 8 bits: reuse still changes nothing, and scores move little."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch

from engine.checkpoint import load_checkpoint
from engine.records import LabelReadout, Row
from scorer.tokens.tokenizer_files import load_tokenizer
from tests.helpers.plain_model import numbers
from tests.helpers.prompts import real_prompts
from tests.helpers.tiny import running, score, tiny_checkpoint, tiny_config, tiny_engine
from tests.helpers.tries import make_row

KvDtype = Literal["auto", "int8", "fp8"]
VOCABULARY = 97
# share of the standard deviation of the scores; half a code is 0.4 % of a row's greatest number, or 3.6 % in fp8
DRIFT = {"int8": 0.006, "fp8": 0.04}
REUSE_TOLERANCE = 1e-4


def rows() -> list[Row]:
    rng = np.random.default_rng(5)
    prefix = rng.integers(VOCABULARY, size=37).tolist()
    tails = [rng.integers(VOCABULARY, size=n).tolist() for n in (1, 9, 4, 22)]
    return [make_row([*prefix, *tail], target=3 if len(tail) > 5 else 0) for tail in tails]


def scores(kv_dtype: KvDtype, batches: list[list[Row]], *, step_tokens: int = 256) -> list[np.ndarray]:
    engine = tiny_engine(tiny_checkpoint(tiny_config(num_layers=4)), step_tokens=step_tokens, kv_dtype=kv_dtype)
    with running(engine):
        results = [score(engine, batch) for batch in batches]
    return [np.array([n for row in result.rows for n in numbers(row.outcome)]) for result in results]


@pytest.mark.parametrize("kv_dtype", ["int8", "fp8"])
def test_cold_warm_and_in_chunks_agree(kv_dtype: KvDtype) -> None:
    cold, warm = scores(kv_dtype, [rows(), rows()])
    (chunked,) = scores(kv_dtype, [rows()], step_tokens=16)
    alone = np.concatenate([scores(kv_dtype, [[row]])[0] for row in rows()])

    for other in (warm, chunked, alone):
        np.testing.assert_allclose(other, cold, atol=REUSE_TOLERANCE, rtol=REUSE_TOLERANCE)


@pytest.mark.parametrize("kv_dtype", ["int8", "fp8"])
def test_a_row_of_which_nothing_is_kept_scores_as_one_that_is_kept(kv_dtype: KvDtype) -> None:
    tokens = np.random.default_rng(6).integers(VOCABULARY, size=30).tolist()
    (kept,), (forgotten,) = (scores(kv_dtype, [[make_row(tokens, keep=keep)]]) for keep in (30, 0))

    np.testing.assert_allclose(forgotten, kept, atol=REUSE_TOLERANCE, rtol=REUSE_TOLERANCE)


@pytest.mark.parametrize("kv_dtype", ["int8", "fp8"])
def test_scores_drift_within_the_stated_bound(kv_dtype: Literal["int8", "fp8"]) -> None:
    (exact,), (rounded,) = scores("auto", [rows()]), scores(kv_dtype, [rows()])
    drift = np.abs(exact - rounded).max() / exact.std()

    assert DRIFT[kv_dtype] / 20 < drift < DRIFT[kv_dtype]


@pytest.mark.model
def test_int8_moves_log_odds_of_the_default_model_no_more_than_stated(default_model_path: Path) -> None:
    tokenizer = load_tokenizer(default_model_path).tokenizer
    labels = tuple(tokenizer.encode(word).ids[0] for word in ("Yes", "No"))
    prompts = [np.array(tokenizer.encode(text).ids, dtype=np.int32) for text in real_prompts(6)]
    rows = [Row(tokens=ids, readout=LabelReadout(label_ids=labels), keep_tokens=len(ids)) for ids in prompts]
    checkpoint = load_checkpoint(default_model_path, torch.float32)
    log_odds = []
    for kv_dtype in ("auto", "int8"):
        with running(
            tiny_engine(checkpoint, num_blocks=200, block_size=16, step_tokens=1024, kv_dtype=kv_dtype)
        ) as engine:
            found = [numbers(row.outcome)[:2] for row in score(engine, rows).rows]
        log_odds.append(np.array([yes - no for yes, no in found]))

    drift = np.abs(log_odds[0] - log_odds[1])
    assert 0 < drift.mean() < 0.1
    assert drift.max() < 0.25
