"""A hub that does not answer costs seconds, whatever the library would try."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

TIMED = """
import sys, time, torch, timm
from hace.lab.features.backbones import load_backbone
begun = time.monotonic()
try:
    load_backbone("test_vit")
except Exception as error:
    print(round(time.monotonic() - begun, 1), type(error).__name__, error)
"""


@pytest.fixture
def silent() -> Iterator[str]:
    """A server that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def test_a_hub_that_never_answers_is_given_up_within_seconds(silent: str) -> None:
    environment = {
        k: v for k, v in os.environ.items() if k != "HF_HUB_OFFLINE" and not k.lower().endswith("_proxy")
    }
    environment |= {"HF_ENDPOINT": silent, "HF_HOME": "/nonexistent"}
    done = subprocess.run(
        [sys.executable, "-c", TIMED],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    seconds, kind, message = done.stdout.split(maxsplit=2)
    assert float(seconds) < 5
    assert kind == "HaceError"
    assert "The weights of test_vit cannot be downloaded" in message
    assert "--checkpoint model.safetensors" in message
