from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tokenizers import Tokenizer, processors

from engine import CheckpointError
from scorer.tokens.tokenizer_files import load_tokenizer
from tests.helpers.bpe_files import (
    PIECES,
    TEXTS,
    assert_same_ids,
    family_tokenizer,
    random_texts,
    write_tokenizer_gguf,
)


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


def test_strings_of_special_tokens_are_parsed_until_told_otherwise(folder: Path) -> None:
    loaded = load_tokenizer(folder)

    assert loaded.tokenizer.encode("<|end|><|start|>").ids == [0, 1]


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

    loaded = load_tokenizer(folder)

    assert loaded.tokenizer.encode(text).ids == smollm.encode(text).ids
    assert loaded.lead_ids == (1,)  # remembered, for prompts that are to be read as the file says


def test_tokenizer_json_comes_before_a_gguf_file_of_the_same_folder(folder: Path) -> None:
    write_tokenizer_gguf(folder / "model.gguf", family_tokenizer("qwen2"), "qwen2")
    alone = folder.parent / "alone"
    alone.mkdir()
    shutil.copy(folder / "tokenizer.json", alone)

    assert load_tokenizer(folder).revision == load_tokenizer(alone).revision


def test_a_folder_with_only_a_gguf_file_uses_its_metadata(tmp_path: Path, smollm: Tokenizer) -> None:
    path = write_tokenizer_gguf(tmp_path / "model.gguf", smollm, "smollm")

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
