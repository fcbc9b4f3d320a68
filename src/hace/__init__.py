"""Cross-entropy that knows your taxonomy.

Every loss here is one expression, a table of targets against the log-probabilities of the nodes of a hierarchy:

    loss(z, y) = - sum_v T[y, v] * log q*[v]          q* = R softmax(z)

The symbols mean the same in the code, in the documentation and in the papers:

    N       number of nodes of the hierarchy
    n       number of leaves: the classes, labelled 0 to n - 1
    z       logits over the outputs, which are the n leaves (label order) or the N nodes (node order)
    q       softmax(z), the probabilities of the outputs
    q*      R q, the probabilities of the nodes: a node has its own and that of everything below it
    p       the target over the leaves: one-hot at the label, or smoothed
    p*      the target over the nodes, the row T[y]
    R       reachability, 0/1: R[v, u] = 1 where output u is v or lies below it
    T       the table of targets, label x node; for HACE T = H V
    H       horizontal smoothing, n x n: mass that moves to other leaves
    V       vertical (ancestral) smoothing, n x N: mass that moves up from a leaf to its ancestors
    d       dilution: the share of arriving mass that a node keeps; 1 - d goes on to its parents
    eps     label smoothing: the mass spread evenly over all leaves
    beta    sharpness of soft labels: a leaf at distance D gets mass in proportion to exp(-beta D / max D)
    alpha   decay of the weights of HXE along the path

`import hace` alone loads next to nothing, so that the command line answers at once: every name loads its module, and
with it torch, numpy or whatever that needs, when it is first used.
"""

__version__ = "0.1.0.dev0"

import importlib
from typing import TYPE_CHECKING, Any

from hace import _torchvision_guard

if TYPE_CHECKING:
    from hace import metrics
    from hace.baselines import ConditionalSoftmaxLoss, ExpectedDistanceLoss, SimLoss
    from hace.comparison import compare
    from hace.data import DATASETS, Dataset, Samples, load_dataset
    from hace.environment import show_config
    from hace.errors import ConfigError, DataError, FormatError, HaceError, HierarchyError
    from hace.evaluation import evaluate
    from hace.experiments.config import ProbeConfig, RunConfig
    from hace.experiments.predicting import Predictor
    from hace.experiments.runs import read_run
    from hace.experiments.train_config import TrainConfig
    from hace.formats import (
        cifar100_hierarchy,
        fgvc_hierarchy,
        nabirds_hierarchy,
        read_hierarchy,
        write_hierarchy,
    )
    from hace.head import leaf_logits, node_log_probs
    from hace.hierarchy import Hierarchy
    from hace.inference import predict
    from hace.losses import CrossEntropyLoss, HACELoss, HCELoss, HXELoss, SoftLabelLoss
    from hace.matrices import reachability_matrix
    from hace.plots import draw_hierarchy
    from hace.registry import LOSSES, build_loss
    from hace.sklearn import HACEClassifier

_torchvision_guard.install()

# Where the public names are: module -> names. A type checker reads the imports above instead.
_PLACES = {
    "baselines": ("ConditionalSoftmaxLoss", "ExpectedDistanceLoss", "SimLoss"),
    "comparison": ("compare",),
    "data": ("DATASETS", "Dataset", "Samples", "load_dataset"),
    "environment": ("show_config",),
    "errors": ("ConfigError", "DataError", "FormatError", "HaceError", "HierarchyError"),
    "evaluation": ("evaluate",),
    "experiments.config": ("ProbeConfig", "RunConfig"),
    "experiments.predicting": ("Predictor",),
    "experiments.runs": ("read_run",),
    "experiments.train_config": ("TrainConfig",),
    "formats": (
        "cifar100_hierarchy",
        "fgvc_hierarchy",
        "nabirds_hierarchy",
        "read_hierarchy",
        "write_hierarchy",
    ),
    "head": ("leaf_logits", "node_log_probs"),
    "hierarchy": ("Hierarchy",),
    "inference": ("predict",),
    "losses": ("CrossEntropyLoss", "HACELoss", "HCELoss", "HXELoss", "SoftLabelLoss"),
    "matrices": ("reachability_matrix",),
    "plots": ("draw_hierarchy",),
    "registry": ("LOSSES", "build_loss"),
    "sklearn": ("HACEClassifier",),
}
_LAZY = {name: f"hace.{module}" for module, names in _PLACES.items() for name in names}
# Modules that are attributes without an import of their own: `hace.metrics.top_k_accuracy`.
_MODULES = {
    *(place for place in _PLACES if "." not in place),
    "functional",
    "kernels",
    "linear",
    "metrics",
    "targets",
}

__all__ = [
    "DATASETS",
    "LOSSES",
    "ConditionalSoftmaxLoss",
    "ConfigError",
    "CrossEntropyLoss",
    "DataError",
    "Dataset",
    "ExpectedDistanceLoss",
    "FormatError",
    "HACEClassifier",
    "HACELoss",
    "HCELoss",
    "HXELoss",
    "HaceError",
    "Hierarchy",
    "HierarchyError",
    "Predictor",
    "ProbeConfig",
    "RunConfig",
    "Samples",
    "SimLoss",
    "SoftLabelLoss",
    "TrainConfig",
    "__version__",
    "build_loss",
    "cifar100_hierarchy",
    "compare",
    "draw_hierarchy",
    "evaluate",
    "fgvc_hierarchy",
    "leaf_logits",
    "load_dataset",
    "metrics",
    "nabirds_hierarchy",
    "node_log_probs",
    "predict",
    "reachability_matrix",
    "read_hierarchy",
    "read_run",
    "show_config",
    "write_hierarchy",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"hace.{name}")
    if name not in _LAZY:
        raise AttributeError(f"module 'hace' has no attribute {name!r}")
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value  # the next use finds it without this function
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY, *_MODULES})
