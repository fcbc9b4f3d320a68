"""A dozen test samples with their answers: some drawn at random, then other ranks and wrong ones."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np

from hace.decisions.decisions import Decisions
from hace.errors import HaceError
from hace.files.reading import read_image
from hace.fitting.evaluation import rank_names
from hace.fitting.inputs import Given
from hace.hierarchy import Hierarchy
from hace.hierarchy.assembly import IntArray
from hace.hierarchy.derived import is_above

COUNT = 12
_AT_RANDOM = 8
_EACH = 2
_SIDE = 240  # pixels of a photo
_LONGEST = 200  # characters of a text
_VALUES = 4  # of a row


def drawn_examples(given: Given, rows: IntArray, decided: Decisions, seed: int) -> list[dict[str, Any]]:
    """Test samples with their answers, as plain values.

    Args:
        given: all samples.
        rows: positions of the test samples.
        decided: their answers.
        seed: draws them.
    """
    h = given.hierarchy
    truth = given.nodes[rows]
    answer = decided.nodes.numpy()
    right = is_above(h, answer, truth)
    order = np.random.default_rng([seed, COUNT]).permutation(len(rows)).tolist()
    chosen = order[:_AT_RANDOM]
    rank_of = rank_names(h, answer)
    first = {rank_of[i]: i for i in reversed(order) if right[i]}  # of each rank, and of no answer
    shown = {rank_of[i] for i in chosen}
    chosen += [i for rank, i in first.items() if rank not in shown][:_EACH]
    chosen += [i for i in order if not right[i] and i not in chosen][:_EACH]
    chosen += [i for i in order if i not in chosen][: COUNT - len(chosen)]
    ranks = [rank_of[i] for i in chosen]
    examples = []
    for i, rank in zip(chosen, ranks, strict=True):
        name = None if rank is None else h.names[int(answer[i])]
        example = {
            "name": str(given.names[int(rows[i])]),
            "truth": h.names[int(truth[i])],
            "answer": name,
            "rank": rank,
            "confidence": None if name is None else float(decided.probabilities[i]),
            "right": bool(right[i]),
            "path": _path(h, int(truth[i])),
        }
        examples.append(example | _shown(given, int(rows[i])))
    return examples


def _path(h: Hierarchy, node: int) -> str:
    above = h.path(h.nodes[node])[::-1]
    return " > ".join(h.name(v) for v in above)


def _shown(given: Given, row: int) -> dict[str, Any]:
    """What a person sees of a sample: a small photo, the text, or the values that are most unusual."""
    if given.kind == "photos" and given.items is not None:
        try:
            return {"photo": _small(given.items[row])}
        except HaceError:
            return {"text": "cannot be read"}
    if given.items is not None:
        text = str(given.items[row])
        return {"text": text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"}
    if given.features is None or hasattr(given.x, "tocsr"):
        return {}
    values = np.asarray(given.x[row], dtype=float)
    spread = np.asarray(given.x).std(axis=0)
    unusual = np.abs(values - np.asarray(given.x).mean(axis=0)) / np.where(spread > 0, spread, 1)
    most = np.sort(np.argsort(-unusual)[:_VALUES])
    return {"row": [[str(given.features[i]), f"{values[i]:.3g}"] for i in most.tolist()]}


def _small(path: Any) -> str:
    """A photo as text that a page shows."""
    image = read_image(path)
    image.thumbnail((_SIDE, _SIDE))
    content = io.BytesIO()
    image.save(content, "JPEG", quality=72)
    return as_address(content.getvalue())


def as_address(jpeg: bytes) -> str:
    """A JPEG file as the address of an image in a page."""
    return "data:image/jpeg;base64," + base64.b64encode(jpeg).decode()
