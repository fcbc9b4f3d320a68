"""The one equation as a module: cross-entropy of a table, by the kernel where it serves and by PyTorch elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from hace.checks import check_choice, check_number, is_number
from hace.errors import ConfigError
from hace.hierarchy import Hierarchy
from hace.hierarchy.assembly import IntArray
from hace.hierarchy.derived import sparse_matrix
from hace.hierarchy.distances import DISTANCES, Distance
from hace.losses import kernels, numerics, tables
from hace.losses.base import HierarchicalLoss, LossOptions
from hace.losses.distance_losses import LeafDistances, padded
from hace.losses.fused_linear import Layer, PathRanges, path_losses
from hace.losses.head import Head, Outputs, TableModule
from hace.losses.kernels import BatchLabels, Call, kernel_loss, make_call, on_cuda, tree_places
from hace.losses.tables import path_entries

if TYPE_CHECKING:
    from typing_extensions import Unpack


_CLASS_CHUNK = 256  # classes whose soft labels are held at once when targets are soft already
_ENTRIES = 1 << 22  # (sample, table entry) products held at once
_ONE_HOT = 1e4  # a sharpness that leaves exactly nothing at distance 1


class TableLoss(HierarchicalLoss):
    r"""Cross-entropy of a table: the one equation behind every loss of the paper.

    .. math:: \ell(z, y) = -\sum_v T[y, v] \log q^*[v], \qquad q^* = R \operatorname{softmax}(z), \qquad
        T = H \operatorname{diag}(w) V

    Args:
        hierarchy: the taxonomy.
        table: from node indices of labels to their rows of V; one-hot rows by default.
        dilution: d of V, for the row that smoothing adds to all; None: that row comes from the table.
        label_smoothing: eps of a uniform H.
        soft_label_beta: beta of an H of LCA soft labels S: H = S, and with eps H = (1 - eps) I + eps S.
        distance: distance of the soft labels.
        aggregate: whether R aggregates; without it, q* is softmax(z) itself.
        unseen: weight of the leave-one-out term, see :class:`LeaveOneOut`; with ``outputs="nodes"`` only.
        outputs: what the head's columns are; see :class:`hace.losses.base.HierarchicalLoss`.
        sharing: s of path sums.
        **shared: ``labels``, ``weight``, ``ignore_index`` and ``reduction``, as in every loss.
    """

    shared: Tensor | None
    soften: LeafDistances | None

    def __init__(
        self,
        hierarchy: Hierarchy,
        *,
        table: Callable[[IntArray], tables.Table] | None = None,
        dilution: float | None = 1.0,
        label_smoothing: float = 0.0,
        soft_label_beta: float | None = None,
        distance: Distance = "lca_height",
        aggregate: bool = True,
        unseen: float = 0.0,
        outputs: Outputs | None = None,
        sharing: float = 1.0,
        **shared: Unpack[LossOptions],
    ) -> None:
        fits = is_number(label_smoothing) and 0 <= label_smoothing < 1
        check_number("label_smoothing", label_smoothing, "in [0, 1)", fits)
        fits = soft_label_beta is None or (is_number(soft_label_beta) and soft_label_beta > 0)
        check_number("soft_label_beta", soft_label_beta, "a number above 0, or None", fits)
        check_choice("distance", distance, DISTANCES)
        check_number("unseen", unseen, "a number >= 0", is_number(unseen) and unseen >= 0)
        super().__init__(hierarchy, outputs=outputs, sharing=sharing, **shared)
        self.label_smoothing = label_smoothing
        self.soft_label_beta, self.distance = soft_label_beta, distance
        self.aggregate = aggregate
        nodes = self.label_nodes.numpy()
        if unseen and self.head.outputs != "nodes":
            raise ConfigError(
                f"unseen must come with outputs='nodes', where an inner node has an output of its own. Got "
                f"outputs={self.head.outputs!r}."
            )
        self.unseen = unseen
        self.leave_one_out = LeaveOneOut(self.head, nodes) if unseen else None
        table = partial(tables.label_table, hierarchy) if table is None else table
        built = table(nodes)
        class_weight = np.ones(hierarchy.num_nodes)
        if self.label_weight is not None:
            class_weight[nodes] = self.label_weight.numpy()
        # H diag(w) V: class weights act here, on the rows and on the row that uniform smoothing adds to all of them.
        uniform = label_smoothing if soft_label_beta is None else 0.0
        scale = (1.0 - uniform) * class_weight[nodes]
        if dilution is not None:
            background = tables.background(hierarchy, dilution, uniform, class_weight)
        else:
            rows = table(hierarchy.leaf_nodes)
            background = tables.table_background(hierarchy, rows, uniform, class_weight)
        self.longest = int(np.diff(built.start).max())
        self.constant("start", built.start)
        self.constant("node", built.node)
        self.constant("value", built.value * np.repeat(scale, np.diff(built.start)))
        self.constant("shared", background if uniform else None)
        everywhere = self.head.outputs == "nodes" or (hierarchy.is_tree and not uniform)
        self._labels_served = aggregate and everywhere and soft_label_beta is None
        self.soften = None
        if soft_label_beta is not None:
            self.soften = LeafDistances(hierarchy, nodes, distance)
            widest = hierarchy.max_distance(distance)
            # With one class there is nothing to spread over: only what is at distance 0 keeps its mass.
            self.sharpness = soft_label_beta / widest if widest else _ONE_HOT

    def table(self, *, dense: bool = False) -> Tensor:
        """T, the table of targets (labels, N), float64: sparse COO by default, dense on request.

        For HACE it is the paper's ancestral label smoothing matrix, the product of both smoothings. With uniform
        smoothing or soft labels its rows are full, and the sparse form saves nothing.
        """
        if dense or self.soften is not None or self.shared is not None:
            labels = torch.eye(self.num_labels, dtype=torch.float64, device=self.label_nodes.device)
            full = self._dense_rows(labels)
            return full if dense else full.to_sparse()
        start, node, value = (t.cpu().numpy() for t in (self.start, self.node, self.value))
        row = np.repeat(np.arange(self.num_labels), np.diff(start))
        shape = (self.num_labels, self.hierarchy.num_nodes)
        return sparse_matrix(row, node, value, shape).to(self.label_nodes.device)

    def kernel_call(self) -> Call | None:
        """The compiled loss for batches of labels; None where there is none."""
        if not self._labels_served:
            return None
        table = (self.start, self.node, self.value)
        return self._call(table, None if self.shared is None else self.shared.float())

    def _call(self, table: tuple[Tensor | None, ...], mass: Tensor | None) -> Call:
        """The compiled loss of the labels' rows (or three None), of masses (N,) or (B, N) at all nodes, or of both."""
        head = self.head
        tensors: tuple[Tensor | None, ...]
        stride = mass.shape[1] if mass is not None and mass.ndim == 2 else 0
        if not self.hierarchy.is_tree:
            function, tensors, numbers = "dag_loss", (mass, head.below_first, head.below), (stride,)
        elif mass is not None:
            function, numbers = "dense_loss", (stride,)
            tensors = (mass, head.parent, head.level, self._places())
        elif head.path_sums is not None:
            paths = head.path_sums.tree
            function, tensors = "path_sum_loss", (head.low, head.high, *paths[:3], self._places())
            numbers = (len(paths.label), paths.sharing)
        else:
            function, tensors, numbers = "path_loss", (head.low, head.high, head.column, head.branch), ()
        return make_call(function, (*table, *tensors), numbers, self.num_labels, self.label_weight)

    def _places(self) -> Tensor | None:
        head = self.head
        return None if kernels.compiling() else head.kept("places", lambda: tree_places(head.level))

    def _layer_losses(self, layer: Layer, target: Tensor) -> Tensor:
        if target.is_floating_point() or len(layer.features) == 0 or not self._on_one_path:
            return super()._layer_losses(layer, target)
        kept = target != self.ignore_index
        self._check_labels(target, kept)
        rows = torch.where(kept, target, 0)
        losses = path_losses(layer, self._path(rows), lambda z: self.per_sample(z, rows))
        return torch.where(kept, losses, 0.0)

    @property
    def _on_one_path(self) -> bool:
        """Whether each row of the table is along one path of a tree, over columns that are outputs themselves."""
        alone = self.aggregate and self.soften is None and self.shared is None and self.leave_one_out is None
        return alone and self.hierarchy.is_tree and self.head.path_sums is None

    def _path(self, rows: Tensor) -> PathRanges:
        entry, real = padded(rows, self.start, self.longest)
        node, value = self.node[entry], torch.where(real, self.value[entry], 0.0)
        return PathRanges(self.head.low[node], self.head.high[node], value, self.head.column)

    def _whole_call(self) -> tuple[Call | None, int]:
        call, columns = super()._whole_call()
        return call if self.leave_one_out is None else None, columns

    def _of_labels(self, z: Tensor, target: Tensor) -> Tensor:
        losses = super()._of_labels(z, target)
        if self.leave_one_out is None or len(z) == 0:
            return losses
        terms = self._unseen_terms(z, target)
        return losses + terms if losses.ndim == terms.ndim else losses.sum() + terms.sum()

    def _unseen_terms(self, z: Tensor, target: Tensor) -> Tensor:
        """The leave-one-out terms, weighted and reduced as :meth:`_of_labels` has the losses."""
        if self.hierarchy.is_tree and kernels.usable(z, target, self.label_nodes):
            call = self._unseen_call() if kernels.compiling() else self.kept("unseen", self._unseen_call)
            labels = BatchLabels(target.contiguous(), self.ignore_index, self.reduction)
            return kernel_loss(z, call, labels, self._plain_unseen_terms)
        return self._plain_unseen_terms(z, target)

    def _unseen_call(self) -> Call:
        assert self.leave_one_out is not None
        paths = self.leave_one_out
        tensors = (paths.start, paths.node, paths.end, self.head.level)
        return make_call("outside_loss", tensors, (self.unseen,), self.num_labels, self.label_weight)

    def _plain_unseen_terms(self, z: Tensor, target: Tensor) -> Tensor:
        assert self.leave_one_out is not None
        kept = target != self.ignore_index
        rows = torch.where(kept, target, 0)
        terms = self.unseen * self.leave_one_out(z, rows)
        terms = terms if self.label_weight is None else terms * self.label_weight[rows].to(z.dtype)
        return self._mean_part(torch.where(kept, terms, 0.0), target)

    def per_sample(self, z: Tensor, rows: Tensor) -> Tensor:
        """(B, C) logits and (B,) labels -> (B,) weighted losses."""
        if self.soften is not None:
            return self._dense_losses(z, self._climb(self._soft_labels(rows).to(z.dtype)))
        if self.aggregate and self.hierarchy.is_tree and self.shared is None:
            path = self._path(rows)

            def pure(z: Tensor) -> Tensor:
                return numerics.path_cross_entropy(self.head.preorder(z), path.low, path.high, path.value)

            return on_cuda.path_losses_on_cuda(z, *path, pure) if on_cuda.serves_on_cuda(z) else pure(z)
        entry, real = padded(rows, self.start, self.longest)
        node, value = self.node[entry], torch.where(real, self.value[entry], 0.0)
        log_probs = self._log_probs(z)
        losses = numerics.table_cross_entropy(log_probs.gather(1, node), value.to(z.dtype))
        if self.shared is not None:
            losses = losses + numerics.table_cross_entropy(log_probs, self.shared.to(z.dtype))
        return losses

    def per_sample_soft(self, z: Tensor, target: Tensor) -> Tensor:
        """(B, C) logits and (B, labels) soft targets -> (B,) weighted losses."""
        losses = self._dense_losses(z, self._dense_rows(target))
        if self.leave_one_out is None:
            return losses
        mass = target if self.label_weight is None else target * self.label_weight.to(target.dtype)
        return losses + self.unseen * self.leave_one_out.mixed(z, mass)

    def _dense_losses(self, z: Tensor, dense: Tensor) -> Tensor:
        served = self.aggregate and self.head.outputs == "nodes" and not dense.requires_grad and len(z) > 0
        if served and kernels.usable(z, self.start, dense):
            call = self._call((None, None, None), dense.to(torch.float32).contiguous())
            pure = lambda z, _: numerics.table_cross_entropy(self._log_probs(z), dense)  # noqa: E731
            return kernel_loss(z, call, None, pure)
        return numerics.table_cross_entropy(self._log_probs(z), dense.to(z.dtype))

    def _dense_rows(self, target: Tensor) -> Tensor:
        """(B, labels) masses of labels -> (B, N) masses of nodes: target times T."""
        dense = self._climb(target if self.soften is None else self._soften(target))
        if self.shared is not None:
            dense = dense + target.sum(dim=1, keepdim=True) * self.shared.to(dense.dtype)
        return dense

    def _climb(self, mass: Tensor) -> Tensor:
        """(B, labels) masses of labels -> (B, N): each label's mass along its sparse row."""
        row = torch.repeat_interleave(
            torch.arange(self.num_labels, device=mass.device), self.start.diff(), output_size=len(self.node)
        )
        few = max(1, _ENTRIES // len(row))  # samples whose entries are held at once
        parts = []
        for part in mass.split(few):
            entries = part.index_select(1, row) * self.value.to(mass.dtype)
            full = entries.new_zeros(len(part), self.hierarchy.num_nodes)
            parts.append(full.index_add(1, self.node, entries))
        return torch.cat(parts)

    def _soft_labels(self, rows: Tensor) -> Tensor:
        """(B, labels) LCA soft labels: exp(-beta dist(y, c) / max dist) over the classes c, normalised, or eps of them."""
        assert self.soften is not None
        closeness = (-self.sharpness * self.soften(rows)).exp()
        if self.labels == "nodes":  # y itself has its share where it is not a class
            full = closeness.new_zeros(len(rows), self.num_labels)
            full = full.index_copy(1, self.head.leaf_nodes, closeness)
            closeness = full.scatter(1, rows[:, None], 1.0)
        mass = closeness / closeness.sum(dim=1, keepdim=True)
        if self.label_smoothing == 0:
            return mass
        kept = torch.zeros_like(mass).scatter(1, rows[:, None], 1.0 - self.label_smoothing)
        return kept + self.label_smoothing * mass

    def _soften(self, target: Tensor) -> Tensor:
        """Soft targets times the horizontal smoothing H, a chunk of its rows at a time."""
        looked_at = kernels.readable(target) and not target.requires_grad  # a zero that is learnt counts
        if looked_at and bool(((target != 0).sum(dim=1) <= 1).all()):
            label = target.argmax(dim=1)
            return target.gather(1, label[:, None]) * self._soft_labels(label).to(target.dtype)
        mass = torch.zeros_like(target)
        for part in torch.arange(self.num_labels, device=target.device).split(_CLASS_CHUNK):
            with torch.autocast(target.device.type, enabled=False):
                mass = mass + target[:, part] @ self._soft_labels(part).to(target.dtype)
        return mass

    def _log_probs(self, z: Tensor) -> Tensor:
        """(B, N) log q*, or log softmax(z) without aggregation (0 at nodes without an output: no table looks there)."""
        if self.aggregate:
            return self.head.aggregate(z)
        return self.head.to_nodes(z.log_softmax(dim=1), 0.0)


_TRIPLES = 1 << 24  # (sample, ancestor, output) triples held at once on a DAG


class LeaveOneOut(TableModule):
    r"""For every ancestor s of a label y: without the branch that leads to y, the own output of s is to win.

    .. math:: u(z, y) = \sum_{s \text{ above } y} \Big(\operatorname{logsumexp}_{i \notin B(s, y)} z_i - z_s\Big)

    B(s, y) are the children of s that are y or above it, and everything below them. A model without that branch has never
    seen y, and s is the most specific true answer it has. On a tree B is a range of columns: see
    :func:`hace.losses.numerics.outside_log_sums`. On a DAG every (sample, ancestor) pair has a mask of its own.
    """

    def __init__(self, head: Head, label_nodes: IntArray) -> None:
        super().__init__()
        h = head.hierarchy
        self.head = head
        self.constant("label_nodes", label_nodes)
        if h.is_tree:
            self.constant("end", h.subtree_ends)
            self.constant("above", np.maximum(h.parent_nodes, 0))
            self.constant("is_top", h.parent_nodes < 0)
            start, node, _ = path_entries(h, label_nodes)
            self.longest = int(np.diff(start).max())
            self.constant("start", start)
            self.constant("node", node)
            return
        # Per label: its ancestors, and the edges from them down to nodes at or above the label.
        up = [h.ancestors(h.nodes[v], include_self=True) for v in label_nodes.tolist()]
        edges = [[(h.index(p), h.index(c)) for c in nodes for p in h.parents(c)] for nodes in up]
        slots = [{s: i for i, s in enumerate(dict.fromkeys(s for s, _ in row))} for row in edges]
        self.longest, self.most = max(map(len, edges)), max(map(len, slots))
        self.constant("start", np.cumsum([0, *map(len, edges)]))
        flat = [(c, slot[s]) for row, slot in zip(edges, slots, strict=True) for s, c in row]
        child, slot = np.array(flat, dtype=np.int64).reshape(-1, 2).T
        self.constant("child", child)
        self.constant("slot", slot)
        self.constant("first", np.cumsum([0, *map(len, slots)]))
        self.constant("ancestor", np.array([s for slot in slots for s in slot], dtype=np.int64))

    def forward(self, z: Tensor, rows: Tensor) -> Tensor:
        """(B, N) logits and (B,) labels -> (B,) terms."""
        if self.head.hierarchy.is_tree:
            entry, _ = padded(rows, self.start, self.longest)
            path = self.node[entry]  # filled up with tops, which have no term
            return self._of_nodes(z, path).sum(dim=1).to(z.dtype)
        few = max(1, _TRIPLES // max(1, self.most * z.shape[1]))
        parts = zip(z.split(few), rows.split(few), strict=True)
        return torch.cat([self._on_dag(*part) for part in parts])

    def mixed(self, z: Tensor, mass: Tensor) -> Tensor:
        """(B, N) logits and (B, labels) masses -> (B,) sums of the labels' terms times their masses."""
        if self.head.hierarchy.is_tree:
            every = torch.arange(z.shape[1], device=z.device).expand(len(z), -1)
            along = numerics.sum_down(self._of_nodes(z, every), self.head.levels)
            terms = along.index_select(1, self.label_nodes).to(z.dtype)
        else:
            labels = torch.arange(len(self.label_nodes), device=z.device)
            terms = torch.stack([self(z, label.expand(len(z))) for label in labels], dim=1)
        return numerics.table_cross_entropy(-terms, mass)  # 0 times inf is 0

    def _of_nodes(self, z: Tensor, nodes: Tensor) -> Tensor:
        """(B, K) the terms of the parents of nodes (B, K) of a tree, whose branches are left out; 0 for a top."""
        rest = numerics.outside_log_sums(z, nodes, self.end[nodes])
        return (rest - z.to(rest.dtype).gather(1, self.above[nodes])).masked_fill(self.is_top[nodes], 0.0)

    def _on_dag(self, z: Tensor, rows: Tensor) -> Tensor:
        """Masks of what is outside B(s, y): (B, A, N), with A slots for the ancestors of a label."""
        entry, real = padded(rows, self.start, self.longest)
        sample, place = real.nonzero(as_tuple=True)
        child, slot = self.child[entry[sample, place]], self.slot[entry[sample, place]]
        size = self.head.below_first[child + 1] - self.head.below_first[child]
        pair = torch.repeat_interleave(torch.arange(len(child), device=z.device), size)
        within = torch.arange(len(pair), device=z.device) - (size.cumsum(0) - size)[pair]
        below = self.head.below[self.head.below_first[child][pair] + within].long()
        outside = torch.ones(len(z), self.most, z.shape[1], dtype=torch.bool, device=z.device)
        outside[sample[pair], slot[pair], below] = False
        wide = z.to(numerics.wide_dtype(z))
        rest = numerics.log_sum(wide[:, None, :].masked_fill(~outside, -torch.inf))
        ancestor, present = padded(rows, self.first, self.most)
        own = wide.gather(1, self.ancestor[ancestor])
        return torch.where(present, rest - own, 0.0).sum(dim=1).to(z.dtype)
