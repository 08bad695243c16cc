from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from benchmarks.http_client import HttpError, JsonClient
from benchmarks.messages import Start
from benchmarks.server_process import split_command
from benchmarks.systems.peers import LlamaCpp, Vllm
from benchmarks.workloads import Group

METRICS = """# HELP vllm:prompt_tokens_total Number of prefill tokens processed.
vllm:prompt_tokens_total{engine="0"} 120.0
vllm:prompt_tokens_total{engine="1"} 30.0
vllm:prefix_cache_hits_total{engine="0"} 50.0
"""


class Server(ThreadingHTTPServer):
    """Answers like llama.cpp and vLLM do; a prompt's odds are its length, as a natural logarithm."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.bodies: list[dict[str, Any]] = []
        self.num_connections = 0
        self.hang_up = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def setup(self) -> None:
        super().setup()
        self.server.num_connections += 1

    def do_GET(self) -> None:
        match self.path:
            case "/props":
                self._reply({"total_slots": 2, "build_info": "b1"})
            case "/v1/models":
                self._reply({"data": [{"id": "served"}]})
            case "/version":
                self._reply({"version": "9"})
            case "/metrics":
                self._send(200, METRICS.encode())
            case _:
                self._send(404, b"no such page")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.bodies.append(body)
        if self.path == "/completion":
            yes = len(body["prompt"]) / (1 + len(body["prompt"]))
            first, second = (label for label, _ in body["logit_bias"])
            probs = [{"id": second, "prob": 1 - yes}, {"id": first, "prob": yes}]
            timings = {"cache_n": 1, "prompt_n": len(body["prompt"]) - 1}
            self._reply({"completion_probabilities": [{"top_probs": probs}], "timings": timings})
        else:
            lengths = [len(body["query"]) + len(item) for item in body["items"]]
            rows = [{"index": place, "score": n / (1 + n)} for place, n in enumerate(lengths)]
            self._reply({"data": rows[::-1]})

    def log_message(self, *_: object) -> None: ...

    def _reply(self, content: object) -> None:
        self._send(200, json.dumps(content).encode())

    def _send(self, status: int, content: bytes) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
        # as servers do with idle connections: without a word, so the client finds out when it asks again
        self.close_connection = self.server.hang_up


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture
def client(server: Server) -> Iterator[JsonClient]:
    with contextlib.closing(JsonClient(server.url)) as made:
        yield made


def test_connection_is_kept_for_the_next_request(server: Server, client: JsonClient) -> None:
    replies = [client.get("/version") for _ in range(3)]

    assert replies == [{"version": "9"}] * 3
    assert server.num_connections == 1


def test_connection_that_the_server_closed_is_replaced(server: Server, client: JsonClient) -> None:
    server.hang_up = True

    assert [client.get("/version") for _ in range(3)] == [{"version": "9"}] * 3
    assert server.num_connections == 3


def test_other_status_is_an_error_with_the_body_and_leaves_the_client_usable(client: JsonClient) -> None:
    with pytest.raises(HttpError, match="GET /nothing: status 404: no such page"):
        client.get("/nothing")
    assert client.get("/version") == {"version": "9"}


def test_server_that_is_not_there_leaves_the_client_usable() -> None:
    with Server() as closed:
        url = closed.url
    client = JsonClient(url)

    for _ in range(2):
        with pytest.raises(ConnectionRefusedError):
            client.get("/version")


def test_address_without_a_scheme_is_refused() -> None:
    with pytest.raises(ValueError, match="'localhost:1' is no address"):
        JsonClient("localhost:1")


LABELS = (11, 12)
GROUP = Group((1, 2), (3,), ((4,), (5, 6)))


def test_llamacpp_is_asked_row_by_row_and_its_counts_are_taken(server: Server) -> None:
    system = LlamaCpp(Start("llamacpp", "", 1, {"url": server.url}), LABELS)
    answer = system.submit(GROUP, "any").result(10)
    system.close()

    # odds n : 1 for n tokens
    assert answer.log_odds == pytest.approx((1.386294, 1.609438))
    assert answer.computed_by_row == (3, 4)
    assert answer.cached_by_row == (1, 1)
    assert system.computed_tokens() == 7
    assert sorted(body["prompt"] for body in server.bodies) == [[1, 2, 3, 4], [1, 2, 3, 5, 6]]


def test_vllm_is_asked_group_by_group_and_rows_keep_their_order(server: Server) -> None:
    system = Vllm(Start("vllm", "", 1, {"url": server.url}), LABELS)
    answer, computed = system.submit(GROUP, "any").result(10), system.computed_tokens()
    system.close()

    assert answer.log_odds == pytest.approx((1.386294, 1.609438))
    assert computed == 150 - 50
    assert server.bodies == [
        {
            "model": "served",
            "query": [1, 2, 3],
            "items": [[4], [5, 6]],
            "label_token_ids": [11, 12],
            "apply_softmax": True,
        }
    ]


def test_vllm_gets_rows_without_a_prefix_one_by_one_cut_before_their_common_end(server: Server) -> None:
    system = Vllm(Start("vllm", "", 1, {"url": server.url}), LABELS)
    tails = ((1, 2, 3, 91, 92, 93, 94, 95, 96), (4, 91, 92, 93, 94, 95, 96))
    answer = system.submit(Group((), (), tails), "any").result(10)
    system.close()

    assert answer.log_odds == pytest.approx((2.197225, 1.945910))
    assert sorted(body["query"] for body in server.bodies) == [[1, 2, 3], [4]]
    assert all(body["items"] == [[91, 92, 93, 94, 95, 96]] for body in server.bodies)


def test_command_may_begin_with_assignments() -> None:
    words, environ = split_command("A=1 B_2='x y' serve --flag=3 C=4")

    assert words == ["serve", "--flag=3", "C=4"]
    assert environ == {"A": "1", "B_2": "x y"}
