"""The tokenizer of a checkpoint, bare: it adds nothing to the text it is given."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tokenizers import Tokenizer
from tokenizers.processors import Sequence

from engine import CheckpointError
from engine.checkpoint_files import GgufFiles, find_checkpoint_files, read_json_object
from engine.gguf_file import read_gguf_header
from scorer.tokens.gguf import gguf_token, tokenizer_from_gguf

_REVISION_DIGITS: Final = 16
_TOKENIZER: Final = "tokenizer.json"
_CONFIG: Final = "tokenizer_config.json"
_SPECIAL_TOKENS: Final = "special_tokens_map.json"
_CHAT_TEMPLATE: Final = "chat_template.jinja"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedTokenizer:
    """A tokenizer without truncation, padding or post-processing.

    ``encode`` turns the strings of special tokens into their ids, unless
    ``tokenizer.encode_special_tokens`` is set; then no text gives a special id.

    Args:
        special_tokens: Ids of all control tokens, by text.
        vocab_size: One more than the greatest id.
        revision: Hash of everything the tokenizer was made from, 16 hex digits.
        chat_template: Jinja source, if the checkpoint has one.
        lead_ids: What the published tokenizer puts before a text.
    """

    tokenizer: Tokenizer
    special_tokens: Mapping[str, int]
    bos_token: str | None
    eos_token: str | None
    vocab_size: int
    revision: str
    chat_template: str | None
    lead_ids: tuple[int, ...] = ()


def load_tokenizer(path: Path) -> LoadedTokenizer:
    """The tokenizer of the model at ``path``, a ``.gguf`` file or a folder.

    A folder's ``tokenizer.json`` comes first; without one the tokenizer is rebuilt from the
    metadata of its GGUF file.

    Raises:
        CheckpointError: there is no tokenizer, its files cannot be understood, or a special
            token can be had from plain text.
    """
    if (path / _TOKENIZER).is_file():
        return _from_folder(path)
    files = find_checkpoint_files(path)
    if isinstance(files, GgufFiles):
        return _from_gguf(files.gguf)
    raise CheckpointError(f"{path / _TOKENIZER} is missing")


def _from_folder(folder: Path) -> LoadedTokenizer:
    file = folder / _TOKENIZER
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the extension raises Exception itself
        raise CheckpointError(f"{file} cannot be understood: {error}") from error
    paths = {name: folder / name for name in (_SPECIAL_TOKENS, _CONFIG, _CHAT_TEMPLATE)}
    special_map, config = (
        read_json_object(paths[name]) if paths[name].is_file() else {} for name in (_SPECIAL_TOKENS, _CONFIG)
    )
    roles = special_map | config
    _check_added_tokens(tokenizer, config, paths[_CONFIG])
    template = _chat_template(config, paths[_CONFIG])
    if paths[_CHAT_TEMPLATE].is_file():
        template = paths[_CHAT_TEMPLATE].read_text(encoding="utf-8")
    revision = hashlib.sha256()
    for part in (file, *paths.values()):
        revision.update(hashlib.sha256(part.read_bytes() if part.is_file() else b"").digest())
    return _bare(
        tokenizer,
        source=str(file),
        bos_token=_token_text(roles, "bos_token", paths[_CONFIG]),
        eos_token=_token_text(roles, "eos_token", paths[_CONFIG]),
        revision=revision.hexdigest(),
        chat_template=template,
    )


def _from_gguf(path: Path) -> LoadedTokenizer:
    metadata = read_gguf_header(path).metadata
    template = metadata.get("tokenizer.chat_template")
    fields = {name: value for name, value in metadata.items() if name.startswith("tokenizer.")}
    return _bare(
        tokenizer_from_gguf(metadata, str(path)),
        source=str(path),
        bos_token=gguf_token(metadata, "bos", str(path)),
        eos_token=gguf_token(metadata, "eos", str(path)),
        revision=hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest(),
        chat_template=template if isinstance(template, str) else None,
    )


def _bare(
    tokenizer: Tokenizer,
    *,
    source: str,
    bos_token: str | None,
    eos_token: str | None,
    revision: str,
    chat_template: str | None,
) -> LoadedTokenizer:
    tokenizer.no_truncation()
    tokenizer.no_padding()
    lead_ids = _lead_ids(tokenizer)
    tokenizer.post_processor = Sequence([])
    special_tokens = {
        token.content: number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special
    }
    _check_not_writable(tokenizer, special_tokens, source)
    for role, token in (("bos", bos_token), ("eos", eos_token)):
        if token is not None and tokenizer.token_to_id(token) is None:
            raise CheckpointError(f"{source}: the {role} token {token!r} is not in the vocabulary")
    return LoadedTokenizer(
        tokenizer=tokenizer,
        special_tokens=special_tokens,
        bos_token=bos_token,
        eos_token=eos_token,
        vocab_size=max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1,
        revision=revision[:_REVISION_DIGITS],
        chat_template=chat_template,
        lead_ids=lead_ids,
    )


def _lead_ids(tokenizer: Tokenizer) -> tuple[int, ...]:
    """What the post-processor puts before a text, such as the id of BOS."""
    bare = tokenizer.encode("a", add_special_tokens=False).ids
    whole = tokenizer.encode("a").ids
    return tuple(next((whole[:at] for at in range(len(whole)) if whole[at : at + len(bare)] == bare), ()))


def _check_not_writable(tokenizer: Tokenizer, special_tokens: Mapping[str, int], source: str) -> None:
    """Check that with parsing off, the text of a special token does not give its id.

    Documents are tokenised so; a token that fails could be smuggled into a prompt.
    """
    tokenizer.encode_special_tokens = True
    for text, number in special_tokens.items():
        if number in tokenizer.encode(text).ids:
            raise CheckpointError(f"{source}: plain text can give the special token {text!r} ({number})")
    tokenizer.encode_special_tokens = False


def _check_added_tokens(tokenizer: Tokenizer, config: Mapping[str, object], source: Path) -> None:
    """Check that the added tokens which the config repeats are those of the tokenizer."""
    repeated = config.get("added_tokens_decoder", {})
    if not isinstance(repeated, dict):
        raise CheckpointError(f"{source}: added_tokens_decoder is no object")
    for number, token in repeated.items():
        text = token.get("content") if isinstance(token, dict) else None
        if not isinstance(text, str) or str(tokenizer.token_to_id(text)) != number:
            raise CheckpointError(f"{source}: added token {number} is {text!r}, which is not so in {_TOKENIZER}")


def _token_text(roles: Mapping[str, object], role: str, source: Path) -> str | None:
    """Text of a token that the config states plainly or as an object."""
    value = roles.get(role)
    text = value.get("content") if isinstance(value, dict) else value
    if text is not None and not isinstance(text, str):
        raise CheckpointError(f"{source}: {role} is {value!r}; a text is needed")
    return text


def _chat_template(config: Mapping[str, object], source: Path) -> str | None:
    """The template, or the one called ``default`` where there are several."""
    value = config.get("chat_template")
    if isinstance(value, list):
        named = {entry.get("name"): entry.get("template") for entry in value if isinstance(entry, dict)}
        value = named.get("default")
    if value is not None and not isinstance(value, str):
        raise CheckpointError(f"{source}: chat_template is a {type(value).__name__}; a text is needed")
    return value
