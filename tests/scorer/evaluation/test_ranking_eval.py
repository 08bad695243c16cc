from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from scorer.evaluation.bm25 import bm25_scores
from scorer.evaluation.ranking_eval import Scores, choose_weight, compare, evaluate, mix, rank, z_scores
from scorer.evaluation.ranking_sets import RankingQuery, read_ranking_set

ROOT = Path(__file__).parents[3]
DATA = ROOT.parent / "shared/data"


def scores(*values: float) -> Scores:
    return np.array(values, dtype=np.float64)


def query(number: int, relevant: str, *, candidates: str = "abcd") -> RankingQuery:
    grades = dict.fromkeys(relevant, 1)
    return RankingQuery(id=f"q{number}", text="?", candidates=tuple(candidates), grades=grades)


def test_equal_scores_keep_the_order_of_the_first_stage() -> None:
    assert rank("abcd", scores(1, 2, 1, 2)) == ["b", "d", "a", "c"]


def test_what_has_no_score_ranks_last() -> None:
    model, lexical = scores(-1, -math.inf, -2), scores(1, 9, 1)

    assert rank("abc", model) == ["a", "c", "b"]
    assert rank("abc", mix(model, lexical, 0.1)) == ["a", "c", "b"]


def test_z_scores_have_mean_0_and_deviation_1() -> None:
    assert z_scores(scores(1, 3)).tolist() == [-1, 1]
    assert z_scores(scores(5, 5, 5)).tolist() == [0, 0, 0]
    assert z_scores(scores(0.1, 0.1, 0.1)).tolist() == [0, 0, 0]  # whose mean is not exactly 0.1
    assert z_scores(scores(-math.inf)).tolist() == [-math.inf]


def test_mixing_does_not_depend_on_the_scale_of_either_score() -> None:
    model, lexical = scores(-3.5, -2, -4), scores(9, 4, 7)

    assert mix(model, lexical, 0.7) == pytest.approx(mix(model * 10 - 3, lexical / 7, 0.7))
    assert mix(model, lexical, 1.0) == pytest.approx(z_scores(model))


def test_measures_are_those_of_the_definition() -> None:
    queries = [query(1, "b"), query(2, "cd")]
    model = {"q1": scores(0, 1, 0, 0), "q2": scores(0, 0, 0, 1)}

    table = evaluate(queries, model=model, lexical=model).every

    first, alone = table.rows
    third = 1 / math.log2(4) + 1 / math.log2(5)  # relevant at 3 and 4
    best_of_two = 1 + 1 / math.log2(3)
    assert first.ndcg_at_10 == pytest.approx((1 / math.log2(3) + third / best_of_two) / 2)
    assert first.mrr_at_10 == pytest.approx((1 / 2 + 1 / 3) / 2)
    assert alone.ndcg_at_10 == pytest.approx((1 + (1 + 1 / math.log2(5)) / best_of_two) / 2)
    assert alone.mrr_at_10 == 1
    assert first.against_first_stage is None
    assert alone.against_first_stage is not None
    assert alone.against_first_stage.num_better == 2


def test_the_eleventh_place_counts_for_nothing() -> None:
    queries = [query(1, "k", candidates="abcdefghijk")]
    same = {"q1": np.zeros(11)}

    evaluation = evaluate(queries, model=same, lexical=same)

    assert evaluation.every.rows[1].ndcg_at_10 == 0
    assert evaluation.every.rows[1].mrr_at_10 == 0
    assert evaluation.every.perfect_ndcg_at_10 == 1
    assert evaluation.held_out is None


def test_relevant_documents_that_are_no_candidates_lower_what_is_possible() -> None:
    queries = [query(1, "az")]
    same = {"q1": np.zeros(4)}

    table = evaluate(queries, model=same, lexical=same).every

    assert table.perfect_ndcg_at_10 == pytest.approx(1 / (1 + 1 / math.log2(3)))
    assert table.perfect_mrr_at_10 == 1


