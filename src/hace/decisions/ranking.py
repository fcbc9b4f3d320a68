"""The best leaves of each sample."""

from __future__ import annotations

import torch
from torch import Tensor

from hace.errors import DataError
from hace.losses.kernels.answers import best_columns


def rank_leaves(log_p: Tensor, k: int) -> Tensor:
    """(B, k) labels of the k greatest scores, best first; equal scores in label order."""
    n = log_p.shape[1]
    if not 1 <= k <= n:
        raise DataError(f"k must be from 1 to the number of leaves, {n}. Got {k}.")
    served = best_columns(log_p, k)
    if served is not None:
        return served[0]
    values, labels = log_p.topk(min(k + 1, n), dim=1)
    split = values[:, k - 1] == values[:, -1] if n > k else torch.zeros(len(values), dtype=torch.bool)
    values, labels = values[:, :k], labels[:, :k]
    tied = (values[:, 1:] == values[:, :-1]).any(dim=1).nonzero().squeeze(1)
    if len(tied):  # topk leaves the order of equal scores open: sort by label, then stably by score
        named, order = labels[tied].sort(dim=1)
        best = values[tied].gather(1, order).sort(dim=1, descending=True, stable=True).indices
        labels[tied] = named.gather(1, best)
    if bool(split.any()):  # equal scores on both sides of the cut: only a full stable sort decides
        whole = log_p[split].sort(dim=1, descending=True, stable=True).indices
        labels[split] = whole[:, :k]
    return labels
