"""From a trained model's outputs to what a run keeps: all metrics, and a few numbers per sample."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from hace.data.split import Split
from hace.decisions import fit_temperature
from hace.errors import DataError
from hace.hierarchy import Hierarchy
from hace.hierarchy.derived import is_above
from hace.lab.runs.config import RunConfig
from hace.lab.runs.samples import Task
from hace.losses.base import HierarchicalLoss
from hace.metrics.evaluation import Evaluation
from hace.metrics.evaluator import evaluate
from hace.metrics.metric_batch import as_metric_batch

_S = TypeVar("_S", bound=Split)
KNOWN_TOP1 = "top-1, known labels"


class Temperature(NamedTuple):
    """The temperature of a run, and where it comes from."""

    value: float | None  # by which scores are divided; None where no temperature is best
    source: str  # "val": the samples that the run held out; "config": its configuration, which has it from a search
    problem: str | None = None  # why there is none


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a model does on a split."""

    report: Evaluation  # with metrics of calibrated scores if there is a temperature from other samples
    temperature: Temperature | None = None

    def predictions(self) -> dict[str, np.ndarray]:
        """A few numbers for each sample, from which tables, intervals and confusions follow.

        truth, answer: node indices of the label and of the most probable leaf. confidence: its probability. distance: from
        answer to truth (lca_height). top5: whether the label is among the five most probable leaves. level_correct,
        level_confidence: (S, levels) of the best node of each level; no columns on a DAG. path_confidence: (S, levels + 1)
        probabilities from the root down to the answer, calibrated if there is a temperature; the root repeats in front.
        group: the number of each sample's group, where there are groups.
        """
        s = self.report.samples
        h = self.report.hierarchy
        calibrated = s if self.report.calibrated is None else self.report.calibrated.samples
        small = np.int16 if h.num_nodes < 2**15 else np.int32
        top5 = next((s.numerator[:, i] for i, (_, name, _) in enumerate(s.names) if name == "top-5"), None)
        if top5 is None:  # of fewer than five leaves, all are among the five best
            top5 = h.labels[s.truth] >= 0
        groups = {}
        if self.report.groups is not None:
            numbers = np.unique(self.report.groups, return_inverse=True)[1]
            groups["group"] = numbers.astype(np.int32)
        return {
            "truth": s.truth.astype(small),
            "answer": s.answers.astype(small),
            "confidence": s.confidence.astype(np.float32),
            "distance": s.distance.astype(np.float32),
            "top5": top5.astype(bool),
            "level_correct": s.level_correct.astype(bool),
            "level_confidence": s.level_confidence.astype(np.float16),
            "path_confidence": calibrated.ladders[0].astype(np.float32),
            **groups,
        }

    def result(self, split: str, train: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """The document of a finished run."""
        fitted = {} if self.temperature is None else {"temperature": self.temperature._asdict()}
        return _document("finished", split, train, seconds, **self.report.to_dict(), **fitted)


def diverged_result(
    split: str, diverged: Mapping[str, Any], train: Mapping[str, Any], seconds: float
) -> dict[str, Any]:
    """The document of a run whose loss became infinite or NaN: no metrics, and where it happened."""
    return _document("diverged", split, train, seconds, metrics=None, diverged=dict(diverged))


def _document(
    status: str, split: str, train: Mapping[str, Any], seconds: float, **findings: Any
) -> dict[str, Any]:
    about = {"train": dict(train), "seconds": round(seconds, 3)}
    return {"status": status, "split": split, **findings, **about}


class ScoreView:
    """How the raw outputs of a trained model become scores over the tree of the results.

    If the loss has another tree (the shuffled control), only its leaves are comparable: their logits are aggregated over the
    true tree. Leaving classes out takes logits, since log q* does not show a node's own mass; so does a temperature.
    """

    def __init__(
        self,
        loss: HierarchicalLoss,
        hierarchy: Hierarchy,
        restricted: bool = False,
        temperature: float | None = None,
    ) -> None:
        same = loss.hierarchy.fingerprint == hierarchy.fingerprint
        logits = restricted or temperature is not None or not same
        self.loss = loss
        self.temperature = temperature
        self.kind = "logits" if logits else "node_log_probs"  # as `hace.predict` and `hace.evaluate` name it
        self.outputs = "nodes" if not logits else loss.score_outputs if same else "leaves"  # of the columns

    def __call__(self, z: Tensor) -> Tensor:
        """(B, C) raw outputs -> (B, N) or (B, n) scores."""
        if self.kind == "node_log_probs":
            return self.loss.node_log_probs(z)
        logits = z if self.outputs == "nodes" else self.loss.leaf_logits(z)
        return logits if self.temperature is None else logits / self.temperature


def held_out_temperature(
    loss: HierarchicalLoss, outputs: Iterable[Tensor], truth: np.ndarray, hierarchy: Hierarchy
) -> Temperature:
    """The temperature that fits held-out samples best."""
    view = ScoreView(loss, hierarchy, temperature=1.0)
    scores = torch.cat([view(z) for z in outputs])
    try:
        value = fit_temperature(scores, truth, hierarchy, labels="nodes", outputs=view.outputs)
    except DataError as error:
        return Temperature(None, "val", str(error))
    return Temperature(value, "val")


def evaluate_run(
    config: RunConfig, task: Task[_S], loss: HierarchicalLoss, outputs: Callable[[_S], Iterable[Tensor]]
) -> Outcome:
    """The outcome of a run: metrics of the evaluated samples, raw and, with a temperature from other samples, calibrated."""
    h = task.hierarchy
    if task.val is task.evaluated:  # a search: its metrics on these samples stay raw
        chunks = list(outputs(task.evaluated))
        fitted = held_out_temperature(loss, chunks, task.evaluated.nodes, h)
        outcome = evaluate_outputs(loss, chunks, task.evaluated.nodes, h, groups=task.evaluated.groups)
        return replace(outcome, temperature=fitted)
    fitted = None if config.temperature is None else Temperature(config.temperature, "config")
    if task.val is not None:
        fitted = held_out_temperature(loss, outputs(task.val), task.val.nodes, h)
    outcome = evaluate_outputs(
        loss,
        outputs(task.evaluated),
        task.evaluated.nodes,
        h,
        temperature=None if fitted is None else fitted.value,
        groups=task.evaluated.groups,
    )
    return replace(outcome, temperature=fitted)


def search_result(
    task: Task[_S],
    loss: HierarchicalLoss,
    outputs: Iterable[Tensor],
    train: Mapping[str, Any],
    seconds: Callable[[], float],
) -> dict[str, Any]:
    """The document of a run of a search: what a choice among thousands needs, top-1 and the temperature.

    Top-1 is by true labels and by known ones, as a user has them: there an answer below a coarse label is right.
    """
    h = task.hierarchy
    truth = task.evaluated.nodes
    known = truth if task.val_known is None else task.val_known
    chunks = list(outputs)
    view = ScoreView(loss, h)
    right = agree = start = 0
    for z in chunks:
        part = slice(start, start + len(z))
        batch = as_metric_batch(view(z), truth[part], h, labels="nodes", kind=view.kind, outputs=view.outputs)
        right += int((batch.answers == batch.truth).sum())
        agree += int(is_above(h, known[part], batch.answers).sum())
        start += len(z)
    top1 = {"top-1": right / len(truth), KNOWN_TOP1: agree / len(truth)}
    temperature = held_out_temperature(loss, chunks, truth, h)._asdict()
    return _document(
        "finished",
        "val",
        train,
        seconds(),
        samples=len(truth),
        metrics={"leaves": top1},
        temperature=temperature,
    )


def scored_splits(task: Task[_S]) -> list[_S]:
    """The samples that a finished model scores: those held out, for the temperature, and those of the result."""
    return [task.evaluated] if task.val is None or task.val is task.evaluated else [task.val, task.evaluated]


def evaluate_outputs(
    loss: HierarchicalLoss,
    outputs: Iterable[Tensor],
    truth: Sequence[int] | np.ndarray,
    hierarchy: Hierarchy,
    *,
    temperature: float | None = None,
    **options: Any,
) -> Outcome:
    """All metrics of a model's raw outputs."""
    # The temperature divides logits; what it leaves raw is computed from the same logits.
    view = ScoreView(loss, hierarchy, options.get("subset") is not None or temperature is not None)
    forms = {"kind": view.kind, "outputs": view.outputs, "labels": "nodes"}
    # A model that dropped its last batch would look better or worse than it is: evaluate refuses missing rows.
    chunks = (view(z) for z in outputs)
    return Outcome(evaluate(chunks, truth, hierarchy, temperature=temperature, **forms, **options))
