"""A SentencePiece BPE tokenizer (Llama 2, Mistral, Gemma, Phi 3), rebuilt from the metadata of a GGUF file.

Such a tokenizer has no list of merges: of all neighbours that together are a token, those whose
token has the greatest score are joined first. Sorted by that score, the ways to split each token
in two are the merges of an ordinary BPE, which is how ``transformers`` publishes these models.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tokenizers import Tokenizer, decoders, normalizers
from tokenizers.models import BPE

from engine import CheckpointError
from scorer.tokens.gguf_vocabulary import GgufVocabulary, TokenType, read_vocabulary

_SPACE: Final = "▁"
_PREFIX: Final = "tokenizer.ggml."


def sentencepiece_from_gguf(metadata: Mapping[str, object], source: str) -> Tokenizer:
    """The tokenizer, with the ids of the file; what has no token is spelt in bytes.

    Raises:
        CheckpointError: a field is missing or does not fit, or the text would have to be
            normalised in a way that is not supported.
    """
    for field in ("remove_extra_whitespaces", "precompiled_charsmap"):
        if value := metadata.get(_PREFIX + field):
            raise CheckpointError(f"{source}: {_PREFIX}{field} is set ({str(value)[:40]}); it is not supported")
    vocabulary = read_vocabulary(metadata, source)
    scores = metadata.get(_PREFIX + "scores")
    if not isinstance(scores, list) or len(scores) != len(vocabulary.tokens):
        raise CheckpointError(f"{source}: {_PREFIX}scores is missing or not one for each token")
    tokenizer = Tokenizer(
        BPE(
            vocab=vocabulary.usable(),
            merges=_merges(vocabulary, scores),
            byte_fallback=True,
            fuse_unk=True,
            unk_token=_unknown(metadata, vocabulary, source),
        )
    )
    begins_with_space = metadata.get(_PREFIX + "add_space_prefix", True)
    escape = normalizers.Replace(" ", _SPACE)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), escape]) if begins_with_space else escape
    steps: list[decoders.Decoder] = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if begins_with_space:
        steps.append(decoders.Strip(" ", 1, 0))
    tokenizer.decoder = decoders.Sequence(steps)
    vocabulary.add_whole_tokens(tokenizer)
    return tokenizer


def _merges(vocabulary: GgufVocabulary, scores: list[float]) -> list[tuple[str, str]]:
    """Every split of a normal token into two, best score first; of one token the longest first part first."""
    normal = {
        token: scores[number]
        for number, token in enumerate(vocabulary.tokens)
        if vocabulary.types[number] == TokenType.NORMAL
    }
    splits = [
        (score, cut, token)
        for token, score in normal.items()
        for cut in range(1, len(token))
        if token[:cut] in normal and token[cut:] in normal
    ]
    splits.sort(key=lambda split: split[:2], reverse=True)
    return [(token[:cut], token[cut:]) for _, cut, token in splits]


def _unknown(metadata: Mapping[str, object], vocabulary: GgufVocabulary, source: str) -> str | None:
    """Text of the token for what cannot be spelt even in bytes, if there is one."""
    number = metadata.get(_PREFIX + "unknown_token_id")
    if number is None:
        return None
    if not isinstance(number, int) or not 0 <= number < len(vocabulary.tokens):
        raise CheckpointError(
            f"{source}: {_PREFIX}unknown_token_id is {number!r}; there are {len(vocabulary.tokens)} tokens"
        )
    return vocabulary.tokens[number]
