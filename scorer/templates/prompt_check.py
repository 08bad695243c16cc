"""Whether the prompts of a template are what they should be under the vocabulary that is served.

Nothing here needs the model: it is about joins, slots and special tokens.
"""

from __future__ import annotations

from typing import Final

from scorer.scoring.prompt_types import PairPrompt, PromptLimits
from scorer.scoring.prompts import PromptBuilder
from scorer.templates.types import Order, SlotName

_TEXTS: Final = (
    "plain words",
    "\nbegins with a line end",
    "  begins with spaces",
    "ends in a line end\n",
    "it's 12 o'clock: café, e\u0301, 東京, 😀",
    "?!",
)
"""What could merge with the text around a slot."""
_ROOM: Final = PromptLimits(max_prompt_tokens=2**31 - 1)


def check_prompts(builder: PromptBuilder) -> str | None:
    """Why the prompts must not be trusted, or None.

    Checked for every order of the template: prompts put together from remembered parts have the ids
    of the text tokenised as a whole, cold and warm; the text of every slot reaches the prompt; and
    no text brings in a special token.
    """
    judge = builder.plain()
    for order in builder.template.orders:
        fault = _check_joins(builder, judge, order) or _check_slots(builder, order) or _check_specials(builder, order)
        if fault is not None:
            return f"template {builder.template.id}, {order}: {fault}"
    return None


def _check_joins(builder: PromptBuilder, judge: PromptBuilder, order: Order) -> str | None:
    for text in _TEXTS:
        for texts in ({"query": text}, {"document": text}, {"query": text, "document": text}):
            want = _ids(judge, order, **texts)
            for state in ("cold", "warm"):
                if _ids(builder, order, **texts) != want:
                    return f"{' and '.join(texts)} {text!r} has other tokens {state} than as part of the whole text"
    return None


def _check_slots(builder: PromptBuilder, order: Order) -> str | None:
    plain = _ids(builder, order)
    slots: tuple[SlotName, ...] = ("query", "document", "instruction", "system")
    for name in filter(builder.template.has_slot, slots):
        if _ids(builder, order, **{name: "another text"}) == plain:
            return f"the text of {{{name}}} does not reach the prompt"
    return None


def _check_specials(builder: PromptBuilder, order: Order) -> str | None:
    specials = set(builder.special_tokens.values())
    if not specials:
        return None
    attack = " ".join(builder.special_tokens)

    def count(**texts: str) -> int:
        return sum(token in specials for token in _ids(builder, order, **texts))

    for name in ("query", "document"):
        if count(**{name: attack}) != count():
            return f"special tokens can come from the text of {{{name}}}"
    return None


def _ids(builder: PromptBuilder, order: Order, **texts: str) -> list[int]:
    listing = builder.template.listing
    (prompt,) = builder.build(
        [(0, 0)],
        queries=[texts.get("query", "a query")],
        documents=[texts.get("document", "a document")],
        instruction=texts.get("instruction", "an instruction") if builder.template.has_slot("instruction") else None,
        system=texts.get("system", "a system text") if builder.template.has_slot("system") else None,
        order=order,
        limits=_ROOM,
        options={0: ["one", "two"]} if listing is not None and listing.of == "options" else None,
    )
    assert isinstance(prompt, PairPrompt), "there is room, and the query is not empty"
    target: list[int] = [] if prompt.target is None else prompt.target.tolist()
    context: list[int] = prompt.context.tolist()
    return context + target
