"""The tokenizer of a GGUF file, rebuilt from its metadata; byte-level BPE here, SentencePiece beside."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.processors import TemplateProcessing

from engine import CheckpointError
from scorer.tokens.gguf_vocabulary import read_texts, read_vocabulary
from scorer.tokens.sentencepiece import sentencepiece_from_gguf

# The words of Llama 3 and of Qwen 2 differ in how many digits stay together.
_LLAMA3_WORDS: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_WORDS: Final = _LLAMA3_WORDS.replace(r"\p{N}{1,3}", r"\p{N}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Family:
    """What a name in ``tokenizer.ggml.pre`` stands for.

    Args:
        words: Regular expression of the pieces that merges stay within; None: that of GPT-2.
        single_digits: Every digit is a piece of its own, whatever ``words`` says.
        whole_words: A piece that is in the vocabulary is taken as it is, without merging.
        compose: Text is put into Unicode form NFC first.
    """

    words: str | None = None
    single_digits: bool = False
    whole_words: bool = False
    compose: bool = False

    def pre_tokenizer(self) -> pre_tokenizers.PreTokenizer:
        steps: list[pre_tokenizers.PreTokenizer] = []
        if self.single_digits:
            steps.append(pre_tokenizers.Digits(individual_digits=True))
        if self.words is not None:
            steps.append(pre_tokenizers.Split(Regex(self.words), behavior="isolated"))
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=self.words is None))
        return pre_tokenizers.Sequence(steps)


_FAMILIES: Final[Mapping[str, _Family]] = {
    "gpt-2": _Family(),
    "llama-bpe": _Family(words=_LLAMA3_WORDS, whole_words=True),
    "qwen2": _Family(words=_QWEN2_WORDS, compose=True),
    "smollm": _Family(single_digits=True),
}


def tokenizer_from_gguf(metadata: Mapping[str, object], source: str) -> Tokenizer:
    """The tokenizer that the ``tokenizer.ggml`` fields describe, with the ids of the file.

    Control tokens become special added tokens, user-defined tokens added tokens that are not
    special. Tokens marked unused are left out, so no text can produce them.

    Args:
        source: Names the file in errors.

    Raises:
        CheckpointError: the file holds another kind of tokenizer, or its fields do not fit.
    """
    kind = metadata.get("tokenizer.ggml.model")
    if kind not in _KINDS:
        raise CheckpointError(
            f"{source}: tokenizer.ggml.model is {kind!r}; byte-level BPE ('gpt2') and SentencePiece BPE ('llama') "
            "can be rebuilt. Put the tokenizer.json of the model into a folder beside the file and pass the folder"
        )
    tokenizer = _KINDS[kind](metadata, source)
    _add_bos(tokenizer, metadata, source)
    return tokenizer


def _add_bos(tokenizer: Tokenizer, metadata: Mapping[str, object], source: str) -> None:
    """Put BOS before texts that are encoded with special tokens, if the file says so.

    A SentencePiece model that says nothing does.
    """
    bos = gguf_token(metadata, "bos", source)
    default = metadata.get("tokenizer.ggml.model") == "llama"
    if metadata.get("tokenizer.ggml.add_bos_token", default) is True and bos is not None:
        special_tokens = [(bos, tokenizer.token_to_id(bos))]
        tokenizer.post_processor = TemplateProcessing(single=[bos, "$A"], special_tokens=special_tokens)


def _byte_level(metadata: Mapping[str, object], source: str) -> Tokenizer:
    family, vocabulary = _family(metadata, source), read_vocabulary(metadata, source)
    merges = [_pair(merge, source) for merge in read_texts(metadata, "merges", source)]
    try:
        model = BPE(vocab=vocabulary.usable(), merges=merges, ignore_merges=family.whole_words)
    except Exception as error:  # the extension raises Exception itself
        raise CheckpointError(f"{source}: the tokenizer's merges do not fit its vocabulary: {error}") from error
    tokenizer = Tokenizer(model)
    if family.compose:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = family.pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()
    vocabulary.add_whole_tokens(tokenizer)
    return tokenizer


_KINDS: Final[Mapping[object, Callable[[Mapping[str, object], str], Tokenizer]]] = {
    "gpt2": _byte_level,
    "llama": sentencepiece_from_gguf,
}


def gguf_token(metadata: Mapping[str, object], role: str, source: str) -> str | None:
    """Text of the token with a role such as ``bos``; None if the file names none.

    Raises:
        CheckpointError: the id is not that of a token.
    """
    number = metadata.get(f"tokenizer.ggml.{role}_token_id")
    if number is None:
        return None
    tokens = read_texts(metadata, "tokens", source)
    if not isinstance(number, int) or not 0 <= number < len(tokens):
        raise CheckpointError(f"{source}: tokenizer.ggml.{role}_token_id is {number!r}; there are {len(tokens)} tokens")
    return tokens[number]


def _family(metadata: Mapping[str, object], source: str) -> _Family:
    name = metadata.get("tokenizer.ggml.pre")
    if not isinstance(name, str) or name not in _FAMILIES:
        raise CheckpointError(f"{source}: tokenizer.ggml.pre is {name!r}; supported: {', '.join(_FAMILIES)}")
    return _FAMILIES[name]


def _pair(merge: str, source: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    if not left or not right or " " in right:
        raise CheckpointError(f"{source}: the tokenizer merge {merge!r} is not two parts with a space between")
    return left, right
