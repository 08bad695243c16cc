"""The prompts of published rerankers, written as their publishers' scripts do: the judge of our templates.

Each function gives the texts that the publisher tokenises one by one, special tokens spelt out. Nothing here
comes from the package.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Final, TypeAlias

import pytest
from tokenizers import Tokenizer

from scorer.tokens.tokenizer_files import LoadedTokenizer, load_tokenizer
from tests.models.files import QWEN3_TOKENIZER

QWEN3_SPECIALS = ("<|im_start|>", "<|im_end|>")
THINK = ("<think>", "</think>")


def qwen3_reranker(query: str, document: str, instruction: str | None) -> list[str]:
    """Model card of Qwen3-Reranker: prefix, body and suffix are tokenised apart."""
    prefix = (
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
        'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
    )
    suffix = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    if instruction is None:
        instruction = "Given a web search query, retrieve relevant passages that answer the query"
    return [prefix, f"<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}", suffix]


def mxbai_rerank_v2(query: str, document: str, instruction: str | None) -> list[str]:
    """Library mxbai-rerank: every part is tokenised apart; instruction and query are one part."""
    prefix = (
        "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
        "<|im_start|>user\n"
    )
    task = (
        "You are a search relevance expert who evaluates how well documents match search queries. For each "
        "query-document pair, carefully analyze the semantic relationship between them, then provide your binary "
        "relevance judgment (0 for not relevant, 1 for relevant).\nRelevance:"
    )
    asked = f"query: {query}"
    if instruction:
        asked = f"instruction: {instruction}\n{asked}"
    return [prefix, asked, "\n", f"document: {document}", "\n", task, "<|im_end|>\n<|im_start|>assistant\n"]


def bge_reranker_v2_gemma(query: str, document: str, prompt: str | None) -> list[str]:
    """Library FlagEmbedding, after BOS: every part is tokenised apart."""
    if prompt is None:
        prompt = (
            "Given a query A and a passage B, determine whether the passage contains an answer to the query by "
            "providing a prediction of either 'Yes' or 'No'."
        )
    return [f"A: {query}", "\n", f"B: {document}", "\n", prompt]


def bge_reranker_v25(query: str, document: str, prompt: str | None) -> list[str]:
    return bge_reranker_v2_gemma(query, document, prompt or "Predict whether passage B contains an answer to query A.")


def zerank(query: str, document: str, instruction: str | None) -> list[str]:
    """Model card of zerank: one text from Qwen3's chat template, both messages stripped."""
    system = f"\n{query}\n".strip()
    if instruction:
        system = f"<query>{query.strip()}</query>\n<instruction>{instruction}</instruction>"
    user = f"\n{document}\n".strip()
    return [
        f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n",
    ]


Script: TypeAlias = Callable[[str, str, str | None], list[str]]

CHAT: Final[Sequence[tuple[str, Script]]] = [
    ("qwen3-reranker@1", qwen3_reranker),
    ("mxbai-rerank-base-v2@1", mxbai_rerank_v2),
    ("mxbai-rerank-large-v2@1", mxbai_rerank_v2),
    ("zerank@1", zerank),
]
GEMMA: Final[Sequence[tuple[str, Script]]] = [
    ("bge-reranker-v2-gemma@1", bge_reranker_v2_gemma),
    ("bge-reranker-v2-5-gemma2@1", bge_reranker_v25),
]
"""Templates of published rerankers, each with the script that it is compared with, by kind of tokenizer."""


def as_published(tokenizer: Tokenizer, texts: Sequence[str]) -> list[int]:
    """What the publisher's script feeds its model: special tokens are read wherever they stand."""
    return [token for text in texts for token in tokenizer.encode(text, add_special_tokens=False).ids]


def inert_judge(tokenizer: LoadedTokenizer, specials: Sequence[str]) -> Callable[[Sequence[str]], list[int]]:
    """As ``as_published``, but the strings of special tokens in slots, marked by ``MARK``, are plain text."""
    vocabulary = tokenizer.tokenizer.get_vocab()
    pattern = re.compile("(" + "|".join(map(re.escape, specials)) + ")")
    inert = Tokenizer.from_str(tokenizer.tokenizer.to_str())
    inert.add_special_tokens(list(specials))  # a token that is not marked as special would be read all the same
    inert.encode_special_tokens = True

    def ids(text: str) -> list[int]:
        if text in specials:
            return [vocabulary[text]]
        plain: list[int] = inert.encode(text.replace(MARK, ""), add_special_tokens=False).ids
        return plain

    return lambda texts: [token for text in texts for part in pattern.split(text) for token in ids(part)]


MARK = "\ufdd0"
"""A character of no text: stands inside what looks like a special token in a slot, so that the judge passes it by."""


@cache
def real_qwen3_tokenizer() -> LoadedTokenizer:
    """Qwen3's own tokenizer; the test is skipped where it has not been fetched."""
    if not QWEN3_TOKENIZER.path.is_file():
        pytest.skip(f"{QWEN3_TOKENIZER.path} is not here; `make test-models` fetches it")
    return load_tokenizer(QWEN3_TOKENIZER.path.parent)
