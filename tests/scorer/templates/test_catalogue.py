from __future__ import annotations

import pytest

from scorer.app import load_prompts
from scorer.errors import InvalidValue
from scorer.templates.catalogue import PromptCatalogue
from scorer.templates.types import TemplateError
from scorer.tokens.text_tokens import TextMemo
from tests.helpers.word_tokenizers import loaded


def catalogue(template: str | None = None) -> PromptCatalogue:
    return load_prompts(loaded("smollm"), TextMemo(1000), template=template, chat_format=None)


def test_without_a_name_the_default_is_taken_or_the_first_with_the_readout() -> None:
    prompts = catalogue()

    assert prompts.choose(None, None).template.id == "query-likelihood@1"
    assert prompts.choose(None, "likelihood").template.id == "query-likelihood@1"
    assert prompts.choose(None, "labels").template.id == "yes-no@1"


def test_labels_of_the_request_and_options_find_a_template_that_speaks_of_them() -> None:
    prompts = catalogue()

    assert prompts.choose(None, "labels", labels=["No", "Yes"]).template.id == "yes-no@1"
    assert prompts.choose(None, "labels", labels=["good", "bad"]).template.id == "classify@1"
    assert prompts.choose(None, None, options=True).template.id == "multiple-choice@1"
    assert catalogue("multiple-choice").choose(None, None).template.id == "query-likelihood@1"
    assert catalogue("yes-no").choose(None, "labels", labels=["good", "bad"]).template.id == "classify@1"
    assert catalogue("graded").choose(None, "labels", labels=["good", "bad"]).template.id == "graded@1"
    only = PromptCatalogue(prompts.choose("yes-no", None))
    assert only.choose(None, "labels", labels=["good", "bad"]).template.id == "yes-no@1"


@pytest.mark.parametrize(
    ("model", "template"),
    [
        ("", "query-likelihood@1"),
        ("SmolLM2-135M-Instruct", "query-likelihood@1"),
        ("mixedbread-ai/mxbai-rerank-base-v2", "mxbai-rerank-base-v2@1"),
        ("/models/mxbai-rerank-large-v2.gguf", "mxbai-rerank-large-v2@1"),
        ("/models/mxbai-rerank-large-v2/other", "query-likelihood@1"),
        ("zeroentropy/zerank-1-small", "zerank@1"),
    ],
)
def test_a_published_reranker_is_served_with_its_own_template(model: str, template: str) -> None:
    memo = TextMemo(1000)
    prompts = load_prompts(loaded("smollm"), memo, template=None, chat_format=None, model=model)

    assert prompts.default.template.id == template


def test_a_reranker_whose_vocabulary_lacks_what_its_template_needs_stops_the_start() -> None:
    with pytest.raises(TemplateError, match="<think>"):
        load_prompts(loaded("smollm"), TextMemo(1), template=None, chat_format=None, model="Qwen3-Reranker-0.6B")


def test_the_template_of_the_operator_is_the_default() -> None:
    prompts = catalogue("yes-no")

    assert prompts.default.template.id == "yes-no@1"
    assert prompts.choose(None, None).template.id == "yes-no@1"
    assert prompts.names[0] == "yes-no@1"
    assert len(set(prompts.names)) == len(prompts.names)
    assert "query-likelihood@1" in prompts.names


def test_templates_are_found_by_name_with_and_without_version() -> None:
    prompts = catalogue()

    assert prompts.choose("yes-no", None) is prompts.choose("yes-no@1", "labels")


@pytest.mark.parametrize(
    ("name", "readout", "field"),
    [
        ("nothing", None, "template"),
        ("yes-no@9", None, "template"),
        ("../templates/yes-no.toml", None, "template"),
        ("yes-no", "likelihood", "readout.kind"),
    ],
)
def test_what_is_not_there_is_refused(name: str, readout: str | None, field: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        catalogue().choose(name, readout)  # type: ignore[arg-type]

    assert caught.value.field == field


def test_a_catalogue_without_a_readout_says_so() -> None:
    only = PromptCatalogue(catalogue().choose("yes-no", None))

    with pytest.raises(InvalidValue):
        only.choose(None, "likelihood")


def test_a_template_of_the_operator_that_does_not_exist_stops_the_start() -> None:
    with pytest.raises(TemplateError):
        catalogue("nothing")


def test_a_chat_format_can_be_named() -> None:
    prompts = load_prompts(loaded("smollm"), TextMemo(1000), template=None, chat_format="plain")

    assert prompts.default.chat.name == "plain"
