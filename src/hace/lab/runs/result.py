"""From a trained model's outputs to what a run keeps: all metrics, and a few numbers per sample."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from torch import Tensor

from hace.errors import DataError
from hace.hierarchy import Hierarchy
from hace.losses.base import HierarchicalLoss
from hace.metrics.evaluation import Evaluation
from hace.metrics.evaluator import Evaluator


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a model does on a split."""

    report: Evaluation

    def predictions(self) -> dict[str, np.ndarray]:
        """A few numbers for each sample, from which tables, intervals and confusions follow.

        truth, answer: node indices of the label and of the most probable leaf. confidence: its probability. distance: from
        answer to truth (lca_height). top5: whether the label is among the five most probable leaves. level_correct,
        level_confidence: (S, levels) of the best node of each level; no columns on a DAG.
        """
        s, h = self.report.samples, self.report.hierarchy
        small = np.int16 if h.num_nodes < 2**15 else np.int32
        ranks = [s.numerator[:, i] for i, (_, name, _) in enumerate(s.names) if name == "top-5"]
        # Of fewer than five leaves, all are among the five best.
        top5 = ranks[0] if ranks else h.labels[s.truth] >= 0
        return {
            "truth": s.truth.astype(small),
            "answer": s.answers.astype(small),
            "confidence": s.confidence.astype(np.float32),
            "distance": s.distance.astype(np.float32),
            "top5": top5.astype(bool),
            "level_correct": s.level_correct.astype(bool),
            "level_confidence": s.level_confidence.astype(np.float16),
        }

    def result(self, split: str, train: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """The document of a finished run.

        Args:
            split: The evaluated split.
            train: About the training: samples, epochs, unseen classes.
            seconds: How long the run took; not part of what is compared between machines.
        """
        return {
            "status": "finished",
            "split": split,
            **self.report.to_dict(),
            "train": dict(train),
            "seconds": round(seconds, 3),
        }


def diverged_result(
    split: str, diverged: Mapping[str, Any], train: Mapping[str, Any], seconds: float
) -> dict[str, Any]:
    """The document of a run whose loss became infinite or NaN: no metrics, and where it happened."""
    return {
        "status": "diverged",
        "split": split,
        "metrics": None,
        "diverged": dict(diverged),
        "train": dict(train),
        "seconds": round(seconds, 3),
    }


@dataclass(frozen=True, eq=False)
class ScoreView:
    """How the raw outputs of a trained model become scores over the tree of the results.

    Attributes:
        loss: The loss it was trained with, which defines the columns.
        hierarchy: The tree of the results. If the loss has another one (the shuffled control), only its leaves
            are comparable: their logits are aggregated over the true tree.
        restricted: Whether classes are left out, which takes logits: log q* no longer shows a node's own mass.
    """

    loss: HierarchicalLoss
    hierarchy: Hierarchy
    restricted: bool = False

    @cached_property
    def kind(self) -> str:
        """The kind of scores, as `hace.predict` and `Evaluator` name it."""
        return "node_log_probs" if self._same and not self.restricted else "logits"

    @cached_property
    def outputs(self) -> str:
        """What the columns of the scores are."""
        if self.kind == "node_log_probs":
            return "nodes"
        own = self.loss.head.outputs == "nodes" and self._same and self._softmax
        return "nodes" if own else "leaves"

    def __call__(self, z: Tensor) -> Tensor:
        """(B, C) raw outputs -> (B, N) or (B, n) scores."""
        if self.kind == "node_log_probs":
            return self.loss.node_log_probs(z)
        return z if self.outputs == "nodes" else self.loss.leaf_logits(z)

    @cached_property
    def _same(self) -> bool:
        return self.loss.hierarchy.fingerprint == self.hierarchy.fingerprint

    @cached_property
    def _softmax(self) -> bool:
        """Whether q* comes from a softmax over all outputs; a conditional softmax has one among siblings."""
        return type(self.loss).node_log_probs is HierarchicalLoss.node_log_probs


def evaluate_outputs(
    loss: HierarchicalLoss,
    outputs: Iterable[Tensor],
    truth: Sequence[int] | np.ndarray,
    hierarchy: Hierarchy,
    *,
    subset: Sequence[str] | None = None,
    distance: str = "lca_height",
    rules: Mapping[str, Mapping[str, Any]] | None = None,
    bins: int = 15,
) -> Outcome:
    """All metrics of a model's raw outputs.

    Args:
        loss: The loss it was trained with, which defines the columns.
        outputs: Chunks (B, loss.num_outputs), in the order of the samples.
        truth: (S,) node indices of `hierarchy`.
        hierarchy: The tree of the results.
        subset, distance, rules, bins: As of `hace.metrics.evaluator.Evaluator`.

    Raises:
        DataError: There are more or fewer outputs than samples.
    """
    view = ScoreView(loss, hierarchy, restricted=subset is not None)
    evaluator = Evaluator(
        hierarchy,
        kind=view.kind,
        outputs=view.outputs,
        labels="nodes",
        subset=subset,
        distance=distance,
        rules=rules or {},
        bins=bins,
    )
    start = 0
    truth = np.asarray(truth)
    for z in outputs:
        evaluator.add(view(z), truth[start : start + len(z)])
        start += len(z)
    if start != len(truth):  # a model that dropped its last batch would look better or worse than it is
        raise DataError(
            f"A model must score every sample once. Got {start:,} rows for {len(truth):,} samples."
        )
    return Outcome(evaluator.evaluation())
