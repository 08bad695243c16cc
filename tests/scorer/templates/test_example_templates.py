"""The templates of ``examples/templates`` give the ids of the prompt written out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from scorer.templates.prompt_check import check_prompts
from scorer.templates.registry import read_template
from tests.helpers.prompt_cases import all_ids, build_one, builder, plainly
from tests.helpers.word_tokenizers import CHATML, loaded

FOLDER = Path(__file__).parents[3] / "examples/templates"
INSTRUCTION = "Write a question that the passage below answers.\n\n"
DAM = (
    "Passage: A numerical method is given for the temperature inside a concrete dam while it is being built. The heat "
    "set free by the setting cement is taken into account, and results are compared with measurements."
)
DANUBE = (
    "Passage: The Danube is the second longest river in Europe. It rises in the Black Forest in Germany and flows "
    "through ten countries before it reaches the Black Sea in Romania."
)
TURNS = {
    "likelihood-with-system-text": [
        ("system", "You are a helpful AI assistant."),
        ("user", f"{INSTRUCTION}Passage: a lamp"),
    ],
    "likelihood-with-examples": [
        ("user", INSTRUCTION + DAM),
        ("assistant", "how does the temperature of concrete change while a dam is being built"),
        ("user", DANUBE),
        ("assistant", "Which sea does the Danube flow into?"),
        ("user", "Passage: a lamp"),
    ],
}


def test_every_template_of_the_folder_is_compared_with_a_judge() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(TURNS)


@pytest.mark.parametrize("name", TURNS)
def test_the_prompt_is_the_turns_written_out(name: str) -> None:
    tokenizer = loaded("smollm")
    start, end = (tokenizer.special_tokens[text] for text in CHATML)
    parts: list[int | str] = []
    for role, text in TURNS[name]:
        parts += [start, f"{role}\n{text}", end, "\n"]
    want = plainly(tokenizer, [*parts, start, "assistant\nwhat burns?"])

    prompts = builder(read_template(FOLDER / f"{name}.toml"), tokenizer)
    assert all_ids(build_one(prompts, "what burns?", "a lamp")) == want
    assert check_prompts(prompts) is None


@pytest.mark.parametrize("name", TURNS)
def test_a_prompt_without_turns_marks_every_question(name: str) -> None:
    tokenizer = loaded("smollm")
    prompts = builder(read_template(FOLDER / f"{name}.toml"), tokenizer, "plain")
    text = tokenizer.tokenizer.decode(all_ids(build_one(prompts, "what burns?", "a lamp")))

    questions = sum(role == "assistant" for role, _ in TURNS[name]) + 1
    assert text.count("\n\nQuestion: ") == questions
    assert text.endswith("Passage: a lamp\n\nQuestion: what burns?")
