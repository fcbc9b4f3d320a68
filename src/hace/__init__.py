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
    from hace.data import DATASETS, Dataset, Samples, load_dataset
    from hace.decisions import predict
    from hace.draw import draw_hierarchy
    from hace.environment import show_config
    from hace.errors import ConfigError, DataError, FormatError, HaceError, HierarchyError
    from hace.formats import (
        cifar100_hierarchy,
        fgvc_hierarchy,
        nabirds_hierarchy,
        read_hierarchy,
        write_hierarchy,
    )
    from hace.hierarchy import Hierarchy
    from hace.hierarchy.matrices import reachability_matrix
    from hace.lab.runs.config import ProbeConfig, RunConfig
    from hace.lab.runs.run import read_run
    from hace.lab.runs.train_config import TrainConfig
    from hace.lab.serve.predictor import Predictor
    from hace.linear.estimator import HACEClassifier
    from hace.losses import (
        LOSSES,
        ConditionalSoftmaxLoss,
        CrossEntropyLoss,
        ExpectedDistanceLoss,
        HACELoss,
        HCELoss,
        HXELoss,
        SimLoss,
        SoftLabelLoss,
        build_loss,
        leaf_logits,
        node_log_probs,
    )
    from hace.metrics.comparison import compare
    from hace.metrics.evaluator import evaluate

_torchvision_guard.install()

# Where the public names are: module -> names. A type checker reads the imports above instead.
_PLACES = {
    "data": ("DATASETS", "Dataset", "Samples", "load_dataset"),
    "decisions": ("predict",),
    "draw": ("draw_hierarchy",),
    "environment": ("show_config",),
    "errors": ("ConfigError", "DataError", "FormatError", "HaceError", "HierarchyError"),
    "formats": (
        "cifar100_hierarchy",
        "fgvc_hierarchy",
        "nabirds_hierarchy",
        "read_hierarchy",
        "write_hierarchy",
    ),
    "hierarchy": ("Hierarchy",),
    "hierarchy.matrices": ("reachability_matrix",),
    "lab.runs.config": ("ProbeConfig", "RunConfig"),
    "lab.runs.run": ("read_run",),
    "lab.runs.train_config": ("TrainConfig",),
    "lab.serve.predictor": ("Predictor",),
    "linear.estimator": ("HACEClassifier",),
    "losses": (
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
    ),
    "metrics.comparison": ("compare",),
    "metrics.evaluator": ("evaluate",),
}
_LAZY = {name: f"hace.{module}" for module, names in _PLACES.items() for name in names}
# Folders that are attributes without an import of their own: `hace.metrics.top_k_accuracy`.
_MODULES = {*(place for place in _PLACES if "." not in place), "linear", "metrics"}

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
