"""The head of a model: which outputs it has, and how they become log-probabilities of nodes.

A head has its columns over all nodes (node order), over the leaves (label order), or over all nodes with every class's
logit a sum along its path. :class:`Head` is the one place that maps columns to nodes and labels; every loss owns one, and
the free functions serve anybody's scores.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hace.checks import check_choice, is_number, require
from hace.errors import ConfigError, DataError
from hace.hierarchy import Hierarchy
from hace.hierarchy.assembly import IntArray
from hace.hierarchy.derived import cached_on_hierarchy, leaf_ranges, preorder_labels
from hace.hierarchy.hierarchy import allow_in_checkpoints, check_hierarchy
from hace.losses import kernels, numerics
from hace.losses.constants import ConstantModule
from hace.losses.inputs import check_logits, in_single_precision
from hace.losses.kernels.path_sums import Tree, path_sums

Outputs = Literal["nodes", "leaves", "paths"]
LeafOutputs = Literal["leaves", "paths"]  # of losses whose softmax is over the classes

_NEAR = 16.0  # a largest path sum that is small enough to stay

allow_in_checkpoints()  # once more, for hierarchies imported before torch


class PathSums(ConstantModule):
    r"""A class's logit is its own output plus a share of the outputs of all its ancestors.

    .. math:: \ell_c = z_c + s \sum_{v \text{ above } c} z_v

    On a DAG each ancestor counts once, however many ways lead up to it. Sums are taken in double precision and rounded once.
    At s = 0 inner outputs do nothing and have no gradient.
    """

    def __init__(self, hierarchy: Hierarchy, sharing: float) -> None:
        super().__init__()
        h = self.hierarchy = hierarchy
        self.sharing = float(sharing)
        self.constant("leaf_nodes", h.leaf_nodes)
        self.constant("factor", np.where(h.labels >= 0, 1.0, self.sharing))
        if not h.is_tree:
            ancestor, descendant = h.reachability()  # each node with itself among them
            ends = h.labels[descendant] >= 0
            self.constant("pair_nodes", ancestor[ends])
            self.constant("pair_labels", h.labels[descendant[ends]])
            return
        self.constant("level", (h.depths - h.depths.min()).astype(np.int32))
        self.constant("end", h.subtree_ends)
        self.constant("parent", np.where(h.parent_nodes < 0, h.num_nodes, h.parent_nodes))
        self.constant("label", preorder_labels(h).astype(np.int32))

    @property
    def adds(self) -> bool:
        """Whether any class's logit has a share of other outputs."""
        return self.sharing != 0 and self.hierarchy.num_nodes != self.hierarchy.num_leaves

    @property
    def tree(self) -> Tree:
        """The paths of the classes, for the kernel."""
        return Tree(self.level, self.end, self.parent, self.label, self.sharing)

    def forward(self, z: Tensor, levels: numerics.Levels | None, *, centred: bool = False) -> Tensor:
        """(B, N) outputs -> (B, n) logits of the classes in label order."""
        if not self.adds:
            return z.index_select(1, self.leaf_nodes)  # an inner output of inf times 0 must not count
        if levels is not None and kernels.kernel_supports(z, *self.tree.tensors):
            return path_sums(z, self.tree, centred, lambda z: self._sums(z, levels, centred=False))
        return self._sums(z, levels, centred=centred)

    def _sums(self, z: Tensor, levels: numerics.Levels | None, *, centred: bool) -> Tensor:
        """The same in plain PyTorch: sums in double precision, where the device has it."""
        shares = z.to(numerics.wide_dtype(z)) * self.factor
        if levels is not None:
            sums = numerics.sum_down(shares, levels).index_select(1, self.leaf_nodes)
        else:
            terms = shares.t().index_select(0, self.pair_nodes)  # (pairs, B)
            none = terms.new_zeros(self.hierarchy.num_leaves, z.shape[0])
            sums = none.index_add(0, self.pair_labels, terms).t()
        if centred:
            top = numerics.finite_shift(sums.detach().amax(dim=1, keepdim=True))
            sums = sums - top.masked_fill(top.abs() <= _NEAR, 0.0)
        return sums.to(z.dtype)


