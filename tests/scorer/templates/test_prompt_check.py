from __future__ import annotations

import pytest

from scorer.scoring.prompts import PromptBuilder
from scorer.templates.parser import parse_template
from scorer.templates.prompt_check import check_prompts
from scorer.templates.registry import builtin_templates
from scorer.templates.types import Template
from scorer.tokens.safe_cuts import SafeCuts
from scorer.tokens.text_tokens import TextEncoder
from tests.helpers.prompt_cases import LIKELIHOOD, YES_NO, builder
from tests.helpers.published_prompts import THINK
from tests.helpers.word_tokenizers import CHATML, WORD_STYLES, loaded


@pytest.mark.parametrize("style", WORD_STYLES)
@pytest.mark.parametrize("template", builtin_templates(), ids=lambda template: template.id)
def test_every_template_passes_under_every_kind_of_vocabulary(template: Template, style: str) -> None:
    assert check_prompts(builder(template, loaded(style, [*CHATML, *THINK]))) is None


def test_a_cut_that_changes_tokens_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SafeCuts, "find", lambda _self, literal: list(range(1, len(literal))))
    fault = check_prompts(builder(YES_NO, loaded("qwen")))

    assert fault is not None
    assert "yes-no@1, document_first" in fault
    assert "has other tokens cold" in fault


def test_a_slot_that_is_lost_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = PromptBuilder.build

    def forgetful(self: PromptBuilder, *args: object, **options: object) -> object:
        return whole(self, *args, **options | {"instruction": "always the same"})  # type: ignore[arg-type]

    monkeypatch.setattr(PromptBuilder, "build", forgetful)
    fault = check_prompts(builder(LIKELIHOOD, loaded("qwen")))

    assert fault is not None
    assert "{instruction} does not reach the prompt" in fault


def test_b002_a_special_token_that_comes_from_a_text_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = TextEncoder.__init__

    def careless(self: TextEncoder, *args: object) -> None:
        sound(self, *args)  # type: ignore[arg-type]
        self._at_start.encode_special_tokens = False

    monkeypatch.setattr(TextEncoder, "__init__", careless)
    fault = check_prompts(builder(YES_NO, loaded("qwen")))

    assert fault is not None
    assert "special tokens can come from the text of {query}" in fault


def test_a_vocabulary_without_special_tokens_has_none_to_come_from_a_text() -> None:
    assert check_prompts(builder(LIKELIHOOD, loaded("smollm", ()), "plain")) is None


def test_a_template_of_ones_own_is_checked_too() -> None:
    own = parse_template(
        """
        name = "own"
        version = 1
        description = "d"
        join = "joined"
        readout = { kind = "labels", labels = ["yes", "no"], positive = "yes" }
        orders.query_first = ["{query}{document}?"]
        """,
        source="own.toml",
    )

    assert check_prompts(builder(own, loaded("smollm"), "plain")) is None
