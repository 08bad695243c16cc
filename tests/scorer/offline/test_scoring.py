from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers.processors import TemplateProcessing

from scorer.dialects.schema import ScoreRequest
from scorer.errors import InvalidValue
from scorer.offline.scoring import score_now
from scorer.tokens.tokenizer_files import load_tokenizer
from tests.helpers.fake_engine import FakeEngine
from tests.helpers.service import RERANK, SCORE, fake_model, service
from tests.helpers.word_tokenizers import LLAMA3, loaded


def test_scores_are_those_of_the_service() -> None:
    request = ScoreRequest(queries=["what?", ""], documents=["one", "two"])
    batch = score_now(request, fake_model(FakeEngine()))
    with service() as client:
        served = client.post(SCORE, json={"queries": ["what?", ""], "documents": ["one", "two"]}).json()["results"]

    assert [item.score.score if item.score else None for item in batch.items] == [each.get("score") for each in served]
    assert batch.usage.prompt_tokens == sum(each["usage"]["prompt_tokens"] for each in served if "usage" in each)


@pytest.mark.parametrize("template", ["query-likelihood", "yes-no"])
def test_b003_bos_stands_once_and_first_on_every_route_and_offline(tmp_path: Path, template: str) -> None:
    """Both the tokenizer's own post-processor and the chat format put BOS first."""
    bare = loaded("llama3", LLAMA3).tokenizer
    bos = bare.token_to_id(LLAMA3[0])
    bare.post_processor = TemplateProcessing(single=[LLAMA3[0], "$A"], special_tokens=[(LLAMA3[0], bos)])
    bare.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(f'{{"bos_token": "{LLAMA3[0]}"}}')
    tokenizer = load_tokenizer(tmp_path)
    served, offline = FakeEngine(), FakeEngine()

    with service(served, load=lambda: fake_model(served, template=template, tokenizer=tokenizer)) as client:
        replies = [
            client.post(SCORE, json={"queries": ["what?"], "documents": ["a river"]}),
            client.post(RERANK, json={"query": "what?", "documents": ["a river"]}),
            client.post("/score", json={"text_1": "what?", "text_2": "a river"}),
        ]
    score_now(
        ScoreRequest(queries=["what?"], documents=["a river"]),
        fake_model(offline, template=template, tokenizer=tokenizer),
    )

    assert [reply.status_code for reply in replies] == [200, 200, 200]
    prompts = [task.rows[0].tokens.tolist() for task in (*served.tasks, *offline.tasks)]
    assert len(prompts) == 4
    for prompt in prompts:
        assert prompt == prompts[0]
        assert [place for place, token in enumerate(prompt) if token == bos] == [0]


def test_a_request_that_needs_no_engine_is_answered() -> None:
    batch = score_now(ScoreRequest(queries=[""], documents=["one"]), fake_model(FakeEngine()))

    assert batch.stats is None
    assert batch.outcome == "partial"
    assert batch.times.ttft_s is None


def test_wrong_values_are_refused() -> None:
    with pytest.raises(InvalidValue):
        score_now(ScoreRequest(queries=["q"], documents=["d"], pairs=[(0, 1)]), fake_model(FakeEngine()))
