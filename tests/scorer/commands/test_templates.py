from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from scorer.commands.templates import command
from scorer.templates.chat_formats import builtin_chat_formats
from scorer.templates.registry import builtin_templates

OWN = """
name = "mine"
version = 2
description = "Mine"
join = "joined"
readout = { kind = "labels", labels = ["good", "bad"], positive = "bad" }
orders.query_first = ["{query}\\n{document}\\nIs it?"]
"""


def test_every_template_and_chat_format_is_listed() -> None:
    result = CliRunner().invoke(command, [])

    assert result.exit_code == 0
    for template in builtin_templates():
        assert template.id in result.output
        assert template.description in result.output
    assert all(name in result.output for name in builtin_chat_formats())


def test_a_file_of_ones_own_is_checked_and_shown(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(OWN, encoding="utf-8")
    shown = CliRunner().invoke(command, [str(path)])
    path.write_text(OWN.replace("version = 2", "version = 0"), encoding="utf-8")
    refused = CliRunner().invoke(command, [str(path)])

    assert shown.exit_code == 0
    assert "mine@2" in shown.output
    assert "good, bad (positive)" in shown.output
    assert refused.exit_code == 1
    assert "version is 0" in refused.output


def test_a_name_that_does_not_exist_is_refused_with_those_that_do() -> None:
    result = CliRunner().invoke(command, ["nope"])

    assert result.exit_code == 1
    assert "yes-no@1" in result.output


def test_what_becomes_of_the_labels_is_said() -> None:
    def shown(name: str) -> str:
        return CliRunner().invoke(command, [name]).output

    assert "sigmoid(1 x -4.5)" in shown("mxbai-rerank-base-v2")
    assert "mean of 0, 1, 2, 3, 4" in shown("graded")
    assert "models:         qwen3-reranker*" in shown("qwen3-reranker")
    assert "debias:         reverse" in shown("pairwise")
    assert "log-probability" in shown("query-likelihood")
