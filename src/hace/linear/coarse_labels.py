"""What coarse labels teach a head: how much they count beside fine ones, and which classes they are compared with.

A coarse label, that of an inner node, says that the class is one of those below it. Two things go wrong where such labels are
many and fine ones few:

1. In the mean over all samples the fine ones, which alone tell the classes of a group apart, are a small share, so the decay
   of the weights outweighs them.
2. Coarse labels at several levels of one branch compare one side only. Where half of a group's samples are known to a
   subgroup, and those of a class directly below the group to the group alone, the subgroup's many samples argue against that
   class, and nothing argues for it: its samples might be the subgroup's.

So coarse labels count no more in all than fine ones, and are not compared with classes whose samples they could hide.
"""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import Tensor

from hace.hierarchy import Hierarchy
from hace.hierarchy.assembly import IntArray
from hace.losses.base import HierarchicalLoss


def balanced_weights(nodes: IntArray, hierarchy: Hierarchy, weight: np.ndarray | None) -> np.ndarray | None:
    """Sample weights with which coarse labels count no more in all than fine ones.

    Args:
        nodes: (M,) labels as node indices.
        hierarchy: the hierarchy.
        weight: (M,) weights of the samples, or None.

    Returns:
        (M,) weights: those given, coarse ones times min(1, fine / coarse). Unchanged where all labels are of one kind.

    Example:
        >>> h = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle")])
        >>> dog, husky = h.index("dog"), h.index("husky")
        >>> balanced_weights(np.array([husky, dog, dog, dog, dog]), h, None)
        array([1.  , 0.25, 0.25, 0.25, 0.25])
    """
    coarse = hierarchy.labels[nodes] < 0
    each = np.ones(len(nodes)) if weight is None else np.asarray(weight, dtype=np.float64)
    mass, fine = float(each[coarse].sum()), float(each[~coarse].sum())
    if not 0 < fine < mass:
        return weight
    return np.where(coarse, each * (fine / mass), each)


class HiddenClasses:
    """For each coarse label the classes it is not compared with; a forward pre-hook of a loss that takes labels of nodes.

    With the samples of a coarse label spread evenly over the classes below it, a class outside a label q has some samples that
    q's samples can be told from, and some that they cannot: those of labels above both. Where the latter are more, the class
    is ruled out for samples of q: its logit is -inf there.

    Args:
        nodes: (M,) labels as node indices.
        hierarchy: the hierarchy.
        weight: (M,) weights of the samples, or None.

    Attributes:
        start: (N + 1,) where the classes of each label begin.
        label: the classes, positions in ``hierarchy.leaves``, label by label.

    Example:
        >>> h = Hierarchy.from_paths([("dog", "hound", "beagle"), ("dog", "hound", "basset"), ("dog", "husky")])
        >>> names = ["husky", "beagle", "basset", *["dog"] * 9, *["hound"] * 9]
        >>> hidden = HiddenClasses(np.array([h.index(name) for name in names]), h, None)
        >>> {name: [h.leaves[c] for c in hidden.of(h.index(name))] for name in ("dog", "hound")}
        {'dog': [], 'hound': ['husky']}
    """

    def __init__(self, nodes: IntArray, hierarchy: Hierarchy, weight: np.ndarray | None) -> None:
        h = hierarchy
        count = np.bincount(nodes, weights=weight, minlength=h.num_nodes)
        coarse = (count > 0) & (h.labels < 0)
        ancestor, descendant = h.reachability()
        ends = h.labels[descendant] >= 0
        leaf, first = h.labels[descendant[ends]], np.searchsorted(ancestor[ends], np.arange(h.num_nodes + 1))
        share = count / np.diff(first)  # expected samples of each class below a label
        expected = np.bincount(leaf, weights=share[ancestor[ends]], minlength=h.num_leaves)
        nested = coarse[ancestor] & coarse[descendant] & (ancestor != descendant)
        above: dict[int, list[int]] = {}
        for u, q in zip(ancestor[nested].tolist(), descendant[nested].tolist(), strict=True):
            above.setdefault(q, []).append(u)
        found: dict[int, IntArray] = {}
        for q, labels in above.items():
            hidden = np.zeros(h.num_leaves)
            for u in labels:
                hidden[leaf[first[u] : first[u + 1]]] += share[u]
            hidden[leaf[first[q] : first[q + 1]]] = 0.0
            found[q] = np.flatnonzero(2 * hidden > expected)
        sizes = np.zeros(h.num_nodes, dtype=np.int64)
        sizes[list(found)] = [len(classes) for classes in found.values()]
        self.start = torch.from_numpy(np.concatenate([[0], np.cumsum(sizes)]))
        in_order = [found[q] for q in sorted(found)]
        self.label = torch.from_numpy(np.concatenate(in_order) if in_order else np.zeros(0, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.label)

    def of(self, node: int) -> list[int]:
        """The classes that a label is not compared with."""
        return self.label[self.start[node] : self.start[node + 1]].tolist()

    def __call__(self, loss: HierarchicalLoss, arguments: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Logits (B, C) with -inf at the ruled-out classes of each sample, and the labels (B,)."""
        z, target = arguments
        sizes = self.start[target + 1] - self.start[target]
        row = torch.repeat_interleave(torch.arange(len(target)), sizes)
        place = torch.arange(len(row)) - torch.repeat_interleave(sizes.cumsum(0) - sizes, sizes)
        label = self.label[self.start[target][row] + place]
        column = label if loss.head.outputs == "leaves" else loss.head.leaf_nodes[label]
        return z.index_put((row, column), z.new_tensor(-torch.inf)), target


def coarse_loss(loss: HierarchicalLoss, hidden: HiddenClasses) -> HierarchicalLoss:
    """The loss with classes ruled out, for training; the loss itself where its targets ask for all classes, as smoothing does.

    Args:
        loss: a loss with ``labels="nodes"``, which stays as it is.
        hidden: the classes.
    """
    labels = (hidden.start.diff() > 0).nonzero().flatten()
    if not len(labels):
        return loss
    limited = copy.deepcopy(loss)
    limited.reduction = "none"
    limited.register_forward_pre_hook(hidden)
    finite = limited(torch.zeros(len(labels), loss.num_outputs, dtype=torch.float64), labels).isfinite().all()
    return limited if bool(finite) else loss
