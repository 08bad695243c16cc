r"""Places where a literal can be cut in two without changing one token of the text around it.

Byte-level BPE never merges across the words that the tokenizer's regular expressions split a
text into, so a text cut between two words gives the ids of the whole, part by part, as long
as each part, read alone, still splits into the same words. Three things could spoil that:

- the words of the left part change because the text ends: only white space looks ahead
  (``\s+(?!\S)``), so a letter must stand before the cut;
- the words of the right part change because the text begins: no expression looks back, so a
  match that starts at the cut does not know what was there;
- what stands at the cut was one word: a letter is followed in its word by letters at most.

So a cut is safe after an ASCII letter and before any other ASCII character. Both must be
literal text: then no text of a request can undo it. Unicode normal forms keep it: an ASCII
character never composes with what stands before it.

That argument holds for the expressions listed here, which were read one by one. With any
other tokenizer nothing is cut.
"""

from __future__ import annotations

import json
import string
from collections.abc import Mapping
from typing import Any, Final

from tokenizers import Tokenizer
from tokenizers.models import BPE

_TAIL: Final = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_HEAD: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_WORDS: Final = frozenset(
    {
        _HEAD + r"\p{N}{1,3}" + _TAIL,  # Llama 3
        _HEAD + r"\p{N}" + _TAIL,  # Qwen 2 and 3
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",  # GPT-2
        r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",  # GPT-2, shortened
    }
)
_NORMAL_FORMS: Final = frozenset({"NFC", "NFD", "NFKC", "NFKD"})


class SafeCuts:
    """Finds the cuts of literals for one tokenizer.

    Args:
        read_special_tokens: Whether special tokens are read in these texts.
    """

    def __init__(self, tokenizer: Tokenizer, *, read_special_tokens: bool = False) -> None:
        tokens = tokenizer.get_added_tokens_decoder().values()
        added = [token for token in tokens if read_special_tokens or not token.special]
        self._added_texts = tuple(token.content for token in added)
        self._possible = (
            _splits_into_known_words(tokenizer)
            and isinstance(tokenizer.model, BPE)
            # a token that looks at its neighbours may look across a cut
            and not any(token.lstrip or token.rstrip or token.single_word for token in added)
        )

    def find(self, literal: str) -> list[int]:
        """Every index at which ``literal`` may be cut, in order, wherever it stands in a text."""
        if not self._possible:
            return []
        return [index for index in range(1, len(literal)) if self._is_safe(literal, index)]

    def find_last(self, literal: str) -> int:
        """The last index at which ``literal`` may be cut, 0 if there is none."""
        indices = range(len(literal) - 1, 0, -1) if self._possible else ()
        return next((index for index in indices if self._is_safe(literal, index)), 0)

    def _is_safe(self, literal: str, index: int) -> bool:
        left, right = literal[index - 1], literal[index]
        if left not in string.ascii_letters or not right.isascii() or right.isalpha():
            return False
        return not any(left + right in text for text in self._added_texts)


def describe(tokenizer: Tokenizer) -> Mapping[str, Any]:
    """The normaliser and pre-tokeniser of a tokenizer, as ``tokenizer.json`` spells them."""
    shell = Tokenizer(BPE())  # without the vocabulary, which would be most of the text
    if tokenizer.normalizer is not None:
        shell.normalizer = tokenizer.normalizer
    if tokenizer.pre_tokenizer is not None:
        shell.pre_tokenizer = tokenizer.pre_tokenizer
    described: Mapping[str, Any] = json.loads(shell.to_str())
    return described


def _splits_into_known_words(tokenizer: Tokenizer) -> bool:
    described = describe(tokenizer)
    steps = _flatten(described["pre_tokenizer"], "pretokenizers")
    return (
        all(step["type"] in _NORMAL_FORMS for step in _flatten(described["normalizer"], "normalizers"))
        and bool(steps)
        and steps[-1]["type"] == "ByteLevel"
        and all(map(_is_known_split, steps))
        and any(step["type"] == "Split" or step.get("use_regex", False) for step in steps)
    )


def _flatten(step: Mapping[str, Any] | None, key: str) -> list[Mapping[str, Any]]:
    if step is None:
        return []
    if step["type"] == "Sequence":
        return [inner for each in step[key] for inner in _flatten(each, key)]
    return [step]


def _is_known_split(step: Mapping[str, Any]) -> bool:
    match step:
        case {"type": "Digits"}:
            return True
        case {"type": "ByteLevel", "add_prefix_space": False}:
            return True
        case {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}:
            return regex in _WORDS
        case _:
            return False
