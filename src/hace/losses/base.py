"""The torch contract that every loss keeps: shapes, labels, weights, reductions and their errors."""

from __future__ import annotations

import copy
import inspect
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypedDict, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from hace.checks import check_choice, check_items, check_layer, checked_index, checked_weight
from hace.errors import ConfigError, DataError, nearest
from hace.hierarchy import Hierarchy
from hace.hierarchy.hierarchy import Labels
from hace.hierarchy.names import node_titles
from hace.losses import kernels
from hace.losses.fused_linear import Layer, chunks_serve, layer_dtype, sample_losses
from hace.losses.head import Head, LeafOutputs, Outputs, TableModule, output_logits
from hace.losses.kernels import BatchLabels, Call, kernel_loss, run_loss

if TYPE_CHECKING:
    from typing_extensions import Self

Reduction = Literal["none", "mean", "sum"]
ClassWeights = Tensor | Sequence[float] | np.ndarray | None


class LossOptions(TypedDict, total=False):
    """Arguments of every loss; :class:`HierarchicalLoss` says what they mean and has their defaults."""

    labels: Labels
    weight: ClassWeights
    ignore_index: int
    reduction: Reduction


class LeafLossOptions(LossOptions, total=False):
    """The same of losses whose softmax is over the classes."""

    outputs: LeafOutputs
    sharing: float


SHARED = tuple(LossOptions.__annotations__)
_EVERYWHERE = ("hierarchy", "outputs", "sharing", *SHARED)


