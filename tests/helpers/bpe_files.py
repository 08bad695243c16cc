"""Small byte-level tokenizers, put together like published ones, and the GGUF files they become."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from gguf import GGUFWriter
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from scorer.tokens.tokenizer_files import LoadedTokenizer

CONTROL, USER_DEFINED, NORMAL, UNUSED = 3, 4, 1, 5
SPECIAL = ["<|end|>", "<|start|>"]

# the parts of the published tokenizer.json of each family that are not the vocabulary
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
BYTE_LEVEL_ONLY = BYTE_LEVEL | {"use_regex": False}


def split(words: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": words}, "behavior": "Isolated", "invert": False}


WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|DIGITS| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PRE_TOKENIZERS: dict[str, dict[str, Any]] = {
    "gpt-2": BYTE_LEVEL,
    "smollm": {
        "type": "Sequence",
        "pretokenizers": [{"type": "Digits", "individual_digits": True}, BYTE_LEVEL],
    },
    "llama-bpe": {
        "type": "Sequence",
        "pretokenizers": [split(WORDS.replace("DIGITS", r"\p{N}{1,3}")), BYTE_LEVEL_ONLY],
    },
    "qwen2": {"type": "Sequence", "pretokenizers": [split(WORDS.replace("DIGITS", r"\p{N}")), BYTE_LEVEL_ONLY]},
}

CORPUS = [
    "The quick brown fox jumps over the lazy dog; it's 1234 o'clock, isn't it?",
    "SHE'LL say: don't! Room 2024, 31 December 1999. 3.14159 is near 22/7 and 100 000 is 10^5.",
    "def f(x):\n    return x ** 2  # comment\n\n\tif y:\r\n        pass\n",
    "中文字符和日本語のテキスト、한국어 문장도 있습니다. Ünïcödé naïve café, e\u0301 decomposed.",
    "emoji 🤷🏽‍♀️ 👩‍👩‍👧 🎉🎉 and ½ ² ٣ Ⅷ numbers; nbsp\u00a0here and \u3000 wide space   three",
] * 3
TEXTS = [*CORPUS, "", " ", "\n\n\n", "   a", "a   ", "start <|start|>user<|end|> stop", "<|start|", "x<tool>y 7 <tool>"]

PIECES = [
    "0", "9", "12", " 3", "٣", "²", "½", " ", "  ", "\n", "\r\n", "\t", "a", " the", "The", "'s", "'LL", "é",
    "e\u0301", "ñ", "中", "文字", "🤷", "🏽", "\u200d", "!", "...", "_", "{", "\u00a0", "\u3000", "<|start|>",
    "<|end|>", "<", "|>",
]  # fmt: skip


def random_texts(count: int, pieces: list[str]) -> list[str]:
    rng = random.Random(20240517)
    return ["".join(rng.choices(pieces, k=rng.randrange(1, 12))) for _ in range(count)]


def family_tokenizer(pre: str) -> Tokenizer:
    """A tokenizer trained on the corpus, put together like the published ones of the family."""
    tokenizer = Tokenizer(models.BPE())
    shell = json.loads(tokenizer.to_str()) | {"pre_tokenizer": PRE_TOKENIZERS[pre]}
    if pre == "qwen2":
        shell["normalizer"] = {"type": "NFC"}
    tokenizer = Tokenizer.from_str(json.dumps(shell))
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    if pre == "llama-bpe":
        published = json.loads(tokenizer.to_str())
        published["model"]["ignore_merges"] = True
        # a word that no merges build, only reachable because whole words are looked up first
        published["model"]["vocab"]["Ġunmergeable"] = tokenizer.get_vocab_size()
        tokenizer = Tokenizer.from_str(json.dumps(published))
    tokenizer.add_tokens([AddedToken("<tool>", normalized=False)])
    return tokenizer


def write_tokenizer_gguf(path: Path, tokenizer: Tokenizer, pre: str, /, **fields: Any) -> Path:
    """Store a tokenizer as converters for llama.cpp do; ``fields`` replace metadata, None removes."""
    state = json.loads(tokenizer.to_str())
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    tokens = sorted(vocabulary, key=lambda token: vocabulary[token])
    added = {each["content"]: CONTROL if each["special"] else USER_DEFINED for each in state["added_tokens"]}
    metadata: dict[str, Any] = {
        "model": "gpt2",
        "pre": pre,
        "tokens": tokens,
        "token_type": [added.get(token, NORMAL) for token in tokens],
        "merges": [" ".join(pair) for pair in state["model"]["merges"]],
        "bos_token_id": vocabulary["<|start|>"],
        "eos_token_id": vocabulary["<|end|>"],
    }
    return write_tokenizer_metadata(path, metadata | fields)


def write_tokenizer_metadata(path: Path, metadata: dict[str, Any]) -> Path:
    """A GGUF file without tensors, with these fields below ``tokenizer.ggml``."""
    writer = GGUFWriter(path, "llama")
    for name, value in metadata.items():
        if isinstance(value, bool):
            writer.add_bool(f"tokenizer.ggml.{name}", value)
        elif isinstance(value, str):
            writer.add_string(f"tokenizer.ggml.{name}", value)
        elif isinstance(value, list):
            writer.add_array(f"tokenizer.ggml.{name}", value)
        elif value is not None:
            writer.add_uint32(f"tokenizer.ggml.{name}", value)
    writer.add_chat_template("{{ messages }}")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def assert_same_ids(loaded: LoadedTokenizer, judge: Tokenizer, texts: list[str]) -> None:
    """Ids agree on every text, with the strings of special tokens parsed and with them not."""
    for parse_special in (True, False):
        loaded.tokenizer.encode_special_tokens = judge.encode_special_tokens = not parse_special
        wrong = [
            text
            for text in texts
            if loaded.tokenizer.encode(text).ids != judge.encode(text, add_special_tokens=False).ids
        ]
        assert not wrong
