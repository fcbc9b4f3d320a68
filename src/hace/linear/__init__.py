"""Linear heads on frozen features: many at once, each as if it were alone.

A probe is one linear layer of ``loss.num_outputs`` on features that never change. :func:`fit_heads` trains a whole grid of
them, of losses, rates and decays, in one pass over the features: each batch is fetched once, one matrix product gives the
logits of all heads and one more their gradients.
"""

from __future__ import annotations

from hace.linear.fit import fit_heads, head_scores
from hace.linear.trials import HEAD_OPTIMIZERS, HEAD_SCHEDULES, FittedHead, Optimization, Trial

__all__ = [
    "HEAD_OPTIMIZERS",
    "HEAD_SCHEDULES",
    "FittedHead",
    "Optimization",
    "Trial",
    "fit_heads",
    "head_scores",
]
