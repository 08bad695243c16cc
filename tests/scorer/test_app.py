"""The service around a real engine: a tiny random model, and the default model where it is at hand."""

from __future__ import annotations

import gc
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.config import EngineConfig
from scorer.app import build_service, load_model
from scorer.fetch import ModelNotFoundError
from scorer.metrics import Metrics
from scorer.settings import Settings
from tests.helpers.adapter_files import every_module, write_adapter
from tests.helpers.fake_engine import FakeEngine
from tests.helpers.llama_files import save_folder, tiny_llama
from tests.helpers.service import RERANK, SCORE, client_of, sample, service, until
from tests.helpers.tiny_service import tiny_service
from tests.helpers.word_tokenizers import loaded

QUERIES = ["what is a tree?", "who is there?", "what is a tree and who is there?"]
DOCUMENTS = ["a tree is a plant", "nobody is there at all", "a tree is a tree"]
BODY = {"queries": QUERIES, "documents": DOCUMENTS}


def test_metrics_and_replies_tell_the_same_story() -> None:
    with tiny_service() as client:
        usages = [client.post(SCORE, json=BODY).json()["usage"] for _ in range(3)]
        usages.append(client.post(RERANK, json={"query": QUERIES[0], "documents": DOCUMENTS}).json()["usage"])

        details = [usage["prompt_tokens_details"] for usage in usages]
        told = {
            "scorer_prompt_tokens_total": sum(usage["prompt_tokens"] for usage in usages),
            "scorer_cached_tokens_total": sum(each["cached_tokens"] for each in details),
            "scorer_shared_tokens_total": sum(usage["shared_tokens"] for usage in usages),
            "scorer_computed_tokens_total": sum(usage["computed_tokens"] for usage in usages),
            "scorer_kept_tokens_total": sum(each["cache_write_tokens"] for each in details),
        }
        # the engine's thread counts a task just after it has answered it
        until(lambda: {name: sample(client, name) for name in told} == told)
    assert usages[0]["prompt_tokens_details"]["cached_tokens"] == 0
    assert usages[0]["shared_tokens"] > 0
    assert usages[1]["prompt_tokens_details"]["cached_tokens"] > 0
    assert usages[1]["computed_tokens"] < usages[0]["computed_tokens"]


@pytest.mark.parametrize("readout", [{}, {"labels": ["Yes", "No"]}, {"labels": ["the query", "the question"]}])
def test_scores_do_not_depend_on_the_cache_or_on_company(readout: dict[str, Any]) -> None:
    body = BODY | {"readout": readout}
    with tiny_service() as client:
        cold, warm = (client.post(SCORE, json=body).json()["results"] for _ in range(2))
    with tiny_service() as client:
        alone = [
            client.post(SCORE, json=body | {"pairs": [[query, document]], "cache": {"keep": "none"}}).json()["results"][
                0
            ]
            for query in range(3)
            for document in range(3)
        ]

    for one, two, three in zip(cold, warm, alone, strict=True):
        assert one["score"] == pytest.approx(two["score"], rel=1e-4, abs=1e-5)
        assert one["score"] == pytest.approx(three["score"], rel=1e-4, abs=1e-5)


def test_labels_of_several_tokens_cost_the_prompt_once() -> None:
    body = BODY | {"template": "yes-no", "cache": {"keep": "none"}}
    with tiny_service() as client:
        one_token = client.post(SCORE, json=body | {"readout": {"labels": ["Yes", "No"]}})
        several = client.post(SCORE, json=body | {"readout": {"labels": ["the query", "the question"]}})

    single, branched = one_token.json()["usage"], several.json()["usage"]
    # both labels begin with one common token, which is run once after each of the nine prompts
    assert branched["computed_tokens"] == single["computed_tokens"] + 9
    assert branched["prompt_tokens"] == 2 * (single["prompt_tokens"] + 9)


def test_cache_keep_none_leaves_nothing_behind() -> None:
    with tiny_service() as client:
        for _ in range(2):
            usage = client.post(SCORE, json=BODY | {"cache": {"keep": "none"}}).json()["usage"]
            assert usage["prompt_tokens_details"] == {"cached_tokens": 0, "cache_write_tokens": 0}


def test_an_unexpected_error_is_a_500_in_the_usual_form(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("secret")

    engine = FakeEngine()
    with service(engine) as client:
        monkeypatch.setattr(engine, "submit", broken)
        reply = client.post(SCORE, json=BODY)
        live = client.get("/health/live")

    assert reply.status_code == 500
    assert reply.json()["error"]["code"] == "internal_error"
    assert reply.json()["error"]["request_id"] == reply.headers["x-request-id"]
    assert "secret" not in reply.text
    assert live.status_code == 200


def test_an_adapter_is_merged_into_the_model_and_keeps_a_cache_of_its_own(tmp_path: Path) -> None:
    tokenizer = loaded("smollm")
    model = tiny_llama(vocab_size=tokenizer.vocab_size)
    folder = save_folder(model, tmp_path / "Base")
    tokenizer.tokenizer.save(str(folder / "tokenizer.json"))
    adapter = write_adapter(tmp_path / "Ranker", model, every_module(model))
    threads = torch.get_num_threads()
    engine = EngineConfig(pool_bytes=2**22, num_threads=threads)
    plain = Settings(model=str(folder), engine=engine)

    loaded_models = [load_model(settings, {}, Metrics()) for settings in (plain, replace(plain, adapter=str(adapter)))]

    for each in loaded_models:
        each.engine.close(drain_s=0)
    gc.unfreeze()
    assert [each.name for each in loaded_models] == ["Base", "Base+Ranker"]
    assert loaded_models[0].namespace_for(None) != loaded_models[1].namespace_for(None)
    with pytest.raises(ModelNotFoundError, match="no adapter 'nowhere'"):
        load_model(replace(plain, adapter="nowhere"), {"HOME": str(tmp_path)}, Metrics())


@pytest.mark.model
def test_the_default_model_passes_its_self_test_and_ranks(default_model_path: Path) -> None:
    settings = Settings(model=str(default_model_path), engine=EngineConfig(pool_bytes=64 * 2**20))
    application = build_service(settings, os.environ)
    documents = ["The Danube flows through ten countries.", "Fidelio is the only opera by Ludwig van Beethoven."]
    with client_of(application) as client:
        ready = client.get("/health/ready")
        ranked = client.post(RERANK, json={"query": "Who wrote the opera Fidelio?", "documents": documents}).json()
        labelled = client.post(
            SCORE,
            json={"queries": ["Is it big?"], "documents": documents, "readout": {"labels": ["Yes", "No"]}},
        ).json()
        passed = sample(client, "scorer_selftest_passed")

    assert ready.status_code == 200, ready.text
    assert passed == 1
    assert [each["index"] for each in ranked["results"]] == [1, 0]
    assert all(math.isfinite(each["score"]) for each in labelled["results"])
