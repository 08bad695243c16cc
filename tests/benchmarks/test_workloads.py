from __future__ import annotations

from itertools import combinations
from typing import get_args

import msgspec
import pytest

from benchmarks.sizes import HASHES, SIZES, SizeName
from benchmarks.token_counts import PerfectCache
from benchmarks.vocabulary import load_vocabulary
from benchmarks.workloads import (
    TITLES,
    Group,
    Phase,
    Workload,
    WorkloadError,
    build_workload,
    trimmed,
    variant,
    warm_up_phase,
)

VOCABULARY = load_vocabulary()


def full(name: str) -> Workload:
    return build_workload(name, "full", VOCABULARY)


@pytest.mark.parametrize("size", get_args(SizeName))
@pytest.mark.parametrize("name", TITLES)
def test_token_ids_have_the_recorded_hash(name: str, size: SizeName) -> None:
    workload = build_workload(name, size, VOCABULARY)

    assert workload.sha256 == HASHES[size][name]


def test_one_other_token_is_noticed() -> None:
    first, second, *_ = VOCABULARY.words
    swapped = {**VOCABULARY.words, first: VOCABULARY.words[second], second: VOCABULARY.words[first]}
    other = type(VOCABULARY)(
        model="other",
        system_open=VOCABULARY.system_open,
        system_to_user=VOCABULARY.system_to_user,
        close=VOCABULARY.close,
        labels=VOCABULARY.labels,
        words=swapped,
    )

    with pytest.raises(WorkloadError, match=r"W1 \(full\) has SHA-256"):
        build_workload("W1", "full", other)


def test_w1_is_a_query_of_160_and_100_documents_of_120_on_average() -> None:
    (phase,) = full("W1").phases
    (group,) = phase.groups
    lengths = [len(tail) for tail in group.tails]

    assert len(group.prefix) == 160
    assert len(lengths) == 100
    assert sum(lengths) == 12_000
    assert 90 <= min(lengths) < 100
    assert 140 < max(lengths) <= 151


def test_w2_asks_8_documents_of_1000_16_new_questions_of_24_when_cold_and_when_warm() -> None:
    cold, warm = full("W2").phases

    assert [len(group.body) for group in cold.groups] == [1000] * 8
    assert [group.prefix for group in cold.groups] == [group.prefix for group in warm.groups]
    assert {len(tail) for group in (*cold.groups, *warm.groups) for tail in group.tails} == {24}
    tails = [tail for group in (*cold.groups, *warm.groups) for tail in group.tails]
    assert len(set(tails)) == len(tails) == 2 * 8 * 16


def test_w3_is_one_document_of_4000_and_64_questions() -> None:
    cold, warm = full("W3").phases

    assert [len(group.body) for group in (*cold.groups, *warm.groups)] == [4000, 4000]
    assert [phase.num_rows for phase in (cold, warm)] == [64, 64]


def test_w4_asks_one_by_one_about_a_document_of_2000() -> None:
    fill, warm = full("W4").phases

    assert (fill.kind, warm.kind) == ("fill", "one_by_one")
    assert fill.groups[0].prefix == warm.groups[0].prefix
    assert len(warm.groups[0].body) == 2000


def test_w5_rows_share_not_even_their_first_token() -> None:
    (phase,) = full("W5").phases
    (group,) = phase.groups

    assert group.prefix == ()
    assert len({tail[0] for tail in group.tails}) == 100
    assert {len(tail) for tail in group.tails} == {300}


def test_w6_asks_popular_documents_more_often() -> None:
    (phase,) = full("W6").phases
    bodies = [group.body for group in phase.groups]
    counts = sorted((bodies.count(body) for body in set(bodies)), reverse=True)

    assert len(bodies) == 3000
    assert {len(body) for body in bodies} == {300}
    # Zipf's law over 2,000: the first has a share of 1 / 8.18, the first ten of 2.93 / 8.18
    assert counts[0] == pytest.approx(3000 / 8.18, rel=0.15)
    assert sum(counts[:10]) == pytest.approx(3000 * 2.93 / 8.18, rel=0.1)


