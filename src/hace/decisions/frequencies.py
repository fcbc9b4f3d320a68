"""Class frequencies that changed: estimated from new samples without labels, and calibration samples drawn to match them.

**Assumption** (label shift): within each class, new samples look like the calibration samples; only how many there are of each
class changed. A class without calibration samples is assumed absent.

:func:`estimate_frequencies` has two methods. "em" alternates between the posteriors p(c | x), in proportion to p0(c | x)
f(c) / f0(c), and their mean f(c) (Saerens, Latinne and Decaestecker 2002): the likeliest frequencies if scores are
calibrated, so give them divided by their temperature. A factor for each class, the likeliest for the calibration samples,
comes first: with it the mean p0(c | x) of these is f0(c) (bias-corrected temperature scaling, Alexandari, Kundaje and
Shrikumar 2020). "confusion" solves C w = m, with C[i, j] the share of calibration samples of class j answered i and m[i]
the share of new samples answered i, for weights w >= 0 (Lipton, Wang and Smola 2018): right even if scores are not
calibrated, but noisier where classes have few samples.

:func:`matching_rows` accepts a calibration sample of class c with probability w(c) / max w, w = f / f0. The accepted samples
have the distribution of new ones (rejection sampling), so every guarantee holds for them as for any sample: on average, with a
confidence, of samples or of answers. The price is the number of samples: about one in max w stays. Validity is exact for the
true frequencies; estimated ones add their error, and a guarantee moves with it.
"""

from __future__ import annotations

import numpy as np

from hace.checks import check_choice
from hace.decisions.scores import Scores
from hace.errors import DataError
from hace.hierarchy import Hierarchy

METHODS = ("em", "confusion")
_STEPS = 1000
_STILL = 1e-7


def estimate_frequencies(
    new: Scores, calibration: Scores, truth: np.ndarray, method: str = "em"
) -> np.ndarray:
    """(n,) the share of each class among new samples without labels.

    Args:
        new: Of the new samples, divided by the temperature.
        calibration: Of the calibration samples, divided by the temperature.
        truth: (S,) their nodes; samples labelled above the classes do not count.
        method: "em" or "confusion".

    Example:
        >>> h = Hierarchy.flat(["cat", "dog"])
        >>> z, y = np.array([[2.0, 0.0]] * 50 + [[0.0, 2.0]] * 50), np.array([0] * 44 + [1] * 6 + [1] * 44 + [0] * 6)
        >>> new = np.array([[2.0, 0.0]] * 80 + [[0.0, 2.0]] * 20)
        >>> estimate_frequencies(Scores(new, h), Scores(z, h), h.leaf_nodes[y], "confusion").round(2).tolist()
        [0.89, 0.11]
    """
    check_choice("method", method, METHODS)
    if not len(new):
        raise DataError("New samples must be at least one, to estimate class frequencies. Got none.")
    label = class_labels(calibration.hierarchy, truth)
    known = np.bincount(label[label >= 0], minlength=calibration.hierarchy.num_leaves)
    if not known.sum():
        raise DataError(
            "Calibration samples must have labels at classes, to estimate class frequencies. Got none."
        )
    labelled = calibration[label >= 0]
    if method == "em":
        before = known / known.sum()
        return _likeliest(_probabilities(new) * _corrections(_probabilities(labelled), before), before)
    return _from_confusion(new, labelled, label[label >= 0], known)


def class_labels(hierarchy: Hierarchy, truth: np.ndarray) -> np.ndarray:
    """(S,) the label of each truth (S,), a node; -1 for inner nodes."""
    return hierarchy.labels[truth]


def _probabilities(scores: Scores) -> np.ndarray:
    return scores.leaves().double().softmax(dim=1).cpu().numpy()


def _corrections(p: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """(n,) a factor for each class with which probabilities (S, n), made to sum to 1 again, have these shares as their mean."""
    factors = (shares > 0).astype(np.float64)
    for _ in range(_STEPS):
        corrected = p * factors
        total = corrected.sum(axis=1, keepdims=True)
        mean = np.divide(corrected, total, out=np.zeros_like(p), where=total > 0).mean(axis=0)
        if np.abs(mean - shares).max() < _STILL:
            break
        factors *= np.divide(shares, mean, out=np.ones_like(mean), where=mean > 0)
        factors /= factors.max()
    return factors


def _likeliest(p: np.ndarray, before: np.ndarray) -> np.ndarray:
    """Expectation and maximisation, from the frequencies of the calibration."""
    odds = np.divide(p, before, out=np.zeros_like(p), where=before > 0)
    shares = before
    for _ in range(_STEPS):
        posterior = odds * shares
        total = posterior.sum(axis=1, keepdims=True)
        posterior = np.divide(posterior, total, out=np.tile(shares, (len(p), 1)), where=total > 0)
        later = posterior.mean(axis=0)
        if np.abs(later - shares).max() < _STILL:
            return later
        shares = later
    return shares


def _from_confusion(new: Scores, calibration: Scores, label: np.ndarray, known: np.ndarray) -> np.ndarray:
    from scipy.optimize import nnls

    answered = _probabilities(calibration).argmax(axis=1)
    here = _probabilities(new).argmax(axis=1)
    number = len(known)
    confusion = np.zeros((number, number))
    np.add.at(confusion, (answered, label), 1 / len(label))
    weights = nnls(confusion, np.bincount(here, minlength=number) / len(here))[0]
    shares = weights * known / known.sum()
    return shares / shares.sum()


def matching_rows(label: np.ndarray, frequencies: np.ndarray, seed: int = 0) -> np.ndarray:
    """The rows of calibration samples with labels (S,) that make a sample with these class frequencies (n,).

    Samples labelled above the classes, -1, are left out: their class is unknown.
    """
    inside = label >= 0
    known = np.bincount(label[inside], minlength=len(frequencies))
    if len(known) != len(frequencies) or not np.isfinite(frequencies).all() or (frequencies < 0).any():
        raise DataError("frequencies must be one number of at least 0 for each class.")
    weights = np.divide(frequencies, known, out=np.zeros(len(known)), where=known > 0)
    if not weights.sum():
        raise DataError("frequencies must be above 0 for a class that has calibration samples. Got none.")
    chance = np.where(inside, weights[label] / weights.max(), 0.0)
    return np.flatnonzero(np.random.default_rng(seed).random(len(label)) < chance)
