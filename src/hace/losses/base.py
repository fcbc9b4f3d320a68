"""The torch contract that every loss keeps: shapes, labels, weights, reductions and their errors."""

from __future__ import annotations

import copy
import inspect
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from hace.checks import check_choice, check_items, checked_index, checked_weight
from hace.errors import DataError
from hace.hierarchy import Hierarchy
from hace.hierarchy.hierarchy import Labels, check_hierarchy
from hace.hierarchy.names import node_titles
from hace.losses.constants import ConstantModule
from hace.losses.fused_linear import Layer, layer_dtype, sample_losses, supports_chunks
from hace.losses.head import Head, Outputs
from hace.losses.inputs import check_layer, check_target, label_rows, model_logits
from hace.losses.kernels.extension import kernel_supports
from hace.losses.kernels.loss_calls import KernelCall, kernel_loss, raise_bad_target
from hace.losses.kernels.torch_internals import compiling, is_eager, is_plain

Reduction = Literal["none", "mean", "sum"]
ClassWeights = Tensor | Sequence[float] | np.ndarray | None

SHARED = ("labels", "weight", "ignore_index", "reduction")  # arguments of every loss
_NOT_SETTINGS = ("hierarchy", "outputs", "sharing", *SHARED)


class HierarchicalLoss(ConstantModule, ABC):
    """Base of all losses: ``loss(input, target)`` as :class:`torch.nn.CrossEntropyLoss`.

    A subclass defines :meth:`per_sample` (class labels) and :meth:`per_sample_soft` (soft targets) in plain PyTorch, class
    weights included, and :meth:`kernel_call` where the compiled kernel has the same. :class:`hace.losses.table_loss.TableLoss`
    has them for losses with a table, :class:`LabelLoss` for others.

    Args:
        hierarchy: the taxonomy.
        outputs: what the head's columns are; ``num_outputs`` sizes the model's last layer. ``"nodes"``: N columns.
            ``"leaves"``: n columns. ``"paths"``: N columns, and a class's logit is its own output plus ``sharing`` times the
            sum of its ancestors'. A loss takes its ``allowed_outputs``.
        sharing: s >= 0 of path sums: how much of each ancestor's output its classes share. 0 is a head over leaves, 1 the
            plain sum along the path; with ``outputs="paths"`` only.
        labels: what targets are: ``"leaves"`` (classes 0 to n - 1) or ``"nodes"`` (indices into ``hierarchy.nodes``, at
            any level, mixed in one batch).
        weight: weight of each class, length n, or N with ``labels="nodes"``.
        ignore_index: label of samples that do not count.
        reduction: ``"none"``, ``"mean"`` (divided by the sum of the samples' weights, as torch does) or ``"sum"``.
    """

    allowed_outputs: ClassVar[tuple[Outputs, ...]] = get_args(Outputs)
    hierarchy: Hierarchy
    label_weight: Tensor | None

    def __init__(
        self,
        hierarchy: Hierarchy,
        *,
        outputs: Outputs = "nodes",
        sharing: float = 1.0,
        labels: Labels = "leaves",
        weight: ClassWeights = None,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__()
        check_hierarchy(hierarchy)
        check_choice("outputs", outputs, self.allowed_outputs)
        check_choice("labels", labels, get_args(Labels))
        check_choice("reduction", reduction, get_args(Reduction))
        self.hierarchy = hierarchy
        self.labels: Labels = labels
        self.ignore_index = checked_index(ignore_index)
        self.reduction: Reduction = reduction
        self.head = Head(hierarchy, outputs, sharing)
        self._num_outputs = self.head.num_outputs
        rows = hierarchy.leaf_nodes if labels == "leaves" else np.arange(hierarchy.num_nodes)
        self.constant("label_nodes", rows)
        self.constant("label_weight", checked_weight(weight, len(rows), labels))

    # ------------------------------------------------------------------ what a subclass defines

    @abstractmethod
    def per_sample(self, z: Tensor, rows: Tensor) -> Tensor:
        """(B, C) logits and (B,) labels -> (B,) weighted losses; C = n behind path sums."""

    @abstractmethod
    def per_sample_soft(self, z: Tensor, target: Tensor) -> Tensor:
        """(B, C) logits and (B, labels) soft targets -> (B,) weighted losses."""

    def kernel_call(self) -> KernelCall | None:
        """The compiled loss for batches of labels; None where there is none."""
        return None

    # ------------------------------------------------------------------ the loss

    def forward(self, input: Any, target: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        """The loss.

        Args:
            input: logits (C,), (B, C) or (B, C, d1, ...), C = ``num_outputs``; or the output of a model of transformers or a
                dict, which have them as ``logits``.
            target: integer labels of the same shape without C; or soft targets with the number of labels in
                place of C. As in :func:`torch.nn.functional.cross_entropy`, soft targets are weights and need not be a
                distribution: the loss is linear in them.
            num_items_in_batch: number of entries of ``target`` in all batches whose gradients are added up, as the Trainer of
                transformers counts them: a mean divides by it, so that the sum is the mean of one large batch.

        Returns:
            A scalar, or with ``reduction="none"`` one loss per sample.
        """
        if num_items_in_batch is not None and self.reduction == "mean":
            return self._mean_over_items(input, target, num_items_in_batch)
        losses = self._kernel_losses(input, target)
        if losses is not None:  # nearly every call: a flat batch that the kernel takes as it is
            return losses if losses.ndim == 0 else self._reduce(losses, target.shape)
        z, target, shape = self._flattened(input, target)
        losses = self._kernel_losses(z, target)
        if losses is None:
            losses = self._sample_losses(z, target)
        return self._reduce(losses, shape)

    def _kernel_losses(self, z: Any, labels: Any) -> Tensor | None:
        """The losses of logits (B, C) and labels (B,) by the kernel; None where it does not support them, or they are others.

        They only need to be added up: they are 0 where ignored and divided by the mean's denominator. Or they are that sum.
        """
        if labels is None or not kernel_supports(z, labels):
            return None
        if labels.dtype is not torch.int64 or labels.ndim != 1:
            return None
        rows = labels.shape[0]
        if rows == 0 or z.shape != (rows, self._num_outputs):
            return None
        call = self._supported_call() if compiling() else self.cached("kernel call", self._supported_call)
        if call is None:
            return None
        return kernel_loss(
            z, call, labels.contiguous(), self.ignore_index, self.reduction, self._sample_losses
        )

    def _supported_call(self) -> KernelCall | None:
        """The kernel's call, if it can read the constants."""
        readable = self.label_nodes.is_cpu if compiling() else is_plain(self.label_nodes)
        return self.kernel_call() if readable else None

    def _sample_losses(self, z: Tensor, target: Tensor) -> Tensor:
        """The same of labels or soft targets in plain PyTorch, by :meth:`per_sample` or :meth:`per_sample_soft`."""
        z = self.head.softmax_rows(z)
        if target.is_floating_point():
            return self._divided(self.per_sample_soft(z, target.to(z.dtype)), target)
        counts = target != self.ignore_index
        self._check_labels(target, counts)
        losses = self.per_sample(z, torch.where(counts, target, 0))
        return self._divided(torch.where(counts, losses, 0.0), target)

    def _divided(self, losses: Tensor, target: Tensor) -> Tensor:
        """For a mean, losses divided by the weights of the labels that count, or by B where targets are soft."""
        if self.reduction != "mean":
            return losses
        if target.is_floating_point():
            return losses / max(len(losses), 1)
        weights = counts = target != self.ignore_index
        if self.label_weight is not None:
            weights = torch.where(counts, self.label_weight[torch.where(counts, target, 0)], 0.0)
        return losses / weights.sum().to(losses.dtype)

    def _reduce(self, losses: Tensor, shape: Sequence[int]) -> Tensor:
        """Losses as ``reduction`` wants them; a mean is divided already."""
        if losses.ndim == 0:
            return losses
        if self.reduction == "none":
            return losses.reshape(shape)
        if losses.numel() == 0 and self.reduction == "mean":
            return losses.sum() * torch.nan  # as torch: nothing to take the mean of
        return losses.sum()

    def _mean_over_items(self, input: Any, target: Tensor, items: Tensor | int) -> Tensor:
        """The sum divided by a number of entries that is given."""
        check_items(items)
        summed = self.cached("summed", lambda: self.reduced_by("sum"))
        total = summed.forward(input, target)
        entries = self.num_labels if target.is_floating_point() else 1
        return total * entries / torch.as_tensor(items, device=total.device)

    def reduced_by(self, reduction: Reduction) -> HierarchicalLoss:
        """The same loss with another reduction; its tables are shared."""
        check_choice("reduction", reduction, get_args(Reduction))
        other = copy.deepcopy(self, self.shared_constants())
        other.reduction = reduction
        return other

    # ------------------------------------------------------------------ what it is called with

    def _flattened(self, input: Any, target: Any) -> tuple[Tensor, Tensor, tuple[int, ...]]:
        """Logits (B, C), labels (B,) or soft targets (B, labels), and the shape that the losses are to have; all checked."""
        input = model_logits(input)
        z, _ = self.head.flat_rows(input, type(self).__name__)
        check_target(target, z.device)
        class_dim = 1 if input.ndim > 1 else 0
        shape = (*input.shape[:class_dim], *input.shape[class_dim + 1 :])
        if target.is_floating_point():
            return z, self._soft_rows(target, shape, class_dim), shape
        return z, label_rows(target, shape), shape

    def _soft_rows(self, target: Tensor, shape: Sequence[int], dim: int) -> Tensor:
        """Soft targets of samples of that shape, their labels in dimension ``dim``, as (B, labels)."""
        expected = torch.Size((*shape[:dim], self.num_labels, *shape[dim:]))
        if target.shape == expected:
            return target.movedim(dim, -1).reshape(-1, self.num_labels)
        hint = ""
        if target.ndim == len(shape):
            hint = " Integer labels must have an integer dtype (use target.long())."
        elif target.ndim == len(expected) and target.shape[dim] == self.num_outputs:
            hint = f" Soft targets are over the {self.num_labels} {self.labels}, not over the head's columns."
        raise DataError(f"Soft target must have shape {tuple(expected)}. Got {tuple(target.shape)}.{hint}")

    def _check_labels(self, labels: Tensor, counts: Tensor) -> None:
        if not is_eager(labels):  # inside a graph or on an accelerator, indexing refuses bad labels
            return
        bad = counts & ((labels < 0) | (labels >= self.num_labels))
        if bad.any():
            raise_bad_target(labels[bad][0].item(), self.num_labels, self.ignore_index)

    # ------------------------------------------------------------------ the last layer and the loss in one

    def linear(self, features: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor) -> Tensor:
        """``loss(F.linear(features, weight, bias), target)`` without the logits of the whole batch.

        Same values and gradients to rounding, at a fraction of the memory: losses along a path (cross-entropy, HACE, HCE and
        HXE without smoothing, over a tree) work a chunk of columns at a time, the others a few samples at a time. It computes
        the logits twice. Inside ``torch.compile`` and ``torch.func`` it is the plain form.

        Args:
            features: (B, d), or (..., d).
            weight: (``num_outputs``, d) weight of the last layer.
            bias: (``num_outputs``,) bias of the last layer, or None.
            target: integer labels (B,), or (...); or soft targets, with the number of labels as the last dimension.

        Returns:
            A scalar, or with ``reduction="none"`` one loss per sample.

        Example:
            >>> from hace import HACELoss
            >>> h = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat",)], leaves=["husky", "beagle", "cat"])
            >>> loss, layer = HACELoss(h), torch.nn.Linear(8, h.num_nodes)
            >>> features, target = torch.randn(5, 8), torch.tensor([0, 1, 2, 0, 1])
            >>> together = loss.linear(features, layer.weight, layer.bias, target)
            >>> torch.allclose(together, loss(layer(features), target))
            True
        """
        check_layer(self.num_outputs, features, weight, bias)
        check_target(target, features.device, of="features")
        rows = features.reshape(-1, features.shape[-1])
        shape = features.shape[:-1]
        soft = target.is_floating_point()
        target = self._soft_rows(target, shape, len(shape)) if soft else label_rows(target, shape)
        if not supports_chunks(features, weight, bias, target) or (soft and target.requires_grad):
            losses = self(F.linear(rows, weight, bias), target)
            return losses.reshape(shape) if self.reduction == "none" else losses
        layer = Layer(rows, weight, bias, layer_dtype(rows, weight))
        if self._forward_pre_hooks:  # which see whole rows of logits
            losses = HierarchicalLoss._layer_losses(self, layer, target)
        else:
            losses = self._layer_losses(layer, target)
        return self._reduce(self._divided(losses, target), shape)

    def _layer_losses(self, layer: Layer, target: Tensor) -> Tensor:
        """(B,) weighted losses of a layer's outputs, 0 where ignored."""
        each = self if self.reduction == "none" else self.reduced_by("none")
        return sample_losses(layer, lambda z, part: each(z, target[part]))

    # ------------------------------------------------------------------ the head

    @property
    def num_outputs(self) -> int:
        """Columns of the head: build the model with ``num_classes=loss.num_outputs``."""
        return self._num_outputs

    @property
    def num_labels(self) -> int:
        """Number of labels: n, or N with ``labels="nodes"``."""
        return len(self.label_nodes)

    @property
    def score_outputs(self) -> Literal["nodes", "leaves"]:
        """What the logits are over whose softmax gives the probabilities: the columns themselves, or :meth:`leaf_logits`.

        Those logits can be restricted to classes and divided by a temperature. Heads of path sums and of conditional
        softmax have them over leaves.
        """
        softmax = type(self).node_log_probs is HierarchicalLoss.node_log_probs
        return "nodes" if self.head.outputs == "nodes" and softmax else "leaves"

    @property
    def id2label(self) -> dict[int, str]:
        """Name of each column of the head, for the configuration of a model of transformers."""
        names = node_titles(self.hierarchy)
        nodes = self.hierarchy.leaf_nodes.tolist()
        return dict(enumerate([names[v] for v in nodes] if self.head.outputs == "leaves" else names))

    def leaf_logits(self, z: Tensor) -> Tensor:
        """(B, n, ...) logits of the classes in label order."""
        return self.head.leaf_logits(z)

    def node_log_probs(self, z: Tensor) -> Tensor:
        """(B, N, ...) log q* in node order."""
        return self.head.node_log_probs(z)

    def collapse(self, weight: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """The last layer of a model with ``outputs="paths"`` as an ordinary layer over the classes.

        Its logits are those of :meth:`leaf_logits`, to rounding: prediction and export then cost what cross-entropy's do.

        Args:
            weight: (N, d) weight of the layer.
            bias: (N,) bias of the layer, or None.

        Returns:
            (n, d) weight and (n,) bias (None without one), in label order.

        Example:
            >>> from hace import CrossEntropyLoss
            >>> h = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat",)], leaves=["husky", "beagle", "cat"])
            >>> layer = torch.nn.Linear(8, h.num_nodes)
            >>> weight, bias = CrossEntropyLoss(h, outputs="paths").collapse(layer.weight, layer.bias)
            >>> weight.shape, bias.shape
            (torch.Size([3, 8]), torch.Size([3]))
        """
        return self.head.collapse(weight, bias)

    # ------------------------------------------------------------------ what it shows

    def extra_repr(self) -> str:
        """What ``print(loss)`` shows."""
        shown = self.settings()
        if self.head.path_sums is not None:
            shown |= {"outputs": "paths", "sharing": self.head.path_sums.sharing}
        parts = [repr(self.hierarchy), *(f"{k}={v!r}" for k, v in shown.items())]
        return ", ".join([*parts, f"labels={self.labels!r}", f"reduction={self.reduction!r}"])

    def settings(self) -> dict[str, Any]:
        """This loss's own parameters, which are attributes of the same names."""
        names = [name for name in inspect.signature(type(self)).parameters if name not in _NOT_SETTINGS]
        return {name: getattr(self, name) for name in names if hasattr(self, name)}


class LabelLoss(HierarchicalLoss):
    """Base of losses without a table: a value per label, mixed linearly by soft targets and scaled by class weights."""

    @abstractmethod
    def unweighted_losses(self, z: Tensor, rows: Tensor) -> Tensor:
        """(B, C) logits and (B,) labels -> (B,) losses without class weights."""

    @abstractmethod
    def mixed_losses(self, z: Tensor, mass: Tensor) -> Tensor:
        """(B, C) logits and (B, labels) masses -> (B,) losses: the sum of each label's loss times its mass."""

    def per_sample(self, z: Tensor, rows: Tensor) -> Tensor:
        """(B, C) logits and (B,) labels -> (B,) weighted losses."""
        losses = self.unweighted_losses(z, rows)
        return losses if self.label_weight is None else losses * self.label_weight[rows].to(z.dtype)

    def per_sample_soft(self, z: Tensor, target: Tensor) -> Tensor:
        """(B, C) logits and (B, labels) soft targets -> (B,) weighted losses."""
        weight = self.label_weight
        return self.mixed_losses(z, target if weight is None else target * weight.to(target.dtype))
