"""The trace that a request belongs to, as the W3C Trace Context header ``traceparent`` names it.

Nothing is traced here: the ids go to the log, so that lines of this service are found beside the
spans of whoever called it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

TRACE_HEADER: Final = "traceparent"
# A version after 00 may append fields, after a further dash.
_TRACEPARENT: Final = re.compile(
    r"(?!ff)(?P<version>[0-9a-f]{2})-(?P<trace>[0-9a-f]{32})-(?P<span>[0-9a-f]{16})-[0-9a-f]{2}(?P<more>-.*)?"
)


@dataclass(frozen=True, slots=True)
class TraceContext:
    """Ids in hexadecimal; ``span_id`` is the caller's span."""

    trace_id: str
    span_id: str


def parse_traceparent(header: str | None) -> TraceContext | None:
    """What the header says; None if there is none, or none that the recommendation allows."""
    match = _TRACEPARENT.fullmatch(header or "")
    if match is None or (match["version"] == "00" and match["more"]):
        return None
    context = TraceContext(match["trace"], match["span"])
    return context if int(context.trace_id, 16) and int(context.span_id, 16) else None
