"""Losses: a table of targets against the log-probabilities of nodes, and the baselines people compare with.

`numerics` and `kernels` compute on tensors alone, `head` knows columns, `tables` builds targets, `base` keeps the torch
contract; each family of losses has a file of its own. Imports `errors` and `hierarchy`.
"""

from __future__ import annotations

from hace.losses.baselines import ConditionalSoftmaxLoss, ExpectedDistanceLoss, SimLoss
from hace.losses.head import leaf_logits, node_log_probs
from hace.losses.registry import LOSSES, build_loss
from hace.losses.table_losses import CrossEntropyLoss, HACELoss, HCELoss, HXELoss, SoftLabelLoss

__all__ = [
    "LOSSES",
    "ConditionalSoftmaxLoss",
    "CrossEntropyLoss",
    "ExpectedDistanceLoss",
    "HACELoss",
    "HCELoss",
    "HXELoss",
    "SimLoss",
    "SoftLabelLoss",
    "build_loss",
    "leaf_logits",
    "node_log_probs",
]
