"""What is exported: a network with the steps from its outputs to probabilities, in plain torch."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from hace.hierarchy import Hierarchy
from hace.lab.features.backbones import pooled
from hace.losses.base import HierarchicalLoss
from hace.losses.poincare_head import PoincareBall, PoincareHead


class ScoredModel(nn.Module):
    """A model whose outputs are scores and probabilities.

    Args:
        network: From inputs to the raw outputs (B, C) of a head.
        loss: What it was trained with, which defines the outputs; None: they are scores already.
        hierarchy: The classes.
        outputs: What the columns of the scores are: "leaves" or "nodes".
        temperature: By which scores are divided before the softmax.
    """

    column: Tensor
    ancestor: Tensor
    leaf_nodes: Tensor

    def __init__(
        self,
        network: nn.Module,
        loss: HierarchicalLoss | None,
        hierarchy: Hierarchy,
        outputs: str,
        temperature: float,
    ) -> None:
        super().__init__()
        self.network, self.loss, self.outputs, self.temperature = network, loss, outputs, temperature
        self.num_nodes = hierarchy.num_nodes
        ancestor, below = hierarchy.reachability()
        if outputs == "leaves":
            kept = hierarchy.labels[below] >= 0
            ancestor, below = ancestor[kept], hierarchy.labels[below[kept]]
        for name, array in (
            ("ancestor", ancestor),
            ("column", below),
            ("leaf_nodes", hierarchy.leaf_nodes),
        ):
            self.register_buffer(name, torch.from_numpy(np.array(array, dtype=np.int64)), persistent=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Scores (B, C), probabilities of the classes (B, n) and of the nodes (B, N)."""
        z = self.network(x)
        scores = z if self.loss is None else self.loss.leaf_logits(z)
        q = (scores / self.temperature).softmax(dim=1)
        leaves = q
        if self.outputs == "nodes":
            leaves = (scores.index_select(1, self.leaf_nodes) / self.temperature).softmax(dim=1)
        nodes = q.new_zeros(q.shape[0], self.num_nodes)
        return scores, leaves, nodes.index_add(1, self.ancestor, q.index_select(1, self.column))


class ProbeNetwork(nn.Module):
    """A frozen model, the scaling of its features and a head; without the model it takes features.

    Args:
        model: A timm model without classifier, or None.
        pool: As of `hace features`.
        scaling: What is done to features before the head: "unit", "standard" or "none".
        weights: "weight" (C, d), and "bias" (C,) if the head has one; with "standard" also "mean" and "std".
        ball: Of a hyperbolic head.
    """

    def __init__(
        self,
        model: nn.Module | None,
        pool: str,
        scaling: str,
        weights: Mapping[str, Tensor],
        ball: PoincareBall | None = None,
    ) -> None:
        super().__init__()
        self.model, self.pool, self.scaling = model, pool, scaling
        self.head = last_layer(weights["weight"], weights.get("bias"), ball)
        for name in ("mean", "std") if scaling == "standard" else ():
            self.register_buffer(name, weights[name])

    def forward(self, x: Tensor) -> Tensor:
        """Raw outputs (B, C)."""
        x = x if self.model is None else pooled(self.model, x, self.pool)
        if self.scaling == "standard":
            x = (x - self.get_buffer("mean")) / self.get_buffer("std")
        elif self.scaling == "unit":
            norms = x.norm(dim=1, keepdim=True)
            x = x / torch.where(norms > 0, norms, 1.0)
        return self.head(x)


def last_layer(
    weight: Tensor, bias: Tensor | None, ball: PoincareBall | None = None
) -> nn.Linear | PoincareHead:
    """A layer with these weights, hyperbolic where there is a ball."""
    if ball is not None:
        bent = PoincareHead(weight.shape[1], weight.shape[0], curvature=ball.curvature, clip=ball.clip)
        bent.load_state_dict(
            {"weight": weight, "bias": weight.new_zeros(len(weight)) if bias is None else bias}
        )
        return bent
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    layer.load_state_dict({"weight": weight} if bias is None else {"weight": weight, "bias": bias})
    return layer
