"""What this installation is made of: the first thing to look at when two machines disagree."""

from __future__ import annotations

import platform
from functools import cache
from importlib import metadata

import torch

PACKAGES = "torch numpy scipy networkx torchvision timm torchmetrics scikit-learn ray".split()


def config() -> dict[str, str]:
    """Versions, threads and kernel of this installation, as text, in a fixed order.

    Example:
        >>> list(config())[:3]
        ['hace', 'python', 'platform']
    """
    from hace import __version__
    from hace.losses import kernels

    return {
        "hace": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        **{name: _version(name) for name in PACKAGES},
        "cuda": torch.version.cuda or "not in this torch",
        "threads": str(torch.get_num_threads()),
        "kernel": kernels.status(),
    }


def show_config() -> None:
    """Print versions, threads and kernel of this installation. Put the output into every bug report.

    Example:
        >>> show_config()
        hace          ...
        kernel        ...
    """
    for name, value in config().items():
        print(f"{name:<13} {value}")


@cache  # every run of a study asks, and reading a package's metadata takes milliseconds
def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"
