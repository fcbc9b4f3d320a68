"""FiftyOne: answers as the labels.json of a FiftyOneImageClassificationDataset.

The key of a photo is its absolute path, so that FiftyOne needs no copy of it. Its label is the answer's id, with its
probability as the confidence; the nodes above it are attributes under the names of their levels, by which the app filters.
"""

from __future__ import annotations

import keyword
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from hace.hierarchy import Hierarchy

_TAKEN = {"id", "label", "confidence", "tags", "logits", "attributes", "name", "rank", "guarantee"}
_FIELD = re.compile(r"[A-Za-z]\w*", re.ASCII)


def level_fields(h: Hierarchy) -> list[str]:
    """The attributes that hold the levels, from 1 down: their names where these can be fields of FiftyOne."""
    names = h.level_names or [""] * h.max_depth
    return [name if _is_field(name) else f"level_{level}" for level, name in enumerate(names, 1)]


def _is_field(name: str) -> bool:
    return _FIELD.fullmatch(name) is not None and name not in _TAKEN and not keyword.iskeyword(name)


def classification(
    document: Mapping[str, Any], h: Hierarchy, fields: Sequence[str]
) -> tuple[str, dict[str, Any] | None]:
    """The key and the label of an answer of `Predictions.documents`; None where there is no answer."""
    key = os.path.abspath(document["sample"])
    answer = document.get("answer", {})
    if answer.get("id") is None:
        return key, None
    above = [node for node in reversed(h.path(answer["id"])) if h.depth(node) > 0]
    attributes = {fields[h.depth(node) - 1]: node for node in above}
    attributes |= {"name": answer["name"], "rank": answer.get("level_name") or answer["level"]}
    if "guarantee" in answer:
        attributes["guarantee"] = answer["guarantee"]
    return key, {"label": answer["id"], "confidence": answer["probability"], "attributes": attributes}
