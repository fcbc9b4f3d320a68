"""Random cases through a kernel built with sanitizers: `make sanitize` builds it, preloads them and runs this.

Sizes around the kernel's vectors, tiles, blocks and groups, transposed and sliced logits, extreme and missing values, one
thread and two. Every function of the extension must have run. `HACE_SANITIZE=5` takes five times as many small hierarchies.
"""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Sequence
from itertools import cycle, product
from typing import Any

import torch

import hace
from hace import Hierarchy
from hace.decisions.rules import all_levels
from hace.decisions.threshold_rules import walk_down
from hace.hierarchy.derived import layout
from hace.losses import kernels
from hace.losses.head import Outputs, node_log_probs
from hace.losses.kernels import best_columns, extension, level_squares
from tests.hierarchies import KINDS, Plain, random_plain
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
    extension.module = Counted(module)
    return extension.module


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


def run_losses(cases: Sequence[str], plain: Plain, rows: int, form: int) -> int:
    """One step of each loss that takes the hierarchy; how many do."""
    h, fitting = plain.build(), [case for case in cases if CASES[case].fits(plain)]
    for case, labels in product(fitting, ("leaves", "nodes")):
        loss = CASES[case].build(h, labels=labels)
        z = logits(rows, loss.num_outputs, form).requires_grad_()
        target = torch.randint(loss.num_labels, (rows,))
        target[rows // 2] = -100
        loss(z, target).backward()
        loss(z.detach(), target)
        if h.num_nodes < LARGE // 2:
            loss(z, torch.rand(rows, loss.num_labels)).backward()
        loss.node_log_probs(z.detach())
    evaluate(h, "leaves", logits(rows, h.num_leaves, form))
    evaluate(h, "nodes", logits(rows, h.num_nodes, form))
    return len(fitting)


def evaluate(h: Hierarchy, outputs: Outputs, z: torch.Tensor) -> None:
    """What evaluation asks: the best columns of any scores, then decisions by those that are allowed."""
    for k in {1, 5, 20, 64, z.shape[1]}:
        best_columns(z, k)
    z = z[(z.amax(dim=1) < torch.inf) & ~z.isnan().any(dim=1)]  # the rest is refused
    q = node_log_probs(z, h, outputs=outputs)
    for strided in (q, q.t().contiguous().t()):
        walk_down(strided, h)
        if not h.is_tree:
            continue
        all_levels(strided, h)
        level_squares(strided, layout(h).short_depths, h.max_depth)
        some = strided[strided[:, torch.tensor(h.leaf_nodes)].amax(dim=1) > -torch.inf]
        for candidates, distance in product(("leaves", "nodes"), ("lca_height", "edges")):
            hace.predict(some, h, "cost", candidates=candidates, distance=distance, kind="node_log_probs")


def main() -> None:
    built = use(os.environ["HACE_KERNEL_FILE"])
    torch.manual_seed(0)
    steps = 0

    def report(what: str) -> None:
        print(f"{time.process_time():4.0f} s: {steps} losses so far, {what}", flush=True)

    more = int(os.environ.get("HACE_SANITIZE", "1"))
    levels = cycle(range(len(built.levels())))  # in turn, each with every kind of hierarchy
    for size, kind in product((65, 17, 2), KINDS):
        built.use_level(next(levels))
        for seed, (form, rows) in product(range(more), ((0, 1), (1, 7), (2, 9), (3, 17))):
            plain = random_plain(kind, size + 1000 * seed, max_nodes=size)
            steps += run_losses(tuple(CASES), plain, rows, form)
        report(f"{kind}, up to {size} nodes, {built.level()}")
    for threads, kind in product((1, 2), KINDS):
        torch.set_num_threads(threads)
        built.use_level(next(levels))
        for form, rows in ((0, 9), (2, 250 * threads)):  # the second is enough work for two threads
            steps += run_losses(LARGE_CASES, random_plain(kind, LARGE, max_nodes=LARGE), rows, form)
        report(f"{kind}, up to {LARGE} nodes on {threads} thread{'s' * (threads > 1)}")
    assert not built.uncalled(), f"never called: {sorted(built.uncalled())}"
    print(f"{steps} losses, {kernels.status()}, {hace.__version__}: no report")


if __name__ == "__main__":
    main()
