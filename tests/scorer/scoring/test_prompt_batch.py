from __future__ import annotations

from typing import Literal

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from scorer.scoring.prompt_types import PairPrompt, PromptError, PromptLimits
from scorer.scoring.prompts import PromptBuilder
from scorer.templates.chat_formats import find_chat_format
from scorer.templates.types import Template
from scorer.tokens.text_tokens import TextMemo
from tests.helpers.prompt_cases import (
    LIKELIHOOD,
    PIECEWISE,
    YES_NO,
    all_ids,
    build_all,
    build_one,
    builder,
    plainly,
    refusals,
)
from tests.helpers.word_tokenizers import WORD_STYLES, loaded


def test_b004_a_prompt_is_the_same_alone_and_beside_longer_ones() -> None:
    documents = ["ok", "word " * 300]
    for template in (LIKELIHOOD, YES_NO):
        tokenizer = loaded("gpt2")  # it has no padding token
        together = build_all(builder(template, tokenizer), ["q"], documents)
        swapped = build_all(builder(template, tokenizer), ["q"], documents[::-1])[::-1]
        alone = [build_one(builder(template, tokenizer), "q", document) for document in documents]

        for outcomes in (together, swapped):
            for outcome, want in zip(outcomes, alone, strict=True):
                assert isinstance(outcome, PairPrompt)
                assert all_ids(outcome) == all_ids(want)


@pytest.mark.parametrize("template", [LIKELIHOOD, YES_NO, PIECEWISE])
@pytest.mark.parametrize("style", WORD_STYLES)
def test_b005_only_the_end_of_a_document_is_cut(template: Template, style: str) -> None:
    tokenizer = loaded(style)
    prompts = builder(template, tokenizer)
    limits = PromptLimits(max_prompt_tokens=128)
    query = "what is alpha"
    words = ["alpha " * count for count in range(120)]
    whole = [len(all_ids(prompt)) for prompt in build_all(prompts, [query], words) if isinstance(prompt, PairPrompt)]
    limit = max(count for count, tokens in enumerate(whole) if tokens <= 128)
    prefixes = ["alpha alpha alpha "[:size] for size in range(18)]
    for count in (1, limit - 1, limit, limit + 1, 119):
        fitted = build_one(prompts, query, words[count], limits=limits)
        kept = [words[max(0, limit - 1)] + end for end in prefixes] if count > limit else [words[count]]

        assert len(all_ids(fitted)) <= 128
        assert (fitted.truncated_tokens > 0) == (count > limit)
        assert fitted.truncated_tokens == whole[count] - len(all_ids(fitted))
        assert all_ids(fitted) in [all_ids(build_one(prompts, query, document)) for document in kept]


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("style", WORD_STYLES)
@settings(max_examples=80, deadline=None, print_blob=True)
@example(document="0as01010101010101010", spare=18)  # what is left reaches into the token before it
@given(
    document=st.text(
        alphabet=st.one_of(st.sampled_from(" \n'a1.:e\u0301"), st.characters(exclude_categories=["Cs"])),
        min_size=20,
        max_size=80,
    ),
    spare=st.integers(0, 30),
)
def test_b005_a_cut_document_has_the_ids_it_would_have_alone(
    style: str, side: Literal["right", "left"], document: str, spare: int
) -> None:
    tokenizer = loaded(style)
    prompts = builder(YES_NO, tokenizer)
    around = len(all_ids(build_one(prompts, "q", "")))
    limit = around + spare
    limits = PromptLimits(max_prompt_tokens=limit, truncation_side=side)
    (outcome,) = build_all(prompts, ["q"], [document], limits=limits)
    texts = [document[:size] if side == "right" else document[len(document) - size :] for size in range(len(document))]
    shorter = [all_ids(build_one(prompts, "q", text)) for text in [*texts, document]]

    if isinstance(outcome, PairPrompt):
        assert len(all_ids(outcome)) <= limit
        assert all_ids(outcome) in shorter
        assert (outcome.truncated_tokens > 0) == (all_ids(outcome) != shorter[-1])
    else:
        # the character that would be kept last does not fit, or only where white space merges with the literals
        assert spare <= len(plainly(tokenizer, [document[0 if side == "right" else -1]])) + 2
        assert outcome.code in ("prompt_too_long", "document_too_long")


