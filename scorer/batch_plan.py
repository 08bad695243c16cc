"""From a request to rows: pairs, template, readout, prompts. Runs in a worker thread."""

from __future__ import annotations

from scorer.batch import BatchPlan, Pair
from scorer.errors import InvalidValue, UnknownModel
from scorer.model_host import LoadedModel
from scorer.prompt_types import PromptLimits
from scorer.prompts import PromptInputError
from scorer.readouts import ReadoutPlan, settle_readout, wanted_kind
from scorer.rows import plan_rows
from scorer.schema import ScoreRequest, TextItem


def plan_batch(request: ScoreRequest, model: LoadedModel, *, max_pairs: int) -> BatchPlan:
    """Everything that can be known of a request without running the model.

    Raises:
        InvalidValue: a value of the request cannot be served; names the field.
        UnknownModel: another model is asked for.
    """
    if request.model is not None and request.model != model.name:
        raise UnknownModel(f"the model that is served is {model.name}", field="model", limit=model.name)
    pairs = _pairs(request, max_pairs)
    builder = model.prompts.choose(request.template, wanted_kind(request.readout))
    try:
        readout = settle_readout(request.readout, builder)
    except PromptInputError as error:
        raise InvalidValue(str(error), field=f"readout.{error.param}") from error
    _check_branches(pairs, readout, max_pairs)
    try:
        order = builder.choose_order(request.order)
        prompts = builder.build(
            pairs,
            queries=[text_of(query) for query in request.queries],
            documents=[text_of(document) for document in request.documents],
            instruction=request.instruction,
            system=request.system,
            order=order,
            limits=PromptLimits(
                max_prompt_tokens=model.engine.info.max_row_tokens - readout.extra_tokens,
                max_document_tokens=request.max_tokens_per_doc,
                max_query_tokens=request.max_tokens_per_query,
                truncate_documents=request.truncate == "document",
            ),
        )
    except PromptInputError as error:
        raise InvalidValue(str(error), field=error.param) from error
    readouts = [readout] * len(pairs)
    return BatchPlan(
        template=builder.template.id,
        order=order,
        pairs=pairs,
        prompts=prompts,
        readouts=readouts,
        rows=plan_rows(prompts, readouts, request.cache.keep),
    )


def text_of(item: str | TextItem) -> str:
    return item if isinstance(item, str) else item.text


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


def _check_branches(pairs: list[Pair], readout: ReadoutPlan, max_pairs: int) -> None:
    """A label of several tokens is a branch of its own; together they must not outgrow the limit."""
    num_rows = len(pairs) * readout.branches
    if num_rows > max_pairs:
        raise InvalidValue(
            f"{len(pairs)} pairs with {readout.branches} labels of several tokens make {num_rows} prompts, "
            f"the limit is {max_pairs}",
            field="readout.labels",
            value=num_rows,
            limit=max_pairs,
        )
