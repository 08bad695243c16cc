"""From prompts of the caller's own to rows. Runs in a worker thread."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from engine import TokenIds
from scorer.errors import InvalidValue
from scorer.model_host import LoadedModel
from scorer.scoring.batch import BatchPlan
from scorer.scoring.batch_plan import check_model
from scorer.scoring.prompt_request import PromptRequest, TextOrIds
from scorer.scoring.prompt_types import PairPrompt
from scorer.scoring.raw_texts import RawTexts
from scorer.scoring.readouts import LabelPlan
from scorer.scoring.rows import plan_rows
from scorer.tokens.text_tokens import read_only_ids

RAW_TEMPLATE = "none"
"""What a plan names where there is no template."""


def plan_prompts(request: PromptRequest, model: LoadedModel, *, max_pairs: int) -> BatchPlan:
    """The rows of ``request``: no item can fail for itself, so what is wrong with one is raised.

    Raises:
        InvalidValue: an id is outside the vocabulary, a prompt is empty or too long, labels are
            missing or alike, or there are too many items; names the field.
        UnknownModel: another model is asked for.
    """
    check_model(request.model, model)
    if len(request.items) > max_pairs:
        raise InvalidValue(
            f"there are {len(request.items)} items, the limit is {max_pairs}",
            field="items",
            value=len(request.items),
            limit=max_pairs,
        )
    vocab_size = model.engine.info.vocab_size
    readouts = _readouts(request, vocab_size)
    _check_ids(request, vocab_size)
    prompts = [
        _prompt(ids, reusable, request, index=index, limit=model.engine.info.max_row_tokens)
        for index, (ids, reusable) in enumerate(_token_ids(request, model.texts))
    ]
    return BatchPlan(
        template=RAW_TEMPLATE,
        order="document_first" if request.item_first else "query_first",
        pairs=[(0, index) for index in range(len(prompts))],
        prompts=prompts,
        readouts=readouts,
        rows=plan_rows(prompts, readouts, "auto"),
    )


def _readouts(request: PromptRequest, vocab_size: int) -> list[LabelPlan]:
    """One for each item."""
    if len(request.labels) == 1:
        return [_readout(request.labels[0], request, vocab_size, "label_token_ids")] * len(request.items)
    return [
        _readout(labels, request, vocab_size, f"label_token_ids[{index}]")
        for index, labels in enumerate(request.labels)
    ]


def _readout(labels: Sequence[int], request: PromptRequest, vocab_size: int, field: str) -> LabelPlan:
    if not labels:
        raise InvalidValue("at least one label is needed", field=field, value=0, limit=1)
    if len(set(labels)) < len(labels):
        raise InvalidValue("no two labels may be alike", field=field)
    _check_range(labels, vocab_size, field)
    return LabelPlan(
        labels=tuple(map(str, labels)),
        ids=tuple(read_only_ids([label]) for label in labels),
        positive=0,
        answers="options",  # each label is an answer of its own: the score has the probabilities of all
        normalise=request.normalise,
        temperature=request.temperature,
    )


def _check_ids(request: PromptRequest, vocab_size: int) -> None:
    for field, given in (("query", request.query), *((f"items[{i}]", item) for i, item in enumerate(request.items))):
        if not isinstance(given, str):
            _check_range(given, vocab_size, field)
        elif not given.isascii():
            _check_unicode(given, field)


def _check_range(ids: Sequence[int], vocab_size: int, field: str) -> None:
    if not ids or (min(ids) >= 0 and max(ids) < vocab_size):
        return
    index = next(index for index, number in enumerate(ids) if not 0 <= number < vocab_size)
    raise InvalidValue(
        f"token id {ids[index]} is outside the vocabulary, which ends at {vocab_size - 1}",
        field=f"{field}[{index}]",
        value=ids[index],
        limit=vocab_size - 1,
    )


def _check_unicode(text: str, field: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidValue(f"character {error.start} is half of a surrogate pair", field=field) from error


def _token_ids(request: PromptRequest, texts: RawTexts) -> Iterator[tuple[TokenIds, int]]:
    """The ids of each prompt, and how many of them other requests are likely to share: its first part."""
    lead = texts.lead_ids if request.lead else texts.lead_ids[:0]
    parts = [(item, request.query) if request.item_first else (request.query, item) for item in request.items]
    if request.joined and all(isinstance(part, str) for pair in parts for part in pair):
        texts_of_pairs = [(str(head), str(tail)) for head, tail in parts]
        for ids, head_tokens in texts.encode_joined(texts_of_pairs):
            yield np.concatenate([lead, ids]), len(lead) + head_tokens
        return
    encoded = _encode_apart([request.query, *request.items], texts)
    query, items = encoded[0], encoded[1:]
    if not isinstance(request.query, str):
        lead = lead[:0]  # whoever gives token ids gives all of them
    for item in items:
        head, tail = (item, query) if request.item_first else (query, item)
        yield np.concatenate([lead, head, tail]), len(lead) + len(head)


def _encode_apart(parts: Sequence[TextOrIds], texts: RawTexts) -> list[TokenIds]:
    encoded = iter(texts.encode([part for part in parts if isinstance(part, str)]))
    return [next(encoded) if isinstance(part, str) else read_only_ids(part) for part in parts]


def _prompt(ids: TokenIds, reusable: int, request: PromptRequest, *, index: int, limit: int) -> PairPrompt:
    if not len(ids):
        raise InvalidValue("query and item have no tokens, so nothing can be read", field=f"items[{index}]")
    if len(ids) > limit and not request.cut:
        raise InvalidValue(
            f"query and item have {len(ids)} tokens, the limit is {limit}",
            field=f"items[{index}]",
            value=len(ids),
            limit=limit,
        )
    kept = ids[:limit]
    kept.flags.writeable = False
    return PairPrompt(
        context=kept, target=None, reusable_tokens=min(reusable, len(kept)), truncated_tokens=len(ids) - len(kept)
    )