def test_b005_a_query_that_leaves_no_room_is_refused_with_its_length() -> None:
    tokenizer = loaded("smollm")
    prompts = builder(YES_NO, tokenizer)
    outcomes = build_all(prompts, ["7" * 9000, "7"], ["7"], limits=PromptLimits(max_prompt_tokens=512))
    (refusal,) = refusals(outcomes)
    around = len(all_ids(build_one(prompts, "7", "7"))) - 2

    assert (refusal.code, refusal.slot, refusal.tokens) == ("query_too_long", "query", 9000)
    assert refusal.limit == 512 - around - 1
    assert "9000" in refusal.message
    assert isinstance(outcomes[1], PairPrompt)
    fits = build_all(prompts, ["7" * refusal.limit], ["7"], limits=PromptLimits(max_prompt_tokens=512))
    assert refusals(fits) == []


def test_b005_an_instruction_that_leaves_no_room_is_refused_as_such() -> None:
    prompts = builder(YES_NO, loaded("smollm"))
    (refusal,) = build_all(prompts, ["q"], ["d"], instruction="7" * 600, limits=PromptLimits(max_prompt_tokens=512))

    assert isinstance(refusal, PromptError)
    assert (refusal.code, refusal.slot, refusal.limit) == ("prompt_too_long", "instruction", 512)
    assert refusal.tokens > 600


@pytest.mark.parametrize("documents", [["7" * 600], ["a", "7" * 600, "b"]])
def test_b006_truncation_is_the_same_alone_and_in_a_list(documents: list[str]) -> None:
    prompts = builder(YES_NO, loaded("smollm"))
    cut = build_all(prompts, ["q"], documents, limits=PromptLimits(max_prompt_tokens=512))
    off = build_all(prompts, ["q"], documents, limits=PromptLimits(max_prompt_tokens=512, truncate_documents=False))
    long = documents.index("7" * 600)
    around = len(all_ids(build_one(prompts, "q", "")))

    assert refusals(cut) == []
    assert [outcome.truncated_tokens > 0 for outcome in cut if isinstance(outcome, PairPrompt)] == [
        index == long for index in range(len(documents))
    ]
    assert [index for index, outcome in enumerate(off) if isinstance(outcome, PromptError)] == [long]
    refusal = off[long]
    assert isinstance(refusal, PromptError)
    assert (refusal.code, refusal.slot) == ("document_too_long", "document")
    assert (refusal.tokens, refusal.limit) == (600, 512 - around)


def test_a_document_may_lose_its_beginning_and_nothing_else() -> None:
    prompts = builder(YES_NO, loaded("smollm"))
    around = len(all_ids(build_one(prompts, "q", "")))
    document = "1" * 600 + "2" * 300 + "3" * 300
    limits = PromptLimits(max_prompt_tokens=512, truncation_side="left")
    by_prompt, whole = build_all(prompts, ["q"], [document, "123"], limits=limits)
    limits = PromptLimits(max_prompt_tokens=512, max_document_tokens=40, truncation_side="left")
    (by_document,) = build_all(prompts, ["q"], [document], limits=limits)

    assert isinstance(by_prompt, PairPrompt)
    assert isinstance(by_document, PairPrompt)
    assert isinstance(whole, PairPrompt)
    assert all_ids(by_prompt) == all_ids(build_one(prompts, "q", document[around - 512 :]))
    assert all_ids(by_document) == all_ids(build_one(prompts, "q", "3" * 40))
    assert [each.truncated_tokens for each in (by_prompt, by_document, whole)] == [1200 - 512 + around, 1160, 0]


