from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scorer.scoring.raw_texts import RawTexts
from scorer.tokens.text_tokens import TextMemo
from scorer.tokens.tokenizer_files import LoadedTokenizer
from tests.helpers.word_tokenizers import CHATML, WORD_STYLES, loaded

TEXT = st.lists(
    st.sampled_from(["a", "yes", " ", "\n", ":", "<", "|", ">", "im_start", "é", "東", "1", *CHATML]), max_size=12
).map("".join)


def raw(tokenizer: LoadedTokenizer) -> RawTexts:
    return RawTexts(tokenizer, TextMemo(10_000))


def test_special_tokens_are_read_where_they_are_written() -> None:
    tokenizer = loaded("qwen")
    (ids,) = raw(tokenizer).encode(["<|im_start|>user<|im_end|>"])

    assert ids[0] == tokenizer.special_tokens["<|im_start|>"]
    assert ids[-1] == tokenizer.special_tokens["<|im_end|>"]


def test_a_memory_that_templates_use_too_does_not_confuse_them() -> None:
    tokenizer, memo = loaded("qwen"), TextMemo(10_000)
    texts = RawTexts(tokenizer, memo)
    first = texts.encode(["<|im_end|>"])[0].tolist()

    assert RawTexts(tokenizer, memo).encode(["<|im_end|>"])[0].tolist() == first
    assert memo.stats().hits == 1


@pytest.mark.parametrize("style", WORD_STYLES)
@settings(max_examples=150, deadline=None)
@given(head=TEXT, tails=st.lists(TEXT, min_size=1, max_size=3))
def test_joined_texts_have_the_ids_of_the_whole(style: str, head: str, tails: list[str]) -> None:
    tokenizer = loaded(style)
    joined = raw(tokenizer).encode_joined([(head, tail) for tail in tails])

    for tail, (ids, head_tokens) in zip(tails, joined, strict=True):
        whole = tokenizer.tokenizer.encode(head + tail, add_special_tokens=False)
        assert ids.tolist() == whole.ids
        assert all(end <= len(head) for _, end in whole.offsets[:head_tokens])


def test_a_long_head_is_read_once() -> None:
    memo = TextMemo(10_000)
    texts = RawTexts(loaded("qwen"), memo)
    texts.encode_joined([("the query " * 100, f"document {number}") for number in range(20)])

    assert memo.stats().tokens_held < 500


def test_the_published_tokenizer_says_what_comes_first() -> None:
    assert raw(loaded("qwen")).lead_ids.tolist() == []
