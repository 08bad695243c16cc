"""Twenty readable prompts on which the systems' scores are compared before any time is taken."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

_INSTRUCTIONS: Final = (
    "Decide whether the passage answers the question. Say Yes or No.",
    "Is the passage about what the question asks? Say No or Yes.",
)

_PAIRS: Final = (
    ("How long does a hen's egg take to hatch?", "Chicks leave the egg after about twenty-one days of brooding."),
    ("How long does a hen's egg take to hatch?", "The library lends films for one week and books for four."),
    ("Which metal is liquid at room temperature?", "Mercury melts at minus 39 degrees and so flows in a warm room."),
    ("Which metal is liquid at room temperature?", "The orchestra tunes to the note that the oboe plays."),
    ("Why do leaves turn yellow in autumn?", "When trees stop making chlorophyll, yellow pigments become visible."),
    ("Why do leaves turn yellow in autumn?", "A bicycle chain should be oiled after riding in the rain."),
    (
        "How is a lost bank card blocked?",
        "Call the emergency number on the bank's page, or use the app to freeze the card.",
    ),
    ("How is a lost bank card blocked?", "Glaciers carve valleys that are round at the bottom."),
    (
        "Who painted the ceiling of the Sistine Chapel?",
        "Michelangelo worked on the ceiling of the chapel for four years.",
    ),
    ("Who painted the ceiling of the Sistine Chapel?", "Rye bread keeps fresh for longer than wheat bread."),
)


def check_prompts(encode: Callable[[str], Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """Token ids of the prompts in the default model's chat form.

    Args:
        encode: Text to ids; turns the strings of special tokens into their ids.
    """
    return tuple(
        tuple(
            encode(
                f"<|im_start|>system\n{instruction}<|im_end|>\n"
                f"<|im_start|>user\nQuestion: {question}\nPassage: {passage}<|im_end|>\n<|im_start|>assistant\n"
            )
        )
        for instruction in _INSTRUCTIONS
        for question, passage in _PAIRS
    )
