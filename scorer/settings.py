"""What an operator says, read once from a mapping of environment variables.

Every setting is ``SCORER_`` plus its name in capitals; two underscores go one level down:
``SCORER_ENGINE__BLOCK_SIZE`` is ``Settings.engine.block_size``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, Literal, TypeAlias, TypeVar, cast, get_args, get_origin, get_type_hints

import msgspec

from engine.config import EngineConfig

PREFIX = "SCORER_"
OTHERS = frozenset({"SCORER_MODELS_DIR"})
"""Names with our prefix that are not settings of the service: where models are looked for."""

LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]
Record = TypeVar("Record")


class SettingsError(Exception):
    """A setting is unknown, has the wrong type, or does not fit; the message names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Checked when made; never written to.

    Args:
        model: Path or name of the model; None is the default model.
        adapter: Path or name of a LoRA adapter in the format of PEFT, merged into the model.
        model_name: Name that clients see and may ask for; None takes the checkpoint's.
        template: ``name``, ``name@version`` or the path of a ``.toml`` file; None takes the one
            that suits the model.
        chat_format: How the model marks turns; None finds out from its special tokens.
        calibration: Path of a file that ``scorer calibrate`` wrote for this model.
        memo_tokens: Token ids of texts that are remembered, so that a warm text is not tokenised.
        max_body_bytes: Largest request body, counted as it arrives.
        max_buffered_bytes: Bodies held in memory at one time, over all connections.
        max_pairs: Most (query, document) pairs of one request.
        max_concurrent_requests: Scoring requests under way; one more is answered 429.
        header_timeout_s: Time to send the request line and headers.
        body_timeout_s: Time to send the body.
        request_timeout_s: Longest deadline a request may ask for, and the one it has if it
            asks for none.
        drain_timeout_s: Time that requests under way have to end after SIGTERM; closing takes up
            to 5 s more.
        self_test: ``require``: not ready until the golden pairs come out right. ``report``:
            ready all the same; the metric and the log tell.

    Raises:
        ValueError: a value is out of its range, or two do not fit together.
    """

    model: str | None = None
    adapter: str | None = None
    model_name: str | None = None
    template: str | None = None
    chat_format: str | None = None
    calibration: str | None = None
    memo_tokens: int = 2_000_000
    host: str = "127.0.0.1"
    port: int = 8080
    max_body_bytes: int = 8 * 2**20
    max_buffered_bytes: int = 256 * 2**20
    max_pairs: int = 4096
    max_concurrent_requests: int = 64
    header_timeout_s: float = 10.0
    body_timeout_s: float = 10.0
    request_timeout_s: float = 60.0
    drain_timeout_s: float = 20.0
    self_test: Literal["require", "report"] = "require"
    log_level: LogLevel = "info"
    engine: EngineConfig = field(default_factory=EngineConfig)

    def __post_init__(self) -> None:
        _in_range("port", self.port, 0, 65535)
        _in_range("max_body_bytes", self.max_body_bytes, 1024, 2**31)
        _in_range("max_buffered_bytes", self.max_buffered_bytes, 1024, 2**40)
        _in_range("memo_tokens", self.memo_tokens, 0, 2**31)
        _in_range("max_pairs", self.max_pairs, 1, 1_000_000)
        _in_range("max_concurrent_requests", self.max_concurrent_requests, 1, 100_000)
        for name in ("header_timeout_s", "body_timeout_s", "request_timeout_s", "drain_timeout_s"):
            _in_range(name, getattr(self, name), 0.05, 3600.0)
        if self.max_buffered_bytes < self.max_body_bytes:
            raise ValueError(
                f"max_buffered_bytes is {self.max_buffered_bytes}; "
                f"it must be at least max_body_bytes, {self.max_body_bytes}"
            )


def load(environ: Mapping[str, str]) -> Settings:
    """Read ``SCORER_*``; two underscores go one level down (``SCORER_ENGINE__BLOCK_SIZE``).

    Raises:
        SettingsError: a name that no setting has, a value of the wrong type, or values that
            do not fit together.
    """
    names = {name for name in environ if name.startswith(PREFIX)} - OTHERS
    settings = _read(Settings, PREFIX, environ, names)
    if names:
        known = ", ".join(name for name, _ in _defaults(Settings(), PREFIX))
        raise SettingsError(f"no setting is called {', '.join(sorted(names))}; the settings are {known}")
    return settings


def override(settings: Settings, **values: Any) -> Settings:
    """``settings`` with the values that are not None put in their place.

    Raises:
        SettingsError: a value does not fit.
    """
    try:
        return replace(settings, **{name: value for name, value in values.items() if value is not None})
    except ValueError as error:
        raise SettingsError(str(error)) from error


def describe() -> str:
    """Every variable with its default, for ``--help``: one a line."""
    lines = [f"{name}  [{'unset' if value is None else value}]" for name, value in _defaults(Settings(), PREFIX)]
    return "\b\nEnvironment, with defaults:\n" + "\n".join(lines)


def _defaults(record: Any, prefix: str) -> Iterator[tuple[str, object]]:
    for each in fields(record):
        name, value = prefix + each.name.upper(), getattr(record, each.name)
        if is_dataclass(value):
            yield from _defaults(value, f"{name}__")
        else:
            yield name, value


def _read(kind: type[Record], prefix: str, environ: Mapping[str, str], names: set[str]) -> Record:
    """Make a record from the variables below ``prefix`` and take their names out of ``names``."""
    hints = get_type_hints(kind)
    values: dict[str, object] = {}
    for each in fields(kind):  # type: ignore[arg-type]  # a dataclass, by construction
        name = prefix + each.name.upper()
        hint = hints[each.name]
        if is_dataclass(hint):
            values[each.name] = _read(cast(type[Any], hint), f"{name}__", environ, names)
        elif name in names:
            names.remove(name)
            values[each.name] = _convert(name, environ[name], hint)
    try:
        return kind(**values)
    except ValueError as error:
        raise SettingsError(f"{prefix}{_in_capitals(str(error))}") from error


def _convert(name: str, text: str, hint: Any) -> object:
    if not text.strip():
        raise SettingsError(f"{name} is empty; give it a value or leave it out")
    try:
        return msgspec.convert(text, hint, strict=False)
    except msgspec.ValidationError as error:
        raise SettingsError(f"{name} is {text!r}; it must be {_wanted(hint)}") from error


def _wanted(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return " or ".join(get_args(hint))
    kinds = set(get_args(hint)) or {hint}
    return "a whole number" if int in kinds else "a number" if float in kinds else "text"


def _in_capitals(message: str) -> str:
    """The message of a record, with the setting that it starts with spelt as in the environment."""
    name, space, rest = message.partition(" ")
    return name.upper() + space + rest


def _in_range(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise ValueError(f"{name} is {value}; it must be between {low} and {high}")
