"""Start the server, let every client rank the same texts, print who agreed: ``python -m tests.clients [NAME …]``."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.http_client import JsonClient
from benchmarks.server_process import ServerProcess
from benchmarks.tables import table
from tests.clients.environments import InstallFailed, python_of
from tests.clients.ranking import native_rankings
from tests.clients.suite import CLIENTS, Client

_START_S = 180.0
_CLIENT_S = 180.0
_FAULT_LINES, _FAULT_COLUMNS = 12, 300


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one client did; ``fault`` is None if it got the order of the native route."""

    client: Client
    seconds: float
    fault: str | None


def main() -> int:
    """1 if a client could not be installed, failed, or got another order."""
    parser = argparse.ArgumentParser(prog="python -m tests.clients", description=__doc__)
    parser.add_argument("names", nargs="*", help="run only clients whose name holds one of these")
    names: list[str] = parser.parse_args().names
    clients = [client for client in CLIENTS if not names or any(name in client.name for name in names)]
    pythons, faults = _install(clients)
    with _server() as url, tempfile.TemporaryDirectory() as folder:
        rankings = Path(folder) / "rankings.json"
        with contextlib.closing(JsonClient(url)) as native:
            rankings.write_text(json.dumps(native_rankings(native)), encoding="utf-8")
        outcomes = [
            _run(client, pythons[client.environment], url, rankings)
            if client.environment in pythons
            else Outcome(client, 0.0, faults[client.environment])
            for client in clients
        ]
    return _report(outcomes)


def _install(clients: Sequence[Client]) -> tuple[dict[str, Path], dict[str, str]]:
    """Interpreters by environment, and why there is none for some."""
    pythons: dict[str, Path] = {}
    faults: dict[str, str] = {}
    for client in {client.environment: client for client in clients}.values():
        try:
            pythons[client.environment] = python_of(client.requirements)
        except InstallFailed as error:
            faults[client.environment] = f"not installed: {error}"
    return pythons, faults


@contextlib.contextmanager
def _server() -> Iterator[str]:
    """The service with its default model on a free port, and its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "scorer", "serve", "--port", str(port)]
    with ServerProcess(command, {"SCORER_LOG_LEVEL": "warning"}) as server:
        server.wait_until_ready(url, "/health/ready", timeout_s=_START_S)
        yield url


def _run(client: Client, python: Path, url: str, rankings: Path) -> Outcome:
    command = [str(python), str(client.path), client.variant, url, str(rankings)]
    # an index of a caller's own, a proxy or keys for the real services are not for these clients
    environ = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
    began_s = time.monotonic()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_CLIENT_S, env=environ, check=False)
        fault = None if done.returncode == 0 else _end_of(done.stderr) or f"exit code {done.returncode}"
    except subprocess.TimeoutExpired:
        fault = f"no answer in {_CLIENT_S:.0f} s"
    return Outcome(client, time.monotonic() - began_s, fault)


def _end_of(output: str) -> str:
    lines = output.strip().splitlines()[-_FAULT_LINES:]
    return "\n".join(line[:_FAULT_COLUMNS] for line in lines)


def _report(outcomes: Sequence[Outcome]) -> int:
    """Print the table, then what went wrong at length."""
    rows = [(each.client.name, "failed" if each.fault else "ok", f"{each.seconds:.1f}") for each in outcomes]
    print(table(("client", "order", "s"), rows))
    failed = [each for each in outcomes if each.fault]
    for each in failed:
        print(f"\n{each.client.name}:\n{each.fault}")
    print(f"\n{len(outcomes) - len(failed)} passed, {len(failed)} failed")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
