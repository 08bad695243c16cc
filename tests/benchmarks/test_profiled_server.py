from __future__ import annotations

import contextlib
import threading

import msgspec

from benchmarks.http_client import JsonClient
from benchmarks.messages import OperationCost
from benchmarks.profiled import ProfiledKernels
from benchmarks.profiled_server import costs_server


class Kernels(ProfiledKernels):
    """Has had one costly operation."""

    def __init__(self) -> None:
        self._left = [{"attend": OperationCost(0.5, 3, 7)}]

    def take_costs(self) -> dict[str, OperationCost]:
        return self._left.pop() if self._left else {}


def test_costs_are_told_over_http_and_only_once() -> None:
    with costs_server(0, [Kernels()]) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        with contextlib.closing(JsonClient(f"http://127.0.0.1:{server.server_port}")) as client:
            first, second = client.get("/"), client.get("/")
        server.shutdown()
        thread.join()

    assert msgspec.convert(first, dict[str, OperationCost]) == {"attend": OperationCost(0.5, 3, 7)}
    assert second == {}


def test_server_whose_engine_is_not_there_yet_has_no_costs() -> None:
    with costs_server(0, []) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        with contextlib.closing(JsonClient(f"http://127.0.0.1:{server.server_port}")) as client:
            found = client.get("/")
        server.shutdown()
        thread.join()

    assert found == {}
