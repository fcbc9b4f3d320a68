"""A module whose constants keep their precision and follow it to its device."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from hace.errors import ConfigError

_Made = TypeVar("_Made")


class ConstantModule(nn.Module):
    """A module whose constants are non-persistent buffers that keep their precision.

    ``.to(device)`` moves them, ``.half()`` or ``.to(torch.bfloat16)`` leaves them in double precision,
    ``state_dict()`` stays empty. They follow from each other, so none of them can be assigned later.
    """

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Tensor: ...  # a constant; one that may be None is declared

    def __init__(self) -> None:
        super().__init__()
        self._cache: dict[str, Any] = {}
        # Arrays, not tensors: torch would take those for part of the model.
        self._exact: dict[str, np.ndarray] = {}

    def constant(self, name: str, value: Any) -> None:
        """Registers an array (or None) as a buffer."""
        if value is not None:
            self._exact[name] = np.array(value)  # a copy, because torch needs writable memory
        tensor = None if value is None else torch.from_numpy(self._exact[name])
        self.register_buffer(name, tensor, persistent=False)

    def cached(self, name: str, make: Callable[[], _Made]) -> _Made:
        """What ``make`` makes of the constants, cached until they move or the module is copied."""
        if name not in self._cache:
            self._cache[name] = make()
        return self._cache[name]

    def shared_constants(self) -> dict[int, Any]:
        """A memo for :func:`copy.deepcopy`: the copy has the same constants, and moves by itself."""
        modules = [module for module in self.modules() if isinstance(module, ConstantModule)]
        shared = [
            constant
            for module in modules
            for constant in (*module._exact.values(), *module._buffers.values())
        ]
        return {id(constant): constant for constant in shared}

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.__dict__.get("_buffers", ()):
            got = (
                f"{type(value).__name__} of shape {tuple(value.shape)}"
                if isinstance(value, Tensor)
                else repr(value)
            )
            raise ConfigError(
                f"{name} must be set when the loss is built. Got {got}. Build another loss: weight=... gives class weights."
            )
        super().__setattr__(name, value)

    def __getstate__(self) -> dict[str, Any]:
        """What is copied or pickled: nothing that is cached."""
        return {**self.__dict__, "_cache": {}}

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> ConstantModule:
        # Buffers go where the others go and come from what was registered: no cast, no empty memory reaches them.
        self._cache.clear()
        for name in self._exact:
            self._buffers[name] = torch.empty(0, device=getattr(self, name).device)
        super()._apply(fn, recurse)
        for name, array in self._exact.items():
            exact = torch.from_numpy(array)
            device = getattr(self, name).device
            narrow = device.type == "mps" and exact.is_floating_point()  # which has no double precision
            self._buffers[name] = exact.to(device, torch.float32 if narrow else exact.dtype)
        return self
