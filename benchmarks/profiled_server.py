"""``scorer serve`` with a clock around every operation of its engine.

    python -m benchmarks.profiled_server PORT

Settings are those of ``scorer serve``. ``GET /`` at PORT answers with what operations took since
it was last asked; ask while no request is under way.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer

import msgspec

from benchmarks.messages import OperationCost
from benchmarks.profiled import ProfiledKernels, profiled_kernels
from scorer.__main__ import main as scorer_command


def costs_server(port: int, made: Sequence[ProfiledKernels]) -> HTTPServer:
    """A server of the costs of the first of ``made``; nobody has called it yet."""

    class Costs(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            costs: dict[str, OperationCost] = made[0].take_costs() if made else {}
            body = msgspec.json.encode(costs)
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the name is the library's
            """Nobody wants to read that."""

    return HTTPServer(("127.0.0.1", port), Costs)


def main(port: int) -> None:
    with profiled_kernels() as made, costs_server(port, made) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        scorer_command(["serve"], prog_name="scorer")


if __name__ == "__main__":
    main(int(sys.argv[1]))
