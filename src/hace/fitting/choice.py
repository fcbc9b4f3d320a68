"""Which loss: the simplest candidate within one standard error of the best.

Candidates are those of :data:`hace.losses.advice.ADVICE`, from simple to involved, flat cross-entropy first. Cross-validation
over training samples judges each of them at its own weight decay, which has a rule of its own: both rules are written down in
:mod:`hace.linear.selection`. Where labels are coarse, each candidate is judged with them and without them; dropping them is
simpler.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hace.errors import FormatError
from hace.files.arrays import Arrays
from hace.files.hashes import cache_folder
from hace.files.writing import write_whole
from hace.fitting.parallel import Folds, submitted
from hace.fitting.splits import folds_of
from hace.hierarchy import Hierarchy
from hace.hierarchy.assembly import IntArray
from hace.linear.selection import Candidate, CrossValidation, Judged, within_noise
from hace.losses.advice import ADVICE, Advice
from hace.metrics.intervals import Interval, interval

DROP = "drop"
USE = "balanced"
_MOST_CACHED = 20  # choices in the cache
_VERSION = 3  # of what the cache holds; bump it when results change


@dataclass(frozen=True, eq=False)
class Trial:
    """A candidate and how it did."""

    advice: Advice
    judged: Judged

    @property
    def coarse(self) -> str:
        """What became of coarse labels."""
        return self.judged.candidate.coarse


@dataclass(frozen=True, eq=False)
class Choice:
    """The candidate that was chosen, and how all of them did.

    Attributes:
        chosen: the candidate.
        trials: all candidates, from simple to involved.
        weight_decay: of the features as they are.
        temperature: from predictions for samples that were held out.
        gain: accuracy minus that of plain logistic regression, by cross-validation; where this was chosen, that of the best
            candidate minus it.
        coarse_gain: accuracy with coarse labels minus without them; None where there are none.
        samples: how many samples chose.
    """

    chosen: Trial
    trials: tuple[Trial, ...]
    weight_decay: float
    temperature: float
    gain: Interval
    coarse_gain: Interval | None
    samples: int

    @property
    def flat(self) -> Trial:
        """Plain logistic regression: flat cross-entropy, without coarse labels."""
        return self.trials[0]

    @property
    def is_flat(self) -> bool:
        """Whether plain logistic regression was chosen: the taxonomy plays no part, and coarse labels are dropped."""
        return self.chosen is self.flat


def choose(
    x: Any,
    nodes: IntArray,
    hierarchy: Hierarchy,
    together: np.ndarray | None,
    *,
    seed: int = 0,
    on_fit: Callable[[], object] = lambda: None,
    cache: Path | None = None,
    executor: Executor | None = None,
) -> Choice:
    """The loss, its weight decay and what becomes of coarse labels, on training samples (M,).

    Candidates that were judged are cached in a folder of ``cache``, so that a choice that was stopped goes on. All but
    the first are judged by the executor, side by side; None: here, one after another.
    """
    coarse = bool((hierarchy.labels[nodes] < 0).any())
    flat = hierarchy.num_nodes == hierarchy.num_leaves
    fold = folds_of(nodes, hierarchy, together, seed)
    folds = Folds(x, nodes, hierarchy, fold, together)
    cross = folds.cross_validation(on_fit)
    known = Judgements(cache, x, nodes, hierarchy, fold)

    def tried(wanted: Sequence[tuple[Advice, str]], executor: Executor | None = None) -> list[Trial]:
        candidates = [Candidate(advice.loss, dict(advice.params), how) for advice, how in wanted]
        names = [f"{advice.key} {how}" for advice, how in wanted]
        if executor is not None:
            known.judge_ahead(names, candidates, cross, folds, executor)
        judged = [known.judged(*each, cross) for each in zip(names, candidates, strict=True)]
        return [Trial(advice, own) for (advice, _), own in zip(wanted, judged, strict=True)]

    ways = (DROP, USE) if coarse else (DROP,)
    first, *others = ((advice, how) for how in ways for advice in (ADVICE[:1] if flat else ADVICE))
    trials = tried([first])
    trials += tried(others, executor)
    chosen = simplest(trials, together)
    if coarse and chosen.coarse == USE:
        trials += tried([(chosen.advice, "cautious")])
        chosen = simplest(trials, together)
    best = max(trials, key=lambda trial: trial.judged.accuracy)
    with_ = _best_of(trials, USE)
    without = _best_of(trials, DROP)
    return Choice(
        chosen,
        tuple(trials),
        10.0**chosen.judged.exponent / cross.scale**2,
        chosen.judged.temperature,
        _difference(best if chosen is trials[0] else chosen, trials[0], together),
        _difference(with_, without, together) if with_ is not None and without is not None else None,
        len(nodes),
    )


def simplest(trials: list[Trial], groups: np.ndarray | None) -> Trial:
    """The first candidate that is within one standard error of the best."""
    best = max(trials, key=lambda trial: trial.judged.accuracy)
    for trial in trials:
        if within_noise(trial.judged.behind(best.judged), groups):
            return trial
    return best


def _best_of(trials: list[Trial], coarse: str) -> Trial | None:
    eligible = [trial for trial in trials if trial.coarse == coarse]
    return max(eligible, key=lambda trial: trial.judged.accuracy, default=None)


def _difference(first: Trial, second: Trial, groups: np.ndarray | None) -> Interval:
    return interval(second.judged.behind(first.judged)[None], groups=groups)


# --- a choice that was stopped goes on


def cache_of_choices() -> Path | None:
    """The user's folder of judged candidates, without the oldest choices; None where there can be none."""
    try:
        folder = cache_folder() / "choices"
        folder.mkdir(exist_ok=True)
        by_age = sorted(folder.iterdir(), key=os.path.getmtime, reverse=True)
    except (OSError, RuntimeError):  # RuntimeError: there is no home
        return None
    for old in by_age[_MOST_CACHED:]:
        shutil.rmtree(old, ignore_errors=True)
    return folder


