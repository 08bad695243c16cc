"""A template bound to a chat format and a vocabulary: special token ids and runs of text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeAlias

from tokenizers import AddedToken

from scorer.templates.chat_formats import ChatFormat, prompt_bos
from scorer.templates.types import Mark, Order, Piece, Slot, Template, TemplateError, Text
from scorer.tokens.safe_cuts import SafeCuts
from scorer.tokens.tokenizer_files import LoadedTokenizer


@dataclass(frozen=True, slots=True)
class SpecialToken:
    text: str
    id: int


@dataclass(frozen=True, slots=True)
class TextRun:
    """Text that is tokenised as one. Literals and slots alternate; neighbours are one literal.

    Args:
        starts_text: The text that it belongs to starts here: nothing precedes it but a BOS that
            the template does not spell out. Under the piecewise rule every piece is such a text.
    """

    segments: tuple[Text | Slot, ...]
    starts_text: bool


LayoutPart: TypeAlias = SpecialToken | TextRun


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelPlace:
    """Where a label follows the prompt.

    Args:
        before: Literal text that ends the prompt and could merge with a label.
        lead: Spaces that the template ends in. They belong to the label, since a word is one
            token together with the space before it.
        starts_text: ``before`` starts the whole text.
    """

    before: str
    lead: str
    starts_text: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The prompt of one order, with or without a system text and an instruction."""

    parts: tuple[LayoutPart, ...]
    label_place: LabelPlace


