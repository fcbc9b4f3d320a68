"""One temperature for a whole head, so that q* means what it says.

With b = 1/T and D(y) the outputs at or below the truth y, the mean over held-out samples of

    -log q*_T[y] = logsumexp_i(b z_i) - logsumexp_{i in D(y)}(b z_i)

has the slope E[z] - E[z | D(y)] in b, expectations under softmax(b z). Where D(y) is one output it is convex in b and has
one minimum; where the truth is an inner node it may have several, so all sign changes of the slope are compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hace.checks import check_choice
from hace.decisions.scores import INDEPENDENT, SCORE_KINDS, Scores
from hace.errors import ConfigError, DataError
from hace.hierarchy import Hierarchy
from hace.hierarchy.derived import is_above

_LARGEST = 1e200  # difference of two scores: beyond it sums overflow, and no temperature makes sense
_PER_DECADE = 8  # points of the grid, where the likelihood may have several maxima


class AlwaysRightError(DataError):
    """The truth comes first in every sample, so every smaller temperature is better."""


def fit_temperature(
    scores: Any,
    target: Any,
    hierarchy: Hierarchy,
    *,
    labels: str = "leaves",
    kind: str = "logits",
    outputs: str = "auto",
) -> float:
    """The temperature T under which ``softmax(z / T)`` gives the truths the greatest likelihood.

    Divide the model's logits by it. It keeps every ranking of outputs, so the best leaf stays the best; it changes how
    sure the model is. Fit it on held-out samples: not those the model was trained on, and not the test set.

    Args:
        scores: (B, n) over leaves in label order or (B, N) over nodes in node order.
        target: (B,) truths: labels of leaves, or any nodes with ``labels="nodes"``. A truth at an inner node has the
            probability q* of that node.
        hierarchy: a tree, a forest or a DAG.
        labels: what the targets are: ``"leaves"`` or ``"nodes"`` (indices into ``hierarchy.nodes``).
        kind: what the scores are: ``"logits"``, ``"probs"`` or ``"log_probs"``. With the last two, divide the logarithms.
        outputs: what their columns are: ``"leaves"``, ``"nodes"``, or ``"auto"`` to tell by their number.

    Returns:
        T: above 1 for an over-confident model, below 1 for an under-confident one.

    Raises:
        AlwaysRightError: the truth always comes first, so T would be 0.
        DataError: no temperature is best for another reason: no samples; scores that say nothing about the truths, such as
            constant ones (T would be infinite); a truth of probability 0.

    Example:
        >>> h = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat",)], leaves=["husky", "beagle", "cat"])
        >>> z = torch.tensor([[4.0, 0.0, 0.0], [4.0, 0.0, 0.0], [0.0, 4.0, 0.0], [0.0, 4.0, 0.0]])
        >>> round(fit_temperature(z, [0, 0, 1, 0], h), 3)  # right in 3 of 4: softmax(z / T) gives the best class 3/4
        2.232
    """
    check_choice("kind", kind, SCORE_KINDS)
    if kind == "node_log_probs":
        raise ConfigError("kind must be 'logits', 'probs' or 'log_probs': a temperature acts on the outputs.")
    if kind in INDEPENDENT:
        raise ConfigError(f"kind must be of probabilities that sum to 1 to fit a temperature. Got {kind!r}.")
    given = Scores(scores, hierarchy, kind, outputs)
    likelihood = _Likelihood(given, given.truths(target, labels))
    inverses = [_solve(likelihood, low, high) for low, high in likelihood.brackets()]
    values = likelihood(inverses)[0]
    least = float(values.min()) if inverses else np.inf
    zero = likelihood.at_zero  # of b: T infinite
    infinity = likelihood.at_infinity  # T = 0
    margin = 1e-12 * max(1.0, zero)
    if infinity < zero - margin and infinity <= least + margin:
        raise AlwaysRightError(
            f"target must differ from the best output in some sample. In all {likelihood.samples} the truth comes first, so "
            "every smaller temperature is better. Calibrate on more samples (--validation holds them out), or keep T = 1."
        )
    if least < zero - margin:
        return 1.0 / inverses[int(values.argmin())]
    raise DataError(
        f"scores must say something about the truths. No temperature of the {likelihood.samples} samples is better than an "
        "infinite one: the scores are constant, or no better than chance. Check that scores, target and hierarchy belong "
        "together."
    )


def _solve(likelihood: _Likelihood, low: float, high: float) -> float:
    """The b in a bracket at which the slope is 0, to the last digits."""
    from scipy.optimize import brentq

    root = brentq(lambda u: float(likelihood([np.exp(u)])[1][0]), np.log(low), np.log(high), xtol=1e-13)
    return float(np.exp(root))  # type: ignore[arg-type]


class _Likelihood:
    """Mean -log q*[y] and its slope in b, a block of samples at a time."""

    def __init__(self, scores: Scores, truth: np.ndarray) -> None:
        self.scores = scores
        self.truth = truth
        self.samples = len(scores)
        if not self.samples:
            raise DataError("scores must hold at least one sample. Got none.")
        self._look()

    def _look(self) -> None:
        """The ends of the curve: values and slopes at b = 0 and at b = infinity, and the scale of b."""
        ends = np.zeros(4)
        spreads = []
        silent = 0
        self.convex = True
        for whole, own in self._blocks():
            wide = int((whole.masked_fill(whole == -torch.inf, 0.0).amin(dim=1) < -_LARGEST).sum())
            if wide:
                raise DataError(
                    f"scores must be within {_LARGEST:g} of each other in each row. {wide} or more of {self.samples} rows "
                    "break this rule. Check for overflow in the model."
                )
            self.convex &= own.shape[1] == 1
            silent += int((own == -torch.inf).all(dim=1).sum())
            best = own.amax(dim=1, keepdim=True)
            ends[0] += float((_log_count(whole > -torch.inf) - _log_count(own > -torch.inf)).sum())
            ends[1] += float((_mean(whole) - _mean(own)).sum())
            ends[2] += float((_log_count(whole == 0) - _log_count(own == best)).sum())
            ends[3] += float(-best.sum())  # the greatest score of a row is 0
            finite = whole.masked_fill(whole == -torch.inf, torch.nan)
            spreads.append(-finite.nanmedian(dim=1).values.median())
        if silent:
            raise DataError(
                f"scores must give every truth some probability. {silent} of {self.samples} truths have none, and no "
                "temperature changes that. Leave these samples out, or give the scores as logits."
            )
        self.at_zero, self.slope_at_zero, self.at_infinity, self.slope_at_infinity = ends / self.samples
        if self.slope_at_infinity > 0:
            self.at_infinity = np.inf
        spread = float(torch.stack(spreads).median())
        self.unit = 1 / spread if spread > 0 else 1.0

    def _blocks(self) -> Iterator[tuple[Tensor, Tensor]]:
        """(B, C) logits with their greatest at 0, and those of D(y): (B, 1), or (B, C) with -inf elsewhere."""
        for rows, block in self.scores.blocks():
            z = block.data.double()
            z = (z - z.amax(dim=1, keepdim=True)).cpu()
            truth = self.truth[rows]
            alone = self._only_column(truth)
            if alone is not None:
                yield z, z.gather(1, torch.from_numpy(alone)[:, None])
            else:
                yield z, z.masked_fill(~torch.from_numpy(self._below(truth)), -torch.inf)

    def _only_column(self, truth: np.ndarray) -> np.ndarray | None:
        """The column of each truth, where no truth of the block has another output below it."""
        h = self.scores.hierarchy
        if (h.labels[truth] < 0).any():
            return None
        return h.labels[truth] if self.scores.outputs == "leaves" else truth

    def _below(self, truth: np.ndarray) -> np.ndarray:
        """(B, C) whether each output is at or below each truth."""
        h = self.scores.hierarchy
        columns = h.leaf_nodes if self.scores.outputs == "leaves" else np.arange(h.num_nodes)
        return is_above(h, truth[:, None], columns[None, :])

    def __call__(self, inverse: Any) -> tuple[np.ndarray, np.ndarray]:
        """Values and slopes at each b of ``inverse``."""
        values = np.zeros(len(inverse))
        slopes = np.zeros(len(inverse))
        for whole, own in self._blocks():
            for i, b in enumerate(inverse):
                total, mean = _moments(whole, b)
                inside, inner_mean = _moments(own, b)
                values[i] += float((total - inside).sum())
                slopes[i] += float((mean - inner_mean).sum())
        return values / self.samples, slopes / self.samples

    def brackets(self) -> list[tuple[float, float]]:
        """Pairs of b between which the slope turns from falling to rising."""
        if self.convex:
            if self.slope_at_zero >= 0 or self.slope_at_infinity <= 0:
                return []
            points = np.array([self.unit])
        else:
            points = self.unit * np.logspace(-5, 5, 10 * _PER_DECADE + 1)
        slopes = self(points)[1]
        turns = np.flatnonzero((slopes[:-1] < 0) & (slopes[1:] >= 0))
        pairs = list(zip(points[turns].tolist(), points[turns + 1].tolist(), strict=True))
        if self.slope_at_zero < 0 <= slopes[0]:
            pairs.append((self._beyond(float(points[0]), 0.1), float(points[0])))
        if slopes[-1] < 0 < self.slope_at_infinity:
            pairs.append((float(points[-1]), self._beyond(float(points[-1]), 10.0)))
        return [pair for pair in pairs if all(pair)]

    def _beyond(self, b: float, factor: float) -> float:
        """The first b * factor^k at which the slope has the other sign; 0 where rounding hides it.

        The ends of the curve say that there is one, but they may be rounding themselves.
        """
        above = factor > 1
        while (self([b])[1][0] >= 0) != above:
            b *= factor
            if not 1e-300 < b < 1e300:
                return 0.0
        return b


def _log_count(chosen: Tensor) -> Tensor:
    """(B,) log of the number of chosen entries of each row."""
    return chosen.sum(dim=1).double().log()


def _mean(z: Tensor) -> Tensor:
    """(B,) mean of the finite entries of each row."""
    finite = z.isfinite()
    return z.masked_fill(~finite, 0.0).sum(dim=1) / finite.sum(dim=1)


def _moments(z: Tensor, b: float) -> tuple[Tensor, Tensor]:
    """(B,) logsumexp(b z) and the mean of z under softmax(b z)."""
    scaled = z * b
    total = scaled.logsumexp(dim=1)
    p = (scaled - total[:, None]).exp_()
    return total, (p * z.masked_fill(z == -torch.inf, 0.0)).sum(dim=1)
