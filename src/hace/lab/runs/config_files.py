"""Configurations in layers: documents of plain values, overridden by name=value from the command line."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from hace.errors import FormatError
from hace.files.documents import parse_yaml


def overrides(pairs: Iterable[str]) -> tuple[dict[str, Any], list[str]]:
    """A document from "key=value" texts, and what is wrong with the others.

    Dots separate levels, and values are YAML.

    Args:
        pairs: The texts.

    Example:
        >>> document, problems = overrides(["lr=1e-3", "loss.name=hxe", "loss.options.alpha=0.2", "keep=true", "fast"])
        >>> document
        {'lr': 0.001, 'loss': {'name': 'hxe', 'options': {'alpha': 0.2}}, 'keep': True}
        >>> problems
        ["'fast' is not a setting. Use name=value or --name value, such as lr=0.1 or --lr 0.1."]
    """
    document: dict[str, Any] = {}
    problems: list[str] = []
    for pair in pairs:
        key, equals, text = pair.partition("=")
        parts = key.split(".")
        if not equals or not all(parts):
            problems.append(
                f"{pair!r} is not a setting. Use name=value or --name value, such as lr=0.1 or --lr 0.1."
            )
            continue
        try:
            value = _number(parse_yaml(text, pair))
        except FormatError as error:
            problems.append(str(error))
            continue
        place = document
        for part in parts[:-1]:
            below = place.get(part)
            if not isinstance(below, dict):
                below = place[part] = {}
            place = below
        place[parts[-1]] = value
    return document, problems


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """A document overridden by a second one.

    A part with a new name, such as another loss, drops the old one's options.

    Args:
        base: The document.
        over: What overrides it.

    Example:
        >>> base = {"lr": 0.1, "loss": {"name": "hace", "options": {"dilution": 0.2}}}
        >>> merged(base, {"loss": {"options": {"label_smoothing": 0.1}}})["loss"]["options"]
        {'dilution': 0.2, 'label_smoothing': 0.1}
        >>> merged(base, {"loss": {"name": "hxe"}})["loss"]
        {'name': 'hxe'}
        >>> merged({"data": {"labels": {"fine": 1}}}, {"data": {"name": "features"}})["data"]
        {'labels': {'fine': 1}, 'name': 'features'}
    """
    out = dict(base)
    for key, value in over.items():
        old = out.get(key)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            another = "name" in value and "name" in old and value["name"] != old["name"]
            out[key] = dict(value) if another else merged(old, value)
        else:
            out[key] = value
    return out


def _number(value: Any) -> Any:
    """YAML reads 1.0e-3 as a number but 1e-3 as text."""
    if not isinstance(value, str):
        return value
    try:
        number = float(value)
    except ValueError:
        return value
    return number if math.isfinite(number) else value
