"""What an operator says, read once from a mapping of environment variables.

Every setting is ``SCORER_`` plus its name in capitals; two underscores go one level down:
``SCORER_ENGINE__BLOCK_SIZE`` is ``Settings.engine.block_size``. What ends in ``_BYTES`` may be a size
such as ``4GiB``.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from difflib import get_close_matches
from typing import Any, Literal, TypeAlias, TypeVar, cast, get_args, get_origin, get_type_hints

import msgspec

from engine.config import EngineConfig
from scorer.plan import parse_bytes

PREFIX = "SCORER_"
OTHERS = frozenset({"SCORER_MODELS_DIR"})
"""Names with our prefix that are not settings of the service: where models are looked for."""

_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")

LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]
Record = TypeVar("Record")


class SettingsError(Exception):
    """A setting is unknown, has the wrong type, or does not fit; the message names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Checked when made; never written to.

    Args:
        model: Path or name of the model; the default model where it is not given.
        adapter: Path or name of a LoRA adapter in the format of PEFT, merged into the model.
        model_name: Name that clients see and may ask for; where it is not given, the checkpoint's.
        template: ``name``, ``name@version`` or the path of a ``.toml`` file; where it is not given, the
            one that suits the model.
        chat_format: How the model marks turns; where it is not given, its special tokens tell.
        calibration: Path of a file that ``scorer calibrate`` wrote for this model.
        api_keys_file: Path of a file with a line ``TENANT KEY`` for each key; requests for scores need one
            then. Tenants share no cached prefix.
        tenant_header: Header in which a gateway names the tenant, where it knows who is calling. It must
            be one that callers cannot set themselves. Goes without ``api_keys_file``.
        warm_file: Path of a file of requests, as ``scorer score`` takes them, that are scored before the
            service is ready, so that their prefixes are in the cache. Goes without tenants.
        memo_tokens: Token ids of texts that are remembered, so that a warm text is not tokenised.
        host: Address to listen on.
        port: Port to listen on; 0 takes a free one.
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
        log_level: Least level of what is logged; probes are logged at ``debug``.
        engine: What the engine is told, under ``SCORER_ENGINE__``.

    Raises:
        ValueError: a value is out of its range, or two do not fit together.
    """

    model: str | None = None
    adapter: str | None = None
    model_name: str | None = None
    template: str | None = None
    chat_format: str | None = None
    calibration: str | None = None
    api_keys_file: str | None = None
    tenant_header: str | None = None
    warm_file: str | None = None
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
        if self.tenant_header is not None and self.api_keys_file is not None:
            raise ValueError(
                "tenant_header goes without api_keys_file: either a gateway tells who is calling, or a key"
            )
        if self.tenant_header is not None and not _HEADER_NAME.fullmatch(self.tenant_header):
            raise ValueError(f"tenant_header is {self.tenant_header!r}; it must be the name of a header")
        if self.warm_file is not None and (self.api_keys_file is not None or self.tenant_header is not None):
            raise ValueError(
                "warm_file goes without api_keys_file and tenant_header: no tenant would find what it keeps"
            )
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
        raise SettingsError(_unknown(sorted(names)))
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


@dataclass(frozen=True, slots=True)
class SettingText:
    """One variable, as it is explained to people."""

    name: str
    default: str
    text: str


def explained() -> list[SettingText]:
    """Every variable with its default and what the docstring of its record says of it."""
    return [
        SettingText(PREFIX + path.upper().replace(".", "__"), "unset" if value is None else str(value), text)
        for path, value, text in _fields(Settings(), "")
    ]


def _unknown(names: list[str]) -> str:
    known = [setting.name for setting in explained()]
    meant = [match for name in names for match in get_close_matches(name.upper(), known, n=1)]
    hint = f"; did you mean {' or '.join(meant)}?" if meant else ";"
    return f"no setting is called {', '.join(names)}{hint} The settings are {', '.join(known)}"


def _fields(record: Any, path: str) -> Iterator[tuple[str, object, str]]:
    texts = _texts(type(record))
    for each in fields(record):
        value = getattr(record, each.name)
        if is_dataclass(value):
            yield from _fields(value, f"{path}{each.name}.")
        else:
            yield path + each.name, value, texts.get(each.name, "")


def _texts(kind: type[Any]) -> dict[str, str]:
    """What the docstring says of each field, below ``Args:``."""
    _, _, below = (inspect.getdoc(kind) or "").partition("Args:\n")
    described = re.findall(r"^    (\w+): (.+(?:\n {8}.+)*)$", below.partition("\n\n")[0], re.MULTILINE)
    return {name: re.sub(r"\s+", " ", text).replace("``", "`") for name, text in described}


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
        if name.endswith("_BYTES") and not text.strip().lstrip("-").isdigit():
            return parse_bytes(text)
        return msgspec.convert(text, hint, strict=False)
    except ValueError as error:
        wanted = "a number of bytes, or a size such as 4GiB" if name.endswith("_BYTES") else _wanted(hint)
        raise SettingsError(f"{name} is {text!r}; it must be {wanted}") from error


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
