"""A pilot of losses that hace leaves out: python evidence/left_out.py FEATURES.npz HIERARCHY [--per-class 30]

Sigmoids per node, random cuts and the descendant softmax, as in the hiercls code and the papers it follows,
beside losses that hace has. Probes on unit-normalised features: the rate is the best of four on a tenth of the training
samples at seed 0, then the probe is trained on all of them with every seed. Prints top-1, HD@1 and mistake severity on the test
samples.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from hace import Hierarchy, build_loss, read_hierarchy
from hace.files.arrays import Arrays

RATES = (1.0, 4.0, 16.0, 64.0)


class Candidate(NamedTuple):
    """A loss, the number of its outputs, and how classes are scored."""

    outputs: int
    loss: Callable[[Tensor, Tensor], Tensor]
    classes: Callable[[Tensor], Tensor]


class Tree(NamedTuple):
    """Dense matrices of a small tree, the root's column 0 where it counts for nothing."""

    above: Tensor  # (n, N) 1 where the node is the class or above it, 0 at the root
    sums: Tensor  # (N, N) 1 where the row's node is the column's or above it, 0 at the root
    parent: Tensor  # (N,) the root's is itself
    inner: Tensor  # (N,) whether a node is not the root
    leaves: Tensor  # (n,)


def dense_tree(h: Hierarchy) -> Tree:
    """The matrices of a tree."""
    reach = torch.zeros(h.num_nodes, h.num_nodes)
    reach[tuple(torch.from_numpy(np.stack(h.reachability())))] = 1.0
    parent = torch.from_numpy(np.maximum(h.parent_nodes, 0))
    inner = torch.from_numpy(h.parent_nodes >= 0)
    sums = reach * inner[:, None]
    leaves = torch.from_numpy(h.leaf_nodes.copy())
    return Tree(sums[:, leaves].t().contiguous(), sums, parent, inner, leaves)


def sigmoid(tree: Tree, *, conditional: bool) -> Callable[[Tensor, Tensor], Tensor]:
    """Binary cross-entropies of all nodes, or of the children of the label's ancestors (Brust and Denzler 2019)."""

    def loss(z: Tensor, y: Tensor) -> Tensor:
        target = tree.above[y]
        each = F.binary_cross_entropy_with_logits(z, target, reduction="none") * tree.inner
        if conditional:
            root_or_above = target + ~tree.inner
            each = each * root_or_above[:, tree.parent]
        return each.sum(dim=1).mean()

    return loss


def random_cut(tree: Tree, share: float = 0.1) -> Callable[[Tensor, Tensor], Tensor]:
    """Softmax over a random cut of the tree, drawn for every sample (Wu et al. 2020, stochastic tree sampling)."""

    def loss(z: Tensor, y: Tensor) -> Tensor:
        drop = (torch.rand(z.shape) < share).float() * tree.inner
        grown = (drop @ tree.sums == 0)[:, tree.parent] | ~tree.inner  # nodes whose parent grows on
        children = torch.zeros_like(z).index_add(1, tree.parent[tree.inner], grown[:, tree.inner].float())
        cut = grown & (children == 0)
        target = cut & (tree.above[y] > 0)
        return (z.masked_fill(~cut, -torch.inf).logsumexp(1) - z.masked_fill(~target, 0.0).sum(1)).mean()

    return loss


def candidates(h: Hierarchy) -> dict[str, Candidate]:
    """What is left out, and what it is compared with, by name."""
    tree, n = dense_tree(h), h.num_nodes
    below = tree.above.sum(dim=0).clamp(min=1)  # classes of a node

    def descendant(z: Tensor, y: Tensor) -> Tensor:
        return -(z.log_softmax(1) * tree.above[y] / below).sum(dim=1).mean()

    def own(z: Tensor) -> Tensor:
        return z[:, tree.leaves]

    def along_path(z: Tensor) -> Tensor:
        return F.logsigmoid(z) @ tree.above.t()

    plain, cut = sigmoid(tree, conditional=False), random_cut(tree)
    results = {
        "sigmoid per node, best leaf": Candidate(n, plain, own),
        "sigmoid per node, sum of the path": Candidate(n, plain, along_path),
        "sigmoid per node, conditional": Candidate(n, sigmoid(tree, conditional=True), along_path),
        "random cut": Candidate(n, cut, own),
        "random cut, path sums": Candidate(
            n, lambda z, y: cut(z @ tree.sums, y), lambda z: own(z @ tree.sums)
        ),
        "descendant softmax": Candidate(n, descendant, own),
    }
    for name in ("cross_entropy", "hace", "conditional_softmax", "levelwise", "soft_margin"):
        loss = build_loss(name, h)
        results[name] = Candidate(loss.num_outputs, loss, loss.leaf_logits)
    return results


def fit(
    made: Candidate, x: Tensor, y: Tensor, rate: float, seed: int, epochs: int
) -> Callable[[Tensor], Tensor]:
    """The classes' scores after SGD with momentum 0.9, cosine, batches of 256."""
    torch.manual_seed(seed)
    layer = torch.nn.Linear(x.shape[1], made.outputs)
    optimizer = torch.optim.SGD(layer.parameters(), lr=rate, momentum=0.9)
    steps = -(-len(x) // 256) * epochs
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(256):
            optimizer.zero_grad()
            made.loss(layer(x[rows]), y[rows]).backward()
            optimizer.step()
            schedule.step()
    return lambda x: made.classes(layer(x).detach())


def measured(scores: Tensor, y: Tensor, h: Hierarchy) -> list[float]:
    """Top-1 in percent, HD@1 and mistake severity."""
    far = h.distances(y.numpy(), scores.argmax(dim=1).numpy()).astype(float)
    return [100 * float((far == 0).mean()), float(far.mean()), float(far[far > 0].mean())]


def main() -> None:
    """Search a rate for every candidate, train it with every seed, print a row."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("features", type=Path)
    parser.add_argument("hierarchy")
    parser.add_argument("--per-class", type=int, default=1 << 30, help="training samples of each class")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=15)
    args = parser.parse_args()
    h, arrays = read_hierarchy(args.hierarchy, root=True), Arrays(args.features)
    x, tx = (
        F.normalize(torch.tensor(np.asarray(arrays[k]), dtype=torch.float32)) for k in ("x_train", "x_test")
    )
    y, ty = (torch.tensor(np.asarray(arrays[k]).astype(np.int64)) for k in ("y_train", "y_test"))
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(y)))
    some = torch.cat([order[y[order] == c][: args.per_class] for c in range(h.num_leaves)])
    x, y = x[some], y[some]
    held = torch.arange(len(y)) % 10 == 0
    print("| loss | top-1 | HD@1 | severity | rate |\n| --- | --- | --- | --- | --- |")
    for name, made in candidates(h).items():
        top1 = {
            rate: measured(fit(made, x[~held], y[~held], rate, 0, args.epochs)(x[held]), y[held], h)[0]
            for rate in RATES
        }
        rate = max(top1, key=lambda r: top1[r])
        result = np.mean(
            [measured(fit(made, x, y, rate, s, args.epochs)(tx), ty, h) for s in range(args.seeds)], 0
        )
        print(f"| {name} | {result[0]:.1f} | {result[1]:.3f} | {result[2]:.3f} | {rate:g} |", flush=True)


if __name__ == "__main__":
    main()
