from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scorer.dialects.schema import ChunkSpec
from scorer.errors import InvalidValue
from scorer.scoring.document_chunks import cut_text, split_documents
from tests.helpers.prompt_cases import HOSTILE, YES_NO, builder
from tests.helpers.word_tokenizers import WORD_STYLES, loaded


def length(style: str, text: str) -> int:
    return len(loaded(style).tokenizer.encode(text, add_special_tokens=False).ids)


@pytest.mark.parametrize("style", WORD_STYLES)
@settings(max_examples=60, deadline=None, print_blob=True)
@given(text=st.lists(HOSTILE, max_size=20).map("".join))
def test_parts_without_overlap_are_the_document(style: str, text: str) -> None:
    (parts,) = split_documents(builder(YES_NO, loaded(style)), [text], ChunkSpec(max_tokens=8))

    assert "".join(parts) == text


def test_parts_have_about_the_length_that_is_asked_for_and_the_overlap_is_repeated() -> None:
    text = " ".join(f"word{number}" for number in range(200))
    (parts,) = split_documents(builder(YES_NO, loaded("qwen")), [text], ChunkSpec(max_tokens=40, overlap_tokens=10))

    assert len(parts) > 5
    assert all(length("qwen", part) <= 42 for part in parts)
    assert text.startswith(parts[0])
    assert text.endswith(parts[-1])
    for left, right in itertools.pairwise(parts):
        repeated = max(size for size in range(len(right) + 1) if left.endswith(right[:size]))
        assert 8 <= length("qwen", right[:repeated]) <= 12


@pytest.mark.parametrize("text", ["", "short", "just as long as it may be"])
def test_a_short_document_is_its_own_only_part(text: str) -> None:
    tokens = max(8, length("qwen", text))

    assert split_documents(builder(YES_NO, loaded("qwen")), [text], ChunkSpec(max_tokens=tokens)) == [[text]]
    assert split_documents(
        builder(YES_NO, loaded("qwen")), [text], ChunkSpec(max_tokens=tokens, overlap_tokens=tokens - 1)
    ) == [[text]]


def test_an_overlap_that_leaves_nothing_new_is_refused() -> None:
    with pytest.raises(InvalidValue) as refusal:
        split_documents(builder(YES_NO, loaded("qwen")), ["x"], ChunkSpec(max_tokens=8, overlap_tokens=8))
    assert refusal.value.field == "chunking.overlap_tokens"
    assert (refusal.value.value, refusal.value.limit) == (8, 7)


def test_a_character_of_several_tokens_is_not_cut_in_two() -> None:
    text = "a😀b"
    starts = builder(YES_NO, loaded("qwen")).token_starts([text])[text]
    cuts = [cut_text(text, starts, keep) for keep in range(len(starts) + 1)]

    ends = [cut_text(text, starts, keep, "left") for keep in range(len(starts) + 1)]

    assert set(cuts) <= {"", "a", "a😀", text}
    assert set(ends) <= {"", "b", "😀b", text}
    assert cuts[-1] == ends[-1] == text
    assert cuts[1] == "a"
    assert ends[1] == "b"
