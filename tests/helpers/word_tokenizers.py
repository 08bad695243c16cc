"""Small byte-level BPE tokenizers that split words as the large model families do."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Final

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, trainers
from tokenizers.models import BPE

from scorer.tokens.tokenizer_files import LoadedTokenizer

CHATML: Final = ("<|im_start|>", "<|im_end|>")
LLAMA3: Final = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")

_LLAMA3_WORDS: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN_WORDS: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# every merge that a bad cut could break: runs of white space, punctuation with line ends, digits
_TRAINING: Final = (
    "the query\n\nDocument: the document\n\nQuery: a question? It's they'll don't we've I'm I'd\n",
    "a  b   c    d\t\te \n\n\n f \r\n\r\n g: h; i, j. k! l? (m) [n] {o} <p> \"q\" 'r' x_y x-y ---- ....\n",
    "0 1 22 333 4444 55555 123456789 3.14 2,000 10% a1 b22 c333 :: ?? !! .\n\n ;\n ,\n ?\n\n\n",
    "café cafe\u0301 naïve 東京 日本語 😀😀 рус \u00a0\u2028",
    "yes Yes no No relevant irrelevant Passage: passage Question: question Answer: answer\n",
)


def _train(
    steps: Sequence[pre_tokenizers.PreTokenizer], *, normalizer: normalizers.Normalizer | None = None
) -> Tokenizer:
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(list(steps))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=900, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(_TRAINING * 20, trainer)
    return tokenizer


def _byte_level(*, use_regex: bool) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)


def _split(words: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(Regex(words), behavior="isolated")


@cache
def word_tokenizer(style: str) -> Tokenizer:
    """A fresh-looking tokenizer of a style: ``gpt2``, ``llama3``, ``qwen``, ``smollm`` or ``metaspace``."""
    match style:
        case "gpt2":
            return _train([_byte_level(use_regex=True)])
        case "smollm":
            return _train([pre_tokenizers.Digits(individual_digits=True), _byte_level(use_regex=True)])
        case "llama3":
            return _train([_split(_LLAMA3_WORDS), _byte_level(use_regex=False)])
        case "qwen":
            return _train([_split(_QWEN_WORDS), _byte_level(use_regex=False)], normalizer=normalizers.NFC())
        case "metaspace":
            return _metaspace()
    raise ValueError(style)


WORD_STYLES: Final = ("gpt2", "smollm", "llama3", "qwen")


def _metaspace() -> Tokenizer:
    tokenizer = Tokenizer(BPE(unk_token="<unk>"))
    # merges are learnt within words, as SentencePiece does, and applied to whole texts
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=True)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first", split=False)
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=["<unk>"], show_progress=False)
    tokenizer.train_from_iterator(_TRAINING * 20, trainer)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    return tokenizer


def loaded(
    style: str,
    special_tokens: Sequence[str] = CHATML,
    *,
    added_tokens: Sequence[str] = (),
    bos_token: str | None = None,
    chat_template: str | None = None,
) -> LoadedTokenizer:
    """A tokenizer of ``style`` with these special and ordinary added tokens, as a checkpoint gives it."""
    tokenizer = Tokenizer.from_str(word_tokenizer(style).to_str())
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special_tokens])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in added_tokens])
    return LoadedTokenizer(
        tokenizer=tokenizer,
        special_tokens={
            token.content: number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special
        },
        bos_token=bos_token,
        eos_token=None,
        vocab_size=tokenizer.get_vocab_size(),
        revision="0" * 16,
        chat_template=chat_template,
    )
