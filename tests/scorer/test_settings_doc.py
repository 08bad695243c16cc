from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from scorer.commands.serve import command
from scorer.settings import explained
from scorer.settings_doc import page

COMMITTED = Path(__file__).parents[2] / "docs/settings.md"


def test_the_committed_page_is_up_to_date() -> None:
    assert COMMITTED.read_text(encoding="utf-8") == page(), "run `python -m scorer.settings_doc > docs/settings.md`"


def test_help_explains_every_variable_in_lines_that_fit_a_terminal() -> None:
    shown = CliRunner().invoke(command, ["--help"]).output

    for setting in explained():
        assert f"{setting.name}  [{setting.default}]" in shown
        assert " ".join(setting.text.split()) in " ".join(shown.split())
    assert max(map(len, shown.splitlines())) <= 80
