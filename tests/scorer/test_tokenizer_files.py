from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFWriter
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer

from engine import CheckpointError
from scorer.tokenizer_files import LoadedTokenizer, load_tokenizer

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


def write_gguf(path: Path, tokenizer: Tokenizer, pre: str, /, **fields: Any) -> Path:
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
    } | fields
    writer = GGUFWriter(path, "llama")
    for name, value in metadata.items():
        if isinstance(value, str):
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


@pytest.fixture(scope="module")
def smollm() -> Tokenizer:
    return family_tokenizer("smollm")


@pytest.fixture
def folder(smollm: Tokenizer, tmp_path: Path) -> Path:
    path = tmp_path / "model"
    path.mkdir()
    smollm.save(str(path / "tokenizer.json"))
    return path


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value))


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


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
def test_a_tokenizer_rebuilt_from_gguf_gives_the_ids_of_the_original(tmp_path: Path, pre: str) -> None:
    judge = family_tokenizer(pre)

    loaded = load_tokenizer(write_gguf(tmp_path / "model.gguf", judge, pre))

    assert_same_ids(loaded, judge, [*TEXTS, *random_texts(3000, PIECES), "x unmergeable"])
    assert loaded.vocab_size == judge.get_vocab_size()
    assert loaded.tokenizer.get_vocab() == judge.get_vocab()
    assert all(
        loaded.tokenizer.decode(judge.encode(text).ids, skip_special_tokens=False) == text for text in CORPUS[:3]
    )


def test_families_differ_in_how_they_split_digits(tmp_path: Path) -> None:
    lengths = {}
    for pre in PRE_TOKENIZERS:
        loaded = load_tokenizer(write_gguf(tmp_path / f"{pre}.gguf", family_tokenizer(pre), pre))
        assert loaded.tokenizer.pre_tokenizer is not None
        lengths[pre] = [len(piece) for piece, _ in loaded.tokenizer.pre_tokenizer.pre_tokenize_str("x1234567")]

    assert lengths == {
        "gpt-2": [1, 7],
        "smollm": [1, 1, 1, 1, 1, 1, 1, 1],
        "llama-bpe": [1, 3, 3, 1],
        "qwen2": [1, 1, 1, 1, 1, 1, 1, 1],
    }


def test_the_roles_and_the_template_come_from_the_metadata(tmp_path: Path, smollm: Tokenizer) -> None:
    loaded = load_tokenizer(write_gguf(tmp_path / "model.gguf", smollm, "smollm"))

    assert (loaded.bos_token, loaded.eos_token) == ("<|start|>", "<|end|>")
    assert loaded.special_tokens == {"<|end|>": 0, "<|start|>": 1}
    assert loaded.chat_template == "{{ messages }}"


def test_strings_of_special_tokens_are_parsed_until_told_otherwise(folder: Path) -> None:
    loaded = load_tokenizer(folder)

    assert loaded.tokenizer.encode("<|end|><|start|>").ids == [0, 1]


def test_a_file_without_roles_has_none(tmp_path: Path, smollm: Tokenizer) -> None:
    path = write_gguf(tmp_path / "model.gguf", smollm, "smollm", bos_token_id=None, eos_token_id=None)

    loaded = load_tokenizer(path)

    assert (loaded.bos_token, loaded.eos_token) == (None, None)


def test_user_defined_tokens_are_whole_in_any_text_and_control_tokens_only_where_parsed(
    tmp_path: Path, smollm: Tokenizer
) -> None:
    loaded = load_tokenizer(write_gguf(tmp_path / "model.gguf", smollm, "smollm"))
    loaded.tokenizer.encode_special_tokens = True

    tokens = loaded.tokenizer.encode("a<tool>b<|end|>").tokens

    assert "<tool>" in tokens
    assert "<|end|>" not in tokens
    assert "".join(tokens) == "a<tool>b<|end|>"


