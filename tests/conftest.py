"""What every test shares: no network, one thread, and real data only from HACE_TEST_DATA."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # before anything imports huggingface_hub, which reads it once
os.environ["HACE_KEEP_MEMORY"] = (
    "0"  # commands that tests call must not change how their process gives memory back
)
if "HACE_CACHE" not in os.environ:  # workers and commands that tests start share it
    os.environ["HACE_CACHE"] = tempfile.mkdtemp(prefix="hace-cache-")
    atexit.register(shutil.rmtree, os.environ["HACE_CACHE"], ignore_errors=True)

import hypothesis
import pytest
import torch

torch.set_num_threads(1)
# A shell ignores Ctrl-C for what it starts in the background, and children inherit that: here it is always heard.
signal.signal(signal.SIGINT, signal.default_int_handler)
# The machine may be busy. Nights take more examples: HACE_FUZZ, as in tests/fuzz.
EXAMPLES = int(40 * float(os.environ.get("HACE_FUZZ", "1")))
hypothesis.settings.register_profile("hace", deadline=None, max_examples=EXAMPLES)
hypothesis.settings.load_profile("hace")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What is for nights is slow, too: `-m "not slow"` leaves it out."""
    for item in items:
        if item.get_closest_marker("long"):
            item.add_marker("slow")


@pytest.fixture(scope="session")
def real_data() -> Callable[[str], Path]:
    """Give the path of a real dataset, `real_data("nabirds")`, or skip the test."""

    def path(name: str) -> Path:
        folder = os.environ.get("HACE_TEST_DATA")
        if not folder:
            pytest.skip(f"needs the real data {name!r}: set HACE_TEST_DATA to the folder that holds it")
        result = Path(folder).resolve() / name
        if not result.exists():
            pytest.skip(f"needs the real data {name!r}: {result} does not exist")
        return result

    return path
