"""The one equation as a module: cross-entropy of a table, by the kernel where it supports it and by PyTorch elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hace.checks import check_choice, is_number, require
from hace.errors import ConfigError
from hace.hierarchy.assembly import IntArray
from hace.hierarchy.derived import sparse_matrix
from hace.hierarchy.distances import DISTANCES, Distance
from hace.losses import numerics, tables
from hace.losses.base import HierarchicalLoss
from hace.losses.distance_losses import LeafDistances, padded
from hace.losses.fused_linear import Layer, path_losses
from hace.losses.inputs import in_single_precision, model_logits
from hace.losses.kernels import on_cuda
from hace.losses.kernels.extension import kernel_supports
from hace.losses.kernels.loss_calls import KernelCall, kernel_loss, prepare_call, tree_places
from hace.losses.kernels.torch_internals import compiling, is_eager
from hace.losses.leave_one_out import LeaveOneOutLoss

_CLASS_CHUNK = 256  # classes whose soft labels are held at once when targets are soft already
_ENTRIES = 1 << 22  # (sample, table entry) products held at once
_ONE_HOT = 1e4  # a sharpness that leaves exactly nothing at distance 1


class TableLoss(HierarchicalLoss):
    r"""Cross-entropy of a table: the one equation behind every loss of the paper.

    .. math:: \ell(z, y) = -\sum_v T[y, v] \log q^*[v], \qquad q^* = R \operatorname{softmax}(z), \qquad
        T = H \operatorname{diag}(w) V

    A subclass calls :meth:`set_table` when it is built.
    """

    background: Tensor | None
    soften: LeafDistances | None
    unseen_loss: LeaveOneOutLoss | None

    def set_table(
        self,
        table: Callable[[IntArray], tables.Table] | None = None,
        *,
        dilution: float | None = 1.0,
        label_smoothing: float = 0.0,
        soft_label_beta: float | None = None,
        distance: Distance = "lca_height",
        aggregate: bool = True,
        unseen: float = 0.0,
    ) -> None:
        """Build T, once, by calling `table` with the nodes of all labels.

        Args:
            table: function from node indices of labels to their rows of V; one-hot rows by default.
            dilution: d of V, for the row that smoothing adds to all; None: that row comes from the table.
            label_smoothing: eps of a uniform H.
            soft_label_beta: beta of an H of LCA soft labels S: H = S, and with eps H = (1 - eps) I + eps S.
            distance: distance of the soft labels.
            aggregate: whether R aggregates; without it, q* is softmax(z) itself.
            unseen: weight of the leave-one-out term, for classes outside the list; with ``outputs="nodes"`` only.
        """
        fits = is_number(label_smoothing) and 0 <= label_smoothing < 1
        require("label_smoothing", label_smoothing, "in [0, 1)", fits)
        fits = soft_label_beta is None or (is_number(soft_label_beta) and soft_label_beta > 0)
        require("soft_label_beta", soft_label_beta, "a number above 0, or None", fits)
        check_choice("distance", distance, DISTANCES)
        require("unseen", unseen, "a number >= 0", is_number(unseen) and unseen >= 0)
        h = self.hierarchy
        nodes = self.label_nodes.numpy()
        self.label_smoothing = label_smoothing
        self.soft_label_beta = soft_label_beta
        self.distance = distance
        self.aggregate = aggregate
        self.unseen = unseen
        self.unseen_loss = self._built_unseen_loss() if unseen else None
        table = partial(tables.label_table, h) if table is None else table
        built = table(nodes)
        class_weight = np.ones(h.num_nodes)
        if self.label_weight is not None:
            class_weight[nodes] = self.label_weight.numpy()
        # H diag(w) V: class weights act here, on the rows and on the row that uniform smoothing adds to all of them.
        uniform = label_smoothing if soft_label_beta is None else 0.0
        scale = (1.0 - uniform) * class_weight[nodes]
        if dilution is not None:
            background = tables.background(h, dilution, uniform, class_weight)
        else:
            background = tables.table_background(h, table(h.leaf_nodes), uniform, class_weight)
        self.longest = int(np.diff(built.start).max())
        self.constant("start", built.start)
        self.constant("node", built.node)
        self.constant("value", built.value * np.repeat(scale, np.diff(built.start)))
        self.constant("background", background if uniform else None)
        self.soften = None
        if soft_label_beta is not None:
            self.soften = LeafDistances(h, nodes, distance)
            widest = h.max_distance(distance)
            # With one class there is nothing to spread over: only what is at distance 0 keeps its mass.
            self.sharpness = soft_label_beta / widest if widest else _ONE_HOT

    def _built_unseen_loss(self) -> LeaveOneOutLoss:
        """The leave-one-out terms of ``unseen``."""
        if self.head.outputs != "nodes":
            raise ConfigError(
                f"unseen must come with outputs='nodes', where an inner node has an output of its own. Got "
                f"outputs={self.head.outputs!r}."
            )
        return LeaveOneOutLoss(
            self.hierarchy,
            self.unseen,
            labels=self.labels,
            weight=self.label_weight,
            ignore_index=self.ignore_index,
        )

    def table(self, *, dense: bool = False) -> Tensor:
        """T, the table of targets (labels, N), float64: sparse COO by default, dense on request.

        For HACE it is the paper's ancestral label smoothing matrix, the product of both smoothings. With uniform
        smoothing or soft labels its rows are full, and the sparse form saves nothing.
        """
        if dense or self.soften is not None or self.background is not None:
            labels = torch.eye(self.num_labels, dtype=torch.float64, device=self.label_nodes.device)
            full = self._dense_rows(labels)
            return full if dense else full.to_sparse()
        start, node, value = (t.cpu().numpy() for t in (self.start, self.node, self.value))
        row = np.repeat(np.arange(self.num_labels), np.diff(start))
        shape = (self.num_labels, self.hierarchy.num_nodes)
        return sparse_matrix(row, node, value, shape).to(self.label_nodes.device)

    def forward(self, input: Any, target: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        """The loss; see :meth:`hace.losses.base.HierarchicalLoss.forward`."""
        if self.unseen_loss is None:
            return super().forward(input, target, num_items_in_batch)
        # Once, so that the gradients of both terms are added before they are rounded.
        input = in_single_precision(model_logits(input))
        self.unseen_loss.reduction = self.reduction
        loss = super().forward(input, target, num_items_in_batch)
        return loss + self.unseen_loss(input, target, num_items_in_batch)

    # ------------------------------------------------------------------ by the kernel

    def kernel_call(self) -> KernelCall | None:
        """The compiled loss for batches of labels; None where there is none."""
        if not self.aggregate or self.soften is not None:
            return None
        # Over a head of leaves, only rows along one path are compiled.
        if self.head.outputs != "nodes" and (self.background is not None or not self.hierarchy.is_tree):
            return None
        rows = (self.start, self.node, self.value)
        return self._prepared_call(rows, None if self.background is None else self.background.float())

    def _prepared_call(self, rows: tuple[Tensor | None, ...], mass: Tensor | None) -> KernelCall:
        """The compiled loss of the labels' rows (or three None), of masses (N,) or (B, N) at all nodes, or of both."""
        head = self.head
        tensors: tuple[Tensor | None, ...]
        stride = mass.shape[1] if mass is not None and mass.ndim == 2 else 0
        if not self.hierarchy.is_tree:
            function = "dag_loss"
            tensors = (mass, head.below_first, head.below)
            numbers = (stride,)
        elif mass is not None:
            function = "dense_loss"
            tensors = (mass, head.parent, head.level, self._places())
            numbers = (stride,)
        elif head.path_sums is not None:
            paths = head.path_sums.tree
            function = "path_sum_loss"
            tensors = (head.low, head.high, paths.level, paths.end, paths.parent, self._places())
            numbers = (len(paths.label), paths.sharing)
        else:
            function = "path_loss"
            tensors = (head.low, head.high, head.column, head.branch)
            numbers = ()
        return prepare_call(function, (*rows, *tensors), numbers, self.num_labels, self.label_weight)

    def _places(self) -> Tensor | None:
        """Where the tree's inner nodes and leaves are; a graph holds no such list, and its call makes one."""
        return None if compiling() else self.head.cached("places", lambda: tree_places(self.head.level))

    # ------------------------------------------------------------------ in plain PyTorch

    def per_sample(self, z: Tensor, rows: Tensor) -> Tensor:
        """(B, C) logits and (B,) labels -> (B,) weighted losses."""
        if self.soften is not None:
            return self._dense_losses(z, self._climb(self._soft_labels(rows).to(z.dtype)))
        if self.aggregate and self.hierarchy.is_tree and self.background is None:
            path = self._path(rows)
            if on_cuda.triton_supports(z):
                return on_cuda.path_losses(z, path)
            return numerics.path_cross_entropy(z, path)
        entry, real = padded(rows, self.start, self.longest)
        node = self.node[entry]
        value = torch.where(real, self.value[entry], 0.0)
        log_probs = self._log_probs(z)
        losses = numerics.table_cross_entropy(log_probs.gather(1, node), value.to(z.dtype))
        if self.background is not None:
            losses = losses + numerics.table_cross_entropy(log_probs, self.background.to(z.dtype))
        return losses

    def per_sample_soft(self, z: Tensor, target: Tensor) -> Tensor:
        """(B, C) logits and (B, labels) soft targets -> (B,) weighted losses."""
        return self._dense_losses(z, self._dense_rows(target))

    def _path(self, rows: Tensor) -> numerics.PathRanges:
        entry, real = padded(rows, self.start, self.longest)
        node = self.node[entry]
        value = torch.where(real, self.value[entry], 0.0)
        return numerics.PathRanges(self.head.low[node], self.head.high[node], value, self.head.column)

    def _dense_losses(self, z: Tensor, dense: Tensor) -> Tensor:
        """(B, C) logits and (B, N) masses of nodes -> (B,) losses; the kernel has them, too, for a head over nodes."""
        compiled = self.aggregate and self.head.outputs == "nodes" and not dense.requires_grad and len(z) > 0
        if compiled and kernel_supports(z, self.start, dense):
            call = self._prepared_call((None, None, None), dense.to(torch.float32).contiguous())
            return kernel_loss(z, call, None, -100, "none", lambda z, _: self._torch_dense_losses(z, dense))
        return self._torch_dense_losses(z, dense)

    def _torch_dense_losses(self, z: Tensor, dense: Tensor) -> Tensor:
        return numerics.table_cross_entropy(self._log_probs(z), dense.to(z.dtype))

    def _log_probs(self, z: Tensor) -> Tensor:
        """(B, N) log q*, or log softmax(z) without aggregation (0 at nodes without an output: no table looks there)."""
        if self.aggregate:
            return self.head.aggregate(z)
        return self.head.to_nodes(z.log_softmax(dim=1), 0.0)

    # ------------------------------------------------------------------ rows of the table

    def _dense_rows(self, target: Tensor) -> Tensor:
        """(B, labels) masses of labels -> (B, N) masses of nodes: target times T."""
        dense = self._climb(target if self.soften is None else self._soften(target))
        if self.background is not None:
            dense = dense + target.sum(dim=1, keepdim=True) * self.background.to(dense.dtype)
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
        itself = torch.zeros_like(mass).scatter(1, rows[:, None], 1.0 - self.label_smoothing)
        return itself + self.label_smoothing * mass

    def _soften(self, target: Tensor) -> Tensor:
        """Soft targets times the horizontal smoothing H, a chunk of its rows at a time."""
        known = is_eager(target) and not target.requires_grad  # a zero that is learnt counts
        if known and bool(((target != 0).sum(dim=1) <= 1).all()):
            label = target.argmax(dim=1)
            return target.gather(1, label[:, None]) * self._soft_labels(label).to(target.dtype)
        mass = torch.zeros_like(target)
        for part in torch.arange(self.num_labels, device=target.device).split(_CLASS_CHUNK):
            with numerics.without_autocast(target):
                mass = mass + target[:, part] @ self._soft_labels(part).to(target.dtype)
        return mass

    # ------------------------------------------------------------------ with the last layer

    def _layer_losses(self, layer: Layer, target: Tensor) -> Tensor:
        if target.is_floating_point() or len(layer.features) == 0 or not self._on_one_path:
            return super()._layer_losses(layer, target)
        counts = target != self.ignore_index
        self._check_labels(target, counts)
        rows = torch.where(counts, target, 0)
        losses = path_losses(layer, self._path(rows), lambda z: self.per_sample(z, rows))
        return torch.where(counts, losses, 0.0)

    @property
    def _on_one_path(self) -> bool:
        """Whether each row of the table is along one path of a tree, over columns that are outputs themselves."""
        alone = (
            self.aggregate and self.soften is None and self.background is None and self.unseen_loss is None
        )
        return alone and self.hierarchy.is_tree and self.head.path_sums is None
