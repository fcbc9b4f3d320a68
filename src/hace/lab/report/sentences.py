"""The sentences of cards and captions: macros of `assets/sentences.txt`, filled in."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from hace.draw import templates


def say(name: str, /, **fields: Any) -> str:
    """A sentence by its name, with named fields. Line breaks and blanks of the template become one blank each."""
    return " ".join(str(getattr(_macros(), name)(**fields)).split())


@cache
def _macros() -> Any:
    environment = templates("hace.lab.report", escaped=False)  # pages escape what they insert
    environment.filters["names"] = listed
    return environment.get_template("sentences.txt").module


def listed(names: Sequence[str]) -> str:
    """Names in a sentence: "accuracy, mistakes and confidence"."""
    return " and ".join(", ".join(names).rsplit(", ", 1))
