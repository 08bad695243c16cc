"""The model for commands that score without a server: loaded, tested, and closed when they are done."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from engine import StepStats, TaskStats
from scorer.app import LOAD_ERRORS, load_model
from scorer.model_host import LoadedModel
from scorer.selftest import self_test
from scorer.settings import SettingsError, load, override


class NoModel(Exception):
    """There is no model to score with; the message says why."""


class _Nobody:
    """Observes nothing: these commands add up what each batch says of itself."""

    def on_step(self, stats: StepStats) -> None: ...

    def on_task(self, stats: TaskStats) -> None: ...


@contextmanager
def offline_model(environ: Mapping[str, str], *, model: str | None, template: str | None) -> Iterator[LoadedModel]:
    """The model that the service would serve with the same settings; its engine ends with the block.

    Args:
        environ: Settings, as the service reads them.
        model: Goes before the setting.
        template: Goes before the setting.

    Raises:
        NoModel: the settings are wrong, the model or template cannot be loaded, or the model
            fails its self-test while the settings require it.
    """
    try:
        settings = override(load(environ), model=model, template=template)
        loaded = load_model(settings, environ, _Nobody())
    except (SettingsError, *LOAD_ERRORS) as error:
        raise NoModel(str(error)) from error
    try:
        fault = self_test(loaded)
        if fault is not None and settings.self_test == "require":
            raise NoModel(f"the self-test failed: {fault}")
        yield loaded
    finally:
        loaded.engine.close(drain_s=0.0)
