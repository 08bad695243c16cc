"""``python -m tests.helpers.fake_service``: the real server around a fake engine, in a process of its own.

The environment says how the engine behaves: ``FAKE_HELD=1``: tasks wait until the file
``FAKE_RELEASE`` exists. ``FAKE_LOAD``: ``fail``: the model cannot be loaded; ``hang``: it
loads for ever. Everything else is a setting of the service.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

from scorer import logs
from scorer.app import build_application
from scorer.metrics import Metrics
from scorer.model_host import LoadedModel
from scorer.server import serve
from scorer.settings import load
from tests.helpers.fake_engine import FakeEngine
from tests.helpers.service import fake_model


def main() -> int:
    settings = load(os.environ)
    logs.configure(settings.log_level)
    engine = FakeEngine(held=os.environ.get("FAKE_HELD") == "1")

    def load_fake() -> LoadedModel:
        match os.environ.get("FAKE_LOAD"):
            case "fail":
                raise FileNotFoundError("model.safetensors is missing")
            case "hang":
                threading.Event().wait()
        return fake_model(engine)

    def release_when_told() -> None:
        file = Path(os.environ["FAKE_RELEASE"])
        while not file.exists():
            time.sleep(0.01)
        engine.held = False
        engine.release()

    if engine.held:
        threading.Thread(target=release_when_told, daemon=True).start()
    application = build_application(settings, Metrics(), load_fake, test=lambda _: None)
    return serve(application.asgi, settings, application.host, application.admission)


if __name__ == "__main__":
    sys.exit(main())
