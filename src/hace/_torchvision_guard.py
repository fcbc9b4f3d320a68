"""Lets torchvision be imported where its compiled operators cannot be.

The published torchvision wheel is a CUDA build. Beside a CPU-only torch its library does not load, which torchvision
forgives; but its Python code then attaches to `torchvision::nms`, an operator that the library would have declared,
and the import fails with "operator torchvision::nms does not exist", and with it timm, torchmetrics and lightning.
Declaring the schemas of the two operators is enough for models, data sets and transforms, which never call them.

This file does that, only in that case, and only at the moment somebody imports torchvision. `import hace` installs
the hook. Run as a script, the file copies itself into the running interpreter's site-packages with a `.pth` line
that installs it when Python starts, for programs that import timm before hace. So that it costs nothing there, it
imports only what Python has loaded by then: nothing of hace, no typing, no pathlib, and torch not before torchvision.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
COPY = "_hace_torchvision_guard"
# A failure here may cost the guard, never the start of Python.
START = f"import sys; exec('try:\\n import {COPY}; {COPY}.install()\\nexcept Exception: pass')\n"

_declared: list[Any] = []  # torch forgets a declaration when its Library object goes


def declare(torchvision_folder: str) -> bool:
    """Declare the two operators if this torch is CPU-only and a CUDA build of torchvision cannot load beside it.

    Args:
        torchvision_folder: The folder of torchvision's `__init__.py`.

    Returns:
        Whether the operators were declared.
    """
    import torch

    if torch.version.cuda or torch.version.hip or hasattr(torch.ops.torchvision, "nms"):
        return False
    libraries = [name for name in os.listdir(torchvision_folder) if name in ("_C.so", "_C.pyd")]
    for library in libraries:
        try:
            torch.ops.load_library(os.path.join(torchvision_folder, library))
        except OSError as error:
            # "libcudart.so.13: cannot open shared object file"; recent versions of torch wrap it.
            if "cuda" in str(error.__cause__ or error):
                _declared.append(torch.library.Library("torchvision", "DEF"))
                for schema in SCHEMAS:
                    _declared[-1].define(schema)
                return True
    return False


class TorchvisionGuard:
    """A finder that looks for torchvision as Python would, and declares the operators just before its code runs."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Answer for torchvision alone. Part of the protocol of `sys.meta_path`."""
        if name != "torchvision":
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None or spec.origin is None:
            return spec
        folder, run = os.path.dirname(spec.origin), spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            try:
                declare(folder)
            except Exception:  # torchvision's own words about its failing import are the better ones
                pass
            run(module)

        spec.loader.exec_module = exec_module
        return spec


def install() -> None:
    """Put the guard before Python's own finders, once, whichever copy of this file comes first."""
    if not any(getattr(finder, "__name__", "") == TorchvisionGuard.__name__ for finder in sys.meta_path):
        sys.meta_path.insert(0, TorchvisionGuard)  # pyright: ignore[reportArgumentType]


def install_at_start(site_packages: str) -> None:
    """Copy this file into a site-packages folder, with a `.pth` file that installs the guard when Python starts."""
    with open(__file__, encoding="utf-8") as source:
        text = source.read()
    for name, content in ((f"{COPY}.py", text), (f"{COPY}.pth", START)):
        with open(os.path.join(site_packages, name), "w", encoding="utf-8") as file:
            file.write(content)


if __name__ == "__main__":
    import sysconfig

    install_at_start(sysconfig.get_path("purelib"))
