"""Random cases through a kernel built with sanitizers: `make sanitize` builds it, preloads them and runs this.

Sizes around the kernel's vectors, tiles and groups, transposed and sliced logits, extreme and missing values.
"""

from __future__ import annotations

import importlib.util
import os

import torch

import hace
from hace.losses import kernels
from hace.losses.base import HierarchicalLoss
from tests.hierarchies import KINDS, random_plain
from tests.loss_cases import CASES


def use(path: str) -> None:
    """Loads a build of the extension in place of the installed one."""
    spec = importlib.util.spec_from_file_location("hace.losses.kernels._kernels", path)
    assert spec is not None
    assert spec.loader is not None
    kernels._kernels = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(kernels._kernels)


def logits(rows: int, columns: int, form: int) -> torch.Tensor:
    """Logits in one of several layouts and ranges."""
    if form == 0:
        return torch.randn(rows, columns)
    if form == 1:
        return 1e4 * torch.randn(columns, rows).t()
    if form == 2:
        return 30 * torch.randn(rows, 2 * columns + 1)[:, 1 : 2 * columns + 1 : 2]
    z = torch.randn(rows, columns)
    z[0] = torch.nan
    z[-1] = torch.inf
    z[:, ::3] = -torch.inf
    return z


def run_case(case: str, kind: str, size: int, rows: int, form: int) -> bool:
    """One step; False where the loss does not take the hierarchy."""
    plain = random_plain(kind, size, max_nodes=size)
    if not CASES[case].fits(plain):
        return False
    for labels in ("leaves", "nodes"):
        loss = CASES[case].build(plain.build(), labels=labels)
        z = logits(rows, loss.num_outputs, form).requires_grad_()
        target = torch.randint(loss.num_labels, (rows,))
        target[rows // 2] = -100
        loss(z, target).backward()
        loss(z, torch.rand(rows, loss.num_labels)).backward()
        loss.node_log_probs(z.detach())
        decide(loss, z.detach())
    return True


def decide(loss: HierarchicalLoss, z: torch.Tensor) -> None:
    """The answers of least cost, of classes and of any nodes, where the scores are allowed."""
    h = loss.hierarchy
    usable = z[(z.amax(dim=1) < torch.inf) & ~z.isnan().any(dim=1)]  # the rest is refused
    if not h.is_tree or not len(usable):
        return
    q = loss.node_log_probs(usable)
    q = q[q[:, torch.tensor(h.leaf_nodes)].amax(dim=1) > -torch.inf]
    for candidates in ("leaves", "nodes"):
        hace.predict(q, h, "cost", candidates=candidates, kind="node_log_probs")


def main() -> None:
    use(os.environ["HACE_KERNEL_FILE"])
    torch.manual_seed(0)
    steps = 0
    for size in (65, 17, 2):
        for kind in KINDS:
            for form, rows in ((0, 1), (1, 7), (2, 9), (3, 17)):
                steps += sum(run_case(case, kind, size, rows, form) for case in CASES)
        print(f"{steps} losses at {size} nodes and more", flush=True)
    print(f"{steps} losses, {kernels.status()}, {hace.__version__}: no report")


if __name__ == "__main__":
    main()
