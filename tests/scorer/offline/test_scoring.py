from __future__ import annotations

import pytest

from scorer.dialects.schema import ScoreRequest
from scorer.errors import InvalidValue
from scorer.offline.scoring import score_now
from tests.helpers.fake_engine import FakeEngine
from tests.helpers.service import SCORE, fake_model, service


def test_scores_are_those_of_the_service() -> None:
    request = ScoreRequest(queries=["what?", ""], documents=["one", "two"])
    batch = score_now(request, fake_model(FakeEngine()))
    with service() as client:
        served = client.post(SCORE, json={"queries": ["what?", ""], "documents": ["one", "two"]}).json()["results"]

    assert [item.score.score if item.score else None for item in batch.items] == [each.get("score") for each in served]
    assert batch.usage.prompt_tokens == sum(each["usage"]["prompt_tokens"] for each in served if "usage" in each)


def test_a_request_that_needs_no_engine_is_answered() -> None:
    batch = score_now(ScoreRequest(queries=[""], documents=["one"]), fake_model(FakeEngine()))

    assert batch.stats is None
    assert batch.outcome == "partial"
    assert batch.times.ttft_s is None


def test_wrong_values_are_refused() -> None:
    with pytest.raises(InvalidValue):
        score_now(ScoreRequest(queries=["q"], documents=["d"], pairs=[(0, 1)]), fake_model(FakeEngine()))
