"""Set up an environment in which a CUDA build of torchvision can be imported beside a CPU-only torch.

The torchvision wheel on PyPI is a CUDA build. Beside a CPU-only torch its library does not load, which torchvision
forgives; but its Python code then attaches to `torchvision::nms`, an operator that the library would have declared, and the
import fails, and with it those of timm, torchmetrics and lightning. Declaring the schemas of two operators is enough for
models, data sets and transforms, which never call them.

`make` runs this file as a script. It copies itself into the site-packages of the running interpreter, with a `.pth` line
that installs the hook when Python starts; the hook acts when torchvision is imported, and only in the case above. It
imports nothing that Python has not loaded by then, and torch not before torchvision. `--remove` undoes it.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder

SCHEMAS = ("nms", "qnms")
COPY = "_hace_torchvision_guard"
# A failure here may cost the hook, never the start of Python.
START = f"import sys; exec('try:\\n import {COPY}; {COPY}.install()\\nexcept Exception: pass')\n"

_declared = []  # torch forgets a declaration when its Library object goes


def declare(folder: str) -> None:
    """Declare the operators if this torch is CPU-only and the library in torchvision's folder needs CUDA."""
    import torch

    if torch.version.cuda or torch.version.hip or hasattr(torch.ops.torchvision, "nms"):
        return
    for library in {"_C.so", "_C.pyd"} & set(os.listdir(folder)):
        try:
            torch.ops.load_library(os.path.join(folder, library))
        except OSError as error:
            # "libcudart.so.13: cannot open shared object file"; recent versions of torch wrap it.
            if "cuda" in str(error.__cause__ or error):
                _declared.append(torch.library.Library("torchvision", "DEF"))
                for name in SCHEMAS:
                    _declared[-1].define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


class TorchvisionGuard:
    """A finder that looks for torchvision as Python would, and declares the operators just before its code runs."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        """Answer for torchvision alone. Part of the protocol of `sys.meta_path`."""
        if name != "torchvision":
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None or spec.origin is None:
            return spec
        folder, run = os.path.dirname(spec.origin), spec.loader.exec_module

        def exec_module(module):
            try:
                declare(folder)
            except Exception:  # torchvision's own words about its failing import are the better ones
                pass
            run(module)

        spec.loader.exec_module = exec_module
        return spec


def install() -> None:
    """Put the hook before Python's own finders, once."""
    if not any(getattr(finder, "__name__", "") == TorchvisionGuard.__name__ for finder in sys.meta_path):
        sys.meta_path.insert(0, TorchvisionGuard)  # pyright: ignore[reportArgumentType]


def set_up(site_packages: str, remove: bool = False) -> None:
    """Put this file and its `.pth` into a site-packages folder, each in one step, or remove them."""
    with open(__file__, encoding="utf-8") as source:
        contents = {f"{COPY}.py": source.read(), f"{COPY}.pth": START}
    for name, content in contents.items():
        path = os.path.join(site_packages, name)
        if not remove:
            with open(f"{path}.new", "w", encoding="utf-8") as file:
                file.write(content)
            os.replace(f"{path}.new", path)
        elif os.path.exists(path):
            os.remove(path)


if __name__ == "__main__":
    import sysconfig

    set_up(sysconfig.get_path("purelib"), remove="--remove" in sys.argv)
