"""From a request to rows: pairs, templates, readouts, prompts. Runs in a worker thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from scorer.dialects.schema import MAX_COUNT, QueryItem, ReadoutSpec, ScoreRequest
from scorer.errors import InvalidValue, UnknownModel
from scorer.model_host import LoadedModel
from scorer.scoring.ask import Ask, Draft
from scorer.scoring.batch import BatchPlan, Pair
from scorer.scoring.document_sets import plan_sets
from scorer.scoring.item_plan import ItemPlan, Part
from scorer.scoring.pair_prompts import plan_pairs
from scorer.scoring.prompt_types import PairPrompt, PromptError
from scorer.scoring.prompts import PromptBuilder, PromptInputError
from scorer.scoring.readouts import LabelPlan, ReadoutPlan, wanted_kind
from scorer.scoring.rows import plan_rows


def plan_batch(request: ScoreRequest, model: LoadedModel, *, max_pairs: int) -> BatchPlan:
    """Everything that can be known of a request without running the model.

    Raises:
        InvalidValue: a value of the request cannot be served; names the field.
        UnknownModel: another model is asked for.
    """
    check_model(request.model, model)
    pairs = _pairs(request, max_pairs)
    asks = _asks(request, model, pairs)
    drafts: list[Draft] = []
    room = max_pairs
    for ask in asks:
        with ask.blaming():
            drafts.append((plan_sets if ask.lists == "documents" else plan_pairs)(ask, room))
        room -= drafts[-1].num_rows
    prompts, readouts, items = _merge(asks, drafts, len(pairs))
    first = min(asks, key=lambda ask: ask.places[0])
    return BatchPlan(
        template=first.builder.template.id,
        order=first.order,
        pairs=pairs,
        prompts=prompts,
        readouts=readouts,
        rows=plan_rows(prompts, readouts, request.cache.keep),
        items=items,
        templates=_templates(asks, len(pairs)),
        calibration=_calibration_id(asks, readouts),
    )


def check_model(wanted: str | None, model: LoadedModel) -> None:
    """Check that a request names no other model.

    Raises:
        UnknownModel: it does.
    """
    if wanted is not None and wanted != model.name:
        raise UnknownModel(f"the model that is served is {model.name}", field="model", limit=model.name)


def _merge(
    asks: Sequence[Ask], drafts: Sequence[Draft], num_pairs: int
) -> tuple[list[PairPrompt | PromptError], list[ReadoutPlan], list[ItemPlan] | None]:
    """The drafts as one batch: prompts one after the other, items in the order of the pairs."""
    if len(drafts) == 1 and drafts[0].items is None:
        return list(drafts[0].prompts), list(drafts[0].readouts), None
    prompts: list[PairPrompt | PromptError] = []
    readouts: list[ReadoutPlan] = []
    items: dict[int, ItemPlan] = {}
    for ask, draft in zip(asks, drafts, strict=True):
        own = draft.items or [ItemPlan(chunks=((Part(index),),)) for index in range(len(draft.prompts))]
        items |= {place: _moved(item, len(prompts)) for place, item in zip(ask.places, own, strict=True)}
        prompts += draft.prompts
        readouts += draft.readouts
    return prompts, readouts, [items[place] for place in range(num_pairs)]


def _moved(item: ItemPlan, offset: int) -> ItemPlan:
    if offset == 0:
        return item

    def moved(parts: tuple[Part, ...]) -> tuple[Part, ...]:
        return tuple(Part(part.prompt + offset, part.positive) for part in parts)

    return replace(item, chunks=tuple(moved(chunk) for chunk in item.chunks), content_free=moved(item.content_free))


def _asks(request: ScoreRequest, model: LoadedModel, pairs: Sequence[Pair]) -> list[Ask]:
    """The pairs, grouped by how their queries are read.

    Raises:
        InvalidValue: a template, an order or options do not fit.
    """
    if all(isinstance(query, str) for query in request.queries):
        return [_ask(request, model, pairs[0][0], range(len(pairs)), pairs)]
    places: dict[int, list[int]] = {}
    for place, (query, _) in enumerate(pairs):
        places.setdefault(query, []).append(place)
    grouped: dict[tuple[str, bytes, int], Ask] = {}
    for query, own in places.items():
        ask = _ask(request, model, query, own, pairs)
        key = ask.builder.template.id, msgspec.json.encode(ask.spec), ask.num_options
        if key in grouped:
            known = grouped[key]
            ask = replace(known, places=[*known.places, *ask.places], pairs=[*known.pairs, *ask.pairs])
        grouped[key] = ask
    return list(grouped.values())


def _ask(request: ScoreRequest, model: LoadedModel, query: int, places: Sequence[int], pairs: Sequence[Pair]) -> Ask:
    item = request.queries[query]
    own = item if isinstance(item, QueryItem) else QueryItem(text=item)
    spec = own.readout or request.readout
    field = "" if own.readout is None else f"queries[{query}]."
    builder = _choose(request, own, spec, model, query)
    try:
        order = builder.choose_order(request.order)
    except PromptInputError as error:
        raise InvalidValue(str(error), field=error.param) from error
    calibration = None
    if request.calibration == "auto" and spec.content_free is None and spec.values is None:
        calibration = model.calibration_for(builder.template.id)
    return Ask(
        request=request,
        builder=builder,
        spec=spec,
        calibration=calibration,
        order=order,
        places=places,
        pairs=[pairs[place] for place in places],
        field=field,
        num_options=len(own.options or ()),
        max_row_tokens=min(model.engine.info.max_row_tokens, request.max_tokens_per_prompt or MAX_COUNT),
    )


def _choose(request: ScoreRequest, own: QueryItem, spec: ReadoutSpec, model: LoadedModel, query: int) -> PromptBuilder:
    """The template of a query."""
    has_options = own.options is not None
    name = own.template or request.template
    try:
        builder = model.prompts.choose(name, wanted_kind(spec), labels=spec.labels, options=has_options)
        if has_options and own.template is None and not _lists_options(builder):
            builder = model.prompts.choose(None, wanted_kind(spec), options=True)
    except InvalidValue as error:
        if own.template is None or error.field != "template":
            raise
        raise InvalidValue(str(error), field=f"queries[{query}].template") from error
    if has_options != _lists_options(builder):
        wanted = "lists no options; leave them out" if has_options else "lists the options of its query; give some"
        raise InvalidValue(f"template {builder.template.id} {wanted}", field=f"queries[{query}].options")
    return builder


def _lists_options(builder: PromptBuilder) -> bool:
    return builder.template.listing is not None and builder.template.listing.of == "options"


def _templates(asks: Sequence[Ask], num_pairs: int) -> list[str] | None:
    if len({ask.builder.template.id for ask in asks}) == 1:
        return None
    templates = [""] * num_pairs
    for ask in asks:
        for place in ask.places:
            templates[place] = ask.builder.template.id
    return templates


def _calibration_id(asks: Sequence[Ask], readouts: Sequence[ReadoutPlan]) -> str | None:
    """The calibration that some score was changed by; a model has one at most."""
    for calibration in (ask.calibration for ask in asks if ask.calibration):
        for readout in readouts:
            cooled = isinstance(readout, LabelPlan) and readout.temperature == calibration.temperature
            if readout.platt is not None or (calibration.method == "temperature" and cooled):
                return calibration.id
    return None


def _pairs(request: ScoreRequest, max_pairs: int) -> list[Pair]:
    num_queries, num_documents = len(request.queries), len(request.documents)
    all_pairs = num_queries * num_documents
    wanted = all_pairs if request.pairs == "all" else len(request.pairs)
    if wanted > max_pairs:
        raise InvalidValue(
            f"{wanted} pairs are asked for, the limit is {max_pairs}",
            field="documents" if request.pairs == "all" else "pairs",
            value=wanted,
            limit=max_pairs,
        )
    if request.pairs == "all":
        return [(query, document) for query in range(num_queries) for document in range(num_documents)]
    for index, pair in enumerate(request.pairs):
        for place, (name, count) in enumerate((("queries", num_queries), ("documents", num_documents))):
            if pair[place] >= count:
                raise InvalidValue(
                    f"pairs[{index}][{place}] is {pair[place]}; there are {count} {name}, counted from 0",
                    field=f"pairs[{index}][{place}]",
                    value=pair[place],
                    limit=count - 1,
                )
    return request.pairs
