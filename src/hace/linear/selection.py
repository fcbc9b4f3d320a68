"""Which loss and how much weight decay, by cross-validation of linear heads over training samples.

Every candidate is trained on the samples outside each fold and judged on those inside: a prediction is right where it is the
label or below it, so a sample that is known only coarsely counts at the rank it has. Coarse samples count no more in all than
fine ones, as in training.

Decay and candidate have a rule each, and both ask whether a difference is more than one standard error: that of the paired
difference from the best, over samples, or over groups of samples where there are any.

- The decay of a candidate is judged by likelihood, which tells decays apart from fewer samples than accuracy does. A search
  from the usual decay goes on as long as the likelihood rises; of the decays it tried, the nearest to the usual one within one
  standard error of the best is taken. So few samples or groups hardly move it, and many find the best.
- The candidate is judged by accuracy, at its own decay: the simplest within one standard error of the best
  (:func:`hace.fitting.choice.simplest`).

The search is warm-started along the decays, on as many folds as hold :data:`SEARCHED` samples; all folds then judge the decay
it found. Features are scaled to a mean squared distance of 1 from their mean, so that one grid of decays serves all data: a
decay here is one of the features as they are, divided by that distance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hace.decisions.temperature import fit_temperature
from hace.errors import DataError
from hace.hierarchy import Hierarchy
from hace.hierarchy.assembly import IntArray
from hace.hierarchy.derived import is_above
from hace.linear.features import LabelledFeatures
from hace.linear.heads import FittedHead, Optimization, Trial
from hace.linear.labels import HiddenClasses, balanced_weights, coarse_loss
from hace.linear.lbfgs import converged_head
from hace.losses.base import HierarchicalLoss
from hace.losses.registry import build_loss

SEARCHED = 1_500  # held-out samples that the search of a decay looks at, where there are as many
AXES = 512  # principal axes of the features that candidates are compared on
# Exponents of 10: the usual decay, from which searches begin, their step, and where they end.
USUAL = -5.0
_STEP = 1.0
_LEAST = -9.0
_MOST = -1.0
# A comparison needs no last digit: at this gradient predictions no longer change by more than chance.
_OPTIONS = Optimization("lbfgs", tolerance=1e-4, max_iter=100)
_HEATED = 1_000  # held-out samples of a fold that its temperature is fitted on, at most
_UNUSED = 4.0  # how far below the classes' outputs those of inner nodes start


@dataclass(frozen=True)
class Candidate:
    """A loss with its parameters, and what becomes of coarse labels.

    Attributes:
        loss: name in :data:`hace.LOSSES`.
        params: parameters of the loss.
        coarse: "drop", "balanced" or "cautious", as in :class:`hace.HACEClassifier`; it matters only where labels are coarse.
    """

    loss: str
    params: Mapping[str, Any] = field(default_factory=dict)
    coarse: str = "drop"


@dataclass(frozen=True, eq=False)
class Judged:
    """A candidate at the decay that its search found.

    Attributes:
        candidate: the candidate.
        exponent: of the decay of scaled features, as a power of 10.
        right: (M,) whether the prediction for each sample, by a head that was not trained on it, is its label or below it.
        weight: (M,) how much each sample counts, 1 on average.
        temperature: what makes the probabilities of these predictions fit best; 1 where none does.
        tried: the exponents of the search, and the share of right predictions at each.
    """

    candidate: Candidate
    exponent: float
    right: np.ndarray
    weight: np.ndarray
    temperature: float
    tried: Mapping[float, float]

    @property
    def accuracy(self) -> float:
        """The share of right predictions."""
        return float((self.right * self.weight).mean())

    def behind(self, other: Judged) -> np.ndarray:
        """(M,) by how much another candidate is ahead; the mean is the difference in accuracy."""
        return (other.right.astype(float) - self.right) * self.weight


@dataclass(frozen=True, eq=False)
class _Answers:
    """What a candidate says about held-out samples at one decay."""

    right: np.ndarray
    losses: np.ndarray  # negative log-likelihoods at the best temperature
    temperature: float


def _best_decay(losses_of: Callable[[float], np.ndarray], groups: np.ndarray | None) -> float:
    """The exponent of the best decay, from the losses of samples at an exponent.

    The search goes from the usual decay to less and then to more, as long as the mean loss falls. Of what it tried, the
    exponent nearest to the usual one is taken whose losses are within a standard error of the least: to leave the usual
    decay takes more than noise.
    """
    least = USUAL
    tried = {USUAL: losses_of(USUAL)}
    for step in (-_STEP, _STEP):
        while _LEAST <= least + step <= _MOST:
            tried[least + step] = losses_of(least + step)
            if tried[least + step].mean() >= tried[least].mean():
                break
            least += step
    for exponent in sorted(tried, key=lambda exponent: abs(exponent - USUAL)):
        behind = tried[exponent] - tried[least]
        if within_noise(behind, groups):
            return exponent
    return least


class CrossValidation:
    """Folds of training samples, on which candidates are judged one after another.

    Args:
        x: (M, d) features, dense or sparse.
        nodes: (M,) node indices of labels, of leaves or inner nodes.
        hierarchy: the hierarchy.
        fold: (M,) the fold of each sample, from 0.
        groups: (M,) the group of each sample, over which standard errors are; None: samples are independent.
        on_fit: called after every head that was trained.
    """

    def __init__(
        self,
        x: Any,
        nodes: IntArray,
        hierarchy: Hierarchy,
        fold: IntArray,
        groups: np.ndarray | None = None,
        on_fit: Callable[[], object] = lambda: None,
    ) -> None:
        self.hierarchy = hierarchy
        self._nodes = nodes
        self._groups = groups
        self._on_fit = on_fit
        weight = balanced_weights(nodes, hierarchy, None)
        self._weight = np.ones(len(nodes)) if weight is None else weight / weight.mean()
        self.scale = 1 / np.sqrt(spread(x))
        scaled = (leading(x, AXES) * np.float32(self.scale)).astype(np.float32)
        self._folds = [
            _Fold(scaled, nodes, hierarchy, np.flatnonzero(fold == i)) for i in range(int(fold.max()) + 1)
        ]
        sizes = np.cumsum([len(part.held) for part in self._folds])
        self._searched = self._folds[: int(np.searchsorted(sizes, SEARCHED)) + 1]

    def judge(self, candidate: Candidate) -> Judged:
        """The candidate at its best decay, on all folds; the best is chosen on the first folds, which suffice for that."""
        losses = {labels: self._loss(candidate, labels) for labels in ("leaves", "nodes")}
        answers_by_decay: dict[float, list[_Answers]] = {}
        searched = np.concatenate([part.held for part in self._searched])

        def answers(exponent: float, folds: Sequence[_Fold]) -> list[_Answers]:
            """The answers in some folds; heads are trained where there are none yet."""
            known = answers_by_decay.setdefault(exponent, [])
            for part in folds[len(known) :]:
                known.append(part.answers(candidate, losses, exponent))
                self._on_fit()
            return known

        def losses_of(exponent: float) -> np.ndarray:
            """Of the held-out samples of the first folds, each with its weight."""
            each = np.concatenate([answer.losses for answer in answers(exponent, self._searched)])
            return each * self._weight[searched]

        groups = None if self._groups is None else self._groups[searched]
        best = _best_decay(losses_of, groups)
        final = answers(best, self._folds)
        for part in self._folds:
            part.finish(candidate)
        right = np.zeros(len(self._nodes), dtype=bool)
        for part, answer in zip(self._folds, final, strict=True):
            right[part.held] = answer.right
        tried = {
            e: float(np.concatenate([a.right for a in each]).mean()) for e, each in answers_by_decay.items()
        }
        temperature = float(np.exp(np.mean([np.log(answer.temperature) for answer in final])))
        return Judged(candidate, best, right, self._weight, temperature, dict(sorted(tried.items())))

    def took(self, judged: Judged) -> Judged:
        """A candidate that was judged elsewhere."""
        self._on_fit()
        return judged

    @property
    def starts(self) -> list[np.ndarray]:
        """Weights and biases of heads, fold by fold, that training of further candidates starts from; empty at first."""
        heads = [part.near for part in self._folds]
        return [
            t.numpy() for head in heads if head is not None for t in (head.weight, head.bias) if t is not None
        ]

    @starts.setter
    def starts(self, arrays: Sequence[np.ndarray]) -> None:
        for i, part in enumerate(self._folds if arrays else ()):
            weight, bias = (torch.from_numpy(array) for array in arrays[2 * i : 2 * i + 2])
            part.near = FittedHead(weight, bias, [], None, 0)

    def _loss(self, candidate: Candidate, labels: str) -> HierarchicalLoss:
        return build_loss(candidate.loss, self.hierarchy, labels=labels, **candidate.params)


def spread(x: Any) -> float:
    """The mean squared distance of features (M, d) from their mean; 1 where all are the same."""
    squares = x.multiply(x).sum() if hasattr(x, "multiply") else np.square(x, dtype=np.float64).sum()
    mean = np.asarray(x.mean(axis=0, dtype=np.float64)).ravel()
    spread = float(squares) / x.shape[0] - float(mean @ mean)
    return spread if spread > 0 else 1.0


def leading(x: Any, count: int) -> Any:
    """Dense features (M, d) on their leading principal axes, at most so many; the penalty of a linear head is the same on any
    axes.

    What is left out has the least variance. It would cost as much time as what stays, and the heads of all candidates alike
    lose by it.
    """
    if hasattr(x, "tocsr") or x.shape[1] <= count:
        return x
    centred = torch.from_numpy(np.asarray(x, dtype=np.float32))
    centred = centred - centred.mean(dim=0)
    axes = torch.linalg.eigh((centred.T @ centred).double()).eigenvectors[:, -count:]
    return (centred @ axes.float()).numpy()


class _Fold:
    """Samples that are held out together, and the heads that others trained."""

    def __init__(self, x: Any, nodes: IntArray, hierarchy: Hierarchy, held: IntArray) -> None:
        self.held = held
        self._hierarchy = hierarchy
        training = np.setdiff1d(np.arange(len(nodes)), held)
        self._x = x[training]
        self._nodes = nodes[training]
        self._truth = nodes[held]
        self._held_x = x[held]
        labels = hierarchy.labels[self._truth]
        self._fine = np.flatnonzero(labels >= 0)
        coarse = np.flatnonzero(labels < 0)
        self._below = torch.from_numpy(
            is_above(hierarchy, self._truth[coarse, None], hierarchy.leaf_nodes[None, :])
        )
        self._coarse = bool((hierarchy.labels[self._nodes] < 0).any())
        self._rows: dict[str, LabelledFeatures] = {}
        self.near: FittedHead | None = None  # where the next candidate's training starts
        self._last: tuple[Candidate, FittedHead, HierarchicalLoss] | None = None
        self._taught: tuple[Candidate, HierarchicalLoss] | None = None

    def answers(
        self, candidate: Candidate, losses: Mapping[str, HierarchicalLoss], exponent: float
    ) -> _Answers:
        """What the candidate says about the samples held out, trained with this decay on the others."""
        used = self._coarse and candidate.coarse != "drop"
        loss = losses["nodes" if used else "leaves"]
        if self._last is None or self._last[0] is not candidate:
            start = None if self.near is None else _started(loss, self.near)
            self._taught = (candidate, self._teacher(candidate, loss) if used else loss)
        else:
            start = self._last[1]
        assert self._taught is not None
        trial = Trial(self._taught[1], weight_decay=10.0**exponent)
        head = converged_head(
            self._labelled(candidate.coarse if used else "drop", loss), trial, _OPTIONS, start
        )
        self._last = candidate, head, loss
        assert head.bias is not None
        scores = loss.leaf_logits(torch.from_numpy(self._held_x @ head.weight.numpy().T) + head.bias)
        h = self._hierarchy
        right = is_above(h, self._truth, h.leaf_nodes[scores.argmax(dim=1).numpy()])
        temperature = self._temperature(scores)
        return _Answers(right, self._losses(scores / temperature), temperature)

    def finish(self, candidate: Candidate) -> None:
        """Let the next candidates start where the first one arrived."""
        if self.near is None and self._last is not None and self._last[2].head.outputs == "leaves":
            self.near = self._last[1]

    def _temperature(self, scores: Tensor) -> float:
        """The temperature at which samples with a class label are most likely."""
        rows = self._fine[:_HEATED]
        try:
            return fit_temperature(
                scores[rows], self._truth[rows], self._hierarchy, labels="nodes", outputs="leaves"
            )
        except DataError:  # there are none, every prediction is right, or none says anything
            return 1.0

    def _losses(self, scores: Tensor) -> np.ndarray:
        """(M,) negative log-likelihoods of the truths: of a coarse one, of the classes below it."""
        log_p = scores.log_softmax(dim=1)
        label = torch.from_numpy(self._hierarchy.labels[self._truth])
        own = log_p.gather(1, label.clamp(min=0)[:, None])[:, 0]
        if len(self._below):
            own[label < 0] = log_p[label < 0].masked_fill(~self._below, -torch.inf).logsumexp(dim=1)
        return -own.double().numpy()

    def _teacher(self, candidate: Candidate, loss: HierarchicalLoss) -> HierarchicalLoss:
        """The loss that takes coarse labels as the candidate says."""
        hidden = HiddenClasses(self._nodes, self._hierarchy, None, cautious=candidate.coarse == "cautious")
        return coarse_loss(loss, hidden)

    def _labelled(self, coarse: str, loss: HierarchicalLoss) -> LabelledFeatures:
        """The training samples, with all labels or with those of classes alone."""
        what = "drop" if coarse == "drop" else "all"
        if what not in self._rows:
            h = self._hierarchy
            nodes = self._nodes
            if what == "all":
                self._rows[what] = LabelledFeatures(self._x, nodes, loss, balanced_weights(nodes, h, None))
            else:
                fine = np.flatnonzero(h.labels[nodes] >= 0)
                x = self._x if len(fine) == len(nodes) else self._x[fine]
                self._rows[what] = LabelledFeatures(x, h.labels[nodes[fine]], loss)
        return self._rows[what]


def _started(loss: HierarchicalLoss, near: FittedHead) -> FittedHead:
    """A head for a loss from one over the classes: its classes' outputs are the same, those of inner nodes hardly used."""
    assert near.bias is not None
    if loss.num_outputs == len(near.weight):
        return near
    h = loss.hierarchy
    weight = torch.zeros(loss.num_outputs, near.weight.shape[1])
    low = 0.0 if loss.head.outputs == "paths" else float(near.bias.min()) - _UNUSED
    bias = torch.full((loss.num_outputs,), low)
    leaves = torch.from_numpy(np.array(h.leaf_nodes))
    weight[leaves] = near.weight
    bias[leaves] = near.bias
    return FittedHead(weight, bias, [], None, 0)


def standard_error(values: np.ndarray, groups: np.ndarray | None = None) -> float:
    """Of the mean of values of samples (M,), or of groups of them; infinite where there is only one."""
    if groups is None:
        sums = values - values.mean()
    else:
        place = np.unique(groups, return_inverse=True)[1]
        sums = np.bincount(place, weights=values - values.mean())
    if len(sums) < 2:
        return float("inf")
    unbiased = len(sums) / (len(sums) - 1)
    return float(np.sqrt(unbiased * np.square(sums).sum()) / len(values))


def within_noise(behind: np.ndarray, groups: np.ndarray | None = None) -> bool:
    """Whether samples (M,) put one choice behind another by one standard error or less, on average.

    A lead of one sample is exactly one standard error, but for rounding.
    """
    return bool(behind.mean() <= (1 + 1e-9) * standard_error(behind, groups))
