"""From anybody's scores to answers: the best class, the node at a level, or the deepest node the model is sure of.

Imports `errors`, `hierarchy` and `losses`.
"""

from __future__ import annotations

from hace.decisions.calibration import fit_temperature
from hace.decisions.decisions import Decisions
from hace.decisions.guarantees import guaranteed_threshold
from hace.decisions.rules import predict

__all__ = ["Decisions", "fit_temperature", "guaranteed_threshold", "predict"]