def test_w7_mixes_both_kinds_and_its_gaps_are_exponential() -> None:
    fill, mix = full("W7").phases
    reranking = [group for group in mix.groups if not group.body]
    asking = [group for group in mix.groups if group.body]

    assert len(mix.gaps) == len(mix.groups) == 60
    assert 15 <= len(reranking) <= 45
    assert {group.prefix for group in asking} <= {group.prefix for group in fill.groups}
    assert sum(mix.gaps) / 60 == pytest.approx(1.0, rel=0.35)


def test_sweep_fills_before_it_times() -> None:
    phases = full("SWEEP").phases

    assert [phase.name for phase in phases[1::2]] == ["250", "500", "1000", "2000", "4000", "8000"]
    assert all(phase.kind == "fill" for phase in phases[::2])


def test_every_row_ends_where_the_model_answers() -> None:
    for name in TITLES:
        for phase in build_workload(name, "quick", VOCABULARY).phases:
            for group in phase.groups:
                assert all(tail[-len(VOCABULARY.close) :] == VOCABULARY.close for tail in group.tails)


@pytest.mark.parametrize("name", ["W1", "W2", "W3", "W4", "W5", "W7", "SWEEP"])
def test_variants_share_what_the_workload_shares_and_nothing_else_but_chat_tokens(name: str) -> None:
    workload = build_workload(name, "tiny", VOCABULARY)
    caches = [PerfectCache() for _ in range(3)]
    together = PerfectCache()
    alone = []
    apart = []
    for number, cache in enumerate(caches):
        other = variant(workload, number * 100, VOCABULARY)
        alone.append([cache.run(phase) for phase in other.phases])
        apart += [together.run(phase).unique for phase in other.phases]

    assert alone[0] == alone[1] == alone[2]
    chat = 2 * len(VOCABULARY.system_open)  # found again by the second and the third
    assert sum(apart) >= 3 * sum(work.unique for work in alone[0]) - chat


def test_variant_0_is_the_workload() -> None:
    assert variant(full("W2"), 0, VOCABULARY) == full("W2")


def test_warm_ups_differ() -> None:
    for one, other in combinations([warm_up_phase(VOCABULARY, number) for number in range(4)], 2):
        assert one.groups[0].tails != other.groups[0].tails
        assert one.groups[0].head != other.groups[0].head


def test_trimmed_phase_keeps_first_rows_until_the_tokens_are_enough() -> None:
    groups = (Group((1,), (2, 3), ((4,), (5,))), Group((1,), (6, 7), ((8,), (9,))))
    phase = Phase("cold", "together", groups)

    cut = trimmed(phase, 9)

    assert cut.groups == (groups[0], Group((1,), (6, 7), ((8,),)))
    assert trimmed(phase, 1).num_rows == 1
    assert trimmed(phase, 1000) == phase


def test_prompt_tokens_count_the_prefix_of_every_row() -> None:
    phase = Phase("cold", "together", (Group((1,), (2, 3), ((4,), (5, 6))), Group((), (), ((8,),))))

    assert phase.prompt_tokens == 4 + 5 + 1
    assert phase.num_rows == 3


def test_hash_covers_the_kind_of_a_phase() -> None:
    workload = build_workload("W4", "tiny", VOCABULARY)
    changed = msgspec.structs.replace(workload.phases[1], kind="together")

    assert msgspec.structs.replace(workload, phases=(workload.phases[0], changed)).sha256 != workload.sha256


def test_sizes_are_those_of_the_titles() -> None:
    size = SIZES["full"]

    assert (size.corpus, size.corpus_tokens, size.unshared_rows, size.unshared_tokens) == (2000, 300, 100, 300)
