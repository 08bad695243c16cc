"""Start the service, score a rerank batch and one document with many questions, show what was reused, stop.

Needs nothing but the standard library and an interpreter in which radix-scorer is installed.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

FOLDER = Path(__file__).parent
HOST = "127.0.0.1"
START_S = 180.0  # a cold disk and a busy machine included
ANSWER_S = 120.0
STOP_S = 40.0
PORT_ATTEMPTS = 3
COUNTERS = ("prompt", "cached", "shared", "computed")
RIGHT = {"Sulli", "Welcome to the Show (TV series)"}
"""Passages of ``rerank.json`` that the data set marks as supporting the answer."""


class DemoFailed(Exception):
    """The demo cannot go on; the message says why."""


class PortTaken(DemoFailed):
    """Somebody else got the port between choosing and using it."""


@dataclass(frozen=True)
class Tokens:
    """Where the tokens of some prompts came from."""

    prompt: int
    cached: int
    shared: int
    computed: int

    @property
    def adds_up(self) -> bool:
        return self.prompt == self.cached + self.shared + self.computed

    def __add__(self, other: Tokens) -> Tokens:
        return Tokens(*(getattr(self, name) + getattr(other, name) for name in COUNTERS))

    def __sub__(self, other: Tokens) -> Tokens:
        return Tokens(*(getattr(self, name) - getattr(other, name) for name in COUNTERS))


@dataclass(frozen=True)
class Service:
    """A service that is ready."""

    url: str

    def get(self, path: str, *, timeout_s: float = 10.0) -> tuple[int, bytes]:
        try:
            with urllib.request.urlopen(self.url + path, timeout=timeout_s) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def score(self, name: str) -> tuple[dict[str, Any], float]:
        """The answer to one of the files here, and how long it took in milliseconds."""
        body = (FOLDER / name).read_bytes()
        request = urllib.request.Request(
            f"{self.url}/v1/batches/score", data=body, headers={"content-type": "application/json"}
        )
        started = time.perf_counter()
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
                reply = answer.read()
        except urllib.error.HTTPError as error:
            raise DemoFailed(f"{name} was answered {error.code}: {error.read().decode(errors='replace')}") from error
        return json.loads(reply), (time.perf_counter() - started) * 1000

    def counters(self) -> Tokens:
        """What the service has counted since it started."""
        values = {}
        for line in self.get("/metrics")[1].decode().splitlines():
            name, _, value = line.rpartition(" ")
            values[name] = value
        return Tokens(*(int(float(values[f"scorer_{name}_tokens_total"])) for name in COUNTERS))


def tokens_of(reply: dict[str, Any]) -> Tokens:
    usage = reply["usage"]
    return Tokens(
        prompt=usage["prompt_tokens"],
        cached=usage["prompt_tokens_details"]["cached_tokens"],
        shared=usage["shared_tokens"],
        computed=usage["computed_tokens"],
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(log: IO[bytes]) -> Iterator[tuple[Service, subprocess.Popen[bytes]]]:
    """A service of our own on a free port; whatever happens, it does not outlive the block."""
    service, process = start_ready(log)
    try:
        yield service, process
    finally:
        stop(process)


def start_ready(log: IO[bytes]) -> tuple[Service, subprocess.Popen[bytes]]:
    attempts = PORT_ATTEMPTS
    while True:
        attempts -= 1
        port = free_port()
        service, process = Service(f"http://{HOST}:{port}"), start(port, log)
        try:
            wait_ready(service, process, log)
        except BaseException as error:
            stop(process)
            if not isinstance(error, PortTaken) or attempts == 0:
                raise
        else:
            return service, process


def start(port: int, log: IO[bytes]) -> subprocess.Popen[bytes]:
    # settings for a service of the caller's own, such as its model, are not for this one
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SCORER_")}
    environ |= {name: os.environ[name] for name in ("SCORER_MODELS_DIR",) if name in os.environ}
    environ["SCORER_REQUEST_TIMEOUT_S"] = f"{ANSWER_S - 10:.0f}"  # on a busy machine this may be needed
    print(f"Starting `scorer serve --port {port}` ", end="", flush=True)
    command = [sys.executable, "-m", "scorer", "serve", "--host", HOST, "--port", str(port)]
    return subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def wait_ready(service: Service, process: subprocess.Popen[bytes], log: IO[bytes]) -> None:
    """Return when the service says that it is ready.

    Raises:
        DemoFailed: it ended, or took too long.
    """
    started = time.monotonic()
    answer = "nothing"
    while time.monotonic() - started < START_S:
        if process.poll() is not None:
            print()
            said = last_words(log)
            kind = PortTaken if "address already in use" in said.lower() else DemoFailed
            raise kind(f"the service ended with exit code {process.returncode} before it was ready. It said:\n{said}")
        try:
            status, body = service.get("/health/ready", timeout_s=5.0)
        except OSError:
            status, body = 0, b"nothing"
        if status == 200:
            print(f" ready after {time.monotonic() - started:.1f} s")
            return
        answer = body.decode(errors="replace")
        print(".", end="", flush=True)
        time.sleep(0.5)
    print()
    raise DemoFailed(
        f"the service was not ready after {START_S:.0f} s. It answered {answer} and said:\n{last_words(log)}"
    )


def stop(process: subprocess.Popen[bytes]) -> int:
    """Ask with SIGTERM, wait, and give the exit code; kill what does not listen."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        return process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def last_words(log: IO[bytes], num_lines: int = 10) -> str:
    """The end of the log, without the traces in it."""
    log.seek(0)
    words = []
    for line in log.read().decode(errors="replace").splitlines()[-num_lines:]:
        try:
            entry = json.loads(line)
            words += [entry["message"], *entry.get("exception", "").splitlines()[-1:]]
        except (ValueError, TypeError, KeyError):
            words.append(line)
    return "\n".join(f"  {word}" for word in words)


