from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from engine import EngineFault
from scorer.dialects.schema import ScoreRequest
from scorer.errors import InvalidValue
from scorer.model_host import LoadedModel
from scorer.offline.pair_lines import InputError, scan_lines
from scorer.offline.result_file import Header, ResultFile
from scorer.offline.score_file import Totals, score_lines
from scorer.offline.scoring import score_now
from scorer.scoring.batch import ScoredBatch
from tests.helpers.fake_engine import FakeEngine
from tests.helpers.service import SCORE, fake_model, service

HEADER = Header(
    format="scorer-results@1",
    model="fake",
    revision="rev1",
    template="t@1",
    template_sha256="0",
    dtype="float32",
    max_document_tokens=None,
)


@dataclass
class Bench:
    """A file of lines, a file of results, and a model that remembers what it was asked."""

    folder: Path
    engine: FakeEngine = field(default_factory=FakeEngine)
    requests: list[ScoreRequest] = field(default_factory=list)
    progress: list[Totals] = field(default_factory=list)
    fail_at: int | None = None

    def __post_init__(self) -> None:
        self.model: LoadedModel = fake_model(self.engine)
        self.source = self.folder / "in.jsonl"
        self.target = self.folder / "out.jsonl"

    def write(self, lines: Sequence[dict[str, Any]]) -> None:
        self.source.write_text("".join(json.dumps(line) + "\n" for line in lines))

    def score(self, request: ScoreRequest) -> ScoredBatch:
        if len(self.requests) == self.fail_at:
            raise EngineFault("told to fail")
        self.requests.append(request)
        return score_now(request, self.model)

    def run(self, *, batch_pairs: int = 4, max_document_tokens: int | None = None) -> Totals:
        with ResultFile(self.target, HEADER) as results:
            return score_lines(
                self.source,
                scan_lines(self.source),
                results,
                self.score,
                batch_pairs=batch_pairs,
                max_document_tokens=max_document_tokens,
                on_progress=self.progress.append,
            )

    def results(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.target.read_text().splitlines()[1:]]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def pair(number: int, *, document: int | None = None) -> dict[str, Any]:
    return {"id": f"p{number}", "query": f"query {number}", "document": f"document {document or number}"}


BATCH = {"queries": ["who?", "what?"], "documents": [{"id": "d", "text": "one"}, "two"], "request_id": "mine"}


def test_every_pair_has_one_result_in_the_order_of_the_lines(bench: Bench) -> None:
    bench.write([pair(number) for number in range(10)])

    totals = bench.run()

    assert [result["id"] for result in bench.results()] == [f"p{number}" for number in range(10)]
    assert [result["line"] for result in bench.results()] == list(range(1, 11))
    assert {result["status"] for result in bench.results()} == {"ok"}
    assert (totals.done_pairs, totals.skipped_pairs, totals.failed_pairs) == (10, 0, 0)


def test_scores_and_usage_are_those_of_the_service(bench: Bench) -> None:
    lines = [pair(number, document=number % 2 + 1) for number in range(5)]
    bench.write(lines)
    bench.run(batch_pairs=5)
    body = {
        "queries": [line["query"] for line in lines],
        "documents": [line["document"] for line in lines],
        "pairs": [[number, number] for number in range(5)],
    }

    with service() as client:
        served = client.post(SCORE, json=body).json()["results"]

    for own, other in zip(bench.results(), served, strict=True):
        assert own["score"] == other["score"]
        assert own["log_prob_sum"] == other["log_prob_sum"]
        assert own["usage"] == other["usage"]


