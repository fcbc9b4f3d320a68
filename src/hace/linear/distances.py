"""Distances in feature space: Gaussian classes with one covariance, as a second opinion on which class a sample is."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from hace.losses.base import HierarchicalLoss

_SHRINKAGE = 0.3  # of the covariance toward a multiple of the identity
_SHARE = 0.1  # of the distances in a sum of log-probabilities: features are not Gaussian, so densities are overconfident


class ClassDistances:
    r"""Mahalanobis distances to the classes' means, by linear discriminant analysis (scikit-learn's ``lsqr``).

    Args:
        x: (M, d) training features.
        y: (M,) labels from 0 to n - 1; every class needs a sample.
        classes: n.
    """

    def __init__(self, x: np.ndarray, y: np.ndarray, classes: int) -> None:
        from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

        made = LinearDiscriminantAnalysis(
            solver="lsqr", shrinkage=_SHRINKAGE, priors=np.full(classes, 1 / classes)
        ).fit(np.asarray(x, dtype=np.float64), y)
        coef, bias = made.coef_, made.intercept_
        if classes == 2:  # of which scikit-learn keeps the difference
            coef, bias = np.concatenate([-coef, coef]) / 2, np.concatenate([-bias, bias]) / 2
        self.weight, self.bias = torch.from_numpy(coef).float(), torch.from_numpy(bias).float()

    def logits(self, x: np.ndarray) -> Tensor:
        """(B, n) half the squared distances, negated, up to a constant per sample, times the share they count."""
        return _SHARE * (torch.from_numpy(np.asarray(x, dtype=np.float32)) @ self.weight.t() + self.bias)

    def refined(self, z: Tensor, x: np.ndarray, loss: HierarchicalLoss) -> Tensor:
        """(B, N) logits over nodes in which the distances share in the choice among the classes.

        All classes together keep their mass, and so does every inner node: distances say which class, not whether it is one.
        """
        leaves = loss.head.leaf_nodes
        found = z.index_select(1, leaves)
        chosen = (found.log_softmax(dim=1) + self.logits(x)).log_softmax(dim=1)
        return z.index_copy(1, leaves, found.logsumexp(dim=1, keepdim=True) + chosen)
