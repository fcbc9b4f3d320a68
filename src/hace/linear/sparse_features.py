"""Features as a sparse matrix: rows become dense a batch at a time, products never do."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from hace.errors import DataError

_NUMPY = {torch.float32: np.float32, torch.float64: np.float64}


def is_sparse(x: Any) -> bool:
    """Whether x is a sparse matrix or array of scipy."""
    return hasattr(x, "tocsr") and hasattr(x, "nnz")


class SparseFeatures:
    """A CSR matrix (M, d) with the few methods of a tensor that training uses.

    Args:
        matrix: the matrix, in CSR form, of float32 or float64.
    """

    device = torch.device("cpu")

    def __init__(self, matrix: Any) -> None:
        self._matrix = matrix

    @classmethod
    def of(cls, x: Any, what: str, dtype: torch.dtype) -> SparseFeatures:
        """Features from any sparse matrix, checked: real, finite and at least one column."""
        if x.dtype.kind not in "biuf":
            raise DataError(f"{what} must hold real numbers. Got {x.dtype}.")
        if x.ndim != 2 or x.shape[1] == 0:
            raise DataError(f"{what} must be (M, d) features, with at least one column. Got shape {x.shape}.")
        matrix = x.tocsr().astype(_NUMPY[dtype], copy=False)
        if not np.isfinite(matrix.data).all():
            raise DataError(
                f"{what} must be finite. Some entries are NaN or infinite. Drop or recompute them."
            )
        return cls(matrix)

    @property
    def dtype(self) -> torch.dtype:
        """Type of the entries."""
        return torch.float64 if self._matrix.dtype == np.float64 else torch.float32

    @property
    def shape(self) -> tuple[int, int]:
        """(M, d)."""
        return self._matrix.shape

    def __len__(self) -> int:
        return self._matrix.shape[0]

    def __getitem__(self, part: slice) -> SparseFeatures:
        whole = part.indices(len(self)) == (0, len(self), 1)
        return self if whole else SparseFeatures(self._matrix[part])

    @property
    def T(self) -> SparseFeatures:
        """The transpose."""
        return SparseFeatures(self._matrix.T)

    def __matmul__(self, other: Tensor) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(self._matrix @ other.numpy()))

    def index_select(self, _: int, rows: Tensor) -> Tensor:
        """Some rows as a dense tensor."""
        return SparseFeatures(self._matrix[rows.numpy()]).dense()

    def dense(self) -> Tensor:
        """The same features as a tensor."""
        return torch.from_numpy(self._matrix.toarray())

    def to(self, dtype: torch.dtype) -> SparseFeatures:
        """The same features in another precision."""
        return SparseFeatures(self._matrix.astype(_NUMPY[dtype], copy=False))
