"""Start the server, let every client rank the same texts, print who agreed: ``python -m tests.clients [NAME …]``."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.http_client import JsonClient
from benchmarks.server_process import ServerProcess
from benchmarks.tables import table
from tests.clients.environments import InstallFailed, python_of
from tests.clients.ranking import native_rankings
from tests.clients.suite import Library, selected
from tests.helpers.ports import reserved_port

_START_S: Final = 180.0
_LIBRARY_S: Final = 300.0
_FAULT_LINES: Final = 12
_FAULT_COLUMNS: Final = 300


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one client did; ``fault`` is None if it got the order of the native route."""

    name: str
    fault: str | None


def main() -> int:
    """1 if a client could not be installed, failed, or got another order."""
    parser = argparse.ArgumentParser(prog="python -m tests.clients", description=__doc__)
    parser.add_argument("names", nargs="*", help="run only clients whose name holds one of these")
    libraries = selected(parser.parse_args().names)
    with ThreadPoolExecutor() as pool, _server() as url, tempfile.TemporaryDirectory() as folder:
        # while others start or run; these run one by one, since company in a step may move a score by a rounding
        installed = {library: pool.submit(python_of, library.requirements) for library in libraries}
        rankings = Path(folder) / "rankings.json"
        with contextlib.closing(JsonClient(url)) as native:
            rankings.write_text(json.dumps(native_rankings(native)), encoding="utf-8")
        return _report(
            [outcome for library in libraries for outcome in _run(library, installed[library], url, rankings)]
        )


@contextlib.contextmanager
def _server() -> Iterator[str]:
    """The service with its default model on a free port, and its address."""
    with reserved_port() as port:
        url = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-m", "scorer", "serve", "--port", str(port)]
        with ServerProcess(command, {"SCORER_LOG_LEVEL": "warning"}) as server:
            server.wait_until_ready(url, "/health/ready", timeout_s=_START_S)
            yield url


def _run(library: Library, python: Future[Path], url: str, rankings: Path) -> list[Outcome]:
    """Run all clients of a library in one process: most of their time goes into importing it."""
    try:
        faults = _faults(library, python.result(), url, rankings)
    except InstallFailed as error:
        faults = dict.fromkeys(library.variants, f"not installed: {error}")
    return [Outcome(library.name(each), faults[each]) for each in library.variants]


def _faults(library: Library, python: Path, url: str, rankings: Path) -> dict[str, str | None]:
    """What went wrong for each variant: what its script noted, else what ended the script."""
    outcomes = rankings.with_name(f"{library.environment}.json")
    outcomes.write_text("{}", encoding="utf-8")
    command = [str(python), str(library.path), url, str(rankings), str(outcomes), *library.variants]
    # an index of a caller's own, a proxy or keys for the real services are not for these clients
    environ = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIBRARY_S, env=environ, check=False)
        end = None if done.returncode == 0 else f"exit code {done.returncode}\n{done.stderr}"
    except subprocess.TimeoutExpired:
        end = f"no end in {_LIBRARY_S:.0f} s"
    noted: dict[str, str | None] = json.loads(outcomes.read_text(encoding="utf-8"))
    if end is None:
        return {variant: noted.get(variant, "it was not run") for variant in library.variants}
    return {variant: noted.get(variant) or end for variant in library.variants}


def _end_of(output: str) -> str:
    lines = output.strip().splitlines()[-_FAULT_LINES:]
    return "\n".join(line[:_FAULT_COLUMNS] for line in lines)


def _report(outcomes: Sequence[Outcome]) -> int:
    """Print the table, then what went wrong at length."""
    print(table(("client", "order"), [(each.name, "failed" if each.fault else "ok") for each in outcomes]))
    failed = [each for each in outcomes if each.fault]
    for each in failed:
        print(f"\n{each.name}:\n{_end_of(each.fault or '')}")
    print(f"\n{len(outcomes) - len(failed)} passed, {len(failed)} failed")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
