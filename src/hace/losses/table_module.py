"""The base of all modules here: constants as buffers that follow the device and keep their precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from hace.hierarchy.hierarchy import allow_in_checkpoints

allow_in_checkpoints()  # once more, for hierarchies imported before torch
_Kept = TypeVar("_Kept")


class TableModule(nn.Module):
    """A module whose constants are non-persistent buffers that keep their precision.

    ``.to(device)`` moves them, ``.half()`` or ``.to(torch.bfloat16)`` leaves them in double precision,
    ``state_dict()`` stays empty.
    """

    def __init__(self) -> None:
        super().__init__()
        self._kept: dict[str, Any] = {}
        # Arrays, not tensors: torch would take those for part of the model.
        self._exact: dict[str, np.ndarray] = {}

    def constant(self, name: str, value: Any) -> None:
        """Registers an array (or None) as a buffer."""
        if value is not None:
            self._exact[name] = np.array(value)  # a copy, because torch needs writable memory
        tensor = None if value is None else torch.from_numpy(self._exact[name])
        self.register_buffer(name, tensor, persistent=False)

    def kept(self, name: str, make: Callable[[], _Kept]) -> _Kept:
        """What ``make`` makes of the buffers, kept for the next call until they move or the module is copied.

        Args:
            name: its name.
            make: makes it.
        """
        if name not in self._kept:
            self._kept[name] = make()
        return self._kept[name]

    def __getstate__(self) -> dict[str, Any]:
        """What is copied or pickled: nothing that is kept. A copy may exchange its parts: its list of them is its own."""
        return {**self.__dict__, "_kept": {}, "_modules": dict(self._modules)}

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> TableModule:
        # Buffers go where the others go and come from what was registered: no cast, no empty memory reaches them.
        self._kept.clear()
        for name in self._exact:
            self._buffers[name] = torch.empty(0, device=getattr(self, name).device)
        super()._apply(fn, recurse)
        for name, array in self._exact.items():
            exact, device = torch.from_numpy(array), getattr(self, name).device
            narrow = device.type == "mps" and exact.is_floating_point()  # which has no double precision
            self._buffers[name] = exact.to(device, torch.float32 if narrow else exact.dtype)
        return self
