from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, normalizers, pre_tokenizers

from scorer.tokens.safe_cuts import SafeCuts
from scorer.tokens.tokenizer_files import load_tokenizer
from tests.helpers.word_tokenizers import WORD_STYLES, word_tokenizer

HOSTILE = st.text(
    alphabet=st.one_of(
        st.sampled_from(" \n\r\t'’:;.,?!<>()_-sStTdDmMlLrReEvV0123456789ab"),
        st.sampled_from("\u0301\u0338\u0327é\u1100\u1161\u00a0\u2028\u200d\u0131ſ東😀'ǅª²½"),
        st.characters(exclude_categories=["Cs"]),
    ),
    max_size=12,
)
LITERAL = st.one_of(
    HOSTILE,
    st.text(alphabet="ab sD:?'\n.-1", max_size=12),
    st.sampled_from(
        [
            "\n\nDocument: ",
            "'s query: ",
            "s: ",
            "ll'd?",
            "cafe\u0301s: e\u0327 ",
            "\n<Query>: ",
            " Reply with Yes or No.\n",
            "a b",
        ]
    ),
)


@pytest.fixture(scope="session")
def default_tokenizer(default_model_path: Path) -> Tokenizer:
    return load_tokenizer(default_model_path).tokenizer


def ids(tokenizer: Tokenizer, text: str) -> list[int]:
    found: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return found


@pytest.mark.parametrize("style", WORD_STYLES)
@settings(max_examples=400, deadline=None, print_blob=True)
@given(before=HOSTILE, literal=LITERAL, after=HOSTILE)
def test_a_cut_changes_no_token_whatever_stands_around_the_literal(
    style: str, before: str, literal: str, after: str
) -> None:
    tokenizer = word_tokenizer(style)
    whole = ids(tokenizer, before + literal + after)

    for cut in SafeCuts(tokenizer).find(literal):
        assert ids(tokenizer, before + literal[:cut]) + ids(tokenizer, literal[cut:] + after) == whole


@pytest.mark.model
@settings(max_examples=300, deadline=None, print_blob=True)
@given(before=HOSTILE, literal=LITERAL, after=HOSTILE)
def test_a_cut_changes_no_token_of_the_default_model(
    default_tokenizer: Tokenizer, before: str, literal: str, after: str
) -> None:
    whole = ids(default_tokenizer, before + literal + after)

    for cut in SafeCuts(default_tokenizer).find(literal):
        parts = ids(default_tokenizer, before + literal[:cut]) + ids(default_tokenizer, literal[cut:] + after)
        assert parts == whole


@pytest.mark.parametrize("style", WORD_STYLES)
def test_the_usual_literals_can_be_cut(style: str) -> None:
    cuts = SafeCuts(word_tokenizer(style))

    assert cuts.find("\n\nDocument: ") == [10]
    assert cuts.find("\n<Document>: ") == [10]
    assert cuts.find("Reply with\n\nYes") == [5, 10]


@pytest.mark.parametrize(
    ("before", "literal", "cut", "after"),
    [
        ("a", "\n\nDocument", 2, ""),  # white space reads differently at the end of a text
        ("a", " b", 1, ""),  # a space belongs to the word after it
        ("", "query", 1, ""),
        ("It", "'s", 1, ""),
        ("a", ".", 1, "\n\n"),
    ],
)
def test_the_judge_above_would_see_a_bad_cut(before: str, literal: str, cut: int, after: str) -> None:
    tokenizer = word_tokenizer("llama3" if literal == "." else "gpt2")
    parts = ids(tokenizer, before + literal[:cut]) + ids(tokenizer, literal[cut:] + after)

    assert parts != ids(tokenizer, before + literal + after)
    assert cut not in SafeCuts(tokenizer).find(literal)


def test_tokenizers_that_are_not_known_are_never_cut() -> None:
    literal = "\n\nDocument: x y"
    strangers = [word_tokenizer("metaspace")]
    for pre_tokenizer in (
        pre_tokenizers.ByteLevel(add_prefix_space=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        pre_tokenizers.Whitespace(),
        pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(r"\w+:"), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        ),
    ):
        stranger = Tokenizer.from_str(word_tokenizer("gpt2").to_str())
        stranger.pre_tokenizer = pre_tokenizer
        strangers.append(stranger)
    strangers.append(replaced := Tokenizer.from_str(word_tokenizer("gpt2").to_str()))
    replaced.normalizer = normalizers.Replace("t:", "t")

    assert [SafeCuts(stranger).find(literal) for stranger in strangers] == [[]] * len(strangers)


def test_a_cut_never_falls_into_an_added_token() -> None:
    tokenizer = Tokenizer.from_str(word_tokenizer("gpt2").to_str())
    tokenizer.add_tokens([AddedToken("ent: x", normalized=False)])

    assert SafeCuts(tokenizer).find("Document: x, y") == [11]


def test_added_tokens_that_look_at_their_neighbours_forbid_cuts() -> None:
    tokenizer = Tokenizer.from_str(word_tokenizer("gpt2").to_str())
    tokenizer.add_tokens([AddedToken(":", single_word=True, normalized=False)])

    assert SafeCuts(tokenizer).find("Document: x") == []
