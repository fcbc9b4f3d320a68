"""From any model's scores to answers: the best class, the node at a level, the deepest node the model is sure of, or the
answer of least expected cost. And how far to trust them: temperatures, guarantees, and checks of both on new samples.
"""

from __future__ import annotations

from hace.decisions.decisions import Decisions
from hace.decisions.guarantees import GuaranteedThreshold, guaranteed_threshold
from hace.decisions.rules import RULES, predict
from hace.decisions.scores import SCORE_KINDS, Scores
from hace.decisions.temperature import fit_temperature

__all__ = ["RULES", "SCORE_KINDS", "Decisions", "GuaranteedThreshold", "Scores"]
__all__ += ["fit_temperature", "guaranteed_threshold", "predict"]
