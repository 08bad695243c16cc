from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from scorer.__main__ import main

ROOT = Path(__file__).parents[2]


def test_help_lists_all_commands_without_importing_any() -> None:
    script = (
        "import sys; from click.testing import CliRunner; from scorer.__main__ import main;"
        "result = CliRunner().invoke(main, ['--help']); print(result.output);"
        "assert not [m for m in sys.modules if m.startswith(('scorer.commands.', 'torch', 'litestar', 'tokenizers'))]"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)

    for name in ("serve", "fetch", "score", "eval", "plan", "templates"):
        assert f"\n  {name} " in done.stdout


@pytest.mark.parametrize("name", ["serve", "fetch", "score", "eval", "plan", "templates"])
def test_every_command_has_help(name: str) -> None:
    result = CliRunner().invoke(main, [name, "--help"])

    assert result.exit_code == 0, result.output
    assert "Usage: " in result.output


def test_help_of_serve_lists_the_settings_with_their_defaults() -> None:
    output = CliRunner().invoke(main, ["serve", "--help"]).output

    assert "SCORER_MAX_PAIRS  [4096]" in output
    assert "SCORER_ENGINE__BLOCK_SIZE  [16]" in output


def test_an_unknown_command_is_refused() -> None:
    result = CliRunner().invoke(main, ["sevre"])

    assert result.exit_code == click.UsageError.exit_code
    assert "sevre" in result.output
