"""From data to a model: reads, splits, chooses, refits, calibrates and evaluates. Every step is a call of what does it."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hace.checks import MOST_SEED, check_count
from hace.decisions.nearness import Nearness
from hace.errors import ConfigError, DataError, FormatError
from hace.fitting import encoding
from hace.fitting.choice import cache_of_choices, choose
from hace.fitting.inputs import Columns, Given, check_enough, in_memory, read
from hace.fitting.large import bounded, sample_of, some
from hace.fitting.model import Model, Tested
from hace.fitting.new_samples import new_features
from hace.fitting.place_of_use import PlaceOfUse, split_for
from hace.fitting.progress import Display
from hace.fitting.splits import Splits, split_samples
from hace.fitting.training import Training, View
from hace.fitting.twins import SEQUENCE, TIME, grouped, together
from hace.fitting.verdict import findings_of
from hace.linear.features import RowsOnDisk

Progress = Callable[[str, int], object]


def fit(
    data: Any,
    y: Any = None,
    hierarchy: Any = None,
    *,
    label: str | Sequence[str] | None = None,
    split: Any = None,
    groups: Any = None,
    new: Any = None,
    columns: Sequence[str] | None = None,
    image: str | None = None,
    text: str | None = None,
    layer: str | None = None,
    obsm: str | None = None,
    model: str | None = None,
    checkpoint: str | Path | None = None,
    seed: int = 0,
    quiet: bool = False,
    progress: Progress | None = None,
    executor: Executor | None = None,
) -> Model:
    """A model of the data: the loss is chosen, the model trained, calibrated and evaluated.

    Args:
        data: a folder of photos; a table (.csv, .tsv, .parquet) or DataFrame of numbers, of texts or with paths of photos; a
            feature file (.npz, .safetensors, .parquet); an .h5ad or AnnData; a .json of COCO or Label Studio; an array (M, d);
            a list of paths or texts.
        y: labels of an array or a list: ids, positions, or paths such as "gull > herring gull"; None where the data hold them.
            A label may be above the classes, for samples known only coarsely.
        hierarchy: the taxonomy: a :class:`hace.Hierarchy`, a file, a dict, rows of names; None: what labels spell out.
        label: column of labels, or one column per rank from the top down; None: found by name.
        split: column or array that says train, val or test; None: found by name, else samples are held out.
        groups: column or array of groups that no split may cut, such as sites or donors; "time": photos without a gap of a
            minute between them; "sequence": runs in the order of the data; False: none.
        new: unlabelled samples from where the model will be used, in any form of `data`: held-out samples are then chosen, and
            those that calibrate drawn, to be as similar to the training samples as these are, so that guarantees speak of them.
        columns: columns of features; None: all numbers.
        image: column with paths of photos; None: found by name.
        text: column of texts; None: found by name.
        layer: layer of an AnnData with the features.
        obsm: key of an AnnData's embeddings with the features.
        model: frozen model behind features of photos (timm, or "edges_and_colours", which needs no download; by default a small
            DINOv2) or texts (sentence-transformers, or "tfidf"; by default MiniLM).
        checkpoint: weights of that model, a file or a folder; None: from the hub, once.
        seed: random seed of everything that is drawn.
        quiet: whether to print nothing.
        progress: called with the name of a step, and how many parts of it are done.
        executor: judges candidates side by side, with the same result: any `concurrent.futures.Executor` that calls functions
            in processes; None: one after another.

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
    check_count("seed", seed, MOST_SEED, least=0)
    if isinstance(new, (str, Path)) and not Path(new).exists():
        raise FormatError(f"{new} does not exist. Give samples from where the model will be used.")
    if checkpoint is not None and not Path(checkpoint).exists():
        raise FormatError(
            f"{checkpoint} does not exist. Give weights of the model: a file, or a folder for texts."
        )
    with Display() as display:
        report_progress = progress or (
            display.show if not quiet and sys.stderr.isatty() else lambda step, done: None
        )
        report_progress("Reading", 0)
        made = groups if isinstance(groups, str) and groups in (TIME, SEQUENCE) else None
        columns_of = Columns(label, split, None if made else groups, columns, image, text, layer, obsm)
        given = check_enough(read(data, y, hierarchy, columns_of))
        if made is not None:
            given = grouped(given, made)
        encoder = None
        if given.items is not None:
            encoder = encoding.load(given, model, checkpoint)
            given = encoding.encoded(given, encoder, progress=report_progress)
        elif model is not None or checkpoint is not None:
            raise ConfigError(
                "model and checkpoint must come with photos or texts. Got features. Leave them out."
            )
        place = None if new is None else _place(new, given, encoder, report_progress)
        fitted_model = fitted(
            given, encoder, new=place, seed=seed, progress=report_progress, executor=executor
        )
    if isinstance(data, (str, Path)):
        fitted_model = fitted_model.named(f"{Path(data).resolve().stem or 'model'}.hace")
    if not quiet:
        print(fitted_model)
    return fitted_model


