"""Lets torchvision be imported where its compiled operators cannot be.

The published torchvision wheel is a CUDA build. Beside a CPU-only torch its library does not load, which torchvision
forgives; but its Python code then attaches to `torchvision::nms`, an operator that the library would have declared,
and the import dies with "operator torchvision::nms does not exist". With it die timm, torchmetrics and lightning.
Declaring the schemas of the two operators is enough for models, data sets and transforms, which never call them.

This file does that, only in that case, and only at the moment somebody imports torchvision. `import hace` installs
the hook. Run as a script, the file copies itself into the running interpreter's site-packages with a `.pth` line
that installs it when Python starts, for programs that import timm before hace. It imports nothing of hace, and torch
only once torchvision is being imported, so that it costs nothing at start-up.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
COPY = "_hace_torchvision_guard"
# A failure here must cost the guard, never the start of Python.
START = f"import sys; exec('try:\\n import {COPY}; {COPY}.install()\\nexcept Exception: pass')\n"

_declared: list[Any] = []  # torch forgets a declaration when its Library object goes


def declare(torchvision_folder: Path) -> bool:
    """Declare the two operators if this torch is CPU-only and the CUDA build of torchvision cannot load beside it.

    Args:
        torchvision_folder: Where torchvision's `__init__.py` lies.

    Returns:
        Whether the operators were declared.
    """
    import torch

    if torch.version.cuda or torch.version.hip or hasattr(torch.ops.torchvision, "nms"):
        return False
    for library in (*torchvision_folder.glob("_C*.so"), *torchvision_folder.glob("_C*.pyd")):
        try:
            torch.ops.load_library(str(library))
        except OSError as error:
            if "cuda" in str(error):  # "libcudart.so.13: cannot open shared object file", or libc10_cuda, libtorch_cuda
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
        folder, run = Path(spec.origin).parent, spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            try:
                declare(folder)
            except Exception:  # torchvision's own message about its own import is the better one
                pass
            run(module)

        spec.loader.exec_module = exec_module
        return spec


def install() -> None:
    """Put the guard before Python's own finders, once, whichever copy of this file comes first."""
    if not any(getattr(finder, "__name__", "") == TorchvisionGuard.__name__ for finder in sys.meta_path):
        sys.meta_path.insert(0, TorchvisionGuard)


def install_at_start(site_packages: Path) -> None:
    """Copy this file into a site-packages folder, with a `.pth` file that installs the guard when Python starts."""
    (site_packages / f"{COPY}.py").write_text(Path(__file__).read_text(encoding="utf-8"), encoding="utf-8")
    (site_packages / f"{COPY}.pth").write_text(START, encoding="utf-8")


if __name__ == "__main__":
    import sysconfig

    install_at_start(Path(sysconfig.get_path("purelib")))
