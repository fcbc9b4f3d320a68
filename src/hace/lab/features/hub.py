"""The model hub, which may be out of reach: known within seconds, not after a minute of attempts.

Libraries that fetch weights try again and again, and ask the hub even for what is in their cache. So whether it can be reached
is asked once; where it cannot, they are told that they are offline, and take what is in the cache or fail at once.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hace.files.reading import optional

PATIENCE = 2.0  # seconds


@contextmanager
def hub_or_cache() -> Iterator[bool]:
    """Whether the hub answers; while it does not, libraries are offline."""
    constants = optional("huggingface_hub.constants", "Fetching weights", "train")
    if constants.HF_HUB_OFFLINE:
        yield False
        return
    if _answers(constants.ENDPOINT):
        yield True
        return
    constants.HF_HUB_OFFLINE = True
    try:
        yield False
    finally:
        constants.HF_HUB_OFFLINE = False


def _answers(endpoint: str) -> bool:
    """Whether anything answers at the hub's address, through proxies as its library goes; looking up a name has no timeout."""
    answered: list[Any] = []

    def ask() -> None:
        session = optional("huggingface_hub.utils", "Fetching weights", "train").get_session()
        try:
            answered.append(session.head(endpoint, timeout=PATIENCE))
        except Exception:  # of whichever library asks: no name, no route, no answer
            return

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(PATIENCE + 0.5)
    return bool(answered)


def unreachable(name: str, hub: str | None, reason: str, remedy: str) -> str:
    """The message about weights that cannot be fetched; ``remedy`` has the place on the hub as {}."""
    where = f"https://huggingface.co/{hub}" if hub else "its source"
    return f"The weights of {name} cannot be downloaded: {reason} On a machine with access to the hub, {remedy.format(where)}."
