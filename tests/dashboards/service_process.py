"""``scorer serve`` as a process of its own, with a model small enough for any machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.dashboards.prometheus_server import PATIENCE_S, wait_until
from tests.helpers.llama_files import save_folder, tiny_llama
from tests.helpers.ports import reserved_port
from tests.helpers.word_tokenizers import word_tokenizer


def write_tiny_model(folder: Path) -> Path:
    """A random Llama of two layers and its tokenizer, as a folder that the service loads."""
    tokenizer = word_tokenizer("smollm")
    save_folder(tiny_llama(vocab_size=tokenizer.get_vocab_size(), max_position_embeddings=512), folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def _start(model: Path, port: int, log: Path) -> subprocess.Popen[bytes]:
    settings = {
        # a random model prefers any document: the self-test reports and does not decide
        "SCORER_SELF_TEST": "report",
        "SCORER_ENGINE__POOL_BYTES": str(16 * 2**20),
        "SCORER_ENGINE__NUM_THREADS": "1",
    }
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SCORER_")} | settings
    command = [sys.executable, "-m", "scorer", "serve", "--model", str(model), "--port", str(port)]
    with log.open("wb") as output:
        return subprocess.Popen(command, env=environ, stdout=output, stderr=subprocess.STDOUT)


@contextmanager
def serving(model: Path, log: Path) -> Iterator[httpx.Client]:
    """A client of the running, ready service; afterwards the service has ended cleanly."""
    with (
        reserved_port() as port,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30, trust_env=False) as client,
    ):
        process = _start(model, port, log)

        def is_ready() -> bool:
            assert process.poll() is None, log.read_text(encoding="utf-8")
            try:
                return client.get("/health/ready").status_code == 200
            except httpx.TransportError:
                return False

        try:
            wait_until(is_ready, what=f"the service; see {log}")
            yield client
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                exit_code = process.wait(timeout=PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
    assert exit_code == 0, log.read_text(encoding="utf-8")
