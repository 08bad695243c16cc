"""A real Prometheus on this machine, and a small page of metrics for it to scrape."""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import yaml

from scorer.metrics import Metrics
from tests.dashboards.promql import FOLDER
from tests.helpers.ports import reserved_port

SCRAPE_INTERVAL = "500ms"
PATIENCE_S = 30.0


@dataclass(frozen=True, slots=True)
class Sample:
    labels: dict[str, str]
    value: float


class Prometheus:
    """The HTTP API of a running server."""

    def __init__(self, url: str) -> None:
        self._client = httpx.Client(base_url=url, timeout=10, trust_env=False)

    def close(self) -> None:
        self._client.close()

    def is_ready(self) -> bool:
        try:
            return self._client.get("/-/ready").status_code == 200
        except httpx.TransportError:
            return False

    def query(self, expr: str, *, at: float | None = None) -> list[Sample]:
        """Result of an instant query, now or at a time in seconds since 1970."""
        data = self._get("query", query=expr, **({} if at is None else {"time": str(at)}))
        if data["resultType"] == "scalar":
            return [Sample({}, float(data["result"][1]))]
        return [Sample(series["metric"], float(series["value"][1])) for series in data["result"]]

    def last_seconds(self, expr: str, seconds: int) -> list[Sample]:
        """Every point of every series as a panel draws it, one second apart and up to this moment."""
        end = time.time()
        data = self._get("query_range", query=expr, start=str(end - seconds), end=str(end), step="1")
        return [Sample(series["metric"], float(value)) for series in data["result"] for _, value in series["values"]]

    def label_values(self, label: str, series: str) -> list[str]:
        values: list[str] = self._get(f"label/{label}/values", **{"match[]": series})
        return values

    def rules(self) -> list[dict[str, Any]]:
        return [rule for group in self._get("rules")["groups"] for rule in group["rules"]]

    def _get(self, path: str, **parameters: str) -> Any:
        answer = self._client.get(f"/api/v1/{path}", params=parameters).json()
        assert answer["status"] == "success", answer
        return answer["data"]


@contextmanager
def running(folder: Path, target: str) -> Iterator[Prometheus]:
    """Prometheus with the project's alert rules, scraping ``host:port`` as the job "scorer"."""
    executable = shutil.which("prometheus")
    assert executable is not None
    config = {
        "global": {"scrape_interval": SCRAPE_INTERVAL, "evaluation_interval": "1s"},
        "rule_files": [str(FOLDER / "alerts.yml")],
        "scrape_configs": [{"job_name": "scorer", "static_configs": [{"targets": [target]}]}],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
    with reserved_port() as port:
        address = f"127.0.0.1:{port}"
        command = [
            executable,
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={address}",
            "--log.level=warn",
        ]
        with (folder / "prometheus.log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        server = Prometheus(f"http://{address}")
        try:
            wait_until(server.is_ready, what=f"Prometheus; see {folder / 'prometheus.log'}")
            yield server
        finally:
            server.close()
            process.terminate()
            process.wait(timeout=PATIENCE_S)


@contextmanager
def exposing(metrics: Metrics) -> Iterator[str]:
    """Serve ``/metrics``; yields ``host:port``."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body, content_type = metrics.exposition(self.headers.get("Accept"))
            self.send_response(200)
            self.send_header("Content-Type", content_type)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            """Say nothing: the tests' output is for failures."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def wait_until(condition: Callable[[], bool], *, what: str) -> None:
    """Poll until the condition holds; fail after ``PATIENCE_S``."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, f"waited {PATIENCE_S:g} s for {what}"
        time.sleep(0.05)
