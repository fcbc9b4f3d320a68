"""Numbers below float32's normal range slow a matrix product down a hundredfold, and no sum notices them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

_DENORMAL = 1e-40


@contextmanager
def flushed_denormals() -> Iterator[None]:
    """Treat denormal numbers as 0 on this thread, where the processor can.

    A head that is sure of its answer has gradients of such numbers. They change no weight: the smallest normal number is
    1e-38.

    Example:
        >>> with flushed_denormals():
        ...     (torch.tensor(1e-40) * 1).item() in (0.0, torch.tensor(1e-40).item())
        True
    """
    before = not (torch.tensor(_DENORMAL) * 1).item()
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)