class Judgements:
    """The judged candidates of one choice, cached by everything that decides them."""

    def __init__(
        self, cache: Path | None, x: Any, nodes: IntArray, hierarchy: Hierarchy, fold: IntArray
    ) -> None:
        self._folder = None
        self._ahead: dict[str, Future[Judged]] = {}
        if cache is None:
            return
        digest = hashlib.sha256(f"{_VERSION} {hierarchy.fingerprint} {x.shape} {x.dtype}".encode())
        parts = (x.data, x.indices, x.indptr) if hasattr(x, "tocsr") else (np.asarray(x),)
        for part in (*parts, nodes, fold):
            digest.update(np.ascontiguousarray(part).tobytes())
        self._folder = cache / digest.hexdigest()[:24]

    def judge_ahead(
        self,
        names: Sequence[str],
        candidates: Sequence[Candidate],
        cross: CrossValidation,
        folds: Folds,
        executor: Executor,
    ) -> None:
        """Have candidates judged by an executor, those that are not cached."""
        new = [
            (name, candidate)
            for name, candidate in zip(names, candidates, strict=True)
            if self._folder is None or self._read(self._path(name), candidate, cross) is None
        ]
        futures = submitted(executor, folds, [candidate for _, candidate in new], cross.starts)
        self._ahead = {name: future for (name, _), future in zip(new, futures, strict=True)}

    def judged(self, name: str, candidate: Candidate, cross: CrossValidation) -> Judged:
        """The candidate's judgement, from the cache, from an executor or made now."""
        ahead = self._ahead.get(name)
        if self._folder is None:
            return cross.judge(candidate) if ahead is None else cross.took(ahead.result())
        path = self._path(name)
        cached = self._read(path, candidate, cross)
        if cached is not None:
            return cached
        judged = cross.judge(candidate) if ahead is None else cross.took(ahead.result())
        tried = np.array(list(judged.tried.items()))
        content = io.BytesIO()
        arrays = {"right": judged.right, "weight": judged.weight, "tried": tried}
        arrays["at"] = np.array([judged.exponent, judged.temperature])
        np.savez(content, **arrays, **{f"start_{i}": array for i, array in enumerate(cross.starts)})  # type: ignore[arg-type]
        try:
            self._folder.mkdir(exist_ok=True)
            write_whole(path, content.getvalue())
        except OSError:  # the disk is full, say: a choice that is stopped begins anew
            pass
        return judged

    def _path(self, name: str) -> Path:
        assert self._folder is not None
        return self._folder / f"{re.sub('[^a-z0-9.]+', '-', name)}.npz"

    def _read(self, path: Path, candidate: Candidate, cross: CrossValidation) -> Judged | None:
        """A cached judgement; training of other candidates starts from its heads, as if it had been made now."""
        if not path.is_file():
            return None
        try:
            arrays = Arrays(path)
            right = np.array(arrays["right"])
            weight = np.array(arrays["weight"])
            tried = arrays["tried"]
            exponent, temperature = arrays["at"].tolist()
            starts = [np.array(arrays[f"start_{i}"]) for i in range(len(arrays) - 4)]
        except (FormatError, KeyError, ValueError):  # damaged: made anew
            return None
        cross.starts = starts
        return Judged(candidate, exponent, right, weight, temperature, dict(map(tuple, tried.tolist())))