class Head(ConstantModule):
    """Maps the columns of a head to nodes.

    Args:
        hierarchy: the taxonomy.
        outputs: ``"nodes"``: N columns in node order. ``"leaves"``: n columns in label order. ``"paths"``: N columns in node
            order that become logits of the n classes, by :class:`PathSums`; behind that step it is a head over leaves.
        sharing: s of path sums, a number >= 0; with ``outputs="paths"`` only.
    """

    column: Tensor | None
    branch: Tensor | None

    def __init__(self, hierarchy: Hierarchy, outputs: Outputs, sharing: float = 1.0) -> None:
        super().__init__()
        check_choice("outputs", outputs, get_args(Outputs))
        require("sharing", sharing, "a number >= 0", is_number(sharing) and sharing >= 0)
        if outputs != "paths" and sharing != 1.0:
            raise ConfigError(f"sharing must come with outputs='paths'. Got outputs={outputs!r}.")
        h = self.hierarchy = hierarchy
        self.outputs: Outputs = outputs
        self.num_outputs = h.num_leaves if outputs == "leaves" else h.num_nodes
        self.path_sums = PathSums(h, sharing) if outputs == "paths" else None
        self.constant("leaf_nodes", h.leaf_nodes)
        if h.is_tree:
            self.constant("parent", np.where(h.parent_nodes < 0, h.num_nodes, h.parent_nodes))
            self.constant("level", (h.depths - h.depths.min()).astype(np.int32))
            self._set_levels(h)
            self._set_ranges(h)
        else:
            ancestor, descendant = h.reachability()
            self.constant("column", None)
            self.constant("branch", None)
            self.constant("ancestor", ancestor)
            self.constant("descendant", descendant)
            self.constant("below_first", np.searchsorted(ancestor, np.arange(h.num_nodes + 1)))
            self.constant("below", descendant.astype(np.int32))

    def _set_levels(self, h: Hierarchy) -> None:
        nodes = np.argsort(h.depths, kind="stable")
        places = np.argsort(nodes)
        widths = np.bincount(h.depths)[h.depths.min() :]
        first = np.repeat(np.cumsum(widths) - widths, widths)  # where each node's level begins
        above = np.where(h.parent_nodes[nodes] < 0, 0, places[h.parent_nodes[nodes]])
        starts = np.concatenate([[0], (np.cumsum(widths) - widths)[:-1]])
        self.constant("level_nodes", nodes)
        self.constant("level_parents", np.where(first == 0, 0, above - np.repeat(starts, widths)))
        self.constant("level_places", places)
        self.level_widths = tuple(widths.tolist())

    def _set_ranges(self, h: Hierarchy) -> None:
        """Each node's range of columns, with the columns in preorder."""
        if self.outputs == "nodes":
            self.constant("low", np.arange(h.num_nodes))
            self.constant("high", h.subtree_ends)
            self.constant("column", None)
            self.constant("branch", None)
            return
        column = preorder_labels(h)
        low, high = leaf_ranges(h)
        self.constant("low", low)
        self.constant("high", high)
        same = bool((np.diff(column) > 0).all())
        self.constant("column", None if same else column.astype(np.int32))
        self.constant("branch", None if same else _branches(h, column, low, high))

    @property
    def levels(self) -> numerics.Levels:
        """The tree cut into levels."""
        return numerics.Levels(self.level_nodes, self.level_parents, self.level_places, self.level_widths)

    def to_nodes(self, x: Tensor, fill: float) -> Tensor:
        """(B, C) -> (B, N): values of the outputs at their nodes, ``fill`` at nodes without an output."""
        if self.outputs == "nodes":
            return x
        if fill == -torch.inf:
            full = kernels.spread(x, self.leaf_nodes, self.hierarchy.num_nodes)
            if full is not None:
                return full
        full = x.new_full((x.shape[0], self.hierarchy.num_nodes), fill)
        # index_copy takes three times as long.
        return full.scatter(1, self.leaf_nodes.expand(x.shape[0], -1), x)

    def aggregate(self, z: Tensor) -> Tensor:
        """(B, C) logits -> (B, N) log q*."""
        if not self.hierarchy.is_tree:
            return numerics.dag_log_probs(self.to_nodes(z, -torch.inf), self.ancestor, self.descendant)
        columns = None if self.outputs == "nodes" else self.leaf_nodes
        log_q = kernels.node_log_probs(z, self.parent, self.level, columns)
        return numerics.tree_log_probs(self.to_nodes(z, -torch.inf), self.levels) if log_q is None else log_q

    def node_log_probs(self, z: Tensor) -> Tensor:
        """(B, C, ...) logits -> (B, N, ...) log q* in node order."""
        rows, restore = self.rows(z)
        return restore(self.aggregate(rows))

    def leaf_logits(self, z: Tensor) -> Tensor:
        """(B, C, ...) logits -> (B, n, ...) logits of the classes in label order."""
        rows, restore = self.flat_rows(z)
        rows = self.softmax_rows(rows, centred=False)
        return restore(rows.index_select(1, self.leaf_nodes) if self.outputs == "nodes" else rows)

    def rows(self, z: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """Logits (C,), (B, C) or (B, C, d1, ...) as rows of what the softmax is of, and the way back for (M, K)."""
        rows, restore = self.flat_rows(z)
        return self.softmax_rows(rows), restore

    def softmax_rows(self, rows: Tensor, *, centred: bool = True) -> Tensor:
        """(M, C) outputs -> the logits that the softmax is of: the outputs themselves, or (M, n) path sums.

        Path sums are ``centred``, less the largest of the row, unless told otherwise.
        """
        if self.path_sums is None:
            return rows
        return self.path_sums(rows, self.levels if self.hierarchy.is_tree else None, centred=centred)

    def collapse(self, weight: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """A linear layer of path sums as an ordinary layer over the classes, with the same logits to rounding."""
        if self.outputs != "paths":
            raise ConfigError(f"outputs must be 'paths' for a head that collapses. Got {self.outputs!r}.")
        if weight.ndim != 2 or (bias is not None and bias.ndim != 1):
            got = " and ".join(str(tuple(t.shape)) for t in (weight, bias) if t is not None)
            raise DataError(f"weight must be (N, d), and bias (N,) or None. Got {got}.")
        collapsed = self.leaf_logits(weight.t()).t().to(weight.dtype)
        return collapsed, None if bias is None else self.leaf_logits(bias).to(bias.dtype)

    def flat_rows(self, z: Tensor, owner: str = "The head") -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """Logits (C,), (B, C) or (B, C, d1, ...) as rows (M, C) in float32 or wider, and the way back for (M, K)."""
        check_logits(z)
        self._check_fits(z, owner)
        wide = in_single_precision(z)
        if z.ndim == 2:
            return wide, lambda out: out
        if z.ndim == 1:
            return wide[None], lambda out: out[0]
        batch = z.shape[0]
        rest = z.shape[2:]
        flat = wide.movedim(1, -1).reshape(-1, z.shape[1])
        return flat, lambda out: out.reshape(batch, *rest, out.shape[-1]).movedim(-1, 1)

    def _check_fits(self, z: Tensor, owner: str) -> None:
        """Refuses logits that are on another device or of another width."""
        if z.device != self.leaf_nodes.device:
            raise DataError(
                f"input must be on the device of the loss, {self.leaf_nodes.device}. Got {z.device}. "
                "Use loss.to(input.device)."
            )
        width = z.shape[0] if z.ndim == 1 else z.shape[1]
        if width == self.num_outputs:
            return
        h = self.hierarchy
        what = "leaves" if self.outputs == "leaves" else "nodes"
        other = {h.num_leaves: "leaves", h.num_nodes: "nodes"}.get(width)
        hint = f" That is the number of {other}." if other else ""
        raise DataError(
            f"{owner} expects logits over all {self.num_outputs} {what}, got {width} columns.{hint} "
            "Build the model with num_classes=loss.num_outputs."
        )


def _branches(h: Hierarchy, column: IntArray, low: IntArray, high: IntArray) -> NDArray[np.int32]:
    """(n,) for each column, the first position of the widest subtree around it that has not all columns."""
    whole = high - low == h.num_leaves
    widest = ~whole & ((h.parent_nodes < 0) | whole[h.parent_nodes])
    first = np.zeros(h.num_leaves, dtype=np.int32)
    first[low[widest]] = low[widest]
    branch = np.empty_like(first)
    branch[column] = np.maximum.accumulate(first)
    return branch


def head_for(
    z: Tensor, hierarchy: Hierarchy, outputs: Outputs | Literal["auto"] = "auto", sharing: float = 1.0
) -> Head:
    """The head that fits these scores, cached for the next call."""
    check_hierarchy(hierarchy)
    check_logits(z)
    if outputs == "auto":
        width = z.shape[0] if z.ndim == 1 else z.shape[1]
        # Where n = N the two orders are the same.
        outputs = "leaves" if width == hierarchy.num_leaves else "nodes"
        if width not in (hierarchy.num_leaves, hierarchy.num_nodes):
            raise DataError(
                f"scores must have {hierarchy.num_leaves} columns (leaves, in label order) or "
                f"{hierarchy.num_nodes} (nodes, in node order). Got {width}."
            )
    if torch.compiler.is_compiling():  # what is made while tracing must not outlive the trace
        return Head(hierarchy, outputs, sharing).to(z.device)
    return _cached_head(hierarchy, outputs, sharing, z.device)


@cached_on_hierarchy
def _cached_head(hierarchy: Hierarchy, outputs: Outputs, sharing: float, device: torch.device) -> Head:
    with torch.inference_mode(False):  # else its tensors could never serve training
        return Head(hierarchy, outputs, sharing).to(device)


def node_log_probs(
    z: Tensor, hierarchy: Hierarchy, outputs: Outputs | Literal["auto"] = "auto", sharing: float = 1.0
) -> Tensor:
    r"""log q*: the log-probability of every node, aggregated from anybody's scores.

    .. math:: \log q^*(v) = \operatorname{logsumexp}_{i \in D(v)} z_i - \operatorname{logsumexp}_i z_i
    \quad\text{(eq. 2)}

    where D(v) holds v and everything below it.

    Args:
        z: logits or log-probabilities (B, C) or (B, C, d1, ...), C = N in node order or C = n in label order.
        hierarchy: the taxonomy.
        outputs: ``"nodes"``, ``"leaves"``, ``"paths"``, or ``"auto"`` to tell nodes and leaves by the number of columns.
        sharing: s of path sums; with ``outputs="paths"`` only.

    Returns:
        (B, N, ...) in node order.

    Example:
        >>> h = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat",)], leaves=["husky", "beagle", "cat"])
        >>> h.nodes
        ('dog', 'husky', 'beagle', 'cat')
        >>> node_log_probs(torch.tensor([[0.5, 0.25, 0.25]]).log(), h).exp()
        tensor([[0.7500, 0.5000, 0.2500, 0.2500]])
    """
    return head_for(z, hierarchy, outputs, sharing).node_log_probs(z)


def leaf_logits(
    z: Tensor, hierarchy: Hierarchy, outputs: Outputs | Literal["auto"] = "auto", sharing: float = 1.0
) -> Tensor:
    """The classes' logits in label order: what argmax and top-k are taken of, as in the paper.

    Args:
        z: logits (B, C) or (B, C, d1, ...), C = N in node order or C = n in label order.
        hierarchy: the taxonomy.
        outputs: ``"nodes"``, ``"leaves"``, ``"paths"``, or ``"auto"`` to tell nodes and leaves by the number of columns.
        sharing: s of path sums; with ``outputs="paths"`` only.

    Returns:
        (B, n, ...) in label order.
    """
    return head_for(z, hierarchy, outputs, sharing).leaf_logits(z)
