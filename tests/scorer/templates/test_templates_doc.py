from __future__ import annotations

import textwrap
from pathlib import Path

from scorer.templates.parser import parse_template
from scorer.templates.prompt_check import check_prompts
from tests.helpers.prompt_cases import builder
from tests.helpers.word_tokenizers import loaded

PAGE = (Path(__file__).parents[3] / "docs/templates.md").read_text(encoding="utf-8")


def test_the_example_of_the_page_is_a_template() -> None:
    begin, end = PAGE.index("    name = "), PAGE.index("## Pieces")
    template = parse_template(textwrap.dedent(PAGE[begin:end]), source="page.toml")

    assert template.id == "my-judge@1"
    assert check_prompts(builder(template, loaded("smollm"))) is None
