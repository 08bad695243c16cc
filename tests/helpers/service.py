"""The service around a fake engine and a small real tokenizer, in this process or in another one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any
from unittest.mock import patch

from litestar.testing import TestClient
from prometheus_client.parser import text_string_to_metric_families

from scorer.app import Application, build_application, load_prompts
from scorer.http import pages
from scorer.metrics import Metrics
from scorer.model_host import LoadedModel
from scorer.openapi import encoded_document
from scorer.scoring.raw_texts import RawTexts
from scorer.settings import Settings
from scorer.tokens.text_tokens import TextMemo
from scorer.tokens.tokenizer_files import LoadedTokenizer
from tests.helpers.fake_engine import FakeEngine
from tests.helpers.word_tokenizers import loaded

PATIENCE_S = 60.0
SCORE = "/v1/batches/score"
RERANK = "/v1/rerank"
_DOCUMENT = cache(encoded_document)


def fake_model(
    engine: FakeEngine, *, template: str | None = None, tokenizer: LoadedTokenizer | None = None
) -> LoadedModel:
    memo = TextMemo(100_000)
    tokenizer = tokenizer or loaded("smollm")
    prompts = load_prompts(tokenizer, memo, template=template, chat_format=None)
    return LoadedModel(engine=engine, prompts=prompts, texts=RawTexts(tokenizer, memo), memo=memo, name="fake")


def fake_application(
    engine: FakeEngine,
    *,
    load: Callable[[], LoadedModel] | None = None,
    fault: str | None = None,
    template: str | None = None,
    **settings: Any,
) -> Application:
    """The application over ``engine``; ``fault`` is what its self-test finds."""
    values = Settings(**settings)
    metrics = Metrics(request_limit_s=values.request_timeout_s)
    return build_quickly(values, metrics, load or (lambda: fake_model(engine, template=template)), test=lambda _: fault)


def build_quickly(
    settings: Settings, metrics: Metrics, load: Callable[[], LoadedModel], *, test: Callable[[LoadedModel], str | None]
) -> Application:
    """The application, with the OpenAPI document that all have: to make it takes longer than all the rest."""
    with patch.object(pages, "encoded_document", _DOCUMENT):
        return build_application(settings, metrics, load, test=test)


@contextmanager
def client_of(application: Application, *, settled: bool = True) -> Iterator[TestClient[Any]]:
    """A client of the application, which runs meanwhile; ``settled``: it has loaded its model or failed."""
    with TestClient(application.asgi) as client:
        if settled:
            until(lambda: application.host.phase != "loading")
        yield client


@contextmanager
def service(engine: FakeEngine | None = None, **options: Any) -> Iterator[TestClient[Any]]:
    """A client of a service that is ready."""
    with client_of(fake_application(engine or FakeEngine(), **options)) as client:
        yield client


def until(condition: Callable[[], bool]) -> None:
    """Return when ``condition`` holds; fail if it does not within a generous time."""
    give_up_at = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < give_up_at, "waited in vain"
        time.sleep(0.002)


def samples(client: TestClient[Any]) -> Mapping[tuple[str, frozenset[tuple[str, str]]], float]:
    """All samples of ``/metrics`` by name and labels."""
    families = text_string_to_metric_families(client.get("/metrics").text)
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def sample(client: TestClient[Any], name: str, **labels: str) -> float:
    """One sample of ``/metrics``; 0 where the series does not exist."""
    return samples(client).get((name, frozenset(labels.items())), 0.0)
