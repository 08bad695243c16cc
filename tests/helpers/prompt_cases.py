"""Prompts of small tokenizers, and a plain judge of their ids."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Literal

from hypothesis import strategies as st

from scorer.scoring.prompt_types import PairPrompt, PromptError, PromptLimits
from scorer.scoring.prompts import PromptBuilder
from scorer.templates.chat_formats import find_chat_format
from scorer.templates.parser import parse_template
from scorer.templates.registry import find_template
from scorer.templates.types import Template
from scorer.tokens.text_tokens import TextMemo
from scorer.tokens.tokenizer_files import LoadedTokenizer
from tests.helpers.word_tokenizers import CHATML

ROOMY = PromptLimits(max_prompt_tokens=100_000)
LIKELIHOOD = find_template("query-likelihood@1")
YES_NO = find_template("yes-no@1")
PIECEWISE = parse_template(
    """
    name = "pieces"
    version = 1
    description = "Every piece alone"
    join = "piecewise"
    special_tokens = ["<|im_start|>", "<|im_end|>"]
    [readout]
    kind = "labels"
    labels = ["1", "0"]
    positive = "1"
    [orders]
    query_first = [
        "<|im_start|>user\\n",
        { text = "instruction: {instruction}\\n", when = "instruction" },
        "query: {query}",
        "\\n",
        "document: {document}",
        "\\n",
        "Relevance:<|im_end|>\\n",
    ]
    """,
    source="pieces.toml",
)


def builder(
    template: Template, tokenizer: LoadedTokenizer, chat: str = "chatml", *, memo_tokens: int = 100_000
) -> PromptBuilder:
    return PromptBuilder(tokenizer, template, find_chat_format(chat), TextMemo(memo_tokens))


def build_all(
    prompts: PromptBuilder,
    queries: Sequence[str],
    documents: Sequence[str],
    *,
    limits: PromptLimits = ROOMY,
    order: Literal["auto", "document_first", "query_first"] = "auto",
    instruction: str | None = None,
    system: str | None = None,
) -> list[PairPrompt | PromptError]:
    pairs = list(itertools.product(range(len(queries)), range(len(documents))))
    return prompts.build(
        pairs,
        queries=queries,
        documents=documents,
        instruction=instruction,
        system=system,
        order=order,
        limits=limits,
    )


def build_one(prompts: PromptBuilder, query: str, document: str, **options: object) -> PairPrompt:
    (outcome,) = build_all(prompts, [query], [document], **options)  # type: ignore[arg-type]
    assert isinstance(outcome, PairPrompt), outcome
    return outcome


def refusals(outcomes: Sequence[PairPrompt | PromptError]) -> list[PromptError]:
    return [outcome for outcome in outcomes if isinstance(outcome, PromptError)]


def all_ids(prompt: PairPrompt) -> list[int]:
    target: list[int] = [] if prompt.target is None else prompt.target.tolist()
    context: list[int] = prompt.context.tolist()
    return context + target


def plainly(tokenizer: LoadedTokenizer, parts: Sequence[int | str]) -> list[int]:
    """The judge: one encode for each text between special tokens, with no memory and no cuts."""
    judge = tokenizer.tokenizer
    judge.encode_special_tokens = True
    try:
        texts = [
            [part] if isinstance(part, int) else judge.encode(part, add_special_tokens=False).ids for part in parts
        ]
    finally:
        judge.encode_special_tokens = False
    return [token for ids in texts for token in ids]


def chatml_likelihood(tokenizer: LoadedTokenizer, instruction: str, query: str, document: str) -> list[int]:
    start, end = (tokenizer.special_tokens[text] for text in CHATML)
    user = f"user\n{instruction}\n\nPassage: {document}" if instruction else f"user\nPassage: {document}"
    return plainly(tokenizer, [start, user, end, "\n", start, f"assistant\n{query}"])


def chatml_yes_no(tokenizer: LoadedTokenizer, instruction: str, query: str, document: str, order: str) -> list[int]:
    start, end = (tokenizer.special_tokens[text] for text in CHATML)
    texts = [f"Query: {query}\n\n", f"Document: {document}\n\n"]
    if order == "document_first":
        texts.reverse()
    head = f"{instruction}\n\n" if instruction else ""
    user = f"user\n{head}{''.join(texts)}Reply with Yes or No only."
    return plainly(tokenizer, [start, user, end, "\n", start, "assistant\n"])


TEXTS = [
    "",
    " ",
    "Paris is in France",
    "\nParis\n",
    "\tx ",
    "trailing  \n\n",
    "😀👍🏽",
    "東京は首都。",
    "it's",
    "e\u0301",
    "12345",
]
HOSTILE = st.text(
    alphabet=st.one_of(
        st.sampled_from(" \n\r\t'’:;.,?!<>|_-sStTdDmMlLrReEvV0123456789ab"),
        st.sampled_from("\u0301\u0338é\u1100\u1161\u00a0\u2028\u200d東😀"),
        st.characters(exclude_categories=["Cs"]),
    ),
    max_size=20,
)
