"""Which templates there are, and how one is found by its name or its file."""

from __future__ import annotations

from fnmatch import fnmatchcase
from importlib import resources
from pathlib import Path, PurePath

from scorer.templates.parser import parse_template
from scorer.templates.types import Template, TemplateError

__all__ = [
    "DEFAULT_TEMPLATE",
    "Template",
    "TemplateError",
    "builtin_templates",
    "find_template",
    "parse_template",
    "read_template",
    "template_for_model",
]

DEFAULT_TEMPLATE = "query-likelihood@1"
"""What ranks with a model that was not trained as a reranker."""


def builtin_templates() -> list[Template]:
    """The templates that come with the package, by name and then version."""
    folder = resources.files("scorer.templates") / "files"
    read = [
        parse_template(entry.read_text(encoding="utf-8"), source=entry.name)
        for entry in folder.iterdir()
        if entry.name.endswith(".toml")
    ]
    return sorted(read, key=lambda template: (template.name, template.version))


def find_template(name: str) -> Template:
    """The template called ``name``, ``name@version`` (no version: the newest) or ``*.toml`` (a file's path).

    Raises:
        TemplateError: there is no such template, or the file is not a template.
    """
    if name.endswith(".toml"):
        return read_template(Path(name))
    known = builtin_templates()
    found = [template for template in known if name in (template.name, template.id)]
    if not found:
        raise TemplateError(
            f"no template is called {name!r}; there are {', '.join(template.id for template in known)}, "
            f"and a path that ends in .toml names a file of your own"
        )
    return found[-1]


def template_for_model(name: str) -> Template:
    """The template that the publisher of a model trained it with, or the one for models that are no rerankers.

    Args:
        name: Of the model: a repository, a folder or a file; only its last part counts.
    """
    last = PurePath(name).name.lower()
    for template in reversed(builtin_templates()):
        if any(fnmatchcase(last, pattern) for pattern in template.models):
            return template
    return find_template(DEFAULT_TEMPLATE)


def read_template(path: Path) -> Template:
    """The template in a file.

    Raises:
        TemplateError: the file cannot be read or is not a template.
    """
    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TemplateError(f"{path}: cannot be read: {error}") from error
    return parse_template(content, source=str(path))