def _place(new: Any, given: Given, encoder: encoding.Encoder | None, progress: Progress) -> np.ndarray:
    """The features of new samples."""
    if isinstance(given.x, RowsOnDisk):
        raise ConfigError(
            f"new must come with features that fit into memory. Got {given.x.shape[0]:,} samples on disk. Set HACE_MAX_MEMORY."
        )
    if hasattr(given.x, "tocsr"):
        raise ConfigError("new must come with dense features: similarity is not known between sparse ones.")
    progress("Features of new samples", 0)
    x, names, _ = new_features(new, encoder, given.features, given.x.shape[1])
    if not len(x):
        raise DataError(f"new must hold samples that can be read. Got {len(names):,}, of which none can.")
    return np.asarray(x, dtype=np.float32)


def fitted(
    given: Given,
    encoder: encoding.Encoder | None = None,
    *,
    new: np.ndarray | None = None,
    seed: int = 0,
    progress: Progress = lambda step, done: None,
    executor: Executor | None = None,
) -> Model:
    """A model of samples with features; ``encoder``: what made them; ``new``: (P, d) where it will be used."""
    given, parts, kept_together, place = _divided(given, new, seed, progress)
    sample = sample_of(given, parts, kept_together, seed)
    choosing = in_memory(sample.given.x[sample.parts.train])
    view = View.of(choosing, given.standardised)
    x = view(choosing)
    count = itertools.count(1)
    choice = choose(
        x,
        sample.given.nodes[sample.parts.train],
        sample.given.hierarchy,
        sample.groups,
        seed=seed,
        on_fit=lambda: progress("Choosing", next(count)),
        cache=cache_of_choices(),
        executor=executor,
    )
    progress("Training", 0)
    near = (
        None
        if hasattr(given.x, "tocsr")
        else Nearness.of(in_memory(given.x[some(parts.train, given.x, seed)]), view.divisor)
    )
    of_sample = Training(sample.given, sample.parts, view, x, choice.temperature, near, new, seed=seed)
    training = of_sample
    if sample.given is not given:
        x = view(given.x[parts.train])
        training = Training(given, parts, view, x, choice.temperature, near, new, sample.share, seed)
    training = training.noted(sample.note, training.why_streamed)
    clf = training.classifier(choice.chosen)
    baseline = None
    if len(parts.test) and not choice.is_flat:
        baseline = training.classifier(choice.flat)
    progress("Evaluating", 0)
    findings = findings_of(training, of_sample, choice, clf, baseline, seed, place, kept_together)
    tested = None
    if len(parts.test):
        tested = Tested.of(clf, in_memory(given.x[parts.test]), given.nodes[parts.test])
    if given.features is not None:
        clf.feature_names_in_ = np.array(given.features, dtype=object)
    return Model(clf, findings, encoder, tested)


def _divided(
    given: Given, new: np.ndarray | None, seed: int, progress: Progress
) -> tuple[Given, Splits, np.ndarray | None, PlaceOfUse | None]:
    """The samples with what was noticed, their splits, what no split or fold may cut, and for `new` how these were chosen."""
    h = given.hierarchy
    whole = together(given)
    given = replace(given, notes=(*whole.notes, *given.notes))
    split = partial(split_samples, given.nodes, h, given.split, seed=seed)
    if new is None:
        return given, bounded(split(whole.groups), h, seed), whole.groups, None
    progress("Splits like the new samples", 0)
    view = View.of(given.x, given.standardised)
    fixed = given.groups is not None or (given.split is not None and len(set(given.split)) > 1)
    place = split_for(view(new), view(given.x), given.nodes, split, whole.groups, fixed)
    given = replace(given, notes=(*place.notes, *given.notes))
    return given, bounded(place.parts, h, seed), place.groups, place
