"""A small calibrated model of drawn creatures, and a server that really listens."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hace import Predictor
from hace.lab.serve.page import Sample
from tests.lab.features.test_text import folder  # noqa: F401  (a fixture)
from tests.lab.report.conftest import browser  # noqa: F401  (a fixture)


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Sample]]:
    pytest.importorskip("timm")
    from hace.lab.serve.demo import train_demo

    return train_demo(tmp_path_factory.mktemp("demo"))


@pytest.fixture(scope="session")
def predictor(demo: tuple[Path, list[Sample]]) -> Predictor:
    return Predictor.from_run(demo[0])


@pytest.fixture
def serve() -> Iterator[Callable[..., str]]:
    """Run an application on a free port; gives its address."""
    pytest.importorskip("uvicorn")
    running: list[tuple[Any, threading.Thread]] = []

    def start(app: Any, limits: Any = None) -> str:
        from hace.lab.serve.server import listening, make_server

        sock = listening("127.0.0.1", 0)
        server = make_server(app, limits, log_level="error")
        thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
        thread.start()
        running.append((server, thread))
        while not server.started:
            time.sleep(0.01)
        return f"http://127.0.0.1:{sock.getsockname()[1]}/"

    yield start
    for server, thread in running:
        server.should_exit = True
        thread.join(20)
