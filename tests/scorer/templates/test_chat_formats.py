from __future__ import annotations

import pytest

from scorer.templates.chat_formats import builtin_chat_formats, detect_chat_format, find_chat_format, prompt_bos
from scorer.templates.registry import TemplateError

MISTRAL = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]"]
GEMMA = ["<pad>", "<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"]
LLAMA3 = ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|end_of_text|>"]
CHATML = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


@pytest.mark.parametrize(
    ("special_tokens", "name"),
    [(MISTRAL, "mistral"), (GEMMA, "gemma"), (LLAMA3, "llama3"), (CHATML, "chatml"), (["<s>"], "plain"), ([], "plain")],
)
def test_the_format_is_known_by_the_special_tokens_of_the_vocabulary(special_tokens: list[str], name: str) -> None:
    assert detect_chat_format(special_tokens).name == name


def test_a_chat_template_decides_between_two_vocabularies_in_one() -> None:
    template = "{% for m in messages %}<|start_header_id|>{{ m.role }}{% endfor %}"

    assert detect_chat_format(LLAMA3 + CHATML, chat_template=template).name == "llama3"
    with pytest.raises(TemplateError, match=r"chatml, llama3.*name one"):
        detect_chat_format(LLAMA3 + CHATML)


def test_a_chat_template_that_opens_turns_in_another_way_rules_a_format_out() -> None:
    assert detect_chat_format(CHATML, chat_template="### User: {{ content }}").name == "plain"


def test_a_format_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(TemplateError, match=r"'alpaca'; there are chatml, gemma, llama3, mistral, plain"):
        find_chat_format("alpaca")


def test_every_special_token_of_a_mark_is_declared() -> None:
    known = {token for chat in builtin_chat_formats().values() for token in chat.special_tokens}
    for chat in builtin_chat_formats().values():
        texts = [*chat.marks.values(), chat.user_open_after_system, chat.bos or ""]
        named = {token for token in known if any(token in text for text in texts)}

        assert named <= set(chat.special_tokens), chat.name


def test_bos_comes_from_the_format_and_from_the_model_only_without_turns() -> None:
    formats = builtin_chat_formats()

    assert prompt_bos(formats["chatml"], "<|endoftext|>") is None
    assert prompt_bos(formats["llama3"], None) == "<|begin_of_text|>"
    assert prompt_bos(formats["plain"], None) is None
    assert prompt_bos(formats["plain"], "<s>") == "<s>"


def test_a_bos_that_opens_a_turn_does_not_open_a_plain_prompt() -> None:
    assert prompt_bos(find_chat_format("plain"), "<|im_start|>") is None
