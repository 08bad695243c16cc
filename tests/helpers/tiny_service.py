"""The service around a real engine with a tiny random model, in this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from litestar.testing import TestClient

from scorer.app import load_prompts
from scorer.metrics import Metrics
from scorer.model_host import LoadedModel
from scorer.scoring.raw_texts import RawTexts
from scorer.settings import Settings
from scorer.tokens.text_tokens import TextMemo
from tests.helpers.service import build_quickly, client_of
from tests.helpers.tiny import tiny_checkpoint, tiny_config, tiny_engine
from tests.helpers.word_tokenizers import loaded


@contextmanager
def tiny_service(**settings: Any) -> Iterator[TestClient[Any]]:
    """A service whose model is random, so that its scores mean nothing but are those of the engine."""
    metrics = Metrics()
    tokenizer, memo = loaded("smollm"), TextMemo(100_000)
    checkpoint = tiny_checkpoint(tiny_config(vocab_size=tokenizer.vocab_size))

    def load() -> LoadedModel:
        # one step takes everything: what a chunk boundary stores for a while is not what these tests are about
        engine = tiny_engine(checkpoint, metrics, step_tokens=4096, num_blocks=2048)  # type: ignore[arg-type]
        prompts = load_prompts(tokenizer, memo, template=None, chat_format=None)
        return LoadedModel(engine=engine, prompts=prompts, texts=RawTexts(tokenizer, memo), memo=memo, name="tiny")

    application = build_quickly(Settings(**settings), metrics, load, test=lambda _: None)
    with client_of(application) as client:
        yield client
