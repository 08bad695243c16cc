"""What a request's labels come to, held against a plain model that runs every label by itself."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import torch

from engine.checkpoint import Checkpoint
from engine.records import ScoreTask
from engine.runner import EngineThread
from scorer.app import load_prompts
from scorer.dialects.schema import ScoreRequest
from scorer.model_host import LoadedModel
from scorer.offline.scoring import score_now
from scorer.scoring.batch import ScoredBatch
from scorer.scoring.batch_plan import plan_batch
from scorer.scoring.raw_texts import RawTexts
from scorer.tokens.text_tokens import TextMemo
from tests.helpers.plain_model import plain_logits
from tests.helpers.tiny import running, tiny_checkpoint, tiny_config, tiny_engine
from tests.helpers.word_tokenizers import loaded

TOLERANCE = 1e-4
LABELS = ["the query", "the question about it", "no", "irrelevant"]
QUERIES = ["what is a tree?", "who is there?"]
DOCUMENTS = ["a tree is a plant", "nobody is there"]
TOKENIZER = loaded("smollm")


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return tiny_checkpoint(tiny_config(vocab_size=TOKENIZER.vocab_size))


@pytest.fixture(scope="module")
def engine(checkpoint: Checkpoint) -> Iterator[EngineThread]:
    with running(tiny_engine(checkpoint, num_blocks=2000, step_tokens=8192)) as started:
        yield started


@pytest.fixture(scope="module")
def model(engine: EngineThread) -> LoadedModel:
    memo = TextMemo(100_000)
    prompts = load_prompts(TOKENIZER, memo, template=None, chat_format=None)
    return LoadedModel(engine=engine, prompts=prompts, texts=RawTexts(TOKENIZER, memo), memo=memo, name="tiny")


def ask(model: LoadedModel, **body: Any) -> tuple[ScoreRequest, ScoredBatch]:
    whole = {"queries": QUERIES, "documents": DOCUMENTS, "cache": {"keep": "none"}} | body
    request = msgspec.convert(whole, ScoreRequest)
    return request, score_now(request, model)


def ids(text: str) -> list[int]:
    return TOKENIZER.tokenizer.encode(text, add_special_tokens=False).ids


def forced(checkpoint: Checkpoint, prompt: str, label: str) -> float:
    """Log-probability of ``label`` behind ``prompt``, every token run anew."""
    before, own = ids(prompt), ids(label)
    log_probs = plain_logits(checkpoint, before + own).log_softmax(-1)
    return sum(float(log_probs[len(before) + place - 1, token]) for place, token in enumerate(own))


def classified(document: str, query: str, labels: list[str]) -> str:
    spelt = f"{', '.join(labels[:-1])} or {labels[-1]}"
    return (
        f"<|im_start|>user\nDocument: {document}\n\n{query}\n\nReply with {spelt} only.<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_labels_of_several_tokens_have_the_probabilities_of_teacher_forcing(
    checkpoint: Checkpoint, model: LoadedModel
) -> None:
    assert len({len(ids(label)) for label in LABELS}) > 1
    _, batch = ask(model, readout={"labels": LABELS, "label_mass": True})

    for item, (query, document) in zip(batch.items, itertools.product(QUERIES, DOCUMENTS), strict=True):
        log_probs = torch.tensor(
            [forced(checkpoint, classified(document, query, LABELS), label) for label in LABELS], dtype=torch.float64
        )
        assert item.score is not None
        assert item.score.labels is not None
        assert list(item.score.labels.values()) == pytest.approx(log_probs.softmax(0).tolist(), abs=TOLERANCE)
        assert item.score.label_mass == pytest.approx(float(log_probs.exp().sum()), rel=1e-3)


def test_labels_in_both_orders_have_the_mean_of_both(checkpoint: Checkpoint, model: LoadedModel) -> None:
    _, batch = ask(model, readout={"labels": LABELS, "debias": "reverse"})

    for item, (query, document) in zip(batch.items, itertools.product(QUERIES, DOCUMENTS), strict=True):
        orders = [
            torch.tensor([forced(checkpoint, classified(document, query, shown), label) for label in LABELS]).softmax(0)
            for shown in (LABELS, LABELS[::-1])
        ]
        assert item.score is not None
        assert item.score.labels is not None
        mean = (orders[0] + orders[1]) / 2
        assert list(item.score.labels.values()) == pytest.approx(mean.tolist(), abs=TOLERANCE)
        assert item.score.spread == pytest.approx(abs(float(orders[0][0] - orders[1][0])), abs=2 * TOLERANCE)


@pytest.mark.parametrize(
    "body",
    [
        {"readout": {"labels": LABELS}},
        {"readout": {"labels": LABELS, "debias": "rotate"}},
        {"queries": [{"text": "which?", "options": LABELS}, {"text": "how?", "template": "graded"}]},
        {"template": "pairwise", "documents": [*DOCUMENTS, "something else", "the river"]},
        {"template": "listwise", "readout": {"debias": "rotate"}},
        {"chunking": {"max_tokens": 8, "overlap_tokens": 2}, "documents": [" ".join(DOCUMENTS * 4)]},
        {"readout": {"kind": "likelihood", "content_free": "N/A"}},
    ],
)
def test_computed_tokens_are_the_positions_of_the_trie(model: LoadedModel, body: dict[str, Any]) -> None:
    request, batch = ask(model, **body)
    rows = plan_batch(request, model, max_pairs=10_000).rows
    distinct = {tuple(row.tokens[:end].tolist()) for row in rows for end in range(1, len(row.tokens) + 1)}

    assert batch.usage.computed_tokens == len(distinct)
    assert batch.usage.prompt_tokens == sum(len(row.tokens) for row in rows)
    assert sum(item.usage.prompt_tokens for item in batch.items if item.usage) == batch.usage.prompt_tokens


def test_further_orders_cost_only_what_differs(model: LoadedModel) -> None:
    question = {"text": "which of these?", "options": ["one", "two", "three"]}
    document = " ".join(DOCUMENTS * 20)
    costs = {}
    for debias in ("none", "rotate"):
        _, batch = ask(model, queries=[question | {"readout": {"debias": debias}}], documents=[document])
        costs[debias] = batch.usage.computed_tokens

    suffix = len(ids("A. one\nB. two\nC. three\n\nReply with the letter of the right answer only.assistant\n")) + 5
    assert costs["rotate"] <= costs["none"] + 2 * suffix
    assert 2 * suffix < len(ids(document)) / 2


def test_a_submitted_task_holds_the_rows_of_all_questions(model: LoadedModel, engine: EngineThread) -> None:
    request, batch = ask(
        model, queries=["a", {"text": "b", "options": ["x", "y"]}, {"text": "c", "template": "yes-no"}]
    )
    plan = plan_batch(request, model, max_pairs=100)
    again = engine.submit(ScoreTask(task_id="again", namespace="other", rows=plan.rows)).result(timeout=60)

    assert len(again.rows) == 6
    assert all(item.score for item in batch.items)
