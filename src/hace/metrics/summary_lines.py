"""An evaluation in three sentences: how often it is right, what its mistakes are like, and whether to trust its confidence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hace.metrics.measures import node_of_level

if TYPE_CHECKING:
    from hace.metrics.evaluation import Evaluation

TRUSTED = 0.02  # a difference between stated confidence and accuracy that needs no word


def summary_lines(evaluation: Evaluation, name: str = "") -> tuple[str, ...]:
    """The three sentences that a table of metrics begins with; two, without confidence, where it was not computed.

    Args:
        evaluation: of a model.
        name: what to call the model.

    Example:
        >>> from hace import Hierarchy, evaluate
        >>> h = Hierarchy.from_paths([("dog", "husky"), ("dog", "pug"), ("cat", "tabby")], leaves=["husky", "pug", "tabby"])
        >>> scores = np.array([[3.0, 1.0, 0.0], [3.0, 1.0, 0.0], [0.0, 0.0, 3.0]])
        >>> for line in summary_lines(evaluate(scores, [0, 1, 2], h), "mine"):
        ...     print(line)
        mine: right class in 66.7 % of 3 samples [20.8, 93.9], right node at level 1 in 100.0 %.
        Mistakes: 1; 100 % stay within the right node at level 1. Most frequent: pug taken for husky (1).
        Confidence: 86.6 % stated on average, 19.9 points too high.
    """
    if not len(evaluation.samples):
        return f"{name or 'scores'}: no samples.", "Mistakes: none.", "Confidence: unknown."
    found = _accuracy(evaluation, name or "scores"), _mistakes(evaluation)
    return found if evaluation.samples.only_leaves else (*found, _confidence(evaluation))


def wilson(right: int, samples: int) -> tuple[float, float]:
    """The 95 % interval of a share, after Wilson.

    Example:
        >>> low, high = wilson(50, 100)
        >>> round(low, 3), round(high, 3)
        (0.404, 0.596)
    """
    z = 1.959964
    share, room = right / samples, z * z / samples
    half = z * np.sqrt(share * (1 - share) / samples + room / (4 * samples))
    middle = share + room / 2
    return float((middle - half) / (1 + room)), float((middle + half) / (1 + room))


def _accuracy(e: Evaluation, name: str) -> str:
    samples = len(e.samples)
    right = samples - e.mistakes
    low, high = wilson(right, samples)
    share = 100 * right / samples
    text = f"{name}: right class in {share:.1f} % of {samples:,} samples [{100 * low:.1f}, {100 * high:.1f}]"
    if len(e.level_titles) > 1:
        text += f", right {node_of_level(e.level_titles[-2])} in {100 * _within(e):.1f} %"
    return f"{text}."


def _within(e: Evaluation) -> float:
    """The share of samples whose answer is below the right node of the level above the classes."""
    carried = e.hierarchy.level_nodes(len(e.level_titles) - 1)
    return float((carried[e.samples.answers] == carried[e.samples.truth]).mean())


def _mistakes(e: Evaluation) -> str:
    if not e.mistakes:
        return "Mistakes: none."
    text = f"Mistakes: {e.mistakes:,}"
    if len(e.level_titles) > 1:
        stay = (_within(e) * len(e.samples) - (len(e.samples) - e.mistakes)) / e.mistakes
        text += f"; {100 * stay:.0f} % stay within the right {node_of_level(e.level_titles[-2])}"
    table = e.confusion.pair_columns(1)
    truth, answer, count = (table[key][0] for key in ("truth_name", "answer_name", "count"))
    return f"{text}. Most frequent: {truth} taken for {answer or 'nothing'} ({count:,})."


def _confidence(e: Evaluation) -> str:
    stated = float(np.mean(e.samples.confidence))
    text = f"Confidence: {100 * stated:.1f} % stated on average, {_off(e)}"
    return f"{text}." if e.calibrated is None else f"{text}; once calibrated, {_off(e.calibrated)}."


def _off(e: Evaluation) -> str:
    gap = float(np.mean(e.samples.confidence)) - (1 - e.mistakes / len(e.samples))
    if abs(gap) < TRUSTED:
        return f"within {100 * TRUSTED:.0f} points of its accuracy"
    return f"{100 * abs(gap):.1f} points too {'high' if gap > 0 else 'low'}"
