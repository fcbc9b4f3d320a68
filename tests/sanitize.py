"""Random cases through a kernel built with sanitizers: `make sanitize` builds it, preloads them and runs this.

Sizes around the kernel's vectors, tiles, blocks and groups, transposed and sliced logits, extreme and missing values, one
thread and two. Every function of the extension must have run.
"""

from __future__ import annotations

import importlib.util
import os
from typing import Any

import torch

import hace
from hace.losses import kernels
from hace.losses.base import HierarchicalLoss
from hace.losses.kernels.answers import best_columns
from tests.hierarchies import KINDS, random_plain
from tests.loss_cases import CASES

LARGE = 1100  # nodes: several blocks of 512 columns
LARGE_CASES = ("hxe", "hace", "hace_smooth", "hace_paths", "conditional_softmax", "soft_label")


class Counted:
    """An extension module that remembers which of its functions were called."""

    def __init__(self, module: Any) -> None:
        self._module, self.called = module, set[str]()

    def __getattr__(self, name: str) -> Any:
        self.called.add(name)
        return getattr(self._module, name)

    def uncalled(self) -> set[str]:
        """Functions that nothing has called."""
        names = {n for n in dir(self._module) if callable(getattr(self._module, n)) and not n.startswith("_")}
        return names - self.called


def use(path: str) -> Counted:
    """Loads a build of the extension in place of the installed one."""
    spec = importlib.util.spec_from_file_location("hace.losses.kernels._kernels", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    kernels._kernels = Counted(module)
    return kernels._kernels


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
        loss(z.detach(), target)
        if size < LARGE:
            loss(z, torch.rand(rows, loss.num_labels)).backward()
        loss.node_log_probs(z.detach())
        decide(loss, z.detach())
        rank(z.detach())
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


def rank(z: torch.Tensor) -> None:
    """The best columns, from one of them to all."""
    for k in {1, 5, 64, z.shape[1]}:
        if k <= z.shape[1]:
            best_columns(z, k)


def main() -> None:
    extension = use(os.environ["HACE_KERNEL_FILE"])
    torch.manual_seed(0)
    steps = 0
    for size in (65, 17, 2):
        for kind in KINDS:
            for form, rows in ((0, 1), (1, 7), (2, 9), (3, 17)):
                steps += sum(run_case(case, kind, size, rows, form) for case in CASES)
        print(f"{steps} losses at {size} nodes and more", flush=True)
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for kind in KINDS:
            for form, rows in ((0, 9), (2, 250 * threads)):  # the second is enough work for two threads
                steps += sum(run_case(case, kind, LARGE, rows, form) for case in LARGE_CASES)
        print(f"{steps} losses with {LARGE} nodes on {threads} threads", flush=True)
    assert not extension.uncalled(), f"never called: {sorted(extension.uncalled())}"
    print(f"{steps} losses, {kernels.status()}, {hace.__version__}: no report")


if __name__ == "__main__":
    main()
