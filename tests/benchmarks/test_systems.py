"""Systems that score token ids must agree: with each other, and with themselves when they reuse."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from benchmarks.flops import read_model_cost
from benchmarks.measure import run_phase
from benchmarks.messages import STAGES, RunPhase, Start
from benchmarks.systems.contract import System
from benchmarks.systems.hf import PaddedBatches, SharedPrefix
from benchmarks.systems.ours import Ours, engine_config
from benchmarks.systems.ours_http import request_for, step_sums
from benchmarks.systems.registry import make_system
from benchmarks.token_counts import PerfectCache
from benchmarks.vocabulary import load_vocabulary
from benchmarks.workloads import Group, build_workload
from engine.records import StepStats
from scorer.metrics import Metrics
from tests.helpers.llama_files import save_folder, tiny_llama

VOCABULARY = load_vocabulary()
OPTIONS = {"pool_bytes": str(1 << 20), "dtype": "float32"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model whose vocabulary holds the workloads' ids and whose scores differ from prompt to prompt."""
    model = tiny_llama(vocab_size=20_000, max_position_embeddings=512, tie_word_embeddings=True)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.mul_(parameter.shape[-1] ** -0.5)
            else:
                parameter.fill_(1.0)
    return save_folder(model.bfloat16(), tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def ours(folder: Path) -> Iterator[Ours]:
    system = Ours(Start("ours", str(folder), 1, {**OPTIONS, "profile": "yes"}), VOCABULARY.labels)
    yield system
    system.close()


@pytest.fixture(scope="module")
def padded(folder: Path) -> PaddedBatches:
    return PaddedBatches(Start("hf-pad", str(folder), 1, {"batch": "3"}), VOCABULARY.labels)


@pytest.fixture(scope="module")
def shared(folder: Path) -> SharedPrefix:
    return SharedPrefix(Start("hf-prefix", str(folder), 1, {"batch": "3"}), VOCABULARY.labels)


def scores(system: System, name: str) -> list[float]:
    found: list[float] = []
    for phase in build_workload(name, "tiny", VOCABULARY).phases:
        found += run_phase(system, RunPhase(phase, f"scores of {name}")).log_odds
    return found


@pytest.mark.parametrize("name", ["W1", "W2", "W4", "W5"])
def test_ours_agrees_with_transformers_in_float32(name: str, ours: Ours, padded: PaddedBatches) -> None:
    phases = build_workload(name, "tiny", VOCABULARY).phases
    prompts = tuple(group.prefix + tail for phase in phases for group in phase.groups for tail in group.tails)
    wanted = padded.exact_scores(prompts)

    assert scores(ours, name) == pytest.approx(wanted, abs=1e-3)
    assert max(wanted) - min(wanted) > 0.1, "scores that hardly differ prove nothing"


@pytest.mark.parametrize("name", ["W1", "W2", "W5"])
def test_transformers_agrees_with_itself_padded_shared_and_in_float32(
    name: str, padded: PaddedBatches, shared: SharedPrefix
) -> None:
    phases = build_workload(name, "tiny", VOCABULARY).phases
    prompts = tuple(group.prefix + tail for phase in phases for group in phase.groups for tail in group.tails)
    wanted = padded.exact_scores(prompts)

    assert scores(padded, name) == pytest.approx(wanted, abs=0.15)
    assert scores(shared, name) == pytest.approx(wanted, abs=0.15)
    assert shared.exact_scores(prompts[:2]) == pytest.approx(wanted[:2], abs=1e-5)


def test_ours_in_a_second_engine_in_float32_gives_the_same_scores(ours: Ours) -> None:
    prompts = tuple((word, other, *VOCABULARY.close) for word, other in pairwise(VOCABULARY.ids[:5]))

    exact = ours.exact_scores(prompts)

    assert ours.submit(Group((), (), prompts), "prompts").result().log_odds == pytest.approx(exact, abs=1e-4)


def test_ours_computes_every_position_once_and_a_namespace_finds_nothing_of_another(ours: Ours) -> None:
    for namespace in ("one", "two"):
        cache = PerfectCache()
        for phase in build_workload("W2", "tiny", VOCABULARY).phases:
            result = run_phase(ours, RunPhase(phase, namespace))
            work = cache.run(phase)

            assert result.computed == sum(result.computed_by_row) == work.unique
            assert result.received == work.received


def test_profile_counts_what_the_formulas_count(ours: Ours, folder: Path) -> None:
    cost, cache = read_model_cost(folder), PerfectCache()
    for phase in build_workload("W3", "tiny", VOCABULARY).phases:
        ours.profile()
        run_phase(ours, RunPhase(phase, "profile"))
        profile = ours.profile()
        work = cache.run(phase)

        # the last of two layers gives K and V of every row, and the rest for rows that are read only
        assert 0.5 <= profile.operations["linear"].flop / cost.linear_flop(work.unique) < 1
        assert 0.5 <= profile.operations["attend"].flop / cost.attention_flop(work.attended) < 1
        assert profile.steps >= 1
        assert profile.stages["prefill"] > 0


def test_forward_pass_of_a_question_is_part_of_its_latency(ours: Ours) -> None:
    for phase in build_workload("W4", "tiny", VOCABULARY).phases:
        result = run_phase(ours, RunPhase(phase, "forward"))

    assert len(result.forwards_s) == len(result.latencies_s) == 3
    assert all(0 < part < whole for part, whole in zip(result.forwards_s, result.latencies_s, strict=True))


def test_padded_batches_count_their_padding(padded: PaddedBatches) -> None:
    before = padded.computed_tokens()
    padded.submit(Group((1,), (), ((2,), (3, 4, 5))), "any")

    assert padded.computed_tokens() - before == 2 * 4


def test_shared_prefix_is_computed_once_until_it_is_forgotten(shared: SharedPrefix) -> None:
    group = Group((1, 2), (3, 4), ((5,), (6,)))
    counts = []
    for forget in (True, False, True):
        if forget:
            shared.forget()
        before = shared.computed_tokens()
        shared.submit(group, "any")
        counts.append(shared.computed_tokens() - before)

    assert counts == [4 + 2, 2, 4 + 2]


def test_unknown_setting_of_the_engine_is_refused() -> None:
    with pytest.raises(ValueError, match="step_token: no such setting of the engine"):
        engine_config({"step_token": "5"}, threads=1)


def test_settings_of_the_engine_are_read_from_text() -> None:
    config = engine_config({"step_tokens": "512", "dtype": "float32"}, threads=3)

    assert (config.step_tokens, config.dtype, config.num_threads) == (512, "float32", 3)


def test_unknown_system_is_named() -> None:
    with pytest.raises(ValueError, match="no system is driven by 'theirs'"):
        make_system(Start("theirs", "", 1, {}), VOCABULARY.labels)


def test_seconds_and_number_of_steps_are_read_from_the_metrics_of_the_service() -> None:
    metrics = Metrics()
    for prefill_s in (0.25, 0.5):
        metrics.on_step(
            StepStats(
                num_rows=1,
                num_tasks=1,
                computed_tokens=1,
                kept_tokens=0,
                read_rows=1,
                evicted_tokens=0,
                num_spans=1,
                schedule_s=0.125,
                prefill_s=prefill_s,
                readout_s=0.0,
                commit_s=1.0,
            )
        )

    found = step_sums(metrics.exposition(None)[0].decode())

    assert {name: found[f"sum {name}"] for name in STAGES} == {
        "schedule": 0.25,
        "prefill": 0.75,
        "readout": 0.0,
        "commit": 2.0,
    }
    assert found["count prefill"] == 2


def test_service_is_asked_for_a_document_with_questions_shortened_by_the_template() -> None:
    (cold, _) = build_workload("W2", "tiny", VOCABULARY).phases
    group = cold.groups[0]

    request = request_for(group, VOCABULARY, added_tokens=16)

    assert request["order"] == "document_first"
    assert [len(text.split()) for text in request["documents"]] == [len(group.body)]
    assert [len(text.split()) for text in request["queries"]] == [24 - 16] * len(group.tails)


def test_service_is_asked_for_a_query_with_documents() -> None:
    group = build_workload("W1", "tiny", VOCABULARY).phases[0].groups[0]

    request = request_for(group, VOCABULARY, added_tokens=16)

    assert request["order"] == "query_first"
    assert len(request["queries"]) == 1
    assert len(request["queries"][0].split()) == 160 - 8
    assert [len(text.split()) for text in request["documents"]] == [len(tail) - 6 for tail in group.tails]


def test_service_is_asked_for_pairs_where_nothing_is_shared() -> None:
    group = build_workload("W5", "tiny", VOCABULARY).phases[0].groups[0]

    request = request_for(group, VOCABULARY, added_tokens=16)

    assert request["pairs"] == [[0, 0], [1, 1], [2, 2]]
    assert len(set(request["queries"])) == len(request["documents"]) == 3
    words = f"{request['queries'][0]} {request['documents'][0]}".split()
    assert words == VOCABULARY.text(group.tails[0]).split()