def test_max_document_tokens_cuts_or_refuses_by_the_documents_own_tokens() -> None:
    prompts = builder(YES_NO, loaded("smollm"))
    documents = ["7" * 40, "7" * 41, ""]
    cutting, refusing = (
        build_all(
            prompts,
            ["q"],
            documents,
            limits=PromptLimits(max_prompt_tokens=512, max_document_tokens=40, truncate_documents=truncate),
        )
        for truncate in (True, False)
    )

    assert [outcome.truncated_tokens for outcome in cutting if isinstance(outcome, PairPrompt)] == [0, 1, 0]
    (refusal,) = refusals(refusing)
    assert refusing[1] == refusal
    assert (refusal.code, refusal.tokens, refusal.limit) == ("document_too_long", 41, 40)


def test_max_query_tokens_cuts_the_query_and_says_so() -> None:
    prompts = builder(LIKELIHOOD, loaded("smollm"))
    limits = PromptLimits(max_prompt_tokens=512, max_query_tokens=5)
    short, long = build_all(prompts, ["12345", "1234567"], ["d"], limits=limits)

    assert isinstance(short, PairPrompt)
    assert isinstance(long, PairPrompt)
    assert (short.truncated_query_tokens, long.truncated_query_tokens) == (0, 2)
    assert all_ids(long) == all_ids(short)


def test_b007_empty_and_blank_documents_have_prompts() -> None:
    documents = ["", "   ", "\n\t", "real text"]
    for template in (LIKELIHOOD, YES_NO, PIECEWISE):
        prompts = builder(template, loaded("qwen"))
        outcomes = build_all(prompts, ["q"], documents)

        assert refusals(outcomes) == []
        last = outcomes[3]
        assert isinstance(last, PairPrompt)
        assert all_ids(last) == all_ids(build_one(builder(template, loaded("qwen")), "q", "real text"))


def test_an_empty_query_has_no_likelihood_and_spoils_no_other_pair() -> None:
    prompts = builder(LIKELIHOOD, loaded("qwen"))
    outcomes = build_all(prompts, ["a?", "", "b?"], ["d"])

    assert [isinstance(outcome, PromptError) for outcome in outcomes] == [False, True, False]
    (refusal,) = refusals(outcomes)
    assert (refusal.code, refusal.slot, refusal.tokens) == ("empty_target", "query", 0)
    assert refusals(build_all(builder(YES_NO, loaded("qwen")), [""], ["d"])) == []


@pytest.mark.parametrize("template", [LIKELIHOOD, YES_NO, PIECEWISE])
def test_a_warm_document_is_not_tokenised_again_for_a_new_query(template: Template) -> None:
    memo = TextMemo(100_000)
    prompts = PromptBuilder(loaded("qwen"), template, find_chat_format("chatml"), memo)
    documents = [f"document number {number} is long. " * 5 for number in range(20)]
    for order in template.orders:
        build_all(prompts, ["first query"], documents, order=order)
        before = memo.stats()
        build_all(prompts, ["a second query"], documents, order=order)
        after = memo.stats()

        assert after.misses - before.misses == 1
        assert after.hits - before.hits >= 20


def test_a_warm_document_that_is_cut_is_not_tokenised_again() -> None:
    memo = TextMemo(100_000)
    prompts = PromptBuilder(loaded("qwen"), YES_NO, find_chat_format("chatml"), memo)
    limits = PromptLimits(max_prompt_tokens=60)
    documents = [f"document number {number} is long. " * 20 for number in range(20)]
    first = build_all(prompts, ["query"], documents, limits=limits)
    before = memo.stats()
    second = build_all(prompts, ["query"], documents, limits=limits)

    assert memo.stats().misses == before.misses
    assert [all_ids(outcome) for outcome in first if isinstance(outcome, PairPrompt)] == [
        all_ids(outcome) for outcome in second if isinstance(outcome, PairPrompt)
    ]


def test_equal_texts_are_tokenised_once_within_a_call() -> None:
    def misses(queries: list[str], documents: list[str]) -> int:
        memo = TextMemo(0)
        prompts = PromptBuilder(loaded("qwen"), LIKELIHOOD, find_chat_format("chatml"), memo)
        build_all(prompts, queries, documents)
        return memo.stats().misses

    assert misses(["q", "q", "r"], ["same"] * 50) == misses(["q", "r"], ["same"])


def test_no_pairs_give_no_prompts() -> None:
    assert build_all(builder(YES_NO, loaded("qwen")), ["q"], []) == []
