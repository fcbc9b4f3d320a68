"""From features to the outputs of a head: the same steps in training, evaluation and prediction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hace.errors import DataError, FormatError
from hace.linear.features import unit_rows
from hace.losses.poincare_head import PoincareBall, layer_logits

_ROWS = 4096  # scored at once


@dataclass(frozen=True, eq=False)
class Scaling:
    """How features are scaled before the head.

    Attributes:
        how: "unit", "standard" or "none", as in `ProbeConfig.normalize`.
        mean: With "standard", (d,) float32 mean of the training samples, stored beside the weights.
        std: With "standard", (d,) float32 deviation of the training samples, stored beside the weights.

    Example:
        >>> Scaling("unit")(np.array([[3.0, 4.0]], np.float32))
        tensor([[0.6000, 0.8000]])
    """

    how: str
    mean: np.ndarray | None = None
    std: np.ndarray | None = None

    @classmethod
    def fitted(cls, how: str, x: np.ndarray) -> Scaling:
        """The scaling for a head that trains on these features."""
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
                f"{source} must hold mean and std of the training features, which normalize='standard' needs. Got "
                "neither: train the run again."
            )
        return cls(how, weights["mean"].numpy(), weights["std"].numpy())

    def tensors(self) -> dict[str, Tensor]:
        """The tensors to store beside the weights."""
        if self.mean is None or self.std is None:
            return {}
        return {"mean": torch.from_numpy(self.mean), "std": torch.from_numpy(self.std)}

    def __call__(self, x: np.ndarray, what: str = "given", first: int = 0) -> Tensor:
        """(M, d) float32, scaled.

        Args:
            x: (M, d) features.
            what: Which samples they are, for messages.
            first: The number of the first one, where they are part of more.

        Raises:
            DataError: NaN or infinite features.
        """
        if self.how == "unit":
            return torch.from_numpy(finite(unit_rows(x), what, first))
        with np.errstate(over="ignore"):  # values beyond float32 become infinite and are reported
            x = finite(x.astype(np.float32), what, first)
        return torch.from_numpy(x if self.mean is None else (x - self.mean) / self.std)


def column_moments(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each column; the deviation of a constant column is 1."""
    mean = x.mean(axis=0, dtype=np.float64)
    std = x.std(axis=0, dtype=np.float64)
    return mean.astype(np.float32), np.where(std > 0, std, 1).astype(np.float32)


def finite(x: np.ndarray, what: str, first: int = 0) -> np.ndarray:
    """The features, if all are finite.

    Args:
        x: (M, d) features.
        what: Which samples they are, for messages.
        first: The number of the first one, where they are part of more.

    Raises:
        DataError: With the number of bad rows and the first one.
    """
    bad = np.flatnonzero(~np.isfinite(x).all(axis=1))
    if len(bad):
        raise DataError(
            f"Features must be finite. Got NaN or infinite values in {len(bad):,} of {len(x):,} {what} samples, the first of "
            f"them sample {first + bad[0]}. Drop these samples, or compute their features again."
        )
    return x


def check_width(width: int, weights: Mapping[str, Tensor]) -> None:
    """Refuse features of another width than the head's.

    Args:
        width: Columns of the features.
        weights: The head.

    Raises:
        DataError: With both widths.
    """
    expected = weights["weight"].shape[1]
    if width != expected:
        raise DataError(
            f"Features must have {expected} columns, as in training. Got {width}: they come from another model, or from "
            "another layer of it."
        )


def head_outputs(
    x: Tensor, weights: Mapping[str, Tensor], ball: PoincareBall | None = None
) -> Iterator[Tensor]:
    """Chunks (B, C) of a head's raw outputs.

    Args:
        x: (M, d) scaled features.
        weights: The head.
        ball: Of a hyperbolic head.

    Raises:
        DataError: The features have another width than the head.
    """
    check_width(x.shape[1], weights)
    for rows in x.split(_ROWS):
        yield layer_logits(rows, weights["weight"], weights.get("bias"), ball)
