from __future__ import annotations

import re
from pathlib import Path

import pytest

from scorer.templates.registry import DEFAULT_TEMPLATE, builtin_templates, find_template, read_template
from scorer.templates.types import TemplateError

GOOD = """
name = "mine"
version = 1
description = "Mine"
join = "joined"
readout.kind = "likelihood"
orders.document_first = ["{document}\\n{query}"]
"""


def test_names_with_and_without_version_find_a_template() -> None:
    assert find_template(DEFAULT_TEMPLATE).readout == "likelihood"
    assert find_template("yes-no") == find_template("yes-no@1")


def test_a_name_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(TemplateError, match=re.escape("'yes-no@9'; there are bge-reranker-v2-5-gemma2@1, ")):
        find_template("yes-no@9")


def test_a_path_reads_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(GOOD, encoding="utf-8")

    assert find_template(str(path)).source == str(path)


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_a_file_that_cannot_be_read_is_refused_by_its_path(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "mine.toml"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(TemplateError, match=r"mine\.toml: cannot be read"):
        read_template(path)


def test_builtin_files_are_named_after_what_they_hold() -> None:
    templates = builtin_templates()

    assert [template.source for template in templates] == [f"{template.id}.toml" for template in templates]
    assert {template.id for template in templates} >= {"query-likelihood@1", "yes-no@1"}


def test_yes_no_has_both_orders_and_likelihood_only_the_one_it_can_have() -> None:
    assert set(find_template("yes-no@1").orders) == {"document_first", "query_first"}
    assert find_template("query-likelihood@1").orders == ("document_first",)
