"""Calls that need not be made at once, kept until there is time for them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import ParamSpec

P = ParamSpec("P")

MOST_CALLS = 1024
"""Kept at one time. The one who postpones another makes them all, so that memory stays bounded."""


class PostponedCalls:
    """Makes calls in the order in which they were postponed, on the thread that asks for it.

    Postponing one takes a fraction of making it, and never waits for a thread that makes them, but at
    :data:`MOST_CALLS`. Safe to use from any thread.
    """

    def __init__(self) -> None:
        self._calls: deque[Callable[[], object]] = deque()
        self._making = threading.Lock()

    def postpone(self, call: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        self._calls.append(lambda: call(*args, **kwargs))
        if len(self._calls) >= MOST_CALLS:
            self.make()

    def make(self) -> None:
        """Make all that were postponed before; when it returns they have been made, by whichever thread.

        One that raises is not made again; what it raises comes out here.
        """
        with self._making:
            while self._calls:
                self._calls.popleft()()
