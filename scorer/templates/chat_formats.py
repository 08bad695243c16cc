"""Chat formats: the text and special tokens with which a family of models opens and closes turns."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import get_args

from scorer.templates.toml_table import TomlTable
from scorer.templates.types import MarkName, TemplateError

_MARKS: tuple[MarkName, ...] = get_args(MarkName)
_MODEL_BOS = "model"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatFormat:
    """What the marks of a template stand for.

    Args:
        special_tokens: Every special token that a mark or ``bos`` names.
        marks: Text of each mark.
        user_open_after_system: Stands for ``user_open`` directly after a system text, for
            formats that put the system text into the user's turn.
        bos: Token that every prompt begins with; None: none.
        bos_from_model: The prompt begins with the BOS of the model's tokenizer, if it has one.
        turns: Whether there are turns at all; false for base models.
    """

    name: str
    description: str
    special_tokens: tuple[str, ...]
    marks: Mapping[MarkName, str]
    user_open_after_system: str
    bos: str | None
    bos_from_model: bool
    turns: bool


def builtin_chat_formats() -> dict[str, ChatFormat]:
    """The formats that come with the package, by name, in alphabetical order."""
    folder = resources.files("scorer.templates") / "files" / "chat"
    read = [
        _parse(entry.read_text(encoding="utf-8"), source=f"chat/{entry.name}")
        for entry in folder.iterdir()
        if entry.name.endswith(".toml")
    ]
    return {chat.name: chat for chat in sorted(read, key=lambda chat: chat.name)}


def find_chat_format(name: str) -> ChatFormat:
    """The format called ``name``.

    Raises:
        TemplateError: there is none.
    """
    known = builtin_chat_formats()
    if name not in known:
        raise TemplateError(f"no chat format is called {name!r}; there are {', '.join(known)}")
    return known[name]


def detect_chat_format(special_tokens: Collection[str], *, chat_template: str | None = None) -> ChatFormat:
    """The format whose special tokens the vocabulary has; ``plain`` if there is none.

    A base model often shares the vocabulary of its chat sibling: name ``plain`` for it.

    Args:
        special_tokens: Those of the vocabulary.
        chat_template: The model's own template. If given, the turns must be opened there as the
            format opens them, so that unused tokens of a vocabulary mislead nobody.

    Raises:
        TemplateError: two formats fit equally well; one has to be named.
    """
    known = builtin_chat_formats()
    fitting = [
        chat
        for chat in known.values()
        if chat.special_tokens
        and set(chat.special_tokens) <= set(special_tokens)
        and (chat_template is None or _opening_token(chat) in chat_template)
    ]
    if len(fitting) > 1:
        names = ", ".join(chat.name for chat in fitting)
        raise TemplateError(f"the vocabulary has the special tokens of several chat formats ({names}); name one")
    return fitting[0] if fitting else known["plain"]


def prompt_bos(chat: ChatFormat, model_bos: str | None) -> str | None:
    """The token that a prompt in this format begins with, if any.

    Args:
        model_bos: BOS of the tokenizer. It counts only for formats without turns, and not if
            it is what opens a turn: some checkpoints name that token as their BOS.
    """
    if not chat.bos_from_model:
        return chat.bos
    opens_turns = {_opening_token(other) for other in builtin_chat_formats().values() if other.turns}
    return None if model_bos in opens_turns else model_bos


def _opening_token(chat: ChatFormat) -> str:
    """The special token that a user's turn starts with."""
    return next(token for token in chat.special_tokens if chat.marks["user_open"].startswith(token))


def _parse(content: str, *, source: str) -> ChatFormat:
    table = TomlTable(tomllib.loads(content), source=source, error=TemplateError)
    marks = table.table("marks")
    bos = table.text("bos")
    chat = ChatFormat(
        name=table.text("name"),
        description=table.text("description"),
        special_tokens=table.texts("special_tokens"),
        marks={name: marks.text(name) for name in _MARKS},
        user_open_after_system=marks.text("user_open_after_system"),
        bos=None if bos in ("", _MODEL_BOS) else bos,
        bos_from_model=bos == _MODEL_BOS,
        turns=table.boolean("turns"),
    )
    marks.done()
    table.done()
    return chat
