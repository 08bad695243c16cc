from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorer.generation.stop_texts import StopCutter

few_letters = st.text("ab", max_size=12)
stop_lists = st.lists(st.text("ab", min_size=1, max_size=4), max_size=3)


def cut_by_hand(text: str, stops: list[str]) -> tuple[str, bool]:
    """Read character by character until a stop text is complete; of several, the longest."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            return text[: end - max(map(len, complete))], True
    return text, False


@given(pieces=st.lists(few_letters, max_size=6), stops=stop_lists)
def test_is_cut_where_a_reader_of_single_characters_cuts_whatever_the_pieces(
    pieces: list[str], stops: list[str]
) -> None:
    cutter = StopCutter(stops)

    given_out = "".join(cutter.feed(piece) for piece in pieces)
    whole = given_out + cutter.flush()

    assert (whole, cutter.stopped) == cut_by_hand("".join(pieces), stops)


@given(pieces=st.lists(few_letters, max_size=6), stops=stop_lists, rest=few_letters)
def test_nothing_is_given_out_that_a_later_piece_could_take_back(
    pieces: list[str], stops: list[str], rest: str
) -> None:
    cutter = StopCutter(stops)

    given_out = "".join(cutter.feed(piece) for piece in pieces)

    assert cut_by_hand("".join(pieces) + rest, stops)[0].startswith(given_out)


@given(pieces=st.lists(few_letters, max_size=6), stops=stop_lists)
def test_no_more_is_held_back_than_has_to_be(pieces: list[str], stops: list[str]) -> None:
    cutter = StopCutter(stops)
    text = "".join(pieces)

    given_out = "".join(cutter.feed(piece) for piece in pieces)

    if not cutter.stopped:
        held = text[len(given_out) :]
        assert not held or any(stop.startswith(held) for stop in stops)


@pytest.mark.parametrize(
    ("text", "stops", "expected"),
    [
        ("one\ntwo", ["\n"], "one"),
        ("one two", ["\n"], "one two"),
        ("xabcd", ["abcd", "bc"], "xa"),  # "bc" is complete before "abcd"
        ("xabc", ["bc", "abc"], "x"),  # both at once: the longest
        ("aaab", ["aab"], "a"),
        ("stop at once", ["s"], ""),
    ],
)
def test_examples(text: str, stops: list[str], expected: str) -> None:
    cutter = StopCutter(stops)

    assert "".join(cutter.feed(letter) for letter in text) + cutter.flush() == expected