def test_pairs_that_follow_each_other_are_one_request_in_which_a_text_stands_once(bench: Bench) -> None:
    bench.write([pair(number, document=number // 3 + 1) for number in range(7)])

    bench.run(batch_pairs=6)

    first, second = bench.requests
    assert first.documents == ["document 1", "document 2"]
    assert first.pairs == [(0, 0), (1, 0), (2, 0), (3, 1), (4, 1), (5, 1)]
    assert second.pairs == [(0, 0)]


def test_a_batch_line_has_one_result_that_is_the_native_answer(bench: Bench) -> None:
    bench.write([pair(1), BATCH | {"top_n": 2}, pair(2)])

    totals = bench.run()

    before, batch, after = bench.results()
    assert (before["id"], after["id"]) == ("p1", "p2")
    assert (batch["line"], batch["object"], batch["counts"]["ok"]) == (2, "score_batch", 4)
    assert len(batch["results"]) == 2
    assert totals.done_pairs == 6
    assert len(bench.requests) == 3  # nothing is scored before what stands before it


def test_totals_add_up_what_the_engine_counted(bench: Bench) -> None:
    bench.write([*(pair(number, document=1) for number in range(6)), BATCH])

    totals = bench.run()

    usages = [result["usage"] for result in bench.results()]
    assert totals.usage.prompt_tokens == sum(usage["prompt_tokens"] for usage in usages)
    assert totals.usage.computed_tokens == sum(usage["computed_tokens"] for usage in usages)
    assert totals.usage.prompt_tokens == (
        totals.usage.cached_tokens + totals.usage.shared_tokens + totals.usage.computed_tokens
    )
    assert [progress.done_pairs for progress in bench.progress] == [0, 4, 6, 10]


def test_a_run_that_failed_half_way_is_continued_and_nothing_is_scored_twice(bench: Bench) -> None:
    bench.write([pair(number) for number in range(10)])
    bench.fail_at = 2
    with pytest.raises(EngineFault):
        bench.run()
    assert len(bench.results()) == 8
    bench.fail_at = None

    totals = bench.run()

    assert (totals.skipped_pairs, totals.done_pairs) == (8, 2)
    assert [result["line"] for result in bench.results()] == list(range(1, 11))
    asked = Counter(query for request in bench.requests for query in request.queries)
    assert set(asked.values()) == {1}


@pytest.mark.parametrize("seed", range(20))
def test_a_file_of_results_cut_at_any_byte_is_completed_to_the_same_results(bench: Bench, seed: int) -> None:
    rng = random.Random(seed)
    lines = [BATCH if rng.random() < 0.2 else pair(number) for number in range(12)]
    bench.write(lines)
    bench.run()
    whole = {result["line"]: result.get("score") for result in bench.results()}
    content = bench.target.read_bytes()
    cut = rng.randrange(len(content))
    bench.target.write_bytes(content[:cut])
    num_kept = max(0, content[:cut].count(b"\n") - 1)
    bench.requests.clear()

    bench.run()

    assert [result["line"] for result in bench.results()] == list(range(1, 13))
    assert {result["line"]: result.get("score") for result in bench.results()} == whole
    asked = sum(len(request.pairs) if request.pairs != "all" else 4 for request in bench.requests)
    assert asked == sum(4 if line is BATCH else 1 for line in lines[num_kept:])


def test_a_finished_file_is_left_alone(bench: Bench) -> None:
    bench.write([pair(1)])
    bench.run()
    before = bench.target.read_bytes()

    totals = bench.run()

    assert bench.target.read_bytes() == before
    assert (totals.skipped_pairs, totals.done_pairs) == (1, 0)


def test_lines_added_at_the_end_are_scored_by_the_next_run(bench: Bench) -> None:
    bench.write([pair(1)])
    bench.run()
    bench.write([pair(1), pair(2)])

    bench.run()

    assert [result["id"] for result in bench.results()] == ["p1", "p2"]


@pytest.mark.parametrize("changed", [[pair(9), pair(2)], [pair(2)]])
def test_a_line_that_changed_after_it_was_scored_stops_the_run(bench: Bench, changed: list[dict[str, Any]]) -> None:
    bench.write([pair(1), pair(2)])
    bench.run()
    bench.write(changed)

    with pytest.raises(InputError, match=r"in\.jsonl:1 is not the line whose result"):
        bench.run()

    assert len(bench.requests) == 1


def test_a_pair_that_cannot_be_scored_has_its_error_and_the_others_have_scores(bench: Bench) -> None:
    bench.write([pair(1), pair(2) | {"query": ""}, pair(3)])

    totals = bench.run()

    first, second, third = bench.results()
    assert (first["status"], second["status"], third["status"]) == ("ok", "error", "ok")
    assert second["error"]["code"] == "empty_target"
    assert "score" not in second
    assert totals.failed_pairs == 1


def test_a_batch_that_is_refused_has_its_error_and_the_others_have_scores(bench: Bench) -> None:
    bench.write([BATCH | {"model": "another"}, pair(1)])

    totals = bench.run()

    refused, scored = bench.results()
    assert (refused["status"], refused["error"]["code"], refused["error"]["field"]) == (
        "error",
        "model_not_found",
        "model",
    )
    assert scored["status"] == "ok"
    assert totals.failed_pairs == 4
    assert bench.run().skipped_pairs == 5


def test_a_refusal_that_no_line_is_to_blame_for_stops_the_run(bench: Bench) -> None:
    bench.write([pair(1)])

    def refuse(request: ScoreRequest) -> ScoredBatch:
        del request
        raise InvalidValue("no template")

    bench.score = refuse  # type: ignore[method-assign]
    with pytest.raises(InvalidValue):
        bench.run()

    assert bench.results() == []


def test_the_limit_of_a_document_holds_unless_a_batch_states_its_own(bench: Bench) -> None:
    bench.write([pair(1), BATCH, BATCH | {"max_tokens_per_doc": 9}])

    bench.run(max_document_tokens=5)

    assert [request.max_tokens_per_doc for request in bench.requests] == [5, 5, 9]
