"""What samples that trained nothing say about a model: the findings of a fit."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from hace.decisions.nearness import ALARM, similarity_alarm
from hace.decisions.trust import REMEDY, right_share, why_broken
from hace.errors import HaceError
from hace.fitting.choice import Choice
from hace.fitting.evaluation import (
    Guaranteed,
    accuracy_of,
    best_guarantee,
    gain_of,
    is_right,
    judge_guarantee,
)
from hace.fitting.examples import drawn_examples
from hace.fitting.findings import Findings
from hace.fitting.inputs import in_memory
from hace.fitting.newness import ask_about_new, left_out_turns
from hace.fitting.place_of_use import PlaceOfUse
from hace.fitting.splits import ENOUGH, LEAST, TEST
from hace.fitting.training import Training
from hace.hierarchy.assembly import IntArray
from hace.linear.estimator import HACEClassifier
from hace.metrics.intervals import Interval

CURVE = (0.8, 0.85, 0.9, 0.93, 0.95, 0.97, 0.98, 0.99)  # guarantees that the page can slide through
_COMPARED = 50  # samples of either kind, at least, whose similarities are compared


def findings_of(
    training: Training,
    asked: Training,
    choice: Choice,
    clf: HACEClassifier,
    baseline: HACEClassifier | None,
    seed: int,
    place: PlaceOfUse | None = None,
    together: np.ndarray | None = None,
) -> Findings:
    """All findings about a classifier.

    Args:
        training: what trained it.
        asked: the samples that chose, which are asked about classes that are left out.
        choice: what was chosen.
        clf: the classifier.
        baseline: flat cross-entropy, where something else was chosen.
        seed: draws examples and classes to leave out.
        place: where it will be used; None: unknown.
        together: (M,) groups that splits kept together, of the user or of near-copies; None: every sample is its own.
    """
    given = training.given
    parts = training.parts
    h = given.hierarchy
    tested = _right(training, clf, parts.test)
    held = _right(training, clf, parts.calibration)
    test_groups = _groups(training, parts.test)
    held_groups = _groups(training, parts.calibration)
    gain = choice.gain
    if baseline is not None and tested is not None:
        flat = is_right(baseline, in_memory(given.x[parts.test]), given.nodes[parts.test])
        gain = gain_of(tested, flat, test_groups)
    accuracy, why = best_guarantee(clf) if len(parts.calibration) else (None, _NO_CALIBRATION)
    guarantee = None if accuracy is None else _judged(training, clf, accuracy)
    broken = ""
    if guarantee is not None and tested is not None:
        broken = _broken(guarantee)
        if not broken and held is not None:
            own = [None if together is None else together[rows] for rows in (parts.calibration, parts.test)]
            broken = why_broken(right_share(held, own[0]), right_share(tested, own[1]))
    if guarantee is not None and not broken:
        broken = _unlike(training, place)
    likeness = clf._answers.likeness
    chosen = choice.chosen.judged
    right = chosen.right if tested is None else tested
    return Findings(
        kind=given.kind,
        samples={"train": len(parts.train), "calibration": len(parts.calibration), "test": len(parts.test)},
        classes=h.num_leaves,
        chosen=_in_words(choice),
        is_flat=choice.is_flat,
        candidates=_candidates(choice),
        accuracy=_bounds(accuracy_of(right, None if tested is None else test_groups)),
        tested=tested is not None,
        held_out=None if held is None else _bounds(accuracy_of(held, held_groups)),
        gain=_bounds(gain),
        coarse=float((h.labels[given.nodes[parts.train]] < 0).mean()),
        coarse_gain=None if choice.coarse_gain is None else _bounds(choice.coarse_gain),
        guarantee=None if guarantee is None else _document(guarantee),
        curve=() if guarantee is None else _curve(training, clf),
        no_guarantee=why,
        broken=broken,
        new=None if accuracy is None else _something_new(asked, choice, accuracy, seed),
        examples=_examples(training, clf, accuracy, seed),
        layer=given.layer,
        notes=(*given.notes, *parts.notes, *(() if likeness is None else (likeness.note,))),
    )


_NO_CALIBRATION = (
    f"Too few samples to hold {LEAST} out. Give {ENOUGH} with a class label or more, or a split called val."
)


def _right(training: Training, clf: HACEClassifier, rows: IntArray) -> np.ndarray | None:
    given = training.given
    return is_right(clf, in_memory(given.x[rows]), given.nodes[rows]) if len(rows) else None


def _groups(training: Training, rows: IntArray) -> np.ndarray | None:
    groups = training.given.groups
    return None if groups is None else groups[rows]


def _judged(training: Training, clf: HACEClassifier, accuracy: float) -> Guaranteed:
    """How answers turned out on test samples, or where there are none on those that calibrated."""
    given = training.given
    parts = training.parts
    rows = parts.test if len(parts.test) else parts.calibration
    groups = _groups(training, rows) if len(parts.test) else None
    decided = clf.decide(in_memory(given.x[rows]), accuracy=accuracy)
    return judge_guarantee(decided, given.nodes[rows], clf.guarantee(accuracy), groups)


def _curve(training: Training, clf: HACEClassifier) -> tuple[dict[str, Any], ...]:
    """How answers turn out under each guarantee of the curve, as far as samples suffice."""
    rows = []
    for accuracy in CURVE:
        try:
            clf.guarantee(accuracy)
        except HaceError:  # too few samples for so much
            break
        rows.append(_document(_judged(training, clf, accuracy)))
    return tuple(rows)


def _document(judged: Guaranteed) -> dict[str, Any]:
    return {
        "accuracy": judged.accuracy,
        "ranks": judged.ranks,
        "false": list(judged.false),
        "kept": judged.kept,
    }


def _broken(guarantee: Guaranteed) -> str:
    """Why test samples contradict a guarantee; "" where they do not."""
    if guarantee.kept:
        return ""
    least = 1 - guarantee.accuracy
    return f"{guarantee.false[0]:.1%} of test samples got a false answer, guaranteed at most {least:.0%}. {REMEDY}"


def _unlike(training: Training, place: PlaceOfUse | None) -> str:
    """Why the guarantee says nothing about new samples, or the user's own test samples: held-out ones are unlike them."""
    parts = training.parts
    near = training.near
    x = training.given.x
    if place is not None:
        apart = place.after
        whose = "the new samples"
    elif near is not None and TEST in parts.own and min(len(parts.test), len(parts.calibration)) >= _COMPARED:
        held_out = near.similarity(x[parts.calibration])
        tested = near.similarity(x[parts.test])
        apart = similarity_alarm(held_out, tested)
        whose = "the test samples"
    else:
        return ""
    if not apart > ALARM:
        return ""
    return (
        f"the samples it rests on are not as similar to the training samples as {whose} are (distance {apart:.2f} of at most "
        f"{ALARM:g}). {REMEDY}"
    )


