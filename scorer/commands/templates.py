"""``scorer templates``: which templates there are, and whether one's own is right."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from scorer.templates.registry import Template


@click.command("templates")
@click.argument("name", required=False)
def command(*, name: str | None) -> None:
    """List the templates and chat formats, or show one template.

    NAME is a name, name@version, or the path of a template file of your own, which is
    checked as it would be at start-up.
    """
    from scorer.templates.chat_formats import builtin_chat_formats
    from scorer.templates.registry import TemplateError, builtin_templates, find_template

    if name is None:
        for template in builtin_templates():
            click.echo(f"{template.id:<28}{template.readout:<12}{', '.join(template.orders)}")
            click.echo(f"    {template.description}")
        click.echo("\nchat formats")
        for chat in builtin_chat_formats().values():
            click.echo(f"{chat.name:<28}{chat.description}")
        return
    try:
        click.echo(_describe(find_template(name)))
    except TemplateError as error:
        raise click.ClickException(str(error)) from error


def _describe(template: Template) -> str:
    facts = {
        "template": template.id,
        "description": template.description,
        "models": ", ".join(template.models),
        "readout": template.readout,
        "labels": ", ".join(
            f"{label} (positive)" if label == template.positive else label for label in template.labels
        ),
        "score": _describe_score(template),
        "debias": "" if template.debias == "none" else template.debias,
        "orders": ", ".join(template.orders),
        "join": template.join,
        "special tokens": ", ".join(template.special_tokens),
        "instruction": template.instruction,
        "system": template.system,
    }
    return "\n".join(f"{name + ':':<16}{value}" for name, value in facts.items() if value)


def _describe_score(template: Template) -> str:
    scoring = template.scoring
    if template.readout == "likelihood":
        return "mean natural log-probability of the query's tokens"
    match scoring.kind:
        case "expected":
            return f"mean of {', '.join(f'{value:g}' for value in scoring.values)}, weighed by probability"
        case "probability":
            return f"probability of the {'text that is listed' if template.listing else 'positive label'}"
        case _:
            names = {"logit": "logit of the positive label", "difference": "its logit less that of the other label"}
            return f"{names[scoring.kind]}; from 0 to 1 as sigmoid({scoring.scale:g} x {scoring.offset:+g})"
