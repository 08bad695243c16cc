"""Structured logging: one JSON object a line, one line a request, never text of a client."""

from __future__ import annotations

import logging
import sys
import traceback
from datetime import UTC, datetime
from typing import IO

import msgspec

from scorer.http.request_record import RequestRecord
from scorer.settings import LogLevel

_REQUESTS = logging.getLogger("scorer.requests")


class JsonFormatter(logging.Formatter):
    """A log record as one line of JSON; a dictionary given as ``extra["fields"]`` is merged in."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= getattr(record, "fields", {})
        if record.exc_info and record.exc_info[0] is not None:
            line["exception"] = "".join(traceback.format_exception(*record.exc_info))
        return msgspec.json.encode(line).decode()


def configure(level: LogLevel, stream: IO[str] = sys.stderr) -> None:
    """Send all logs of the process to ``stream`` as JSON lines."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())


def log_request(record: RequestRecord, *, route: str, status: int) -> None:
    """One line for a finished request; probes and pages only at debug level."""
    fields: dict[str, object] = {
        "request_id": record.request_id,
        "trace_id": record.trace.trace_id if record.trace else None,
        "parent_span_id": record.trace.span_id if record.trace else None,
        "tenant": record.tenant,
        "method": record.method,
        "route": route,
        "status": status,
        "outcome": record.outcome,
        "error": record.error_code,
        "duration_ms": round(record.elapsed_s() * 1000, 3),
        "pairs": record.num_pairs,
        "prompt_tokens": record.prompt_tokens,
        "cached_tokens": record.cached_tokens,
        "computed_tokens": record.computed_tokens,
    }
    level = logging.INFO if record.scoring or (status >= 400 and route == UNMATCHED) else logging.DEBUG
    _REQUESTS.log(level, "request", extra={"fields": {name: v for name, v in fields.items() if v is not None}})


UNMATCHED = "unmatched"
"""Stands for the route of a request that no route matches; its path may be anything."""
