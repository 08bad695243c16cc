from __future__ import annotations

import pytest

from scorer.scoring.prompts import PromptInputError
from scorer.templates.parser import parse_template
from scorer.templates.types import TemplateError
from tests.helpers.prompt_cases import (
    PIECEWISE,
    YES_NO,
    all_ids,
    build_one,
    builder,
    plainly,
)
from tests.helpers.word_tokenizers import WORD_STYLES, loaded


@pytest.mark.parametrize("chat", ["chatml", "plain"])
def test_b011_labels_that_share_their_first_token_keep_all_their_tokens(chat: str) -> None:
    prompts = builder(YES_NO, loaded("qwen"), chat)
    york, delhi = (ids.tolist() for ids in prompts.label_ids(["New York", "New Delhi"]))

    assert york != delhi
    assert york[0] == delhi[0]
    tokenizer = loaded("qwen").tokenizer
    assert [tokenizer.decode(ids).strip() for ids in (york, delhi)] == ["New York", "New Delhi"]


@pytest.mark.parametrize("style", WORD_STYLES)
def test_label_ids_are_what_follows_the_prompt_in_the_whole_text(style: str) -> None:
    tokenizer = loaded(style)
    chat, plain = builder(YES_NO, tokenizer), builder(YES_NO, tokenizer, "plain")
    for prompts, end, label in ((chat, "assistant\n", "Yes"), (plain, "only.\n\nAnswer:", " Yes")):
        context = all_ids(build_one(prompts, "q", "d"))
        (ids,) = prompts.label_ids(["Yes"])
        tail = plainly(tokenizer, [end + label])

        assert (context + ids.tolist())[-len(tail) :] == tail
        assert tokenizer.tokenizer.decode(ids.tolist()) == label


def test_piecewise_labels_are_tokenised_alone() -> None:
    tokenizer = loaded("qwen")

    assert [ids.tolist() for ids in builder(PIECEWISE, tokenizer).label_ids(["1", "yes no"])] == [
        plainly(tokenizer, ["1"]),
        plainly(tokenizer, ["yes no"]),
    ]


@pytest.mark.parametrize(
    ("labels", "param", "words"),
    [
        (["Yes", ""], "labels[1]", "no tokens"),
        (["Yes", "No", "Yes"], "labels[2]", "same tokens as 'Yes'"),
        (["Yes", "Yes"], "labels[1]", "same tokens as 'Yes'"),
        (["caf\u00e9", "cafe\u0301"], "labels[1]", "same tokens as 'caf\u00e9'"),
        (["Yes", "\ud800"], "labels[1]", "surrogate"),
        (["Yes", "\nNo"], "labels[1]", "merges with the text before it"),
    ],
)
def test_labels_that_cannot_be_told_apart_are_refused(labels: list[str], param: str, words: str) -> None:
    with pytest.raises(PromptInputError, match=words) as refusal:
        builder(YES_NO, loaded("qwen")).label_ids(labels)
    assert refusal.value.param == param


@pytest.mark.parametrize("labels", [["Yes", "No"], ["No", "Yes"], ["No"], []])
@pytest.mark.parametrize("style", WORD_STYLES)
def test_labels_of_the_template_have_the_ids_that_they_have_beside_others(style: str, labels: list[str]) -> None:
    prompts = builder(YES_NO, loaded(style))

    assert [ids.tolist() for ids in prompts.label_ids(labels)] == [
        ids.tolist() for ids in prompts.label_ids([*labels, "Perhaps"])[: len(labels)]
    ]


def test_a_template_whose_own_labels_do_not_work_is_refused() -> None:
    clash = parse_template(
        """
        name = "clash"
        version = 1
        description = "d"
        join = "joined"
        readout = { kind = "labels", labels = ["caf\u00e9", "cafe\u0301"], positive = "caf\u00e9" }
        orders.query_first = ["{query} {document}?"]
        """,
        source="clash.toml",
    )

    with pytest.raises(TemplateError, match=r"clash\.toml: readout\.labels: labels\[1\]"):
        builder(clash, loaded("qwen"))
