"""Prompts of pairs: one for each, or one for each order of the labels and each part of the document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scorer.dialects.schema import QueryItem
from scorer.errors import InvalidValue
from scorer.scoring.ask import Ask, Draft, check_room, text_of
from scorer.scoring.document_chunks import split_documents
from scorer.scoring.item_plan import ItemPlan, Part
from scorer.scoring.label_orders import LabelOrder, label_orders
from scorer.scoring.prompt_types import PairPrompt, PromptError
from scorer.scoring.readouts import LabelPlan, ReadoutPlan, settle_listing, settle_readout


def plan_pairs(ask: Ask, room: int) -> Draft:
    """The prompts of an ask whose pairs have nothing to do with each other.

    Args:
        room: Most rows that may come of it.

    Raises:
        InvalidValue: a value of the request cannot be served.
        PromptInputError: a text can never be used.
    """
    _check_options(ask)
    orders, readouts = _settle(ask)
    request = ask.request
    documents = [text_of(document) for document in request.documents]
    if len(orders) == 1 and ask.lists is None and request.chunking is None and ask.spec.content_free is None:
        check_room(len(ask.pairs), readouts[0], room, field="documents", why=f"{len(ask.pairs)} pairs")
        prompts = _build(ask, readouts, ask.pairs, documents, orders[0])
        return Draft(prompts=prompts, readouts=[readouts[0]] * len(prompts))
    return _plan_composed(ask, room, orders, readouts, documents)


def _plan_composed(
    ask: Ask, room: int, orders: Sequence[LabelOrder], readouts: Sequence[ReadoutPlan], documents: list[str]
) -> Draft:
    texts, chunks_of = _chunks(ask, documents)
    reads = {(query, chunk): None for query, document in ask.pairs for chunk in chunks_of[document]}
    if ask.spec.content_free is not None:
        texts.append(ask.spec.content_free)
        reads |= {(query, len(texts) - 1): None for query, _ in ask.pairs}
    place = {read: index for index, read in enumerate(reads)}
    check_room(
        len(reads) * len(orders),
        readouts[0],
        room,
        field="readout.debias" if len(orders) > 1 else "chunking" if ask.request.chunking else "documents",
        why=f"{len(ask.pairs)} pairs in {len(reads)} parts and {len(orders)} orders",
    )
    prompts: list[PairPrompt | PromptError] = []
    planned: list[ReadoutPlan] = []
    for order, readout in zip(orders, readouts, strict=True):
        prompts += _build(ask, readouts, list(reads), texts, order)
        planned += [readout] * len(reads)

    def parts(query: int, text: int) -> tuple[Part, ...]:
        return tuple(Part(order * len(reads) + place[query, text]) for order in range(len(orders)))

    items = [
        ItemPlan(
            chunks=tuple(parts(query, chunk) for chunk in chunks_of[document]),
            num_orders=len(orders),
            combine=ask.request.chunking.combine if ask.request.chunking else "max",
            content_free=parts(query, len(texts) - 1) if ask.spec.content_free is not None else (),
        )
        for query, document in ask.pairs
    ]
    return Draft(prompts=prompts, readouts=planned, items=items)


def _settle(ask: Ask) -> tuple[list[LabelOrder], list[ReadoutPlan]]:
    """The orders that are averaged, and the readout in each."""
    if ask.lists == "options":
        orders = label_orders(ask.num_options, ask.debias)
        return orders, [settle_listing(ask.spec, ask.builder, order, ask.calibration) for order in orders]
    readout = settle_readout(ask.spec, ask.builder, ask.calibration)
    orders = label_orders(len(readout.labels) if isinstance(readout, LabelPlan) else 1, ask.debias)
    return orders, [readout] * len(orders)


def _build(
    ask: Ask, readouts: Sequence[ReadoutPlan], pairs: Sequence[tuple[int, int]], documents: list[str], order: LabelOrder
) -> list[PairPrompt | PromptError]:
    request, readout = ask.request, readouts[0]
    labels: Sequence[str] = ()
    if isinstance(readout, LabelPlan) and readout.answers == "labels":
        labels = [readout.labels[index] for index in order]
    return ask.builder.build(
        pairs,
        queries=[text_of(query) for query in request.queries],
        documents=documents,
        instruction=request.instruction,
        system=request.system,
        order=ask.order,
        limits=ask.limits(readouts),
        labels=labels,
        options=_shown_options(ask, order),
    )


def _shown_options(ask: Ask, order: LabelOrder) -> Mapping[int, Sequence[str]] | None:
    if ask.lists != "options":
        return None
    shown: dict[int, Sequence[str]] = {}
    for query in {query for query, _ in ask.pairs}:
        item = ask.request.queries[query]
        assert isinstance(item, QueryItem), "only such a query has options"
        assert item.options is not None, "an ask that lists options has them"
        shown[query] = [item.options[index] for index in order]
    return shown


def _chunks(ask: Ask, documents: list[str]) -> tuple[list[str], list[list[int]]]:
    """The texts that stand for documents, and those of each document."""
    spec = ask.request.chunking
    if spec is None:
        return list(documents), [[index] for index in range(len(documents))]
    texts: list[str] = []
    chunks_of: list[list[int]] = []
    for parts in split_documents(ask.builder, documents, spec):
        chunks_of.append(list(range(len(texts), len(texts) + len(parts))))
        texts += parts
    return texts, chunks_of


def _check_options(ask: Ask) -> None:
    if ask.request.chunking is not None and ask.request.max_tokens_per_doc is not None:
        raise InvalidValue(
            "max_tokens_per_doc cuts the documents that chunking would take in parts; give one of the two",
            field="max_tokens_per_doc",
            value=ask.request.max_tokens_per_doc,
        )
    if ask.spec.content_free is not None and ask.spec.normalise == "vocabulary":
        raise InvalidValue(
            "content_free can only be taken off labels that are normalised among themselves",
            field="readout.content_free",
        )
