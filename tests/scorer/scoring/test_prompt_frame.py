from __future__ import annotations

import itertools

import pytest

from scorer.scoring.prompt_frame import make_frame
from scorer.scoring.prompt_texts import FilledPart, PairText, PairTexts
from scorer.scoring.prompt_types import PairPrompt
from scorer.scoring.prompts import PromptBuilder
from scorer.templates.chat_formats import find_chat_format
from scorer.templates.layout import SpecialToken
from scorer.templates.registry import find_template
from scorer.templates.types import Text
from scorer.tokens.text_tokens import TextEncoder, TextMemo, TextPiece
from tests.helpers.prompt_cases import ROOMY, YES_NO, all_ids, build_one, plainly
from tests.helpers.word_tokenizers import loaded


def test_neighbours_that_all_pairs_share_are_one_run_of_ids() -> None:
    tokenizer = loaded("qwen")
    pair_text = PairText((Text("Query: "), "query"), False, "query")
    head: list[FilledPart] = [SpecialToken("<a>", 7), TextPiece("user\n", 0, False)]
    tail: list[FilledPart] = [TextPiece("\n", 0, False), SpecialToken("<b>", 8)]

    frame = make_frame([*head, pair_text, *tail], TextEncoder(tokenizer.tokenizer, (), TextMemo(0)))

    before, after = [7, *plainly(tokenizer, ["user\n"])], [*plainly(tokenizer, ["\n"]), 8]
    assert [ids.tolist() for ids in frame.shared] == [before, [], after]
    assert frame.shared_tokens == len(before) + len(after)
    assert (list(frame.places), list(frame.texts), frame.last_slot) == ([1], [pair_text], "query")
    assert frame.fillings[frame.number["query"]](PairTexts("a query", "a document")) == "a query"


def test_a_builder_that_has_built_others_gives_the_prompts_of_a_fresh_one() -> None:
    used = _classify()
    texts = ("", "some words", "other words")
    labels = (["one", "two"], ["two", "one"])
    for _ in range(2):
        for order, system, instruction, shown in itertools.product(used.template.orders, texts, texts, labels):
            prompts = [
                builder.build(
                    [(0, 0)],
                    queries=["q"],
                    documents=["d"],
                    system=system,
                    instruction=instruction,
                    order=order,
                    limits=ROOMY,
                    labels=shown,
                )[0]
                for builder in (used, _classify())
            ]
            first, second = prompts
            assert isinstance(first, PairPrompt)
            assert isinstance(second, PairPrompt)
            assert all_ids(first) == all_ids(second)


@pytest.mark.parametrize(("num_chars", "is_remembered"), [(4000, True), (4200, False)])
def test_only_a_frame_of_few_characters_is_remembered(num_chars: int, is_remembered: bool) -> None:
    memo = TextMemo(100_000)
    prompts = PromptBuilder(loaded("qwen"), YES_NO, find_chat_format("chatml"), memo)

    def num_lookups(instruction: str) -> int:
        before = memo.stats()
        build_one(prompts, "q", "d", instruction=instruction, system="")
        after = memo.stats()
        return after.hits + after.misses - before.hits - before.misses

    first, second = num_lookups("x" * num_chars), num_lookups("x" * num_chars)

    assert (second < first) == is_remembered


def _classify() -> PromptBuilder:
    return PromptBuilder(loaded("qwen"), find_template("classify"), find_chat_format("chatml"), TextMemo(100_000))
