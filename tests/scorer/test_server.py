"""The server as a process: signals, slow senders, clients that leave. Bounded, on 127.0.0.1 only."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import httpx
import pytest

from tests.helpers.ports import reserved_port
from tests.helpers.service import PATIENCE_S, SCORE, until

ROOT = Path(__file__).parents[2]
GENERATE = "/v1/generate"
BODY = {"queries": ["q"], "documents": ["d"]}


@dataclass
class Process:
    """A service that is running; ``release`` lets the tasks of a held engine go on."""

    popen: subprocess.Popen[bytes]
    port: int
    log: Path
    release_file: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.url + path, timeout=PATIENCE_S)

    def score(self) -> httpx.Response:
        return httpx.post(self.url + SCORE, json=BODY, timeout=PATIENCE_S)

    def sample(self, name: str) -> float:
        for line in self.get("/metrics").text.splitlines():
            if line.startswith(name + " "):
                return float(line.rpartition(" ")[2])
        return 0.0

    def release(self) -> None:
        self.release_file.touch()

    def terminate(self) -> None:
        self.popen.send_signal(signal.SIGTERM)

    def exit_code(self) -> int:
        return self.popen.wait(PATIENCE_S)

    def lines(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S)


@contextmanager
def running(
    folder: Path, environ: Mapping[str, str] | None = None, *, wait_for: str = "/health/ready"
) -> Iterator[Process]:
    """A service of the test's own; it does not outlive the block."""
    release_file = folder / "release"
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("SCORER_")}
    with reserved_port() as port, (folder / "log").open("wb") as log:
        own = {"SCORER_PORT": str(port), "FAKE_RELEASE": str(release_file), "PYTHONPATH": str(ROOT)}
        popen = start([sys.executable, "-m", "tests.helpers.fake_service"], inherited | own | dict(environ or {}), log)
        process = Process(popen, port, folder / "log", release_file)
        try:
            if wait_for:
                until(lambda: answers(process, wait_for))
            yield process
        finally:
            popen.kill()
            popen.wait()


def start(command: list[str], environ: Mapping[str, str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, cwd=ROOT, env=dict(environ), stdout=log, stderr=log)


def answers(process: Process, path: str) -> bool:
    assert process.popen.poll() is None, process.log.read_text()
    try:
        return process.get(path).status_code == 200
    except httpx.TransportError:
        return False


def raised(function: Callable[[], object], kind: type[Exception]) -> bool:
    try:
        function()
    except kind:
        return True
    return False


def test_sigterm_lets_requests_under_way_finish_and_refuses_new_ones(tmp_path: Path) -> None:
    with running(tmp_path, {"FAKE_HELD": "1"}) as process, ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(process.score) for _ in range(3)]
        until(lambda: process.sample("scorer_queue_tasks") == 3)
        process.terminate()
        until(lambda: process.get("/health/ready").status_code == 503)
        ready, live, refused = process.get("/health/ready"), process.get("/health/live"), process.score()
        process.release()

        assert [each.result().status_code for each in waiting] == [200] * 3
        assert process.exit_code() == 0
    assert ready.json()["phase"] == "draining"
    assert live.status_code == 200
    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) >= 1


def test_events_reach_a_client_and_one_that_leaves_is_noticed(tmp_path: Path) -> None:
    body = {"prompt": "a", "max_tokens": 2, "n": 2, "stream": True}
    with running(tmp_path, {"FAKE_HELD": "1"}) as process:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(process.url + GENERATE, json=body, timeout=0.3)
        until(lambda: process.sample("scorer_queue_tasks") == 0)
        process.release()

        with httpx.stream("POST", process.url + GENERATE, json=body, timeout=PATIENCE_S) as reply:
            names = [line.removeprefix("event: ") for line in reply.iter_lines() if line.startswith("event: ")]

    assert reply.status_code == 200
    assert names[0] == "text"
    assert names.index("usage") == len(names) - 1


def test_a_drain_has_an_end(tmp_path: Path) -> None:
    with (
        running(tmp_path, {"FAKE_HELD": "1", "SCORER_DRAIN_TIMEOUT_S": "0.3"}) as process,
        ThreadPoolExecutor(1) as pool,
    ):
        waiting = pool.submit(process.score)
        until(lambda: process.sample("scorer_queue_tasks") == 1)
        process.terminate()

        assert waiting.result().status_code == 503
        assert process.exit_code() == 0


def test_a_second_signal_does_not_wait(tmp_path: Path) -> None:
    with running(tmp_path, {"FAKE_HELD": "1"}) as process, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(process.score)
        until(lambda: process.sample("scorer_queue_tasks") == 1)
        process.terminate()
        until(lambda: process.get("/health/ready").status_code == 503)
        process.terminate()

        assert waiting.result().status_code == 503
        assert process.exit_code() == 0


def test_sigterm_while_the_model_loads_stops_the_process_with_0(tmp_path: Path) -> None:
    with running(tmp_path, {"FAKE_LOAD": "hang"}, wait_for="/health/live") as process:
        assert process.get("/health/ready").status_code == 503
        process.terminate()

        assert process.exit_code() == 0


def test_b032_a_model_that_cannot_be_loaded_ends_the_process_with_1(tmp_path: Path) -> None:
    with running(tmp_path, {"FAKE_LOAD": "fail"}, wait_for="") as process:
        assert process.exit_code() == 1

    assert "model.safetensors is missing" in process.log.read_text()


