"""The paper's two matrices by name, for inspection: no loss needs either.

T, the table of a loss, comes from the loss: ``loss.table()``. R, the reachability, comes from the hierarchy.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from hace.errors import ConfigError
from hace.hierarchy.hierarchy import Hierarchy


def reachability_matrix(hierarchy: Hierarchy, outputs: str = "nodes", *, dense: bool = False) -> Tensor:
    """R, the 0/1 matrix that aggregates probabilities of outputs into those of nodes: q* = R softmax(z) (eq. 2).

    Args:
        hierarchy: the taxonomy: a tree, a forest or a DAG.
        outputs: what the columns are: ``"nodes"`` in node order, or ``"leaves"`` in label order.
        dense: an ordinary tensor of N x N (or N x n) entries. By default only the ones are kept.

    Returns:
        (N, N) or (N, n), float64: R[v, u] = 1 where output u is node v or below it. A sparse COO tensor,
        unless ``dense``.

    Example:
        >>> h = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat",)], leaves=["husky", "beagle", "cat"])
        >>> h.nodes
        ('dog', 'husky', 'beagle', 'cat')
        >>> reachability_matrix(h, "leaves", dense=True)
        tensor([[1., 1., 0.],
                [1., 0., 0.],
                [0., 1., 0.],
                [0., 0., 1.]], dtype=torch.float64)
    """
    if outputs not in ("nodes", "leaves"):
        raise ConfigError(f"outputs must be 'nodes' or 'leaves'. Got {outputs!r}.")
    row, column = hierarchy.reachability()
    width = hierarchy.num_nodes
    if outputs == "leaves":
        label = hierarchy.labels[column]
        row, column, width = row[label >= 0], label[label >= 0], hierarchy.num_leaves
    matrix = sparse_matrix(row, column, np.ones(len(row)), (hierarchy.num_nodes, width))
    return matrix.to_dense() if dense else matrix


def sparse_matrix(row: np.ndarray, column: np.ndarray, value: np.ndarray, shape: tuple[int, int]) -> Tensor:
    """A sparse COO tensor, sorted by row and column. (CSR would be smaller, but torch warns that it is unfinished.)"""
    indices = torch.from_numpy(np.stack([row, column]))
    return torch.sparse_coo_tensor(indices, torch.from_numpy(value), shape, check_invariants=True).coalesce()
