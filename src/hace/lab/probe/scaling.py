"""From features to the outputs of a linear head: the same steps in training, evaluation and prediction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hace.errors import DataError, FormatError

ROWS = 4096  # scored at once


@dataclass(frozen=True, eq=False)
class Scaling:
    """How features are scaled before they meet the head.

    Attributes:
        how: "unit", "standard" or "none", as in `ProbeConfig.normalize`.
        mean, std: With "standard", (d,) float32 of the training samples; they are stored beside the weights.

    Example:
        >>> Scaling("unit")(np.array([[3.0, 4.0]], np.float32))
        tensor([[0.6000, 0.8000]])
    """

    how: str
    mean: np.ndarray | None = None
    std: np.ndarray | None = None

    @classmethod
    def fitted(cls, how: str, x: np.ndarray) -> Scaling:
        """The scaling of a head that trains on these features."""
        return cls(how, *column_moments(x)) if how == "standard" else cls(how)

    @classmethod
    def stored(cls, how: str, weights: Mapping[str, Tensor], source: object) -> Scaling:
        """The scaling of a trained head, from its weights.

        Raises:
            FormatError: The weights were written before mean and deviation were stored beside them.
        """
        if how != "standard":
            return cls(how)
        if "mean" not in weights or "std" not in weights:
            raise FormatError(
                f"{source} holds no mean and deviation of the training features, which normalize='standard' needs. "
                "Train the run again."
            )
        return cls(how, weights["mean"].numpy(), weights["std"].numpy())

    def tensors(self) -> dict[str, Tensor]:
        """What the weights' file holds of it."""
        if self.mean is None or self.std is None:
            return {}
        return {"mean": torch.from_numpy(self.mean), "std": torch.from_numpy(self.std)}

    def __call__(self, x: np.ndarray, what: str = "given", first: int = 0) -> Tensor:
        """(M, d) float32, scaled.

        Args:
            x: (M, d) features.
            what: Which samples they are, for messages.
            first: The number of the first of them, where they are part of more.

        Raises:
            DataError: NaN or infinite features.
        """
        with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and is told as such
            x = finite(x.astype(np.float32), what, first)
        if self.mean is not None:
            x = (x - self.mean) / self.std
        elif self.how == "unit":
            norms = np.linalg.norm(x, axis=1, keepdims=True)
            x = x / np.where(norms > 0, norms, 1)
        return torch.from_numpy(x)


def column_moments(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each column; a constant column is to be divided by 1."""
    mean = x.mean(axis=0, dtype=np.float64)
    std = x.std(axis=0, dtype=np.float64)
    return mean.astype(np.float32), np.where(std > 0, std, 1).astype(np.float32)


def finite(x: np.ndarray, what: str, first: int = 0) -> np.ndarray:
    """The features, if all are numbers.

    Raises:
        DataError: With the number of bad rows and the first of them.
    """
    bad = np.flatnonzero(~np.isfinite(x).all(axis=1))
    if len(bad):
        raise DataError(
            f"Features must be finite. {len(bad):,} of {len(x):,} {what} samples hold NaN or infinite values; the first is "
            f"sample {first + bad[0]}. Leave them out, or compute them again."
        )
    return x


def check_width(width: int, weights: Mapping[str, Tensor]) -> None:
    """Refuse features of another width than those that a head was trained on.

    Raises:
        DataError: With both widths.
    """
    expected = weights["weight"].shape[1]
    if width != expected:
        raise DataError(
            f"Features must have {expected} columns, as those that the run was trained on. Got {width}: they "
            "come from another model, or from another layer of it."
        )


def head_outputs(x: Tensor, weights: Mapping[str, Tensor]) -> Iterator[Tensor]:
    """Chunks (B, C) of a head's raw outputs.

    Raises:
        DataError: The features have another width than those that the head was trained on.
    """
    check_width(x.shape[1], weights)
    for rows in x.split(ROWS):
        yield torch.nn.functional.linear(rows, weights["weight"], weights.get("bias"))
