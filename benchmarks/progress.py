"""Lines for the one who waits."""

from __future__ import annotations

import sys


def tell(line: str) -> None:
    """Print ``line`` where it does not mix with results."""
    print(line, file=sys.stderr, flush=True)
