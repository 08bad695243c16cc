from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import BranchResult, GenerateResult, TaskStats
from scorer.generation.branch_texts import BranchText, BranchTexts
from scorer.generation.schema import GenerateText
from scorer.scoring.raw_texts import RawTexts
from scorer.tokens.text_tokens import TextMemo
from tests.helpers.word_tokenizers import loaded

TOKENIZER = loaded("smollm")
TEXTS = RawTexts(TOKENIZER, TextMemo(0))
PROMPT = TEXTS.encode(["what is a tree? "])[0].tolist()
HARD = "naïve café — 日本語, Ελλάδα, 👩‍👩‍👧 🎉 end"


def branch(*stops: str, prompt: list[int] = PROMPT, decode: Any = TEXTS.decode) -> BranchText:
    return BranchText(decode, prompt, stops)


def ids(text: str) -> list[int]:
    return [int(token) for token in TEXTS.encode([text])[0]]


@given(text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\ufffd"), max_size=30))
def test_pieces_are_whole_characters_and_make_the_text(text: str) -> None:
    own = branch()

    pieces = [own.add(token) for token in ids(text)]

    assert "\ufffd" not in "".join(pieces)
    assert "".join(pieces) + own.finish() == own.text == text


def test_a_character_of_several_tokens_comes_with_its_last_one() -> None:
    tokens = ids("🎉")
    assert len(tokens) > 1
    own = branch()

    pieces = [own.add(token) for token in tokens]

    assert pieces == [*[""] * (len(tokens) - 1), "🎉"]


def test_half_a_character_at_the_end_is_what_the_tokenizer_makes_of_it() -> None:
    tokens = [*ids("a"), *ids("🎉")[:-1]]
    own = branch()

    pieces = [own.add(token) for token in tokens]

    assert "".join(pieces) == "a"
    assert own.finish() == TEXTS.decode(tokens)[1:]
    assert set(own.text[1:]) == {"\ufffd"}


def test_a_stop_text_that_spans_tokens_and_characters_never_shows() -> None:
    own = branch("語, Ελ")
    given_out = ""

    for token in ids(HARD):
        given_out += own.add(token)
        if own.stopped:
            break

    assert own.stopped
    assert given_out == own.text == HARD.partition("語, Ελ")[0]
    assert own.finish() == ""


def test_the_beginning_of_a_stop_text_is_given_out_if_the_text_ends_there() -> None:
    own = branch("語, Ελλας")

    pieces = [own.add(token) for token in ids("日本語, Ελλ")]

    assert "".join(pieces) == "日本"
    assert own.finish() == "語, Ελλ"


def test_a_decoder_that_strips_the_start_of_a_text_does_not_strip_that_of_a_branch() -> None:
    words = {1: "▁what", 2: "▁is", 3: "▁it"}

    def decode(tokens: list[int]) -> str:
        return "".join(words[token] for token in tokens).replace("▁", " ").removeprefix(" ")

    own = branch(prompt=[1], decode=decode)

    assert (own.add(2), own.add(3)) == (" is", " it")


def test_special_tokens_are_no_text() -> None:
    own = branch()

    pieces = [own.add(token) for token in [*ids("a"), TOKENIZER.special_tokens["<|im_end|>"], *ids("b")]]

    assert pieces == ["a", "", "b"]


def test_a_branch_that_the_engine_left_open_is_ended_with_the_rest_of_its_text() -> None:
    told: list[GenerateText] = []
    texts = BranchTexts([branch("stop"), branch("stop")], told.append)
    for token in ids("st"):
        assert texts.on_token(0, token)
        assert texts.on_token(1, token)
    texts.on_end(0, "length")
    left = BranchResult(token_ids=(1,), log_probs=(0.0,), end="deadline")
    stats = TaskStats(task_id="t", end="partial", num_rows=2)

    rest = texts.close(GenerateResult(branches=(left, left), stats=stats))

    assert told == [GenerateText(index=0, text="st", finish_reason="length")]
    assert rest == [GenerateText(index=1, text="st", finish_reason="deadline")]


@pytest.mark.parametrize("stops", [(), ("tree",)])
def test_a_stop_text_in_the_prompt_stops_nothing(stops: tuple[str, ...]) -> None:
    own = branch(*stops)

    assert own.add(ids("a")[0]) == "a"
    assert not own.stopped