def show_rerank(service: Service) -> Tokens:
    """Rank passages for one query."""
    request = json.loads((FOLDER / "rerank.json").read_bytes())
    reply, wall_ms = service.score("rerank.json")
    passages = sorted(reply["results"], key=lambda result: -result["score"])
    print(f"\n1. {len(passages)} passages for one query, {wall_ms:.0f} ms")
    print(f"   {request['queries'][0]}\n")
    for place, passage in enumerate(passages, start=1):
        mark = "  <- supports the answer" if passage["document_id"] in RIGHT else ""
        print(f"   {place:>2}  {passage['score']:8.3f}  {passage['document_id']}{mark}")
    print(f"\n   The score is the mean log-probability of the query's tokens after the passage ({reply['template']}).")
    return tokens_of(reply)


def show_questions(service: Service) -> Tokens:
    """Score the same document with two sets of questions, cold and warm."""
    total = Tokens(0, 0, 0, 0)
    print("\n2. One document, 16 questions\n")
    print("                              wall     TTFT    prompt =  cached +  shared + computed   prompt/computed")
    for title, name in (
        ("cold", "questions.json"),
        ("warm, the same questions", "questions.json"),
        ("warm, 16 other questions", "other-questions.json"),
    ):
        reply, wall_ms = service.score(name)
        tokens = tokens_of(reply)
        times = f"{wall_ms:>6.0f} ms{reply['timings']['ttft_ms']:>6.0f} ms"
        parts = f"{tokens.prompt:>10,}{tokens.cached:>10,}{tokens.shared:>10,}{tokens.computed:>11,}"
        print(f"   {title:<24}{times}{parts}{tokens.prompt / tokens.computed:>18.1f}")
        check(tokens.adds_up, f"{tokens} do not add up")
        total += tokens
    print("\n   cached: in the cache before the request; shared: computed once for several rows of the request;")
    print("   computed: run by the model. They add up to the prompt in every line.")
    return total


def show_counters(before: Tokens, after: Tokens, wanted: Tokens) -> None:
    counted = after - before
    print("\n3. The counters of /metrics say the same\n")
    for name in COUNTERS:
        print(f"   scorer_{name}_tokens_total".ljust(36) + f"+{getattr(counted, name):>8,}")
    check(counted == wanted, f"the replies said {wanted}, /metrics counted {counted}")


def check(holds: bool, message: str) -> None:
    if not holds:
        raise DemoFailed(message)


def demo(log: IO[bytes]) -> None:
    with running(log) as (service, process):
        info = json.loads(service.get("/info")[1])
        print(f"{info['model']}, {info['dtype']} on {info['device']}, template {info['default_template']}")
        before = service.counters()
        replies = show_rerank(service) + show_questions(service)
        show_counters(before, service.counters(), replies)
        code = stop(process)
        print(f"\nStopped with SIGTERM: exit code {code}")
        check(code == 0, f"the service said at its end:\n{last_words(log)}")


def main() -> int:
    with tempfile.TemporaryFile() as log:
        try:
            demo(log)
        except (DemoFailed, OSError) as error:
            print(f"The demo failed: {error}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            print("\nInterrupted; the service was stopped.", file=sys.stderr)
            return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
