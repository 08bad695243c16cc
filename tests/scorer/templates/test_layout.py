from __future__ import annotations

import pytest
from tokenizers import AddedToken

from scorer.templates.chat_formats import find_chat_format
from scorer.templates.layout import LayoutPart, SpecialToken, TemplateBinder, TextRun
from scorer.templates.parser import parse_template
from scorer.templates.registry import find_template
from scorer.templates.types import Order, Template, TemplateError
from scorer.tokens.tokenizer_files import LoadedTokenizer
from tests.helpers.word_tokenizers import CHATML, LLAMA3, loaded

GEMMA = ("<bos>", "<start_of_turn>", "<end_of_turn>")
MISTRAL = ("<s>", "</s>", "[INST]", "[/INST]")


def template(*pieces: str, join: str = "joined", special_tokens: str = "", head: str = "") -> Template:
    """A labels template in the order query_first."""
    return parse_template(
        f"""
        name = "t"
        version = 1
        description = "d"
        join = "{join}"
        special_tokens = [{special_tokens}]
        {head}
        [readout]
        kind = "labels"
        labels = ["yes"]
        positive = "yes"
        [orders]
        query_first = [{", ".join(pieces)}]
        """,
        source="t.toml",
    )


def spelt(parts: tuple[LayoutPart, ...]) -> str:
    """The layout as text, with special tokens and slots in guillemets."""
    texts = []
    for part in parts:
        if isinstance(part, SpecialToken):
            texts.append(f"«{part.text}»")
        else:
            texts += [segment.text if hasattr(segment, "text") else f"«{segment.name}»" for segment in part.segments]
    return "".join(texts)


def bind(
    bound: Template,
    chat: str,
    tokenizer: LoadedTokenizer,
    *,
    order: Order = "query_first",
    with_system: bool = False,
    with_instruction: bool = False,
) -> tuple[LayoutPart, ...]:
    binder = TemplateBinder(bound, find_chat_format(chat), tokenizer)
    return binder.layout(order, with_system=with_system, with_instruction=with_instruction).parts


@pytest.mark.parametrize(
    ("chat", "tokenizer", "want"),
    [
        (
            "chatml",
            loaded("qwen", CHATML),
            (
                "«<|im_start|>»system\n«system»«<|im_end|>»\n«<|im_start|>»user\n«instruction»\n\nPassage: «document»"
                "«<|im_end|>»\n«<|im_start|>»assistant\n«query»"
            ),
        ),
        (
            "llama3",
            loaded("llama3", LLAMA3),
            (
                "«<|begin_of_text|>»«<|start_header_id|>»system«<|end_header_id|>»\n\n«system»«<|eot_id|>»"
                "«<|start_header_id|>»user«<|end_header_id|>»\n\n«instruction»\n\nPassage: «document»«<|eot_id|>»"
                "«<|start_header_id|>»assistant«<|end_header_id|>»\n\n«query»"
            ),
        ),
        (
            "gemma",
            loaded("gpt2", GEMMA),
            (
                "«<bos>»«<start_of_turn>»user\n«system»\n\n«instruction»\n\nPassage: «document»«<end_of_turn>»\n"
                "«<start_of_turn>»model\n«query»"
            ),
        ),
        (
            "mistral",
            loaded("metaspace", MISTRAL),
            "«<s>»«[INST]» «system»\n\n«instruction»\n\nPassage: «document»«[/INST]» «query»",
        ),
        (
            "plain",
            loaded("gpt2", ["<s>"], bos_token="<s>"),
            "«<s>»«system»\n\n«instruction»\n\nPassage: «document»\n\nQuestion: «query»",
        ),
    ],
)
def test_marks_become_the_text_of_the_chat_format(chat: str, tokenizer: LoadedTokenizer, want: str) -> None:
    parts = bind(
        find_template("query-likelihood@1"),
        chat,
        tokenizer,
        order="document_first",
        with_system=True,
        with_instruction=True,
    )

    assert spelt(parts) == want


def test_pieces_that_depend_on_a_text_are_left_out_without_it() -> None:
    parts = bind(find_template("query-likelihood@1"), "gemma", loaded("gpt2", GEMMA), order="document_first")

    assert spelt(parts) == (
        "«<bos>»«<start_of_turn>»user\nPassage: «document»«<end_of_turn>»\n«<start_of_turn>»model\n«query»"
    )


def test_special_tokens_get_the_ids_of_the_vocabulary() -> None:
    tokenizer = loaded("qwen", CHATML)
    parts = bind(find_template("yes-no@1"), "chatml", tokenizer)
    specials = [part for part in parts if isinstance(part, SpecialToken)]

    assert [special.id for special in specials] == [tokenizer.special_tokens[special.text] for special in specials]
    assert [special.text for special in specials] == ["<|im_start|>", "<|im_end|>", "<|im_start|>"]