def test_an_address_that_is_taken_ends_the_process_with_1(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with running(tmp_path, {"SCORER_PORT": str(port), "FAKE_LOAD": "hang"}, wait_for="") as process:
            assert process.exit_code() == 1

    assert "address already in use" in process.log.read_text()


def test_b025_clients_that_leave_free_what_they_hold(tmp_path: Path) -> None:
    with running(tmp_path, {"FAKE_HELD": "1"}) as process:
        body = json.dumps(BODY).encode()
        head = (
            f"POST {SCORE} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        for _ in range(20):
            with process.connect() as client:
                client.sendall(head.encode() + body)
                until(lambda: process.sample("scorer_queue_tasks") == 1)
            until(lambda: process.sample("scorer_queue_tasks") == 0)

        cancelled = process.sample(f'scorer_request_duration_seconds_count{{outcome="cancelled",route="{SCORE}"}}')
        process.release()
        assert cancelled == 20
        assert process.score().status_code == 200


def test_b034_half_sent_requests_end_within_the_documented_time(tmp_path: Path) -> None:
    limits = {"SCORER_HEADER_TIMEOUT_S": "0.5", "SCORER_BODY_TIMEOUT_S": "0.5"}
    head = f"POST {SCORE} HTTP/1.1\r\nhost: x\r\n".encode()
    body = b"content-type: application/json\r\ncontent-length: 100\r\n\r\n{..."
    with running(tmp_path, limits) as process:
        silent, half_head, half_body, second = (process.connect() for _ in range(4))
        half_head.sendall(head)
        half_body.sendall(head + body)
        second.sendall(b"GET /health/live HTTP/1.1\r\nhost: x\r\n\r\n")
        until(lambda: second.recv(65536).startswith(b"HTTP/1.1 200"))
        second.sendall(head)
        many = [process.connect() for _ in range(100)]
        for each in many:
            each.sendall(head)
        good = process.score()
        ends = [read_to_end(each) for each in (silent, half_head, half_body, second)]
        for each in many:
            assert read_to_end(each).startswith(b"HTTP/1.1 408")

    assert good.status_code == 200
    assert all(b"HTTP/1.1 408" in end for end in ends)
    assert b'"code":"body_timeout"' in ends[2]
    assert b"retry-after" not in ends[2]


def read_to_end(connection: socket.socket) -> bytes:
    """All that comes until the server closes; fails if it does not."""
    received = b""
    with connection, contextlib.suppress(ConnectionResetError):
        while chunk := connection.recv(65536):
            received += chunk
    return received


def test_b034_a_body_without_a_length_is_counted_as_it_comes(tmp_path: Path) -> None:
    def chunks() -> Iterator[bytes]:
        for _ in range(30):
            yield b"x" * 1000

    with running(tmp_path, {"SCORER_MAX_BODY_BYTES": "10000"}) as process:
        reply = httpx.post(
            process.url + SCORE, content=chunks(), headers={"content-type": "application/json"}, timeout=PATIENCE_S
        )
        again = process.score()

    assert reply.status_code == 413
    assert reply.json()["error"]["limit"] == 10_000
    assert again.status_code == 200


def test_headers_without_end_are_refused(tmp_path: Path) -> None:
    with running(tmp_path, {"SCORER_HEADER_TIMEOUT_S": "3600"}) as process, process.connect() as client:
        client.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n")
        give_up_at = time.monotonic() + PATIENCE_S
        while not raised(lambda: client.sendall(b"x-filler: " + b"x" * 1000 + b"\r\n"), OSError):
            assert time.monotonic() < give_up_at, "headers were taken for ever"

        assert process.get("/health/live").status_code == 200


def test_a_body_that_goes_on_after_its_answer_is_cut_off(tmp_path: Path) -> None:
    with running(tmp_path, {"SCORER_BODY_TIMEOUT_S": "0.5"}) as process, process.connect() as client:
        head = f"POST {SCORE} HTTP/1.1\r\nhost: x\r\ncontent-type: text/plain\r\ntransfer-encoding: chunked\r\n\r\n"
        client.sendall(head.encode())
        answer = client.recv(65536)
        give_up_at = time.monotonic() + PATIENCE_S
        while not raised(lambda: client.sendall(b"1\r\nx\r\n"), OSError):
            assert time.monotonic() < give_up_at, "the body was taken for ever"
            time.sleep(0.02)

    assert answer.startswith(b"HTTP/1.1 415")


def test_every_log_line_is_json_and_holds_no_text_of_the_client(tmp_path: Path) -> None:
    with running(tmp_path) as process:
        secret = {"queries": ["SECRET query"], "documents": ["SECRET document"], "request_id": "named-1"}
        httpx.post(process.url + SCORE, json=secret, timeout=PATIENCE_S)
        httpx.post(process.url + SCORE, json=secret | {"SECRET": 1, "readout": {"kind": "SECRET"}}, timeout=PATIENCE_S)
        process.get("/SECRET?q=SECRET")
        process.terminate()
        assert process.exit_code() == 0

    requests = [line for line in process.lines() if line["message"] == "request"]
    assert "SECRET" not in process.log.read_text()
    assert [line["status"] for line in requests] == [200, 422, 404]
    assert requests[0]["request_id"] == "named-1"
    assert requests[0]["pairs"] == 1
    assert isinstance(requests[0]["duration_ms"], float)
    assert requests[1]["error"] == "invalid_value"


@pytest.mark.parametrize("arguments", [["--port", "70000"], ["--nope"], ["--template"]])
def test_wrong_options_are_refused(arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "scorer", "serve", *arguments], cwd=ROOT, capture_output=True, check=False, timeout=60
    )

    assert done.returncode == 2


def test_a_wrong_setting_stops_the_start_with_its_name() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "scorer", "serve"],
        cwd=ROOT,
        env=os.environ | {"SCORER_PROT": "1"},
        capture_output=True,
        check=False,
        timeout=60,
    )

    assert done.returncode == 1
    assert b"SCORER_PROT" in done.stderr
