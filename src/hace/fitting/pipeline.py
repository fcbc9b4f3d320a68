"""From data to a model: reads, splits, chooses, refits, calibrates and evaluates. Every step is a call of what does it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hace.errors import ConfigError
from hace.fitting import encoding
from hace.fitting.choice import Choice, choose
from hace.fitting.evaluation import (
    accuracy_of,
    best_guarantee,
    differ_by_more_than_chance,
    gain_of,
    is_right,
    judge_guarantee,
)
from hace.fitting.findings import Findings
from hace.fitting.inputs import Columns, Given, read
from hace.fitting.model import Model
from hace.fitting.splits import Splits, split_samples
from hace.lab.features.store import column_moments
from hace.linear.estimator import HACEClassifier
from hace.linear.selection import spread
from hace.losses.advice import ADVICE, Advice
from hace.metrics.intervals import Interval

Progress = Callable[[str, int], object]


def fit(
    data: Any,
    y: Any = None,
    hierarchy: Any = None,
    *,
    label: str | Sequence[str] | None = None,
    split: Any = None,
    groups: Any = None,
    features: Sequence[str] | None = None,
    image: str | None = None,
    text: str | None = None,
    layer: str | None = None,
    obsm: str | None = None,
    model: str | None = None,
    checkpoint: str | Path | None = None,
    seed: int = 0,
    quiet: bool = False,
    progress: Progress | None = None,
) -> Model:
    """A model of the data: the loss is chosen, the model trained, calibrated and evaluated.

    Args:
        data: a folder of photos; a table (.csv, .tsv, .parquet) or DataFrame of numbers, of texts or with paths of photos; a
            feature file (.npz, .safetensors, .parquet); an .h5ad or AnnData; an array (M, d); a list of paths or texts.
        y: labels of an array or a list: ids, positions, or paths such as "gull > herring gull"; None where the data hold them.
            A label may be above the classes, for samples known only coarsely.
        hierarchy: the taxonomy: a :class:`hace.Hierarchy`, a file, a dict, rows of names; None: what labels spell out.
        label: column of labels, or one column per rank from the top down; None: found by name.
        split: column or array that says train, val or test; None: found by name, else samples are held out.
        groups: column or array of groups that no split may cut, such as sites or donors; False: none.
        features: columns of features; None: all numbers.
        image: column with paths of photos; None: found by name.
        text: column of texts; None: found by name.
        layer: layer of an AnnData with the features.
        obsm: key of an AnnData's embeddings with the features.
        model: frozen model behind features of photos (timm; by default a small DINOv2) or texts (sentence-transformers, or
            "tfidf"; by default MiniLM).
        checkpoint: weights of that model, a file or a folder; None: from the hub, once.
        seed: random seed of everything that is drawn.
        quiet: whether to print nothing.
        progress: called with the name of a step, and how many parts of it are done.

    Returns:
        The model; ``print(model)`` shows what was found.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> iris = load_iris()
        >>> tree = [("small", "setosa"), ("large", "versicolor"), ("large", "virginica")]
        >>> model = fit(iris.data, iris.target_names[iris.target], tree, quiet=True)
        >>> model.predict(iris.data[:1], accuracy=None).answer.tolist()
        ['setosa']
    """
    told = progress or (_show if not quiet and sys.stderr.isatty() else lambda step, done: None)
    told("Reading", 0)
    given = read(data, y, hierarchy, Columns(label, split, groups, features, image, text, layer, obsm))
    encoder = None
    if given.items is not None:
        encoder = encoding.load(given, model, checkpoint)
        given = encoding.encoded(given, encoder, progress=told)
    elif model is not None or checkpoint is not None:
        raise ConfigError(
            "model and checkpoint must come with photos or texts. Got features. Leave them out."
        )
    found = fitted(given, encoder, seed=seed, progress=told)
    if not quiet:
        print(found)
    return found


def fitted(
    given: Given,
    encoder: encoding.Encoder | None = None,
    *,
    seed: int = 0,
    progress: Progress = lambda step, done: None,
) -> Model:
    """A model of samples with features; ``encoder``: what made them."""
    h = given.hierarchy
    parts = split_samples(given.nodes, h, given.split, given.groups, seed)
    view = View.of(given.x[parts.train], given.standardised)
    count = iter(range(1, sys.maxsize))
    x = view(given.x[parts.train])
    train = given.nodes[parts.train]
    grouped = None if given.groups is None else given.groups[parts.train]
    choice = choose(x, train, h, grouped, seed=seed, on_fit=lambda: progress("Choosing", next(count)))
    progress("Training", 0)
    clf = trained(given, parts, view, x, choice.chosen.advice, choice.chosen.coarse, choice)
    baseline = None
    if len(parts.test) and not choice.is_flat:
        flat = next(trial for trial in choice.trials if trial.advice is ADVICE[0])
        baseline = trained(given, parts, view, x, flat.advice, flat.coarse, replace(choice, chosen=flat))
    progress("Evaluating", 0)
    findings = _findings(given, parts, choice, clf, baseline)
    if given.features is not None:
        clf.feature_names_in_ = np.array(given.features, dtype=object)
    return Model(clf, findings, encoder)


@dataclass(frozen=True, eq=False)
class View:
    """How training sees features: (x - mean) / divisor. A trained classifier takes it into its weights."""

    mean: np.ndarray | None
    divisor: np.ndarray

    @classmethod
    def of(cls, x: Any, standardised: bool) -> View:
        """Columns standardised, or all features as they are, at one scale."""
        if not standardised:
            return cls(None, np.full(x.shape[1], np.sqrt(spread(x))))
        mean, std = column_moments(x)
        return cls(mean.astype(np.float64), std * np.sqrt(x.shape[1]))

    def __call__(self, x: Any) -> Any:
        """Features (M, d) in single precision, as training sees them."""
        if hasattr(x, "tocsr"):
            return x.multiply(1 / self.divisor).tocsr().astype(np.float32)
        centred = x if self.mean is None else x - self.mean
        return (centred / self.divisor).astype(np.float32)

    def into(self, clf: HACEClassifier) -> None:
        """Let a classifier that was trained on the view take features as they are."""
        clf.coef_ = clf.coef_ / self.divisor
        if self.mean is not None:
            clf.intercept_ = clf.intercept_ - clf.coef_ @ self.mean


def trained(
    given: Given, parts: Splits, view: View, x: Any, advice: Advice, coarse: str, choice: Choice
) -> HACEClassifier:
    """The classifier of a choice, calibrated where there are samples for it."""
    h = given.hierarchy
    ids = np.array(h.nodes, dtype=object)
    decay = 10.0**choice.chosen.judged.exponent
    clf = HACEClassifier(
        h, loss=advice.loss, loss_params=dict(advice.params), coarse_labels=coarse, weight_decay=decay
    )
    clf.fit(x, ids[given.nodes[parts.train]])
    view.into(clf)
    if len(parts.calibration):
        held = parts.calibration
        groups = None if given.groups is None else given.groups[held]
        clf.calibrate(given.x[held], ids[given.nodes[held]], groups, temperature=choice.temperature)
    else:
        clf.temperature_ = choice.temperature
    return clf


def _findings(
    given: Given, parts: Splits, choice: Choice, clf: HACEClassifier, baseline: HACEClassifier | None
) -> Findings:
    h, notes = given.hierarchy, [*given.notes, *parts.notes]
    groups = {
        name: None if given.groups is None else given.groups[rows]
        for name, rows in (("test", parts.test), ("val", parts.calibration))
    }
    right = {
        name: is_right(clf, given.x[rows], given.nodes[rows]) if len(rows) else None
        for name, rows in (("test", parts.test), ("val", parts.calibration))
    }
    tested, held = right["test"], right["val"]
    chosen = choice.chosen.judged
    accuracy = accuracy_of(
        chosen.right if tested is None else tested, None if tested is None else groups["test"]
    )
    gain = choice.gain
    if baseline is not None and tested is not None:
        flat = is_right(baseline, given.x[parts.test], given.nodes[parts.test])
        gain = gain_of(tested, flat, groups["test"])
    why, guarantee = _guarantee(given, parts, clf, groups["test"])
    broken = ""
    if guarantee is not None and tested is not None:
        broken = _broken(guarantee, held, tested, (groups["val"], groups["test"]), parts)
    return Findings(
        kind=given.kind,
        samples={"train": len(parts.train), "calibration": len(parts.calibration), "test": len(parts.test)},
        classes=h.num_leaves,
        chosen=_in_words(choice),
        is_flat=choice.is_flat,
        candidates=tuple(
            {
                "key": trial.advice.key,
                "title": trial.advice.title,
                "coarse": trial.coarse,
                "accuracy": trial.judged.accuracy,
                "weight_decay": 10.0**trial.judged.exponent,
                "chosen": trial is choice.chosen,
            }
            for trial in choice.trials
        ),
        accuracy=_bounds(accuracy),
        tested=tested is not None,
        held_out=None if held is None else _bounds(accuracy_of(held, groups["val"])),
        gain=_bounds(gain),
        coarse=float((h.labels[given.nodes[parts.train]] < 0).mean()),
        coarse_gain=None if choice.coarse_gain is None else _bounds(choice.coarse_gain),
        guarantee=guarantee,
        no_guarantee=why,
        broken=broken,
        notes=tuple(notes),
    )


def _guarantee(
    given: Given, parts: Splits, clf: HACEClassifier, groups: np.ndarray | None
) -> tuple[str, dict[str, Any] | None]:
    """Why nothing can be guaranteed, or how answers with a guarantee turned out."""
    if not len(parts.calibration):
        return "Too few samples to hold some out: give more, or a validation split.", None
    accuracy, why = best_guarantee(clf)
    if accuracy is None:
        return why, None
    rows = parts.test if len(parts.test) else parts.calibration
    groups = groups if len(parts.test) else None
    found = judge_guarantee(clf.decide(given.x[rows], accuracy=accuracy), given.nodes[rows], accuracy, groups)
    told = {"accuracy": accuracy, "ranks": found.ranks, "false": list(found.false), "kept": found.kept}
    return why, told | {"guarantee": clf.guarantee(accuracy).guarantee}


def _broken(
    guarantee: dict[str, Any],
    held: np.ndarray | None,
    tested: np.ndarray,
    groups: tuple[np.ndarray | None, np.ndarray | None],
    parts: Splits,
) -> str:
    """Why the guarantee must not be trusted: test samples contradict it, or are unlike those it rests on."""
    remedy = (
        "Calibrate on labelled samples from where the model will be used (a split val), or say which samples belong together "
        "(groups=)."
    )
    if not guarantee["kept"]:
        least = 1 - guarantee["accuracy"]
        return f"{guarantee['false'][0]:.1%} of test samples got a false answer, guaranteed at most {least:.0%}. {remedy}"
    if held is not None and differ_by_more_than_chance(held, tested, groups):
        return (
            f"right in {held.mean():.1%} of the samples it rests on and in {tested.mean():.1%} of test samples, more than chance. "
            f"{remedy}"
        )
    return ""


def _bounds(found: Interval) -> tuple[float, ...]:
    values = (found.value, found.low, found.high)
    return tuple(float(v) if np.isfinite(v) else float(found.value) for v in values)


def _in_words(choice: Choice) -> str:
    if choice.coarse_gain is None:
        return choice.chosen.advice.title
    how = "coarse labels used" if choice.chosen.coarse != "drop" else "coarse labels dropped"
    return f"{choice.chosen.advice.title}, {how}"


def _show(step: str, done: int) -> None:
    """One line of progress on a terminal."""
    count = f" {done}" if done else ""
    print(f"\r\x1b[K{step}{count} ...", end="", file=sys.stderr, flush=True)
    if step == "Evaluating":
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
