"""The harness's end of a system's process: start it, ask it, stop it from running meanwhile."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from benchmarks.messages import Command, Failed, Reply, Stop

_ROOT = Path(__file__).parents[1]
_STOP_S = 30.0
_LOG_TAIL = 2000
ReplyT = TypeVar("ReplyT", bound=Reply)
_DECODER: msgspec.json.Decoder[Reply] = msgspec.json.Decoder(Reply)


class WorkerError(Exception):
    """A system's process failed; the message says what it said last."""


class WorkerProcess:
    """A process, stopped (SIGSTOP) unless :meth:`awake`, so that no system disturbs another.

    It leads a process group, which holds the servers it starts. If the harness dies, the
    group is orphaned while stopped, and the kernel ends it.

    Args:
        log: Takes what the process prints.
    """

    def __init__(self, name: str, *, threads: int, log: Path) -> None:
        self.name = name
        self._log = log
        environ = {
            "OMP_NUM_THREADS": str(threads),
            "TOKENIZERS_PARALLELISM": "false",
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_VERBOSITY": "error",
        }
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.worker"],
                cwd=_ROOT,
                env={**os.environ, **environ},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                process_group=0,
            )
        self._pause()

    @property
    def pid(self) -> int:
        return self._process.pid

    @contextlib.contextmanager
    def awake(self) -> Iterator[None]:
        """Let the process run within the block."""
        self._signal(signal.SIGCONT)
        try:
            yield
        finally:
            self._pause()

    def ask(self, command: Command, kind: type[ReplyT]) -> ReplyT:
        """Send a command and wait for its reply; the process must be awake.

        Raises:
            WorkerError: the command failed, or the process ended.
        """
        assert self._process.stdin and self._process.stdout
        try:
            self._process.stdin.write(msgspec.json.encode(command) + b"\n")
            self._process.stdin.flush()
        except (BrokenPipeError, ValueError):  # the other end is gone, or this one was closed
            raise self._ended() from None
        line = self._process.stdout.readline()
        if not line:
            raise self._ended()
        reply = _DECODER.decode(line)
        if isinstance(reply, Failed):
            raise WorkerError(f"{self.name}: {reply.error}\n{reply.trace}")
        if not isinstance(reply, kind):
            raise WorkerError(f"{self.name} answered {type(command).__name__} with {type(reply).__name__}")
        return reply

    def close(self) -> None:
        """End the process and what it started; more than once is no harm."""
        assert self._process.stdin and self._process.stdout
        if self._process.stdin.closed:
            return
        self._signal(signal.SIGCONT)
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(msgspec.json.encode(Stop()) + b"\n")
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_S)
        # also for a server that outlived the process that started it
        self._signal(signal.SIGKILL)
        self._process.wait()
        self._process.stdout.close()

    def _pause(self) -> None:
        """Stop the group; returns when its leader does stand still, or has ended."""
        self._signal(signal.SIGSTOP)
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _ended(self) -> WorkerError:
        code = self._process.wait()
        tail = self._log.read_text(encoding="utf-8", errors="replace")[-_LOG_TAIL:]
        return WorkerError(f"the process of {self.name} ended with code {code}; it said last:\n{tail}")
