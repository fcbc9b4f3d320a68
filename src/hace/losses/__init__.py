"""Losses: a table of targets against the log-probabilities of nodes, and the usual baselines.

`numerics` and `kernels` compute on tensors alone, `head` maps columns to nodes, `tables` builds targets, `base` keeps the torch
contract and chooses the form that computes, `table_loss` is the one equation; each family of losses has one file, and
`registry` lists them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hace.losses.head import leaf_logits as leaf_logits
from hace.losses.head import node_log_probs as node_log_probs
from hace.losses.registry import CLASSES as _CLASSES
from hace.losses.registry import LOSSES as LOSSES
from hace.losses.registry import build_loss as build_loss

if TYPE_CHECKING:
    from hace.losses.registry import *  # noqa: F403

globals().update(_CLASSES)  # a loss is listed once, in the registry