def test_a_special_token_that_the_vocabulary_lacks_is_refused() -> None:
    with pytest.raises(TemplateError, match=r"t\.toml: special token '<\|sep\|>' is not in the vocabulary"):
        bind(template('"{query}<|sep|>{document}?"', special_tokens='"<|sep|>"'), "plain", loaded("gpt2"))
    with pytest.raises(TemplateError, match=r"'<start_of_turn>' is not in the vocabulary.*chat format gemma"):
        bind(find_template("yes-no@1"), "gemma", loaded("gpt2", CHATML))


def test_a_special_token_that_is_not_declared_is_refused() -> None:
    with pytest.raises(TemplateError, match=r"'<\|im_end\|>'; wanted special tokens listed in special_tokens"):
        bind(template('"{query}<|im_end|>{document}?"'), "plain", loaded("gpt2", CHATML))


def test_a_special_token_of_the_vocabulary_in_a_default_text_is_refused() -> None:
    bad = template('"{instruction}{query}{document}?"', head='instruction = "a<|im_end|>b"')

    with pytest.raises(TemplateError, match=r"instruction is 'a<\|im_end\|>b'"):
        bind(bad, "plain", loaded("gpt2", CHATML))


def test_a_special_token_that_takes_in_white_space_is_refused() -> None:
    tokenizer = loaded("gpt2", [])
    tokenizer.tokenizer.add_special_tokens([AddedToken("<|sep|>", rstrip=True, special=True)])

    with pytest.raises(TemplateError, match=r"'<\|sep\|>' takes in the white space"):
        bind(template('"{query}<|sep|>{document}?"', special_tokens='"<|sep|>"'), "plain", tokenizer)


def test_a_bos_that_a_literal_names_is_not_doubled() -> None:
    tokenizer = loaded("gpt2", GEMMA)
    named = template('"<bos>{query}: {document}?"', special_tokens='"<bos>"')

    assert spelt(bind(named, "gemma", tokenizer)) == "«<bos>»«query»: «document»?"
    assert bind(named, "gemma", tokenizer)[0] == bind(template('"{query}: {document}?"'), "gemma", tokenizer)[0]


def test_a_bos_inside_a_prompt_is_refused() -> None:
    with pytest.raises(TemplateError, match="'<bos>' begins a text and stands inside it too"):
        bind(template('"{query}<bos>{document}?"', special_tokens='"<bos>"'), "gemma", loaded("gpt2", GEMMA))


def test_joined_text_is_one_run_between_special_tokens_where_it_cannot_be_cut() -> None:
    joined = template('"a: "', '"{query}"', '"{document}"', '" ??"')
    parts = bind(joined, "plain", loaded("metaspace", []))

    assert len(parts) == 1


def test_piecewise_pieces_are_runs_of_their_own() -> None:
    parts = bind(
        template('"a {query}"', '"\\n"', '"b {document}?"', join="piecewise"), "plain", loaded("metaspace", [])
    )

    assert [spelt((part,)) for part in parts] == ["a «query»", "\n", "b «document»?"]
    assert all(isinstance(part, TextRun) and part.starts_text for part in parts)


def test_only_the_first_text_of_a_joined_prompt_starts_a_text() -> None:
    tokenizer = loaded("metaspace", ["<s>", "<sep>"], bos_token="<s>")
    parts = bind(template('"{query}<sep>{document}?"', special_tokens='"<sep>"'), "plain", tokenizer)

    assert [part.starts_text for part in parts if isinstance(part, TextRun)] == [True, False]


def test_literals_are_cut_next_to_the_slots_so_that_a_run_has_one_slot() -> None:
    parts = bind(
        template('"go on, Query: {query}\\nnow the Document: {document}\\nSo, is it?"'), "plain", loaded("qwen", [])
    )

    assert [spelt((part,)) for part in parts] == [
        "go on, Query",
        ": «query»\nnow",
        " the Document",
        ": «document»\nSo",
        ", is it?",
    ]


def test_trailing_spaces_of_a_joined_labels_template_belong_to_the_label() -> None:
    binder = TemplateBinder(template('"{query}{document}\\nAnswer:  "'), find_chat_format("plain"), loaded("gpt2", []))
    layout = binder.layout("query_first", with_system=False, with_instruction=False)

    assert spelt(layout.parts) == "«query»«document»\nAnswer:"
    assert (layout.label_place.before, layout.label_place.lead) == ("\nAnswer:", "  ")


def test_a_labels_template_that_has_only_spaces_after_the_last_slot_is_refused() -> None:
    with pytest.raises(TemplateError, match=r"orders\.query_first ends in a slot"):
        bind(template('"{query}{document} "'), "plain", loaded("gpt2", []))
