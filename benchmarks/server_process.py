"""A server that is started for a measurement and stopped after it."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from types import TracebackType

from benchmarks.http_client import HttpError, JsonClient

_POLL_S = 0.2
_STOP_S = 20.0
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")


class ServerProcess:
    """Runs the command ``words`` with the variables ``environ`` on top of the caller's.

    It joins the caller's process group, so that whoever pauses the group pauses it too. Its
    output goes where the caller's errors go. As a context manager it ends with the block.
    """

    def __init__(self, words: Sequence[str], environ: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            words, env={**os.environ, **environ}, stdin=subprocess.DEVNULL, stdout=sys.stderr
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def wait_until_ready(self, url: str, path: str, *, timeout_s: float) -> None:
        """Return once ``path`` is answered with status 200.

        Raises:
            TimeoutError: it was not in time.
            ChildProcessError: the server ended before it was.
        """
        until = time.monotonic() + timeout_s
        with contextlib.closing(JsonClient(url)) as client:
            self._poll(client, path, until)

    def _poll(self, client: JsonClient, path: str, until: float) -> None:
        while True:
            if (code := self._process.poll()) is not None:
                raise ChildProcessError(f"the server ended with code {code} before it was ready")
            try:
                client.text(path)
            except (OSError, HttpError):
                if time.monotonic() > until:
                    raise TimeoutError(f"{path} was not answered with status 200 in time") from None
                time.sleep(_POLL_S)
            else:
                return

    def stop(self) -> None:
        """Ask the server to end; make it, if it does not."""
        self._process.terminate()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def split_command(command: str) -> tuple[list[str], dict[str, str]]:
    """The words of a command line, and the assignments that it begins with, as in a shell."""
    words = shlex.split(command)
    assignments = list(itertools.takewhile(_ASSIGNMENT.match, words))
    return words[len(assignments) :], dict(word.split("=", 1) for word in assignments)