def _something_new(training: Training, choice: Choice, accuracy: float, seed: int) -> dict[str, Any] | None:
    given = training.given
    parts = training.parts
    turns = left_out_turns(given.hierarchy, given.nodes[parts.train], seed)
    train = partial(training.without, choice.chosen)
    return ask_about_new(given.x, given.nodes, given.hierarchy, turns, train, accuracy) if turns else None


def _examples(
    training: Training, clf: HACEClassifier, accuracy: float | None, seed: int
) -> tuple[dict[str, Any], ...]:
    given = training.given
    rows = training.parts.test
    if not len(rows):
        return ()
    how: dict[str, Any] = {"threshold": 0.5} if accuracy is None else {"accuracy": accuracy}
    return tuple(drawn_examples(given, rows, clf.decide(in_memory(given.x[rows]), **how), seed))


def _candidates(choice: Choice) -> tuple[dict[str, Any], ...]:
    """What was compared, as plain values."""
    return tuple(
        {
            "key": trial.advice.key,
            "title": trial.advice.title,
            "coarse": trial.coarse,
            "accuracy": trial.judged.accuracy,
            "weight_decay": 10.0**trial.judged.exponent,
            "chosen": trial is choice.chosen,
        }
        for trial in choice.trials
    )


def _bounds(interval: Interval) -> tuple[float, ...]:
    values = (interval.value, interval.low, interval.high)
    return tuple(float(v) if np.isfinite(v) else float(interval.value) for v in values)


def _in_words(choice: Choice) -> str:
    if choice.coarse_gain is None:
        return choice.chosen.advice.title
    how = "coarse labels used" if choice.chosen.coarse != "drop" else "coarse labels dropped"
    return f"{choice.chosen.advice.title}, {how}"
