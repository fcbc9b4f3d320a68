"""Training data of a linear head, checked once: features, dense or sparse, targets and sample weights."""

from __future__ import annotations

import copy
import ctypes
import mmap
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hace.decisions.scores import as_tensor
from hace.errors import DataError
from hace.files.reading import check_memory, max_memory
from hace.hierarchy.derived import is_above
from hace.losses.base import HierarchicalLoss

_CHUNK = 8192  # rows checked or scored at once
_AHEAD = 4  # batches that are read from disk before their turn
_NUMPY = {torch.float32: np.float32, torch.float64: np.float64}


class LabelledFeatures:
    """Features (M, d), targets (M,) int64 or soft (M, labels), and weights (M,) or None, all finite and in range.

    A sparse matrix of scipy stays sparse, and a large memory map on disk. ``what`` is a prefix of the names in messages.
    """

    def __init__(
        self,
        x: Any,
        target: Any,
        loss: HierarchicalLoss,
        weight: Any = None,
        what: str = "",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.x: Any  # Tensor, SparseFeatures or RowsOnDisk
        if hasattr(x, "tocsr") and hasattr(x, "nnz"):
            self.x = SparseFeatures.of(x, what + "x", dtype)
        else:
            x = RowsOnDisk.of(x)
            streamed = isinstance(x, RowsOnDisk) and dtype is torch.float32
            self.x = x if streamed else as_features(x, what + "x", dtype)
        # The type and device of this training's tensors, for `.to`: not all features are a tensor.
        self.like = torch.empty(0, dtype=dtype, device=self.x.device)
        if len(self.x) == 0:
            raise DataError(f"{what}x must have at least one row. Got shape {tuple(self.x.shape)}.")
        self.target = _targets(target, self.x, loss, what + "target")
        self.weight = None if weight is None else as_weights(weight, len(self.x)).to(self.like)

    def __len__(self) -> int:
        return len(self.x)

    def shape_of(self, loss: HierarchicalLoss) -> tuple[int, int]:
        """(C, d): the shape of a head for this loss."""
        return loss.num_outputs, self.x.shape[1]

    def batch(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Some rows: features, targets, weights."""
        weight = None if self.weight is None else self.weight[rows]
        return self.x.index_select(0, rows), self.target[rows], weight

    def batches(self, order: Tensor, size: int) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
        """Batches of so many rows, in this order; from disk, the next ones are read meanwhile."""
        parts = order.split(size) if len(order) else ()
        if not isinstance(self.x, RowsOnDisk):
            yield from map(self.batch, parts)
            return
        ahead: deque[Future[Any]] = deque()
        with ThreadPoolExecutor(2) as readers:
            for part in parts:
                ahead.append(readers.submit(self.batch, part))
                if len(ahead) > _AHEAD:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()

    def top1(self, scores: Callable[[Tensor], Tensor], loss: HierarchicalLoss) -> float:
        """Share of rows whose best leaf is the label or below it; ``scores(x)`` gives logits (B, C)."""
        right = 0
        h = loss.hierarchy
        for rows in torch.arange(len(self), device=self.like.device).split(_CHUNK):
            x, target, _ = self.batch(rows)
            label = loss.leaf_logits(scores(x)).argmax(dim=1)
            if loss.labels == "nodes":
                right += int(is_above(h, target.cpu().numpy(), h.leaf_nodes[label.cpu().numpy()]).sum())
            else:
                right += int((label == target).sum())
        return right / len(self)

    def principal_axes(self, count: int, *, centred: bool) -> tuple[Tensor, Tensor, Tensor, float]:
        """Mean (d,), the first axes (d, k), the variance along each (k,) and the mean variance along the others.

        By three rounds of subspace iteration: to a few percent, which is enough for a preconditioner.
        """
        samples, width = self.x.shape
        share = self.like.new_ones(samples, 1) if self.weight is None else self.weight[:, None]
        share = share / share.sum()
        mean = (self.x.T @ share)[:, 0] if centred else self.like.new_zeros(width)
        axes = torch.randn(width, min(count, width), generator=torch.Generator().manual_seed(0)).to(self.like)
        for _ in range(3):
            axes = torch.linalg.qr(axes).Q
            along = share * (self.x @ axes - mean @ axes)  # (M, k)
            axes = self.x.T @ along - torch.outer(mean, along.sum(dim=0))
        axes = torch.linalg.qr(axes).Q
        variance = (share * (self.x @ axes - mean @ axes).square()).sum(dim=0)
        squares = self.x.square() @ torch.ones(width, 1, dtype=self.like.dtype)
        total = float((share * squares).sum()) - float(mean.square().sum())
        rest = max(total - float(variance.sum()), 0.0) / max(width - count, 1)
        return mean.double(), axes, variance, rest

    def to(self, dtype: torch.dtype) -> LabelledFeatures:
        """The same data with features and weights of another type."""
        if dtype is self.like.dtype:
            return self
        other = copy.copy(self)
        other.x = self.x.to(dtype)
        other.like = self.like.to(dtype)
        other.weight = None if self.weight is None else self.weight.to(dtype)
        return other


def as_rows(x: Any) -> Any:
    """Features as scikit-learn takes them: of a tensor its values."""
    if not isinstance(x, Tensor):
        return x
    values = as_tensor(x, "X").cpu()
    return (values.float() if values.dtype is torch.bfloat16 else values).numpy()


def as_features(x: Any, what: str = "x", dtype: torch.dtype = torch.float32) -> Tensor:
    """Features as a finite tensor (M, d)."""
    if isinstance(x, Tensor):
        tensor = x.detach()
    else:
        array = np.asarray(x)
        if array.dtype.kind not in "biuf":
            raise DataError(f"{what} must hold real numbers. Got {array.dtype}.")
        with np.errstate(over="ignore"):  # what is too large becomes infinite, and is refused as such
            # A copy: a memory map is read-only.
            tensor = torch.from_numpy(np.array(array, dtype=_NUMPY[dtype]))
    if tensor.ndim != 2 or tensor.shape[1] == 0:
        raise DataError(
            f"{what} must be (M, d) features, with at least one column. Got shape {tuple(tensor.shape)}."
        )
    if tensor.is_complex():
        raise DataError(f"{what} must hold real numbers. Got {tensor.dtype}.")
    tensor = tensor.to(dtype).contiguous()
    # A finite sum has finite terms; only a non-finite one needs a closer look.
    if not all(bool(part.sum().isfinite()) for part in tensor.split(_CHUNK)):
        bad = torch.cat([~part.isfinite().all(dim=1) for part in tensor.split(_CHUNK)])
        if bad.any():
            raise DataError(
                f"{what} must be finite. {int(bad.sum()):,} of {len(bad):,} rows hold NaN or infinite values; the first is "
                f"row {int(bad.nonzero()[0])}. Drop or recompute them."
            )
    return tensor


def unit_rows(x: np.ndarray) -> np.ndarray:
    """(M, d) rows scaled to length 1, float32; rows of zeros stay, and rows that are not finite become NaN.

    Example:
        >>> unit_rows(np.array([[3.0, 4.0], [3e30, 4e30], [3e-50, 4e-50], [0.0, 0.0]]))
        array([[0.6, 0.8],
               [0.6, 0.8],
               [0.6, 0.8],
               [0. , 0. ]], dtype=float32)
    """
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        rows = x.astype(np.float32)
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        rows /= np.where(norms > 0, norms, 1)
        odd = np.flatnonzero(~((norms > 1e-15) & (norms < 1e15)))  # where squares over- or underflow
        part = x[odd].astype(np.float64)
        top = np.abs(part).max(axis=1, keepdims=True, initial=0)
        part /= np.where(top > 0, top, 1)
        norms = np.linalg.norm(part, axis=1, keepdims=True)
        rows[odd] = part / np.where(norms > 0, norms, 1)
    return rows


def _targets(target: Any, x: Any, loss: HierarchicalLoss, what: str) -> Tensor:
    tensor = target.detach() if isinstance(target, Tensor) else torch.from_numpy(np.array(target))
    if tensor.dim() == 2 and tensor.is_floating_point():
        return _soft_targets(tensor, x, loss, what)
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype is torch.bool:
        raise DataError(
            f"{what} must hold integer labels. Got {tensor.dtype}. Use target.long() if they are whole numbers."
        )
    if tensor.shape != (len(x),):
        raise DataError(
            f"{what} must have one label for each of the {len(x):,} rows. Got shape {tuple(tensor.shape)}."
        )
    tensor = tensor.long().to(x.device)
    bad = ((tensor < 0) | (tensor >= loss.num_labels)).nonzero().flatten()
    if len(bad):
        range_of = "leaves" if loss.labels == "leaves" else "nodes (labels='nodes')"
        raise DataError(
            f"{what} must be from 0 to {loss.num_labels - 1}, the {range_of} of the hierarchy. {len(bad):,} of {len(x):,} are "
            f"not; the first is {int(tensor[bad[0]])} in row {int(bad[0])}."
        )
    return tensor


def _soft_targets(tensor: Tensor, x: Any, loss: HierarchicalLoss, what: str) -> Tensor:
    if tensor.shape != (len(x), loss.num_labels):
        raise DataError(
            f"{what} must be ({len(x):,}, {loss.num_labels:,}): a share for each of the {loss.labels}. Got "
            f"{tuple(tensor.shape)}."
        )
    if not bool(tensor.isfinite().all()) or bool((tensor < 0).any()):
        raise DataError(f"{what} must hold finite shares, 0 or more.")
    return tensor.float().to(x.device)


def as_weights(weight: Any, rows: int) -> Tensor:
    """Sample weights (M,) in double precision, the largest 1: only their proportions matter."""
    if isinstance(weight, str):
        raise DataError(
            f"sample_weight must be numbers, one per sample. Got {weight!r}. class_weight weighs classes."
        )
    tensor = weight.detach() if isinstance(weight, Tensor) else torch.from_numpy(np.array(weight, np.float64))
    if tensor.shape != (rows,):
        raise DataError(
            f"sample_weight must have one weight for each of the {rows:,} rows. Got shape {tuple(tensor.shape)}."
        )
    tensor = tensor.double()
    if not bool(tensor.isfinite().all()) or bool((tensor < 0).any()) or float(tensor.sum()) <= 0:
        raise DataError("sample_weight must be finite, not negative, and not all zero.")
    return tensor / tensor.max()


class RowsOnDisk:
    """Rows of memory maps (M, d), read and scaled a batch at a time: features that need not fit into memory.

    It has the few methods of an array that datasets use and those of a tensor that training uses, with the same bits.
    ``rows`` are positions in the maps, one after another; ``scale`` makes a float32 tensor of some rows.
    """

    device = torch.device("cpu")
    ndim = 2

    def __init__(
        self,
        maps: Sequence[np.ndarray],
        rows: np.ndarray | None = None,
        scale: Callable[[np.ndarray], Tensor] | None = None,
    ) -> None:
        self._maps = maps
        self._scale = scale
        self._starts = np.cumsum([0, *map(len, maps)])
        self._rows = np.arange(self._starts[-1]) if rows is None else rows
        self.shape = (len(self._rows), maps[0].shape[1])
        self.dtype = np.result_type(*maps)

    @classmethod
    def of(cls, x: Any) -> Any:
        """A mapped array whose float32 copy would exceed the limit of memory, as rows on disk; anything else as it is."""
        mapped = isinstance(x, np.ndarray) and not x.flags.owndata  # by numpy or safetensors
        return cls([x]) if mapped and 4 * x.size > max_memory() else x

    @classmethod
    def joined(cls, columns: Sequence[Any]) -> RowsOnDisk:
        """Rows on disk and arrays, one after another."""
        parts = [x if isinstance(x, cls) else cls([x]) for x in columns]
        starts = np.cumsum([0, *(x._starts[-1] for x in parts)])
        rows = np.concatenate([x._rows + start for x, start in zip(parts, starts, strict=False)])
        return cls([part for x in parts for part in x._maps], rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, rows: Any) -> Any:
        """Some rows, still on disk; one row, in memory."""
        if isinstance(rows, int | np.integer):
            return np.asarray(self[[rows]])[0]
        return RowsOnDisk(self._maps, self._rows[rows], self._scale)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        check_memory("features", 4 * len(self) * self.shape[1], f"{len(self):,} rows")
        rows = self._read(self._rows)
        return np.asarray(rows if self._scale is None else self._scale(rows), dtype)

    def scaled(self, scale: Callable[[np.ndarray], Tensor]) -> RowsOnDisk:
        """The same rows, scaled as they are read."""
        return RowsOnDisk(self._maps, self._rows, scale)

    def index_select(self, _: int, rows: Tensor) -> Tensor:
        """Some rows as a float32 tensor."""
        features = torch.from_numpy(
            self._read(self._rows[rows.numpy()])
        ).float()  # numpy takes 20 times as long
        return as_features(features) if self._scale is None else self._scale(features.numpy())

    def split(self, size: int) -> Iterator[Tensor]:
        """All rows, so many at a time."""
        return (self.index_select(0, rows) for rows in torch.arange(len(self)).split(size))

    def _read(self, wanted: np.ndarray) -> np.ndarray:
        """Rows in the order wanted, read in that of the files."""
        order = np.argsort(wanted)
        wanted = wanted[order]
        ordered = np.empty((len(order), self.shape[1]), self.dtype)
        ends = np.searchsorted(wanted, self._starts)
        for i in np.flatnonzero(np.diff(ends)).tolist():
            part = slice(ends[i], ends[i + 1])
            rows = wanted[part] - self._starts[i]
            _ask_for(self._maps[i], rows)
            ordered[order[part]] = self._maps[i][rows]
        return ordered


def _ask_for(array: np.ndarray, rows: np.ndarray) -> None:
    """Have the system read scattered rows of a memory map at once: page after page, it reads 128 KiB around each row."""
    advise = _madvise()
    if advise is None or rows[-1] - rows[0] < len(rows):
        return
    start = array.ctypes.data + rows * array.strides[0]
    page = start // mmap.PAGESIZE * mmap.PAGESIZE
    for first, size in zip(page.tolist(), (start - page + array.strides[0]).tolist(), strict=True):
        advise(first, size, mmap.MADV_WILLNEED)  # only a hint: what it answers does not matter


@cache
def _madvise() -> Any:
    """The system's own call, which takes any mapped address: numpy shows its maps, safetensors and torch do not."""
    if not hasattr(mmap, "MADV_WILLNEED"):
        return None
    call = getattr(ctypes.CDLL(None), "madvise", None)
    if call is not None:
        call.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return call


class SparseFeatures:
    """A CSR matrix (M, d) with the few methods of a tensor that training uses. Rows become dense a batch at a time."""

    device = torch.device("cpu")

    def __init__(self, matrix: Any) -> None:
        self._matrix = matrix
        self.shape: tuple[int, int] = matrix.shape
        self.dtype = torch.float64 if matrix.dtype == np.float64 else torch.float32

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

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, part: slice) -> SparseFeatures:
        whole = part.indices(len(self)) == (0, len(self), 1)
        return self if whole else SparseFeatures(self._matrix[part])

    @property
    def T(self) -> SparseFeatures:
        """The transpose."""
        return SparseFeatures(self._matrix.T)

    def __matmul__(self, other: Tensor) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(self._matrix @ other.numpy()))

    def square(self) -> SparseFeatures:
        """Every entry squared."""
        return SparseFeatures(self._matrix.multiply(self._matrix).tocsr())

    def index_select(self, _: int, rows: Tensor) -> Tensor:
        """Some rows as a dense tensor."""
        return torch.from_numpy(self._matrix[rows.numpy()].toarray())

    def to(self, dtype: torch.dtype) -> SparseFeatures:
        """The same features in another precision."""
        return SparseFeatures(self._matrix.astype(_NUMPY[dtype], copy=False))
