"""Texts of a batch to the token ids of its pairs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt

from engine import TokenIds
from scorer.scoring.prompt_batch import PromptBatch
from scorer.scoring.prompt_frame import PromptFrame, make_frame
from scorer.scoring.prompt_texts import PairTexts, fill_layout
from scorer.scoring.prompt_types import PairPrompt, PromptError, PromptLimits
from scorer.templates.chat_formats import ChatFormat
from scorer.templates.layout import Layout, TemplateBinder
from scorer.templates.types import Order, SlotName, Template, TemplateError
from scorer.tokens.text_tokens import TextEncoder, TextMemo, TextPiece, read_only_ids
from scorer.tokens.tokenizer_files import LoadedTokenizer

_MAX_FRAMES = 32
"""How many frames of one template are remembered, those used last."""

_MAX_FRAME_CHARS = 4096
"""Most characters of a request's own texts in a frame that is remembered, so that none is large."""


class PromptInputError(ValueError):
    """A value of the request can never be used, whatever the other values are.

    Args:
        message: States what was wanted and what was got.
        param: The value to blame, such as ``documents[3]``.
    """

    def __init__(self, message: str, *, param: str) -> None:
        super().__init__(message)
        self.param = param


class PromptBuilder:
    """Builds the prompts of one template for one model. Safe to use from any thread.

    Two texts give the same ids whatever was built before and whatever ``memo`` holds.

    Args:
        cut: Tokenise slots apart from each other where that changes no token.

    Raises:
        TemplateError: the template does not fit the vocabulary or the chat format.
    """

    def __init__(
        self, tokenizer: LoadedTokenizer, template: Template, chat: ChatFormat, memo: TextMemo, *, cut: bool = True
    ) -> None:
        self.template = template
        self.chat = chat
        self._tokenizer = tokenizer
        binder = TemplateBinder(template, chat, tokenizer)
        self._encoder = TextEncoder(tokenizer.tokenizer, binder.controls, memo)
        self._layouts: dict[tuple[Order, bool, bool], Layout] = {
            (order, system, instruction): binder.layout(
                order, with_system=system, with_instruction=instruction, cut=cut
            )
            for order in template.orders
            for system in (False, True)
            for instruction in (False, True)
        }
        places = {layout.label_place for layout in self._layouts.values()}
        if len(places) > 1:
            raise TemplateError(f"{template.source}: its prompts end in different texts; labels need one ending")
        self._label_place = places.pop()
        self._shows_labels = template.has_slot("labels")
        self._known_frame = lru_cache(maxsize=_MAX_FRAMES)(self._make_frame)
        self._default_labels: Mapping[str, TokenIds] = {}
        if template.readout == "labels":
            self._default_labels = self._read_default_labels()

    @property
    def special_tokens(self) -> Mapping[str, int]:
        """Ids of the special tokens of the vocabulary, by text."""
        return self._tokenizer.special_tokens

    def plain(self) -> PromptBuilder:
        """A builder that tokenises each text of a pair as a whole and anew: the judge of this one."""
        return PromptBuilder(self._tokenizer, self.template, self.chat, TextMemo(0), cut=False)

    def choose_order(self, wanted: Literal["auto", "document_first", "query_first"]) -> Order:
        """The order of a request. ``auto``: the document first, where the template can.

        Documents are long and come back in other requests, so they are worth sharing. The
        choice must not look at the rest of the batch: a pair has one score, alone or not.

        Raises:
            PromptInputError: the template does not have the order.
        """
        if wanted == "auto":
            return "document_first" if "document_first" in self.template.orders else "query_first"
        if wanted not in self.template.orders:
            raise PromptInputError(
                f"template {self.template.id} has no order {wanted!r}, only {' and '.join(self.template.orders)}",
                param="order",
            )
        return wanted

    def build(
        self,
        pairs: Sequence[tuple[int, int]],
        *,
        queries: Sequence[str],
        documents: Sequence[str],
        instruction: str | None,
        system: str | None,
        order: Literal["auto", "document_first", "query_first"],
        limits: PromptLimits,
        labels: Sequence[str] = (),
        options: Mapping[int, Sequence[str]] | None = None,
    ) -> list[PairPrompt | PromptError]:
        """The prompt of each pair, in the order of ``pairs``; one that has none does not spoil the others.

        Args:
            pairs: Indices into ``queries`` and ``documents``.
            instruction: None: the template's own. Empty: none.
            system: As ``instruction``.
            labels: As the prompt spells them out, where it does; none: the template's.
            options: By index of the query, in the order in which they are listed; for templates that
                list options.

        Raises:
            PromptInputError: a text is not Unicode text, or the template has no place for the
                instruction, the system text or the order.
        """
        instruction = self._slot_text("instruction", instruction)
        system = self._slot_text("system", system)
        listed = self._listed_options(options)
        for name, texts in (("queries", queries), ("documents", documents)):
            for index, text in enumerate(texts):
                _check_unicode(text, f"{name}[{index}]")
        shown = self.template.label_list.render(labels or self.template.labels) if self._shows_labels else ""
        batch = PromptBatch(
            self._frame(self.choose_order(order), system, instruction, shown),
            encoder=self._encoder,
            limits=limits,
            has_target=self.template.readout == "likelihood",
            longest_shared_slot="system" if len(system) > len(instruction) else "instruction",
        )
        if self.template.trim:
            queries, documents = [text.strip() for text in queries], [text.strip() for text in documents]
        return batch.build(
            [PairTexts(queries[query], documents[document], listed.get(query, "")) for query, document in pairs]
        )

    def label_ids(self, labels: Sequence[str]) -> list[TokenIds]:
        """The tokens of each label as they follow the prompt; a label may have several.

        Raises:
            PromptInputError: a label is empty or not Unicode text, two labels have the same
                tokens, or a label would change the tokens of the prompt before it.
        """
        if self._default_labels.keys() >= set(labels) and len(set(labels)) == len(labels):
            return [self._default_labels[label] for label in labels]
        return self._read_labels(labels)

    def token_starts(self, texts: Collection[str]) -> dict[str, npt.NDArray[np.int32]]:
        """For each text, tokenised alone, the character at which each of its tokens begins."""
        pieces = {text: TextPiece(text, 0, True) for text in texts}
        encoded = self._encoder.encode(list(pieces.values()), spans=True)
        starts: dict[str, npt.NDArray[np.int32]] = {}
        for text, piece in pieces.items():
            spans = encoded[piece].spans
            assert spans is not None, "spans were asked for"
            starts[text] = spans.starts
        return starts

    def _read_labels(self, labels: Sequence[str]) -> list[TokenIds]:
        place = self._label_place
        before = TextPiece(place.before, 0, place.starts_text)
        wholes = [TextPiece(f"{place.before}{place.lead}{label}", 0, place.starts_text) for label in labels]
        for index, label in enumerate(labels):
            _check_unicode(label, f"labels[{index}]")
        encoded = self._encoder.encode([before, *wholes])
        prefix = encoded[before].ids.tolist()
        found: dict[tuple[int, ...], str] = {}
        for index, (label, whole) in enumerate(zip(labels, wholes, strict=True)):
            ids = encoded[whole].ids.tolist()
            own = tuple(ids[len(prefix) :])
            param = f"labels[{index}]"
            if not label or not own:
                raise PromptInputError(f"{param} is {label!r}, which has no tokens", param=param)
            if ids[: len(prefix)] != prefix:
                raise PromptInputError(
                    f"{param} is {label!r}, which merges with the text before it, {place.before[-20:]!r}", param=param
                )
            if own in found:
                raise PromptInputError(
                    f"{param} is {label!r}, which has the same tokens as {found[own]!r}", param=param
                )
            found[own] = label
        return [read_only_ids(ids) for ids in found]

    def _frame(self, order: Order, system: str, instruction: str, labels: str) -> PromptFrame:
        """The frame of a request, which most often is that of one before it."""
        is_small = len(system) + len(instruction) + len(labels) <= _MAX_FRAME_CHARS
        return (self._known_frame if is_small else self._make_frame)(order, system, instruction, labels)

    def _make_frame(self, order: Order, system: str, instruction: str, labels: str) -> PromptFrame:
        layout = self._layouts[order, system != "", instruction != ""]
        shared: dict[SlotName, str] = {"system": system, "instruction": instruction}
        if self._shows_labels:
            shared["labels"] = labels
        return make_frame(fill_layout(layout.parts, order=order, shared=shared), self._encoder)

    def _listed_options(self, options: Mapping[int, Sequence[str]] | None) -> dict[int, str]:
        """The text of the options of each query."""
        listing = self.template.listing
        if options is None or listing is None:
            return {}
        for query, texts in options.items():
            for index, text in enumerate(texts):
                _check_unicode(text, f"queries[{query}].options[{index}]")
        return {query: listing.render(self.template.labels, texts) for query, texts in options.items()}

    def _read_default_labels(self) -> dict[str, TokenIds]:
        """The template's own labels and their tokens.

        Raises:
            TemplateError: they do not fit the vocabulary.
        """
        labels = self.template.labels
        try:
            ids = self._read_labels(labels)
        except PromptInputError as error:
            raise TemplateError(f"{self.template.source}: readout.labels: {error}") from error
        if self.template.scoring.kind == "logit" and any(len(each) > 1 for each in ids):
            raise TemplateError(
                f"{self.template.source}: readout.labels: a label has several tokens; it has no logit of its own"
            )
        return dict(zip(labels, ids, strict=True))

    def _slot_text(self, name: Literal["instruction", "system"], text: str | None) -> str:
        if text is None:
            return self.template.instruction if name == "instruction" else self.template.system
        _check_unicode(text, name)
        if text and not self.template.has_slot(name):
            raise PromptInputError(f"template {self.template.id} has no place for this text", param=name)
        return text


def _check_unicode(text: str, param: str) -> None:
    if text.isascii():
        return
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise PromptInputError(
            f"{param} is not Unicode text: character {error.start} is half of a surrogate pair", param=param
        ) from error