def test_no_text_gives_an_unused_token(tmp_path: Path) -> None:
    judge = family_tokenizer("llama-bpe")  # looks whole words up, so the vocabulary alone would do
    vocabulary = judge.get_vocab()
    types = [UNUSED if number == vocabulary["Ġunmergeable"] else NORMAL for number in range(len(vocabulary))]
    for token in SPECIAL:
        types[vocabulary[token]] = CONTROL

    loaded = load_tokenizer(write_gguf(tmp_path / "model.gguf", judge, "llama-bpe", token_type=types))

    assert vocabulary["Ġunmergeable"] in judge.encode("x unmergeable").ids
    assert vocabulary["Ġunmergeable"] not in loaded.tokenizer.encode("x unmergeable").ids


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"model": "llama"}, "tokenizer.ggml.model is 'llama'; only byte-level BPE"),
        ({"model": None}, "tokenizer.ggml.model is None"),
        ({"pre": "tekken"}, "tokenizer.ggml.pre is 'tekken'; supported: gpt-2, llama-bpe, qwen2, smollm"),
        ({"pre": None}, "tokenizer.ggml.pre is None"),
        ({"tokens": None}, "tokenizer.ggml.tokens is missing"),
        ({"merges": None}, "tokenizer.ggml.merges is missing"),
        ({"merges": [1, 2]}, "tokenizer.ggml.merges is missing or no list of texts"),
        ({"merges": ["Ġ  t"]}, "merge 'Ġ  t' is not two parts"),
        ({"merges": ["Ġt"]}, "merge 'Ġt' is not two parts"),
        ({"merges": ["Ġ notinthevocabulary"]}, "merges do not fit its vocabulary"),
        ({"token_type": None}, "tokenizer.ggml.token_type is missing; one for each of"),
        ({"token_type": [1, 1, 1]}, "tokenizer.ggml.token_type is 3 entries; one for each of"),
        ({"bos_token_id": 100_000}, "tokenizer.ggml.bos_token_id is 100000; there are"),
    ],
)
def test_metadata_that_do_not_make_a_tokenizer_are_refused(
    tmp_path: Path, smollm: Tokenizer, fields: dict[str, Any], said: str
) -> None:
    path = write_gguf(tmp_path / "model.gguf", smollm, "smollm", **fields)

    with pytest.raises(CheckpointError, match=rf"model\.gguf: .*{said}"):
        load_tokenizer(path)


def test_a_folder_gives_the_ids_of_its_tokenizer(folder: Path, smollm: Tokenizer) -> None:
    loaded = load_tokenizer(folder)

    assert_same_ids(loaded, smollm, [*TEXTS, *random_texts(300, PIECES)])
    assert loaded.special_tokens == {"<|end|>": 0, "<|start|>": 1}
    assert (loaded.bos_token, loaded.eos_token, loaded.chat_template) == (None, None, None)


def test_truncation_padding_and_post_processing_of_the_file_are_dropped(folder: Path, smollm: Tokenizer) -> None:
    busy = Tokenizer.from_str(smollm.to_str())
    busy.enable_truncation(max_length=5)
    busy.enable_padding(length=32)
    busy.post_processor = processors.TemplateProcessing(single="<|start|> $A", special_tokens=[("<|start|>", 1)])
    busy.save(str(folder / "tokenizer.json"))
    text = "The quick brown fox jumps over the lazy dog"
    assert busy.encode(text).ids != smollm.encode(text).ids

    assert load_tokenizer(folder).tokenizer.encode(text).ids == smollm.encode(text).ids


def test_tokenizer_json_comes_before_a_gguf_file_of_the_same_folder(folder: Path) -> None:
    write_gguf(folder / "model.gguf", family_tokenizer("qwen2"), "qwen2")
    alone = folder.parent / "alone"
    alone.mkdir()
    shutil.copy(folder / "tokenizer.json", alone)

    assert load_tokenizer(folder).revision == load_tokenizer(alone).revision


def test_a_folder_with_only_a_gguf_file_uses_its_metadata(tmp_path: Path, smollm: Tokenizer) -> None:
    path = write_gguf(tmp_path / "model.gguf", smollm, "smollm")

    assert load_tokenizer(tmp_path).revision == load_tokenizer(path).revision


def test_roles_come_from_the_config_and_failing_that_from_the_map(folder: Path) -> None:
    write_json(folder / "special_tokens_map.json", {"bos_token": "<|end|>", "eos_token": {"content": "<|end|>"}})
    write_json(folder / "tokenizer_config.json", {"bos_token": {"content": "<|start|>"}})

    loaded = load_tokenizer(folder)

    assert (loaded.bos_token, loaded.eos_token) == ("<|start|>", "<|end|>")


def test_a_role_that_is_null_is_none(folder: Path) -> None:
    write_json(folder / "tokenizer_config.json", {"bos_token": None, "eos_token": "<|end|>"})

    loaded = load_tokenizer(folder)

    assert (loaded.bos_token, loaded.eos_token) == (None, "<|end|>")


@pytest.mark.parametrize(
    ("template", "found"),
    [
        ("plain", "plain"),
        ([{"name": "tools", "template": "no"}, {"name": "default", "template": "yes"}], "yes"),
        ([{"name": "tools", "template": "no"}], None),
        (None, None),
    ],
)
def test_the_chat_template_is_the_plain_or_the_default_one(folder: Path, template: object, found: str | None) -> None:
    write_json(folder / "tokenizer_config.json", {"chat_template": template})

    assert load_tokenizer(folder).chat_template == found


