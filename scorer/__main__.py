"""The command line: ``scorer COMMAND``. A command is imported when it is used."""

from __future__ import annotations

from importlib import import_module

import click

from scorer.version import package_version

_COMMANDS = {
    "serve": "Run the service.",
    "fetch": "Put the default model in place.",
    "score": "Score a file of pairs without a server.",
    "eval": "Judge how well the model ranks, or answers.",
    "calibrate": "Fit how far scores are to be believed.",
    "plan": "Say how much text a given memory keeps warm.",
    "templates": "List the templates, or show one.",
}


class LazyGroup(click.Group):
    """Finds ``NAME`` in ``scorer.commands.NAME``; its help costs no import."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  the signature is click's
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in _COMMANDS:
            return None
        command = import_module(f"scorer.commands.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


@click.command(cls=LazyGroup)
@click.version_option(package_version(), prog_name="radix-scorer")
def main() -> None:
    """Score (query, document) pairs with a language model; compute every shared prefix once."""


if __name__ == "__main__":
    main(prog_name="scorer")
