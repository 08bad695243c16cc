"""``scorer serve``: run the service."""

from __future__ import annotations

import os
import sys

import click

from scorer.settings_doc import help_text


@click.command("serve", epilog=help_text())
@click.option("--model", metavar="PATH", help="Folder, .gguf file, or name of the model.  [default: the fetched one]")
@click.option("--adapter", metavar="PATH", help="Folder or name of a LoRA adapter to merge into the model.")
@click.option("--template", metavar="NAME", help="name, name@version, or a .toml file.  [default: suits the model]")
@click.option("--host", metavar="ADDRESS", help="Address to listen on.  [default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65535), help="Port to listen on; 0 takes a free one.  [default: 8080]")
def command(
    *, model: str | None, adapter: str | None, template: str | None, host: str | None, port: int | None
) -> None:
    """Run the service until SIGTERM, which lets requests under way finish.

    Settings are read from the environment; the options here go before them.
    """
    from scorer import logs
    from scorer.app import build_service
    from scorer.http.callers import KeyFileError
    from scorer.server import serve
    from scorer.settings import SettingsError, load, override

    try:
        settings = override(load(os.environ), model=model, adapter=adapter, template=template, host=host, port=port)
    except SettingsError as error:
        raise click.ClickException(str(error)) from error
    logs.configure(settings.log_level)
    try:
        application = build_service(settings, os.environ)
    except KeyFileError as error:
        raise click.ClickException(str(error)) from error
    sys.exit(serve(application.asgi, settings, application.host, application.admission))
