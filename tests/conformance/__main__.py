"""Thousands of requests made from the OpenAPI document, good and bad, at the service with a fake engine.

``python -m tests.conformance [OPTION …]`` hands the options on to ``schemathesis run``. None of the
requests may be answered with a server error, and all answers must be as the document says.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Final

from benchmarks.server_process import ServerProcess
from tests.clients.environments import ROOT, InstallFailed, python_of

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
    """What schemathesis exits with; 1 if it cannot be installed."""
    try:
        python = python_of(_REQUIREMENTS)
    except InstallFailed as error:
        print(f"not installed: {error}", file=sys.stderr)
        return 1
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    service = [sys.executable, "-m", "tests.helpers.fake_service"]
    with ServerProcess(service, {"SCORER_PORT": str(port), "SCORER_LOG_LEVEL": "error"}) as server:
        server.wait_until_ready(url, "/health/ready", timeout_s=_START_S)
        command = [str(python.with_name("schemathesis")), "run", f"{url}/openapi.json", *_OPTIONS, *sys.argv[1:]]
        # it keeps what it found in the folder that it runs in
        return subprocess.run(command, cwd=ROOT, env={**os.environ, "NO_COLOR": "1"}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