def test_a_template_file_comes_before_the_config(folder: Path) -> None:
    write_json(folder / "tokenizer_config.json", {"chat_template": "old"})
    (folder / "chat_template.jinja").write_text("new 🤷", encoding="utf-8")

    assert load_tokenizer(folder).chat_template == "new 🤷"


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"bos_token": "<s>"}, "the bos token '<s>' is not in the vocabulary"),
        ({"eos_token": 2}, "eos_token is 2; a text is needed"),
        ({"chat_template": 3}, "chat_template is a int; a text is needed"),
        ({"added_tokens_decoder": {"1": {"content": "<|end|>"}}}, "added token 1 is '<|end|>', which is not so"),
        ({"added_tokens_decoder": {"600": {"content": "<new>"}}}, "added token 600 is '<new>', which is not so"),
        ({"added_tokens_decoder": []}, "added_tokens_decoder is no object"),
    ],
)
def test_a_config_that_does_not_fit_the_tokenizer_is_refused(folder: Path, config: object, said: str) -> None:
    write_json(folder / "tokenizer_config.json", config)

    with pytest.raises(CheckpointError) as caught:
        load_tokenizer(folder)

    assert said in str(caught.value)


def test_a_tokenizer_file_that_makes_no_sense_is_refused_by_name(folder: Path) -> None:
    (folder / "tokenizer.json").write_text('{"model": {"type": "Unheard"}}')

    with pytest.raises(CheckpointError, match=r"tokenizer\.json cannot be understood"):
        load_tokenizer(folder)


def test_weights_without_a_tokenizer_are_refused_by_the_missing_file(tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).touch()

    with pytest.raises(CheckpointError, match=r"tokenizer\.json is missing"):
        load_tokenizer(tmp_path)


def test_a_special_token_that_plain_text_gives_is_refused(folder: Path, smollm: Tokenizer) -> None:
    leaky = Tokenizer.from_str(smollm.to_str())
    assert leaky.encode("qu").tokens == ["qu"]
    leaky.add_special_tokens(["qu"])
    leaky.save(str(folder / "tokenizer.json"))

    with pytest.raises(CheckpointError, match=r"plain text can give the special token 'qu'"):
        load_tokenizer(folder)


@pytest.mark.parametrize(
    "name", ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"]
)
def test_the_revision_changes_with_every_file(folder: Path, name: str) -> None:
    before = load_tokenizer(folder).revision
    path = folder / name

    path.write_text(path.read_text() + "\n" if path.exists() else "{}")

    assert load_tokenizer(folder).revision != before
    assert len(before) == 16


@pytest.mark.parametrize("fields", [{"bos_token_id": 0}, {"pre": "gpt-2"}])
def test_the_revision_changes_with_the_metadata(tmp_path: Path, smollm: Tokenizer, fields: dict[str, Any]) -> None:
    plain = load_tokenizer(write_gguf(tmp_path / "a.gguf", smollm, "smollm"))
    changed = load_tokenizer(write_gguf(tmp_path / "b.gguf", smollm, "smollm", **fields))

    assert plain.revision != changed.revision


@pytest.fixture(scope="module")
def default_judge(default_model_path: Path) -> Tokenizer:
    name = next(default_model_path.glob("*.gguf")).name
    judge: Tokenizer = AutoTokenizer.from_pretrained(default_model_path, gguf_file=name).backend_tokenizer
    return Tokenizer.from_str(judge.to_str())


NUMERIC = ["0", "9", "12", " 3", "٣", "²", "½"]
SMOLLM2_PIECES = [*PIECES, "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<repo_name>", "<|im_"]


@pytest.mark.model
def test_the_default_model_gives_the_ids_of_transformers_where_there_are_no_digits(
    default_model_path: Path, default_judge: Tokenizer
) -> None:
    texts = random_texts(3000, [piece for piece in SMOLLM2_PIECES if piece not in NUMERIC])

    assert_same_ids(load_tokenizer(default_model_path), default_judge, texts)


@pytest.mark.model
def test_the_default_model_gives_the_ids_of_transformers_with_the_published_digit_rule(
    default_model_path: Path, default_judge: Tokenizer
) -> None:
    # transformers does not know the name "smollm" and leaves the digit rule out
    published = json.loads(default_judge.to_str()) | {"pre_tokenizer": PRE_TOKENIZERS["smollm"]}

    assert_same_ids(
        load_tokenizer(default_model_path),
        Tokenizer.from_str(json.dumps(published)),
        [*TEXTS, *random_texts(3000, SMOLLM2_PIECES)],
    )


@pytest.mark.model
def test_the_default_model_splits_digits_singly_and_keeps_white_space_before_them_together(
    default_model_path: Path,
) -> None:
    loaded = load_tokenizer(default_model_path)

    assert loaded.tokenizer.encode("Room 1024\n 3").tokens == ["Room", "Ġ", "1", "0", "2", "4", "ĊĠ", "3"]


@pytest.mark.model
def test_the_default_model_has_its_special_tokens_and_template(default_model_path: Path) -> None:
    loaded = load_tokenizer(default_model_path)

    assert loaded.vocab_size == 49_152
    assert (loaded.bos_token, loaded.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert sorted(loaded.special_tokens.values()) == list(range(17))
    assert loaded.special_tokens["<|im_start|>"] == 1
    assert loaded.chat_template is not None
    assert "<|im_start|>" in loaded.chat_template