def test_the_weight_is_chosen_on_every_other_query_and_judged_on_the_rest() -> None:
    queries = [query(number, "b" if number % 2 == 0 else "a") for number in range(6)]
    trusts_model, trusts_lexical = scores(0, 1, 0, 0), scores(1, 0, 0, 0)
    model = {each.id: trusts_model for each in queries}
    lexical = {each.id: trusts_lexical for each in queries}

    evaluation = evaluate(queries, model=model, lexical=lexical, weights=[0.2])

    # on queries 0, 2, 4 the model is right, on 1, 3, 5 BM25 is
    assert evaluation.chosen_weight is not None
    assert evaluation.chosen_weight > 0.5
    assert evaluation.held_out is not None
    assert evaluation.held_out.num_queries == 3
    assert [row.mrr_at_10 for row in evaluation.held_out.rows] == [1, 0.5, 0.5]
    assert [row.name for row in evaluation.every.rows] == ["BM25", "model alone", "mixed, 0.2 model"]
    assert [row.mrr_at_10 for row in evaluation.every.rows] == [0.75, 0.75, 0.75]


def test_weights_that_rank_alike_give_an_even_mix() -> None:
    queries = [query(1, "a")]
    same = {"q1": scores(1, 0, 0, 0)}

    assert choose_weight(queries, model=same, lexical=same) == 0.5


def test_the_interval_of_a_difference_holds_its_mean_and_knows_chance_from_change() -> None:
    rng = np.random.default_rng(7)
    baseline = rng.random(200)
    clear = compare(baseline + 0.1 + rng.normal(0, 0.2, 200), baseline)
    chance = compare(baseline + rng.permutation(np.repeat([-0.2, 0.2], 100)), baseline)

    assert clear.low < clear.mean < clear.high
    assert clear.low > 0
    assert chance.low < 0 < chance.high
    assert (chance.num_better, chance.num_worse) == (100, 100)


def test_computed_bm25_gives_the_order_of_the_examples() -> None:
    ranking_set = read_ranking_set(ROOT / "examples/ranking-set")
    found = bm25_scores(ranking_set)

    for each in ranking_set.queries:
        assert rank(each.candidates, np.round(found[each.id], 6)) == list(each.candidates)


def test_a_query_without_a_known_word_scores_nothing(tmp_path: Path) -> None:
    (tmp_path / "docs.jsonl").write_text('{"id": "d", "text": "some words here"}\n{"id": "e", "text": "other"}\n')
    (tmp_path / "queries.jsonl").write_text('{"id": "q", "text": "the xyzzy"}\n')
    (tmp_path / "bm25_top50.jsonl").write_text('{"qid": "q", "docids": ["e", "d"]}\n')
    (tmp_path / "qrels.tsv").write_text("q\td\t1\n")

    assert bm25_scores(read_ranking_set(tmp_path))["q"].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("name", "ndcg_at_10", "mrr_at_10", "perfect_ndcg_at_10", "perfect_mrr_at_10"),
    [
        ("scifact", 0.6715, 0.6386, 0.8877, 0.8900),
        ("hotpotqa", 0.7927, 0.8917, 0.9768, 1.0000),
        ("cranfield", 0.3758, 0.5214, 0.7510, 0.9556),
        ("xquad-retrieval", 0.9565, 0.9453, 0.9949, 0.9949),
    ],
)
def test_bm25_measures_as_the_data_says(
    name: str, ndcg_at_10: float, mrr_at_10: float, perfect_ndcg_at_10: float, perfect_mrr_at_10: float
) -> None:
    if not (DATA / name).is_dir():
        pytest.skip(f"the data set {name} is not here")
    queries = read_ranking_set(DATA / name).queries
    none = {each.id: np.zeros(len(each.candidates)) for each in queries}

    table = evaluate(queries, model=none, lexical=none).every

    assert table.rows[0].ndcg_at_10 == pytest.approx(ndcg_at_10, abs=5e-5)
    assert table.rows[0].mrr_at_10 == pytest.approx(mrr_at_10, abs=5e-5)
    assert table.perfect_ndcg_at_10 == pytest.approx(perfect_ndcg_at_10, abs=5e-5)
    assert table.perfect_mrr_at_10 == pytest.approx(perfect_mrr_at_10, abs=5e-5)
