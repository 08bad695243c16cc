"""Thousands of requests made from the OpenAPI document, good and bad, at the service with a fake engine.

``python -m tests.conformance [OPTION …]`` hands the options on to ``schemathesis run``. None of the
requests may be answered with a server error, and all answers must be as the document says.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import httpx

from benchmarks.server_process import ServerProcess
from engine.host import available_processors
from tests.clients.environments import ROOT, InstallFailed, python_of
from tests.helpers.ports import reserved_port

_REQUIREMENTS: Final = Path(__file__).parent / "schemathesis.txt"
_START_S: Final = 60.0
_OPTIONS: Final = (
    "--phases=examples,coverage,fuzzing",
    "--max-examples=25",
    "--seed=1",
    "--no-shrink",
    # a schema cannot say that a query of white space has no likelihood, or that two fields must agree
    "--exclude-checks=positive_data_acceptance",
)


def main() -> int:
    """The worst exit status of a schemathesis; 1 if it cannot be installed."""
    try:
        program = python_of(_REQUIREMENTS).with_name("schemathesis")
    except InstallFailed as error:
        print(f"not installed: {error}", file=sys.stderr)
        return 1
    with reserved_port() as port:
        url = f"http://127.0.0.1:{port}"
        service = [sys.executable, "-m", "tests.helpers.fake_service"]
        with ServerProcess(service, {"SCORER_PORT": str(port), "SCORER_LOG_LEVEL": "error"}) as server:
            server.wait_until_ready(url, "/health/ready", timeout_s=_START_S)
            document = f"{url}/openapi.json"
            # a caller's own options may choose operations, so those are not dealt out
            shares = [sys.argv[1:]] if sys.argv[1:] else _shares(document)
            return _run([[str(program), "run", document, *_OPTIONS, *share] for share in shares])


def _shares(document: str) -> list[list[str]]:
    """Options that deal the paths out to as many processes as there are processors: one keeps but one busy."""
    paths = list(httpx.get(document, timeout=_START_S).json()["paths"])
    num_shares = min(available_processors(), len(paths))
    return [[f"--include-path={path}" for path in paths[first::num_shares]] for first in range(num_shares)]


def _run(commands: Sequence[Sequence[str]]) -> int:
    """Run all at the same time, then print what each has said."""
    environ = {**os.environ, "NO_COLOR": "1"}
    with ExitStack() as stack:
        outputs = [stack.enter_context(tempfile.TemporaryFile("w+", encoding="utf-8")) for _ in commands]
        # what schemathesis finds it keeps in the folder that it runs in
        processes = [
            stack.enter_context(subprocess.Popen(command, cwd=ROOT, env=environ, stdout=output, stderr=output))
            for command, output in zip(commands, outputs, strict=True)
        ]
        codes = [process.wait() for process in processes]
        for output in outputs:
            output.seek(0)
            print(output.read())
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
