"""The templates that requests may choose from, bound to the model that is served."""

from __future__ import annotations

from collections.abc import Sequence

from scorer.errors import InvalidValue
from scorer.prompts import PromptBuilder
from scorer.template_types import ReadoutKind


class PromptCatalogue:
    """Prompt builders by the name of their template. A request never names a file.

    Args:
        default: Used where a request names neither a template nor a readout.
        others: Their templates can be asked for; of one name, the last is the newest.
    """

    def __init__(self, default: PromptBuilder, others: Sequence[PromptBuilder] = ()) -> None:
        self.default = default
        self._builders = [default, *(other for other in others if other.template.id != default.template.id)]

    @property
    def names(self) -> list[str]:
        return [builder.template.id for builder in self._builders]

    def choose(self, name: str | None, readout: ReadoutKind | None) -> PromptBuilder:
        """The builder for a request.

        Args:
            name: ``name`` or ``name@version``; None: the default if it has the readout,
                otherwise the first that has it.
            readout: What has to be read; None: whatever the template says.

        Raises:
            InvalidValue: there is no such template, or it is read in another way.
        """
        if name is None:
            fitting = [builder for builder in self._builders if readout in (None, builder.template.readout)]
            if fitting:
                return fitting[0]
            raise InvalidValue(f"no template is read as {readout}; there are {', '.join(self.names)}", field="template")
        named = [builder for builder in self._builders if name in (builder.template.name, builder.template.id)]
        if not named:
            raise InvalidValue(f"no template has this name; there are {', '.join(self.names)}", field="template")
        template = named[-1].template
        if readout not in (None, template.readout):
            raise InvalidValue(
                f"template {template.id} is read as {template.readout}, not as {readout}; name another template",
                field="readout.kind",
            )
        return named[-1]