class TemplateBinder:
    """Binds the layouts of one template to one chat format and one vocabulary.

    Raises:
        TemplateError: a special token is unknown to the vocabulary or stands where it must not.
    """

    def __init__(self, template: Template, chat: ChatFormat, tokenizer: LoadedTokenizer) -> None:
        self._template = template
        self._chat = chat
        self._bos = prompt_bos(chat, tokenizer.bos_token)
        self._special_texts = frozenset(tokenizer.special_tokens)
        self._added = {token.content: (number, token) for number, token in _added_tokens(tokenizer)}
        self._cuts = SafeCuts(tokenizer.tokenizer)
        self.controls = frozenset((*template.special_tokens, *chat.special_tokens))
        """Tokens that literals may name, so that no text of a request may produce them."""
        longest_first = sorted(self.controls, key=len, reverse=True)
        self._special_pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        for key, text in (("instruction", template.instruction), ("system", template.system)):
            self._refuse_special(key, text, "no special token in the text of a slot")

    def layout(self, order: Order, *, with_system: bool, with_instruction: bool, cut: bool = True) -> Layout:
        """The prompt of ``order``, whose pieces depend on which texts are given.

        Args:
            cut: Cut runs where that changes no token, so that each slot's text is remembered by itself.
        """
        present = {
            None: True,
            "system": with_system,
            "instruction": with_instruction,
            "chat": self._chat.turns,
            "plain": not self._chat.turns,
        }
        pieces = [piece for piece in self._template.layouts[order] if present[piece.when]]
        groups = self._without_marks(pieces)
        if self._template.join == "joined":
            groups = [[segment for group in groups for segment in group]]
        place = LabelPlace(before="", lead="", starts_text=False)
        if self._template.readout == "labels" and self._template.join == "joined":
            groups[0], lead = _split_trailing_spaces(groups[0])
            place = replace(place, lead=lead)
        parts = self._with_bos([part for group in groups for part in _starting_text(self._parts(group))])
        if self._template.readout == "labels":
            place = self._label_place(order, parts, place)
        return Layout(parts=tuple(self._cut(parts) if cut else parts), label_place=place)

    def _without_marks(self, pieces: list[Piece]) -> list[list[Text | Slot]]:
        """The segments of what is tokenised together, with the text of the chat format in place of the marks."""
        groups: list[list[Text | Slot]] = []
        after_system = joined = False
        for piece in pieces:
            group = groups.pop() if joined else []
            joined = piece.with_next
            for segment in piece.segments:
                if not isinstance(segment, Mark):
                    group.append(segment)
                elif segment.name == "user_open" and after_system:
                    group.append(Text(self._chat.user_open_after_system))
                else:
                    group.append(Text(self._chat.marks[segment.name]))
                after_system = segment == Mark("system_close")
            groups.append(group)
        return groups

    def _parts(self, group: list[Text | Slot]) -> Iterator[LayoutPart]:
        """Special tokens, and the runs of text between them."""
        run: list[Text | Slot] = []
        for segment in group:
            if isinstance(segment, Slot):
                run.append(segment)
                continue
            end = 0
            for match in self._special_pattern.finditer(segment.text):
                run.append(self._plain(segment.text[end : match.start()]))
                yield from _as_runs(run)
                run = []
                yield self._special(match.group())
                end = match.end()
            run.append(self._plain(segment.text[end:]))
        yield from _as_runs(run)

    def _plain(self, text: str) -> Text:
        self._refuse_special("a literal", text, "special tokens listed in special_tokens")
        return Text(text)

    def _refuse_special(self, key: str, text: str, wanted: str) -> None:
        for special in self._special_texts:
            if special in text:
                raise TemplateError(
                    f"{self._template.source}: {key} is {text!r}, which holds {special!r}; wanted {wanted}"
                )

    def _special(self, text: str) -> SpecialToken:
        if text not in self._added:
            raise TemplateError(
                f"{self._template.source}: special token {text!r} is not in the vocabulary of this model "
                f"(chat format {self._chat.name})"
            )
        number, token = self._added[text]
        if token.lstrip or token.rstrip:
            raise TemplateError(f"{self._template.source}: special token {text!r} takes in the white space beside it")
        return SpecialToken(text, number)

    def _with_bos(self, parts: list[LayoutPart]) -> list[LayoutPart]:
        """BOS once, at the start, if the chat format has one; a literal may already name it."""
        bos = self._bos and self._special(self._bos)
        if bos and parts[:1] != [bos]:
            parts = [bos, *parts]
        if bos and parts.count(bos) > 1:
            raise TemplateError(f"{self._template.source}: {bos.text!r} begins a text and stands inside it too")
        return parts

    def _label_place(self, order: Order, parts: list[LayoutPart], place: LabelPlace) -> LabelPlace:
        last = parts[-1] if parts else None
        if isinstance(last, SpecialToken) or self._template.join == "piecewise":
            return replace(place, starts_text=self._template.join == "piecewise")
        if last is None or not isinstance(last.segments[-1], Text):
            raise TemplateError(
                f"{self._template.source}: orders.{order} ends in a slot; wanted text that is not only spaces after it"
            )
        return replace(place, before=last.segments[-1].text, starts_text=last.starts_text and len(last.segments) == 1)

    def _cut(self, parts: list[LayoutPart]) -> Iterator[LayoutPart]:
        for part in parts:
            if isinstance(part, SpecialToken):
                yield part
            else:
                yield from self._cut_run(part)

    def _cut_run(self, run: TextRun) -> Iterator[TextRun]:
        """Runs with one slot each, where the literals allow it, so that each can be remembered."""
        current: list[Text | Slot] = []
        starts_text = run.starts_text
        for index, segment in enumerate(run.segments):
            if isinstance(segment, Slot):
                current.append(segment)
                continue
            cuts = self._cuts.find(segment.text)
            # near the slot on either side; what lies between the two never changes
            after_slot = cuts[:1] if index > 0 else []
            before_slot = cuts[-1:] if index < len(run.segments) - 1 else []
            bounds = sorted({0, *after_slot, *before_slot, len(segment.text)})
            for start, end in pairwise(bounds):
                if start > 0:
                    yield TextRun(tuple(current), starts_text)
                    current, starts_text = [], False
                current.append(Text(segment.text[start:end]))
        if current:
            yield TextRun(tuple(current), starts_text)


def _added_tokens(tokenizer: LoadedTokenizer) -> list[tuple[int, AddedToken]]:
    return list(tokenizer.tokenizer.get_added_tokens_decoder().items())


def _as_runs(segments: list[Text | Slot]) -> Iterator[TextRun]:
    """One run, with neighbouring literals made one; nothing if there is no text."""
    merged: list[Text | Slot] = []
    for segment in segments:
        last = merged[-1] if merged else None
        if isinstance(segment, Text) and isinstance(last, Text):
            merged[-1] = Text(last.text + segment.text)
        elif segment != Text(""):
            merged.append(segment)
    if merged:
        yield TextRun(tuple(merged), starts_text=False)


def _starting_text(parts: Iterator[LayoutPart]) -> Iterator[LayoutPart]:
    for index, part in enumerate(parts):
        yield replace(part, starts_text=True) if index == 0 and isinstance(part, TextRun) else part


def _split_trailing_spaces(group: list[Text | Slot]) -> tuple[list[Text | Slot], str]:
    """The segments without the spaces they end in, and those spaces."""
    kept, lead = list(group), ""
    while kept and isinstance(last := kept[-1], Text):
        stripped = last.text.rstrip(" ")
        lead = last.text[len(stripped) :] + lead
        kept.pop()
        if stripped:
            kept.append(Text(stripped))
            break
    return kept, lead
