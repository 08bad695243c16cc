"""Prompts in which the documents of a query are compared with each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb
from typing import Final

from scorer.errors import InvalidValue
from scorer.scoring.ask import Ask, Draft, check_room, text_of
from scorer.scoring.batch import Pair
from scorer.scoring.document_chunks import cut_text
from scorer.scoring.item_plan import ItemPlan, Part
from scorer.scoring.label_orders import LabelOrder, label_orders
from scorer.scoring.prompt_types import PairPrompt, PromptError
from scorer.scoring.readouts import LabelPlan, settle_listing

_MOST_CUTS: Final = 8
"""How often documents are cut shorter before a set counts as too long; each time most of the excess goes."""


@dataclass(frozen=True, slots=True)
class _Set:
    """Documents of one query that stand in one prompt, in the order of the request."""

    query: int
    documents: tuple[int, ...]


@dataclass(slots=True)
class _Built:
    """The prompts of a set, one for each order, and the longest that a document was left."""

    prompts: list[PairPrompt | PromptError]
    max_document_tokens: int | None


def plan_sets(ask: Ask, room: int) -> Draft:
    """The prompts of an ask whose template lists documents.

    Args:
        room: Most rows that may come of it.

    Raises:
        InvalidValue: a value of the request cannot be served.
        PromptInputError: a text can never be used.
    """
    _check_options(ask)
    sets = _sets(ask, room)
    orders = {size: label_orders(size, ask.debias) for size in {len(each.documents) for each in sets}}
    readouts = {
        size: [settle_listing(ask.spec, ask.builder, order, ask.calibration) for order in own]
        for size, own in orders.items()
    }
    num_prompts = sum(len(orders[len(each.documents)]) for each in sets)
    some = next(iter(readouts.values()))[0]
    check_room(num_prompts, some, room, field="documents", why=f"{len(sets)} sets of documents")
    builder = _SetBuilder(ask, orders, readouts)
    built = builder.build(sets)
    prompts: list[PairPrompt | PromptError] = []
    planned: list[LabelPlan] = []
    parts: dict[Pair, list[Part]] = {pair: [] for pair in ask.pairs}
    cut: Counter[Pair] = Counter()
    num_orders: dict[Pair, int] = {}
    for each, own in zip(sets, built, strict=True):
        size = len(each.documents)
        for place, document in enumerate(each.documents):
            pair = each.query, document
            # labels of a readout are in the order of the request, so the place of a document is its label
            parts[pair] += [Part(len(prompts) + order, place) for order in range(len(orders[size]))]
            cut[pair] = max(cut[pair], builder.cut_tokens(document, own))
            num_orders[pair] = len(orders[size])
        prompts += own.prompts
        planned += readouts[size]
    items = [
        ItemPlan(chunks=(tuple(parts[pair]),), num_orders=num_orders[pair], cut_tokens=cut[pair]) for pair in ask.pairs
    ]
    return Draft(prompts=prompts, readouts=planned, items=items)


def _check_options(ask: Ask) -> None:
    template = ask.builder.template
    for field, given in (
        ("chunking", ask.request.chunking is not None),
        ("readout.content_free", ask.spec.content_free is not None),
    ):
        if given:
            raise InvalidValue(f"template {template.id} compares whole documents with each other", field=field)


def _sets(ask: Ask, room: int) -> list[_Set]:
    """The comparisons of each query."""
    template = ask.builder.template
    assert template.listing is not None, "only templates that list documents come here"
    documents: dict[int, dict[int, None]] = {}
    for query, document in ask.pairs:
        documents.setdefault(query, {})[document] = None
    sets: list[_Set] = []
    for query, own in documents.items():
        size = template.listing.compare or len(own)
        if size > len(template.labels):
            raise InvalidValue(
                f"template {template.id} compares up to {len(template.labels)} documents at a time and "
                f"queries[{query}] has {size}: send the best {len(template.labels)} by another template, "
                "or several requests",
                field="documents",
                value=size,
                limit=len(template.labels),
            )
        size = min(size, len(own))
        if comb(len(own), size) > room:
            raise InvalidValue(
                f"{len(own)} documents make {comb(len(own), size)} comparisons, the limit is {room}",
                field="documents",
                value=comb(len(own), size),
                limit=room,
            )
        sets += [_Set(query, chosen) for chosen in combinations(own, size)]
    return sets


class _SetBuilder:
    """Builds the prompts of sets; what does not fit has its longest documents cut."""

    def __init__(
        self, ask: Ask, orders: Mapping[int, list[LabelOrder]], readouts: Mapping[int, list[LabelPlan]]
    ) -> None:
        self._ask = ask
        self._orders = orders
        self._limits = ask.limits([each for own in readouts.values() for each in own], whole_documents=True)
        self._texts = [text_of(document) for document in ask.request.documents]
        self._starts = ask.builder.token_starts({self._texts[document] for _, document in ask.pairs})

    def tokens(self, document: int) -> int:
        """Length of a document, tokenised alone."""
        return len(self._starts[self._texts[document]])

    def build(self, sets: Sequence[_Set]) -> list[_Built]:
        request = self._ask.request
        limit = request.max_tokens_per_doc
        built = [_Built([], limit) for _ in sets]
        pending = list(range(len(sets)))
        for _ in range(_MOST_CUTS):
            if not pending:
                break
            self._build_once(sets, built, pending)
            pending = [index for index in pending if self._shorten(sets[index], built[index])]
        if request.truncate == "error" and limit is not None:
            for each, own in zip(sets, built, strict=True):
                self._refuse_cut(each, own, limit)
        return built

    def _build_once(self, sets: Sequence[_Set], built: Sequence[_Built], pending: Sequence[int]) -> None:
        ask, listing, labels = self._ask, self._ask.builder.template.listing, self._ask.builder.template.labels
        assert listing is not None, "only templates that list documents come here"
        blocks: list[str] = []
        pairs: list[tuple[int, int]] = []
        for index in pending:
            shown = [self._shown(document, built[index].max_document_tokens) for document in sets[index].documents]
            for order in self._orders[len(shown)]:
                pairs.append((sets[index].query, len(blocks)))
                blocks.append(listing.render(labels, [shown[place] for place in order]))
        prompts = ask.builder.build(
            pairs,
            queries=[text_of(query) for query in ask.request.queries],
            documents=blocks,
            instruction=ask.request.instruction,
            system=ask.request.system,
            order=ask.order,
            limits=self._limits,
        )
        for index in pending:
            count = len(self._orders[len(sets[index].documents)])
            built[index].prompts, prompts = prompts[:count], prompts[count:]

    def _shown(self, document: int, limit: int | None) -> str:
        text = self._texts[document]
        return text if limit is None else cut_text(text, self._starts[text], limit, self._limits.truncation_side)

    def _shorten(self, each: _Set, own: _Built) -> bool:
        """Lower the limit of a set that is too long; False if there is nothing to be done."""
        errors = [prompt for prompt in own.prompts if isinstance(prompt, PromptError)]
        if not errors or any(error.code != "document_too_long" for error in errors):
            return False
        if self._ask.request.truncate == "error":
            return False
        lengths = [self._kept(document, own.max_document_tokens) for document in each.documents]
        excess = max(error.tokens - error.limit for error in errors)
        shorter = _level(lengths, sum(lengths) - excess)
        own.max_document_tokens = shorter
        return shorter > 0

    def _kept(self, document: int, limit: int | None) -> int:
        tokens = self.tokens(document)
        return tokens if limit is None else min(tokens, limit)

    def cut_tokens(self, document: int, own: _Built) -> int:
        return self.tokens(document) - self._kept(document, own.max_document_tokens)

    def _refuse_cut(self, each: _Set, own: _Built, limit: int) -> None:
        for document in each.documents:
            if (tokens := self.tokens(document)) > limit:
                message = f"documents[{document}] of this set has {tokens} tokens; {limit} fit, and truncation is off"
                error = PromptError(
                    code="document_too_long", slot="document", message=message, tokens=tokens, limit=limit
                )
                own.prompts = [error] * len(own.prompts)
                return


def _level(lengths: Sequence[int], target: int) -> int:
    """The greatest level at which lengths cut down to it add up to no more than ``target``."""
    left, remaining = target, len(lengths)
    for length in sorted(lengths):
        if length * remaining > left:
            return max(0, left // remaining)
        left -= length
        remaining -= 1
    return max(lengths)
