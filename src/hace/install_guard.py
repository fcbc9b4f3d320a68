"""``python -m hace.install_guard``: let any program in this environment import torchvision beside a CPU-only torch.

For programs that import timm, torchmetrics or lightning before hace; see :mod:`hace._torchvision_guard`.
"""

from __future__ import annotations

import os
import sys
import sysconfig

from hace._torchvision_guard import COPY, install_at_start


def guard_command(arguments: list[str], folder: str) -> str:
    """Install the guard into a site-packages folder, or remove it with ``--remove``; returns what was done."""
    if arguments == ["--remove"]:
        for suffix in (".pth", ".py"):
            path = os.path.join(folder, COPY + suffix)
            if os.path.exists(path):
                os.remove(path)
        return f"Removed the guard from {folder}."
    if arguments:
        sys.exit(f"usage: python -m hace.install_guard [--remove]. Got {' '.join(arguments)}.")
    install_at_start(folder)
    return f"Installed the guard into {folder}. To remove it: python -m hace.install_guard --remove"


if __name__ == "__main__":
    print(guard_command(sys.argv[1:], sysconfig.get_path("purelib")))
