"""Tokenizers rebuilt from scores, judged by joining the best neighbours one pair at a time."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, trainers

from engine import CheckpointError
from scorer.tokens.tokenizer_files import load_tokenizer
from tests.helpers.bpe_files import CORPUS, random_texts, write_tokenizer_metadata

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
WHOLE = {
    "<unk>": CONTROL,
    "<s>": CONTROL,
    "</s>": CONTROL,
    "  ": USER_DEFINED,
    "\n\n": USER_DEFINED,
    "<tool>": USER_DEFINED,
}
PIECES = [
    *"abehnorstu", " ", "  ", "   ", "\n", "\n\n", "\t", " the", "th", "ing", "▁", "é", "中", "🤷", "<s>", "<tool>",
    "<0x41>", "<0x", "41>", "unused", "\x07",
]  # fmt: skip
TEXTS = [*CORPUS, "", " ", "   a", "a <s> b</s>", "x<tool>  y", "<0x41> unused", *random_texts(400, PIECES)]


def vocabulary() -> dict[str, int]:
    """Types by token, in the order of their numbers; what was joined often stands first, hence has the best score."""
    trained = Tokenizer(models.BPE())
    corpus = [f"▁{text}".replace(" ", "▁") for text in CORPUS]
    trained.train_from_iterator(corpus * 3, trainers.BpeTrainer(vocab_size=400, show_progress=False))
    learnt = sorted(trained.get_vocab().items(), key=lambda each: each[1])
    return {
        **WHOLE,
        **{f"<0x{number:02X}>": BYTE for number in range(256)},
        **{token: NORMAL for token, _ in learnt},
        "unused": UNUSED,
    }


def metadata(**changes: Any) -> dict[str, Any]:
    types = vocabulary()
    fields: dict[str, Any] = {
        "model": "llama",
        "pre": "default",
        "tokens": list(types),
        "token_type": list(types.values()),
        "scores": [-float(number) if kind == NORMAL else -1000.0 for number, kind in enumerate(types.values())],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
        "add_space_prefix": False,
    }
    return fields | changes


def plain_ids(text: str, *, parse_special: bool, space_prefix: bool) -> list[int]:
    """What SentencePiece does: whole tokens first, then the neighbours whose joint token scores best, from the left."""
    types = vocabulary()
    numbers = {token: number for number, token in enumerate(types)}
    whole = [token for token, kind in types.items() if kind == USER_DEFINED or (kind == CONTROL and parse_special)]
    by_length = sorted(whole, key=len, reverse=True)
    ids: list[int] = []
    for part in re.split("(" + "|".join(map(re.escape, by_length)) + ")", text):
        if part in whole:
            ids.append(numbers[part])
            continue
        pieces = list(("▁" if space_prefix and part else "") + part.replace(" ", "▁"))
        while True:
            joint = [left + right for left, right in pairwise(pieces)]
            known = [numbers[each] for each in joint if types.get(each) == NORMAL]
            if not known:
                break
            at = [numbers.get(each) for each in joint].index(min(known))
            pieces[at : at + 2] = [joint[at]]
        for piece in pieces:
            if types.get(piece) == NORMAL:
                ids.append(numbers[piece])
            else:
                ids += [numbers[f"<0x{byte:02X}>"] for byte in piece.encode()]
    return ids


@pytest.mark.parametrize("space_prefix", [False, True])
@pytest.mark.parametrize("parse_special", [False, True])
def test_ids_are_those_of_joining_the_best_pair_first(
    tmp_path: Path, *, parse_special: bool, space_prefix: bool
) -> None:
    path = write_tokenizer_metadata(tmp_path / "model.gguf", metadata(add_space_prefix=space_prefix))
    tokenizer = load_tokenizer(path).tokenizer
    tokenizer.encode_special_tokens = not parse_special

    for text in TEXTS:
        found = tokenizer.encode(text).ids
        assert found == plain_ids(text, parse_special=parse_special, space_prefix=space_prefix), text


def test_a_text_comes_back_from_its_ids(tmp_path: Path) -> None:
    for space_prefix in (False, True):
        path = write_tokenizer_metadata(tmp_path / "model.gguf", metadata(add_space_prefix=space_prefix))
        tokenizer = load_tokenizer(path).tokenizer

        # after a whole token a space is put too, which decoding does not know
        for text in [text for text in CORPUS if not space_prefix or not re.search(r"\n\n|  ", text)]:
            assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_special_tokens_and_bos_are_those_of_the_file(tmp_path: Path) -> None:
    loaded = load_tokenizer(write_tokenizer_metadata(tmp_path / "model.gguf", metadata()))
    without = load_tokenizer(write_tokenizer_metadata(tmp_path / "without.gguf", metadata(add_bos_token=False)))

    assert loaded.special_tokens == {"<unk>": 0, "<s>": 1, "</s>": 2}
    assert (loaded.bos_token, loaded.eos_token) == ("<s>", "</s>")
    assert (loaded.lead_ids, without.lead_ids) == ((1,), ())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"scores": None}, "tokenizer.ggml.scores is missing or not one for each token"),
        ({"scores": [0.0]}, "tokenizer.ggml.scores is missing or not one for each token"),
        ({"token_type": [1]}, "tokenizer.ggml.token_type is 1 entries; one for each of"),
        ({"unknown_token_id": 99_999}, "tokenizer.ggml.unknown_token_id is 99999; there are"),
        ({"remove_extra_whitespaces": True}, "tokenizer.ggml.remove_extra_whitespaces is set"),
    ],
)
def test_metadata_that_do_not_make_a_tokenizer_are_refused(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    path = write_tokenizer_metadata(tmp_path / "model.gguf", metadata(**changes))

    with pytest.raises(CheckpointError, match=said):
        load_tokenizer(path)
