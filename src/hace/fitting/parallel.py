"""Candidates that are judged side by side, in the processes of any :class:`concurrent.futures.Executor`.

The first candidate is judged here: the others start from its heads, in one process as in several, so that where they are judged
changes no bit. They need nothing of one another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any

import numpy as np

from hace.hierarchy import Hierarchy
from hace.hierarchy.assembly import IntArray
from hace.linear.selection import Candidate, CrossValidation, Judged


@dataclass(frozen=True, eq=False)
class Folds:
    """What a process needs to judge candidates: the arguments of :class:`hace.linear.selection.CrossValidation`."""

    x: Any
    nodes: IntArray
    hierarchy: Hierarchy
    fold: IntArray
    groups: np.ndarray | None

    def cross_validation(self, on_fit: Callable[[], object] = lambda: None) -> CrossValidation:
        """The folds, on which candidates are judged."""
        return CrossValidation(self.x, self.nodes, self.hierarchy, self.fold, self.groups, on_fit)


def submitted(
    executor: Executor, folds: Folds, candidates: Sequence[Candidate], starts: Sequence[np.ndarray]
) -> list[Future[Judged]]:
    """The candidates' judgements, under way; ``starts``: the heads that their training starts from.

    An executor with a method ``ship``, such as that of Ray, gets the samples once; any other gets them with each candidate.
    """
    ship = getattr(executor, "ship", None)
    samples, heads = (folds, starts) if ship is None else (ship(folds), ship(starts))
    return [executor.submit(_judged, samples, candidate, heads) for candidate in candidates]


def _judged(folds: Folds, candidate: Candidate, starts: Sequence[np.ndarray]) -> Judged:
    """A candidate's judgement, in whatever process."""
    cross = folds.cross_validation()
    cross.starts = [np.array(head) for head in starts]
    return cross.judge(candidate)
