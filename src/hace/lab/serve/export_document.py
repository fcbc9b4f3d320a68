"""The document in a file of `hace export`: checked once, when the file is opened, so that readers can trust it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hace.checks import is_number
from hace.errors import FormatError, HaceError, shorten
from hace.files.documents import parse_json
from hace.files.writing import json_bytes
from hace.formats import parse_hierarchy
from hace.hierarchy import Hierarchy
from hace.lab.features.backbones import POOLS
from hace.lab.serve.calibration import Calibration, parse_calibration

EXPORT_FORMAT = "hace.export.1"
LARGEST_IMAGE = 8192  # the side in pixels that a file may ask for
_INTERPOLATIONS = ("nearest", "nearest-exact", "bilinear", "bicubic", "box", "hamming", "lanczos")
_ABSENT = object()


def _count(value: Any, largest: int = 10**9) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= largest


def _triple(value: Any, above: float) -> bool:
    return isinstance(value, list) and len(value) == 3 and all(is_number(v) and v > above for v in value)


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _mapping(value: Any) -> bool:
    return isinstance(value, dict)


def _among(*choices: str) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and value in choices


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(v, str) for v in value)


def _shape(value: Any) -> bool:
    return isinstance(value, list) and len(value) in (2, 4) and all(_count(v) for v in value[1:])


def _side(value: Any) -> bool:
    return _count(value, LARGEST_IMAGE)


# The place of a value, what it must be, in words and as a test.
_ALWAYS = (
    ("input.name", "'images' or 'features'", _among("images", "features")),
    ("input.shape", "a list of the batch and sizes of at least 1", _shape),
    ("outputs.scores", "'leaves' or 'nodes'", _among("leaves", "nodes")),
    ("temperature", "a number above 0", lambda v: is_number(v) and v > 0),
    ("calibration", "a mapping or null", lambda v: v is None or _mapping(v)),
    ("classes", "a list of ids", _texts),
    ("nodes", "a list of ids", _texts),
    ("hierarchy", "a mapping", _mapping),
    ("run", "an id", _text),
    ("head.num_outputs", "a whole number of at least 1", _count),
    ("head.loss", "a mapping or null", lambda v: v is None or _mapping(v)),
    ("architecture.kind", "'train' or 'probe'", _among("train", "probe")),
    ("architecture.model", "a name or null", lambda v: v is None or _text(v)),
)
_OF_IMAGES = (
    ("preprocessing.resize", f"a whole number from 1 to {LARGEST_IMAGE:,}", _side),
    ("preprocessing.size", f"a whole number from 1 to {LARGEST_IMAGE:,}", _side),
    ("preprocessing.interpolation", f"one of {', '.join(_INTERPOLATIONS)}", _among(*_INTERPOLATIONS)),
    ("preprocessing.mean", "three numbers", lambda v: _triple(v, -float("inf"))),
    ("preprocessing.std", "three numbers above 0", lambda v: _triple(v, 0)),
    ("architecture.model", "a name", _text),
)
_OF_FEATURES = (
    ("preprocessing", "null, because the model takes features", lambda v: v is None),
    ("architecture.kind", "'probe', because the model takes features", _among("probe")),
    ("input.shape", "the batch and the number of features", lambda v: _shape(v) and len(v) == 2),
)
_OF_PROBES = (
    ("architecture.scaling", "'unit', 'standard' or 'none'", _among("unit", "standard", "none")),
    ("architecture.pool", f"one of {', '.join(POOLS)}", lambda v: v is _ABSENT or _among(*POOLS)(v)),
)
_OF_LOSSES = (("head.loss.name", "a name", _text), ("head.loss.options", "a mapping", _mapping))


def parse_document(text: str | None, path: str) -> dict[str, Any]:
    """The document in a file's metadata.

    Args:
        text: The metadata; None or empty where there is none.
        path: The file, for messages.

    Raises:
        FormatError: There is none, or it is damaged; with every value that is wrong.
    """
    document = parse_json(text, path) if text else None
    if not isinstance(document, dict) or document.get("format") != EXPORT_FORMAT:
        raise FormatError(f"{path} must be written by `hace export`. It holds no document {EXPORT_FORMAT!r}.")
    rules = [*_ALWAYS, *(_OF_IMAGES if _at(document, "input.name") == "images" else _OF_FEATURES)]
    rules += _OF_PROBES if _at(document, "architecture.kind") == "probe" else ()
    rules += _OF_LOSSES if _at(document, "head.loss") is not None else ()
    problems = [
        f"{place} must be {words}. Got {'nothing' if value is _ABSENT else shorten(repr(value), 60)}."
        for place, words, holds in rules
        if not holds(value := _at(document, place))
    ]
    if not problems and document["preprocessing"] is not None:
        size, shape = document["preprocessing"]["size"], document["input"]["shape"][1:]
        if shape != [3, size, size]:
            problems = [f"input.shape must be that of images of preprocessing.size, {size}. Got {shape}."]
    if problems:
        raise FormatError([f"{path} is damaged: {problem}" for problem in problems])
    return document


def _at(document: Mapping[str, Any], place: str) -> Any:
    """The value at a place such as "input.name"; `_ABSENT` where there is none."""
    value: Any = document
    for key in place.split("."):
        value = value.get(key, _ABSENT) if isinstance(value, dict) else _ABSENT
    return value


def hierarchy_of(document: Mapping[str, Any], path: Any) -> Hierarchy:
    """The hierarchy of a document.

    Args:
        document: Of :func:`parse_document`.
        path: The file, for messages.

    Raises:
        FormatError: It is damaged, or its ids are not those of the columns.
    """
    try:
        h = parse_hierarchy(json_bytes(document["hierarchy"]), "json")
    except HaceError as error:
        raise FormatError(f"{path} is damaged: its hierarchy cannot be read. {error}") from error
    if list(h.leaves) != document["classes"] or list(h.nodes) != document["nodes"]:
        raise FormatError(f"{path} is damaged: its classes and nodes are not those of its hierarchy.")
    return h


def stored_calibration(document: Mapping[str, Any], hierarchy: Hierarchy, path: Any) -> Calibration:
    """The calibration of a document that has one.

    Args:
        document: Of :func:`parse_document`.
        hierarchy: That of the document.
        path: The file, for messages.

    Raises:
        FormatError: It is damaged, or was made for another model.
    """
    found = parse_calibration(document["calibration"], path)
    made = (found.hierarchy, found.outputs, found.temperature)
    own = (hierarchy.fingerprint, document["outputs"]["scores"], document["temperature"])
    for name, theirs, ours in zip(("hierarchy", "outputs", "temperature"), made, own, strict=True):
        if theirs != ours:
            raise FormatError(
                f"{path} is damaged: its calibration must be for this model. Its {name} is {theirs}, the model's {ours}. "
                "Export the run again."
            )
    return found