class HierarchicalLoss(TableModule, ABC):
    """Base of all losses: ``loss(input, target)`` as :class:`torch.nn.CrossEntropyLoss`.

    A subclass defines :meth:`per_sample` (class labels) and :meth:`per_sample_soft` (soft targets), class weights
    included. :class:`hace.losses.table_loss.TableLoss` has them for losses with a table, :class:`LabelLoss` for others.

    Args:
        hierarchy: the taxonomy.
        outputs: what the head's columns are; ``num_outputs`` sizes the model's last layer. ``"nodes"``: N columns.
            ``"leaves"``: n columns. ``"paths"``: N columns, and a class's logit is its own output plus ``sharing`` times the
            sum of its ancestors'. A loss has the first of its ``allowed_outputs`` by default.
        sharing: s >= 0 of path sums: how much of each ancestor's output its classes share. 0 is a head over leaves, 1 the
            plain sum along the path; with ``outputs="paths"`` only.
        labels: what targets are: ``"leaves"`` (classes 0 to n - 1) or ``"nodes"`` (indices into ``hierarchy.nodes``, at
            any level, mixed in one batch).
        weight: weight of each class, length n, or N with ``labels="nodes"``.
        ignore_index: label of samples that do not count.
        reduction: ``"none"``, ``"mean"`` (divided by the sum of the samples' weights, as torch does) or ``"sum"``.
    """

    allowed_outputs: ClassVar[tuple[Any, ...]] = get_args(Outputs)  # of this loss, the default first
    hierarchy: Hierarchy
    __signature__: ClassVar[inspect.Signature]
    label_weight: Tensor | None

    def __init__(
        self,
        hierarchy: Hierarchy,
        *,
        outputs: Outputs | None = None,
        sharing: float = 1.0,
        labels: Labels = "leaves",
        weight: ClassWeights = None,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__()
        chosen: Outputs = self.allowed_outputs[0] if outputs is None else outputs
        if not isinstance(hierarchy, Hierarchy):
            raise ConfigError(f"hierarchy must be a hace.Hierarchy. Got {type(hierarchy).__name__}.")
        check_choice("outputs", chosen, self.allowed_outputs)
        check_choice("labels", labels, ("leaves", "nodes"))
        check_choice("reduction", reduction, ("none", "mean", "sum"))
        self.hierarchy = hierarchy
        self.labels: Labels = labels
        self.ignore_index = checked_index(ignore_index)
        self.reduction: Reduction = reduction
        self.head = Head(hierarchy, chosen, sharing)
        rows = hierarchy.leaf_nodes if labels == "leaves" else np.arange(hierarchy.num_nodes)
        self.constant("label_nodes", rows)
        self.constant("label_weight", checked_weight(weight, len(rows), labels))

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Shows the arguments behind ``**shared`` in the signature, as ``help`` and the registry read it."""
        super().__init_subclass__(**kwargs)
        cls.__signature__ = _whole_signature(cls)

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Refuses arguments of other losses, which ``**shared`` would pass on to a base."""
        known = cls.__signature__.parameters
        try:
            cls.__signature__.bind_partial(*args, **kwargs)
        except TypeError as error:
            hints = [nearest(name, known) for name in kwargs if name not in known]
            raise TypeError(f"{cls.__name__}() {error}.{''.join(hints[:1])}") from None
        return super().__new__(cls)

    @property
    def num_outputs(self) -> int:
        """Columns of the head: build the model with ``num_classes=loss.num_outputs``."""
        return self.head.num_outputs

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
        names, nodes = node_titles(self.hierarchy), self.hierarchy.leaf_nodes.tolist()
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

    @abstractmethod
    def per_sample(self, z: Tensor, rows: Tensor) -> Tensor:
        """(B, C) logits and (B,) labels -> (B,) weighted losses; C = n behind path sums."""

    @abstractmethod
    def per_sample_soft(self, z: Tensor, target: Tensor) -> Tensor:
        """(B, C) logits and (B, labels) soft targets -> (B,) weighted losses."""

    def forward(self, input: Any, target: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        """The loss.

        Args:
            input: logits (C,), (B, C) or (B, C, d1, ...), C = ``num_outputs``; or the output of a model of transformers or a
                dict, which have them as ``logits``.
            target: integer labels of the same shape without C; or soft targets with the number of labels in
                place of C.
            num_items_in_batch: number of entries of ``target`` in all batches whose gradients are added up, as the Trainer of
                transformers counts them: a mean divides by it, so that the sum is the mean of one large batch.

        Returns:
            A scalar, or with ``reduction="none"`` one loss per sample.
        """
        # Nearly every call is of this kind, and on a small head each further question costs a hundredth of a step.
        if num_items_in_batch is None and kernels.is_plain_batch(input, target):
            call, columns = self._kept.get("whole") or self.kept("whole", self._whole_call)
            if call is not None and input.shape == (target.shape[0], columns):
                labels = BatchLabels(target, self.ignore_index, self.reduction)
                return run_loss(input, call, labels, self._plain)
        input = input if isinstance(input, Tensor) else output_logits(input)
        if num_items_in_batch is not None and self.reduction == "mean":
            check_items(num_items_in_batch)
            total = self.kept("summed", lambda: self.reduced_by("sum")).forward(input, target)
            entries = self.num_labels if target.is_floating_point() else 1
            return total * entries / torch.as_tensor(num_items_in_batch, device=total.device)
        z, _ = self.head.flat_rows(input, type(self).__name__)
        if not isinstance(target, Tensor):
            raise DataError(
                f"target must be a tensor of labels or soft targets. Got {type(target).__name__}."
            )
        batch_shape = z.shape[:1] if z is input else input.shape[:1] + input.shape[2:]
        batch_shape = batch_shape if input.ndim > 1 else ()
        if target.is_floating_point():
            soft = self._soft_rows(input, target).to(z.dtype)
            losses = self._mean_soft(self.per_sample_soft(self.head.softmax_rows(z), soft))
        else:
            losses = self._of_labels(z, self._label_rows(target, batch_shape))
        return self._added_up(losses, batch_shape)

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
        shape = features.shape[:-1]
        rows = features.reshape(-1, features.shape[-1])
        soft = isinstance(target, Tensor) and target.is_floating_point()
        flat = target.reshape(-1, target.shape[-1]) if soft and target.ndim else target
        flat = flat if soft or not isinstance(target, Tensor) else self._label_rows(target, shape)
        if not chunks_serve(features, weight, bias, target) or (soft and target.requires_grad):
            value = self(F.linear(rows, weight, bias), flat)
            return value.reshape(shape) if self.reduction == "none" else value
        layer = Layer(rows, weight, bias, layer_dtype(rows, weight))
        if self._forward_pre_hooks:  # which see whole rows of logits
            losses = HierarchicalLoss._layer_losses(self, layer, flat)
        else:
            losses = self._layer_losses(layer, flat)
        return self._added_up(self._mean_soft(losses) if soft else self._mean_part(losses, flat), shape)

    def _layer_losses(self, layer: Layer, target: Tensor) -> Tensor:
        """(B,) weighted losses of a layer's outputs, 0 where ignored."""
        each = self.reduced_by("none")
        return sample_losses(layer, lambda z, part: each(z, target[part]))

    def reduced_by(self, reduction: Reduction) -> HierarchicalLoss:
        """The same loss with another reduction; its tables are shared."""
        other = copy.copy(self)
        other.reduction = reduction
        return other

    def _added_up(self, losses: Tensor, shape: Sequence[int]) -> Tensor:
        """Losses as ``reduction`` wants them; a mean is divided already."""
        if self.reduction == "none":
            return losses.reshape(shape)
        if losses.ndim == 0:
            return losses
        if losses.numel() == 0 and self.reduction == "mean":
            return losses.sum() * torch.nan  # as torch: nothing to take the mean of
        return losses.sum()

    def _of_labels(self, z: Tensor, target: Tensor) -> Tensor:
        """Losses that only need to be added up, divided by the mean's denominator and 0 where ignored; or their sum.

        This is where the form is chosen: the compiled one where it serves, else the plain one.
        """
        if kernels.usable(z, target) and z.numel() > 0:
            call = self._kernel_call() if kernels.compiling() else self.kept("call", self._kernel_call)
            if call is not None:
                labels = BatchLabels(target.contiguous(), self.ignore_index, self.reduction)
                return kernel_loss(z, call, labels, self._plain)
        return self._plain(z, target)

    def _kernel_call(self) -> Call | None:
        here = self.label_nodes.is_cpu if kernels.compiling() else kernels.is_plain(self.label_nodes)
        return self.kernel_call() if here else None

    def _whole_call(self) -> tuple[Call | None, int]:
        """The compiled loss if it is all of this loss, and the columns of its logits."""
        return self._kernel_call(), self.num_outputs

    def kernel_call(self) -> Call | None:
        """The compiled loss for batches of labels; None where there is none."""
        return None

    def _plain(self, z: Tensor, target: Tensor) -> Tensor:
        """The same in plain PyTorch."""
        kept = target != self.ignore_index
        self._check_labels(target, kept)
        rows = torch.where(kept, target, 0)
        losses = torch.where(kept, self.per_sample(self.head.softmax_rows(z), rows), 0.0)
        return self._mean_part(losses, target)

    def _mean_part(self, losses: Tensor, target: Tensor) -> Tensor:
        """Losses divided by the mean's denominator, if there is one."""
        if self.reduction != "mean":
            return losses
        kept = target != self.ignore_index
        weights = kept
        if self.label_weight is not None:
            weights = torch.where(kept, self.label_weight[torch.where(kept, target, 0)], 0.0)
        return losses / weights.sum().to(losses.dtype)

    def _mean_soft(self, losses: Tensor) -> Tensor:
        return losses / max(len(losses), 1) if self.reduction == "mean" else losses

    def _label_rows(self, target: Tensor, shape: Sequence[int]) -> Tensor:
        if target.dtype is torch.int64 and target.ndim == 1 and target.shape == shape:
            return target
        if target.dtype is torch.bool or target.is_complex():
            raise DataError(
                f"target must hold integer labels or floating-point soft targets. Got {target.dtype}."
            )
        if target.shape != shape:
            soft = " Soft targets must be floating-point (use target.float())."
            raise DataError(
                f"target must have the shape of input without its class dimension, {tuple(shape)}. "
                f"Got {tuple(target.shape)}.{soft * (target.ndim > len(shape))}"
            )
        return target.reshape(-1).long()

    def _soft_rows(self, input: Tensor, target: Tensor) -> Tensor:
        dim = 0 if input.ndim == 1 else 1
        expected = (*input.shape[:dim], self.num_labels, *input.shape[dim + 1 :])
        if target.shape != expected:
            width = target.shape[dim] if target.ndim > dim else None
            hint = " Integer labels must have an integer dtype (use target.long())."
            if width == self.num_outputs:
                hint = f" Soft targets are over the {self.num_labels} {self.labels}, not over the head's columns."
            raise DataError(f"Soft target must have shape {expected}. Got {tuple(target.shape)}.{hint}")
        return target[None] if dim == 0 else target.movedim(1, -1).reshape(-1, self.num_labels)

    def _check_labels(self, target: Tensor, kept: Tensor) -> None:
        if not kernels.readable(target):  # inside a graph or on an accelerator, indexing refuses bad labels
            return
        bad = kept & ((target < 0) | (target >= self.num_labels))
        if bad.any():
            kernels.raise_bad_target(target[bad][0].item(), self.num_labels, self.ignore_index)

    def extra_repr(self) -> str:
        """What ``print(loss)`` shows."""
        shown = self.settings()
        if self.head.path_sums is not None:
            shown |= {"outputs": "paths", "sharing": self.head.path_sums.sharing}
        parts = [repr(self.hierarchy), *(f"{k}={v!r}" for k, v in shown.items())]
        return ", ".join([*parts, f"labels={self.labels!r}", f"reduction={self.reduction!r}"])

    def settings(self) -> dict[str, Any]:
        """This loss's own parameters, kept as attributes of the same names."""
        own = [name for name in self.__signature__.parameters if name not in _EVERYWHERE]
        return {name: getattr(self, name) for name in own if hasattr(self, name)}


def _whole_signature(cls: type[HierarchicalLoss]) -> inspect.Signature:
    """The signature with the shared arguments in place of ``**shared``."""
    given = inspect.signature(cls.__init__)
    own = list(given.parameters.values())[1:]
    behind = str(own[-1].annotation) if own and own[-1].kind is inspect.Parameter.VAR_KEYWORD else ""
    if "LossOptions" not in behind:
        return given.replace(parameters=own)
    known = inspect.signature(HierarchicalLoss.__init__).parameters
    names = SHARED if "Leaf" not in behind else ("outputs", "sharing", *SHARED)
    shared = [known[name] for name in names]
    if "outputs" in names:
        shared[0] = shared[0].replace(default=cls.allowed_outputs[0], annotation="LeafOutputs")
    return given.replace(parameters=[*own[:-1], *shared])


class LabelLoss(HierarchicalLoss):
    """Base of losses without a table: a value per label, mixed linearly by soft targets and scaled by class weights."""

    @abstractmethod
    def label_losses(self, z: Tensor, rows: Tensor) -> Tensor:
        """(B, C) logits and (B,) labels -> (B,) losses."""

    @abstractmethod
    def mixed_losses(self, z: Tensor, mass: Tensor) -> Tensor:
        """(B, C) logits and (B, labels) masses -> (B,) losses: the sum of each label's loss times its mass."""

    def per_sample(self, z: Tensor, rows: Tensor) -> Tensor:
        """(B, C) logits and (B,) labels -> (B,) weighted losses."""
        losses = self.label_losses(z, rows)
        return losses if self.label_weight is None else losses * self.label_weight[rows].to(z.dtype)

    def per_sample_soft(self, z: Tensor, target: Tensor) -> Tensor:
        """(B, C) logits and (B, labels) soft targets -> (B,) weighted losses."""
        weight = self.label_weight
        return self.mixed_losses(z, target if weight is None else target * weight.to(target.dtype))
