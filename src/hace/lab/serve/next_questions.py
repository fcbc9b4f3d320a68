"""What to ask annotators next about a pool of samples without labels, for a finished model."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hace.decisions.next_samples import NextSamples, check_wish, next_samples
from hace.errors import DataError
from hace.files.reading import check_memory
from hace.hierarchy import Hierarchy
from hace.lab.serve.inputs import EMPTY, Broken, FeatureRows, ImageList, TextList
from hace.lab.serve.predictor import Predictor, Question


@dataclass(frozen=True, eq=False)
class NextQuestions:
    """Samples to label, the most doubtful first.

    Attributes:
        hierarchy: The classes.
        kind: What names are: "path", "text" or "sample".
        names: (K,) the samples.
        chosen: Their places in the pool, and margins.
        best: (K,) node indices of the most probable classes.
        pool: How many samples there were to choose from.
        broken: Images that cannot be read.
    """

    hierarchy: Hierarchy
    kind: str
    names: Sequence[str]
    chosen: NextSamples
    best: np.ndarray
    pool: int
    broken: Sequence[Broken]

    def rows(self) -> list[dict[str, Any]]:
        """A row for each sample: its name, the most probable class, and its margin over the second."""
        nodes = self.hierarchy.nodes
        return [
            {self.kind: name, "class": nodes[node], "margin": round(margin, 6)}
            for name, node, margin in zip(
                self.names, self.best.tolist(), self.chosen.margins.tolist(), strict=True
            )
        ]


def next_questions(
    predictor: Predictor,
    given: ImageList | FeatureRows,
    budget: int,
    *,
    seed: int = 0,
    beside: Path = Path(),
    batch_size: int | None = None,
    workers: int = 0,
    step: Callable[[int], Any] = lambda done: None,
) -> NextQuestions:
    """Choose from a pool; see :func:`hace.decisions.next_samples.next_samples`.

    Args:
        predictor: The model.
        given: The pool, as of :meth:`Predictor.inputs`.
        budget: How many samples to choose.
        seed: Random seed of the clusters.
        beside: The folder that paths of photos are relative to, unless they were given as absolute ones.
        batch_size: Samples at once.
        workers: Processes that read images.
        step: Called with the number of samples of each batch.
    """
    check_wish(budget, seed)
    h = predictor.hierarchy
    check_memory("the pool", 16 * len(given) * h.num_leaves, "probabilities of all classes")
    names: list[str] = []
    parts: list[np.ndarray] = []
    broken: list[Broken] = []
    asked = Question(top_k=h.num_leaves)
    for batch in predictor.stream(given, asked, batch_size=batch_size, workers=workers):
        labels = h.labels[batch.leaves.nodes.numpy()]
        part = np.zeros(labels.shape)
        np.put_along_axis(part, labels, batch.leaves.probabilities.double().numpy(), axis=1)
        parts.append(part)
        names += batch.names
        broken += [image for image in batch.broken if image.reason != EMPTY]
        step(len(batch) + len(batch.broken))
    if not names:
        raise DataError("The pool must have samples that can be read. Got none.")
    p = np.concatenate(parts)
    chosen = next_samples(p, budget, seed=seed)
    best = h.leaf_nodes[p[chosen.samples].argmax(axis=1)]
    lost = {image.place for image in broken}
    places = [i for i in range(len(given)) if i not in lost]
    kind = "sample"
    if isinstance(given, ImageList):
        kind = "text" if isinstance(given, TextList) else "path"
        names = [_listed_as(given.images[i], given.names[i], beside) for i in places]
    return NextQuestions(
        h, kind, [names[i] for i in chosen.samples.tolist()], chosen, best, len(places), broken
    )


def _listed_as(image: Any, name: str, beside: Path) -> str:
    """What a list beside the photos calls one."""
    if not isinstance(image, Path) or image.is_absolute():
        return name
    return os.path.relpath(image, beside).replace(os.sep, "/")
