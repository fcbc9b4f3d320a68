"""Linear heads on frozen features: many at once, each as if trained alone; and the estimator for scikit-learn.

A probe is one linear layer of ``loss.num_outputs`` on features that never change. :func:`fit_heads` trains a whole grid of
losses, rates and decays in one pass over the features: it fetches each batch once, and heads with the same loss
share its call. :class:`hace.HACEClassifier`, in `estimator`, needs scikit-learn.
"""

from hace.linear.fit import fit_heads, head_scores
from hace.linear.heads import HEAD_OPTIMIZERS, HEAD_SCHEDULES, FittedHead, Optimization, Trial

__all__ = [
    "HEAD_OPTIMIZERS",
    "HEAD_SCHEDULES",
    "FittedHead",
    "Optimization",
    "Trial",
    "fit_heads",
    "head_scores",
]
