from __future__ import annotations

import pytest

from scorer.dialects.questions import (
    Answer,
    Entry,
    answer_of,
    check_entries,
    choice_question,
    score_question,
    yes_no_question,
)
from scorer.errors import InvalidValue
from scorer.scoring.scores import ItemScore


def test_options_are_called_by_a_letter_and_by_two_where_letters_run_out() -> None:
    few = choice_question("Which?", [Entry(str(number)) for number in range(26)])
    many = choice_question("Which?", [Entry(str(number)) for number in range(255)])

    assert few.labels == list("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
    assert (many.labels[:2], many.labels[26], len(set(many.labels))) == (["AA", "AB"], "BA", 255)
    assert {len(label) for label in many.labels} == {2}  # so that no label begins another
    assert "two letters" in many.text


def test_what_the_model_reads() -> None:
    choice = choice_question("Which?", [Entry("plant"), Entry("animal", "it moves")])

    assert choice.text == "Which?\n\nA. plant\nB. animal: it moves\n\nReply with the letter of one option only."
    assert score_question("", [Entry("low"), Entry("high")]).text == (
        "0. low\n1. high\n\nReply with the number of one level only."
    )
    assert yes_no_question("It is so.", no="it is not").text == (
        "It is so.\n\nno: it is not\n\nReply with yes or no only."
    )


def test_every_spelling_counts_for_its_answer() -> None:
    labels = {"yes": 0.1, "Yes": 0.3, "no": 0.4, "No": 0.2}
    answer = answer_of(yes_no_question("q"), ItemScore(score=0.1, relevance=0.1, labels=labels, label_mass=0.5))

    assert answer.probabilities == pytest.approx([0.4, 0.6])
    assert answer.best == 1
    assert answer.confidence == pytest.approx(0.3)


def test_capitals_count_only_where_they_are_wanted() -> None:
    assert yes_no_question("q", capitals=False).labels == ["yes", "no"]
    assert yes_no_question("q", capitals=False).text == yes_no_question("q").text


def test_the_expected_level_counts_from_0() -> None:
    assert Answer([0.5, 0.25, 0.25], 1.0).expected == 0.75


@pytest.mark.parametrize(
    ("entries", "field"), [([], "f"), (["a"], "f"), (["a"] * 4, "f"), (["a", "b", "a"], "f[2]"), ([1, 1], "f[1]")]
)
def test_answers_must_differ_and_be_few(entries: list[object], field: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        check_entries(entries, "f", limit=3)

    assert refused.value.field == field


def test_a_text_and_a_boolean_that_look_alike_are_two_answers() -> None:
    check_entries(["true", True, "1", 1], "f", limit=4)
