"""The templates that requests may choose from, bound to the model that is served."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from scorer.errors import InvalidValue
from scorer.scoring.prompts import PromptBuilder
from scorer.templates.types import ReadoutKind, Template

_GENERAL: Final = ("query-likelihood", "yes-no", "classify", "multiple-choice")
"""Templates for any model, in the order in which they are tried where a request names none."""


class PromptCatalogue:
    """Prompt builders by the name of their template. A request never names a file.

    Args:
        default: Used where a request names no template and asks for nothing that it cannot do.
        others: Their templates can be asked for; of one name, the last is the newest.
    """

    def __init__(self, default: PromptBuilder, others: Sequence[PromptBuilder] = ()) -> None:
        self.default = default
        self.builders = [default, *(other for other in others if other.template.id != default.template.id)]
        self._named: dict[str, PromptBuilder] = {}
        for builder in self.builders:
            self._named |= {builder.template.name: builder, builder.template.id: builder}

    @property
    def names(self) -> list[str]:
        return [builder.template.id for builder in self.builders]

    def choose(
        self,
        name: str | None,
        readout: ReadoutKind | None,
        *,
        labels: Sequence[str] | None = None,
        options: bool = False,
    ) -> PromptBuilder:
        """The builder for a request.

        Args:
            name: ``name`` or ``name@version``; None: the default if it reads what is wanted and asks
                for these labels, otherwise the first general template that does.
            readout: What has to be read; None: whatever the template says.
            labels: Labels of the request's own.
            options: Whether the query has options to choose from.

        Raises:
            InvalidValue: there is no such template, or it is read in another way.
        """
        if name is None:
            reading = [
                builder
                for builder in (self.default, *self._general())
                if _reads(builder.template, readout, options=options)
            ]
            if not reading:
                wanted = "options" if options else readout
                raise InvalidValue(
                    f"no template is read as {wanted}; there are {', '.join(self.names)}", field="template"
                )
            asking = (builder for builder in reading if options or _speaks_of(builder.template, labels))
            return next(asking, reading[0])
        builder = self._named.get(name)
        if builder is None:
            raise InvalidValue(f"no template has this name; there are {', '.join(self.names)}", field="template")
        template = builder.template
        if readout not in (None, template.readout):
            raise InvalidValue(
                f"template {template.id} is read as {template.readout}, not as {readout}; name another template",
                field="readout.kind",
            )
        return builder

    def _general(self) -> list[PromptBuilder]:
        return [builder for name in _GENERAL for builder in self.builders[::-1] if builder.template.name == name]


def _reads(template: Template, readout: ReadoutKind | None, *, options: bool) -> bool:
    lists_options = template.listing is not None and template.listing.of == "options"
    return readout in (None, template.readout) and options == lists_options


def _speaks_of(template: Template, labels: Sequence[str] | None) -> bool:
    """Whether a prompt asks for these labels and not for others."""
    return labels is None or template.has_slot("labels") or set(labels) == set(template.labels)
