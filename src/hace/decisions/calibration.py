"""Samples that a model was not trained on, dealt in two: some fit the temperature, the others support promises.

A promise needs scores that were settled without the samples it rests on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hace.checks import check_number, is_number
from hace.decisions.group_promises import group_places
from hace.decisions.scores import Scores, inside_subset, subset_mask
from hace.decisions.temperature import fit_temperature
from hace.errors import ConfigError, DataError


@dataclass(frozen=True, eq=False)
class HeldOut:
    """What promises rest on: samples, or pooled groups, whose scores are divided by a temperature that others fitted."""

    temperature: float
    scores: Scores
    truth: np.ndarray  # node indices
    groups: np.ndarray | None  # the name of each sample's group, unless pooled
    fitted: int  # how many others fitted the temperature
    outside: int  # samples of classes outside the subset, which were left out


def hold_out(
    scores: Scores,
    truth: np.ndarray,
    fitting: tuple[int, np.random.Generator],
    *,
    temperature: float | None = None,
    groups: Any = None,
    pool: str | None = None,
    subset: Sequence[str] | None = None,
    prior: Mapping[str, float] | None = None,
) -> HeldOut:
    """Restrict, weight and pool scores with truths (S,); then fit a temperature, unless one is given.

    ``fitting``: one of how many samples, or groups, fits the temperature, and the generator that draws them.
    """
    h, everyone = scores.hierarchy, len(truth)
    if subset is not None:
        inside = np.flatnonzero(inside_subset(h, subset, truth))
        scores, truth = scores[inside].restricted(subset_mask(h, subset)), truth[inside]
        groups = None if groups is None else np.asarray(groups)[inside]
    outside, scores = everyone - len(truth), scores.weighted(prior)
    if groups is None and pool is not None:
        raise ConfigError(
            "pool needs groups: the site, burst or recording of each sample. Got none (--groups)."
        )
    units = np.arange(len(truth))
    if groups is not None:
        names, units = group_places(groups, len(truth))
        groups = names[units]
        if pool is not None:
            scores, truth = scores.pooled(units, pool), _one_truth(truth, names, units)
            units, groups = np.arange(len(truth)), None
    fits = np.zeros(len(truth), dtype=bool)
    if temperature is None:
        share, rng = fitting
        order = rng.permutation(int(units.max(initial=-1)) + 1)
        fits = np.isin(units, order[: len(order) // share])
        form: Any = {"labels": "nodes", "kind": scores.kind, "outputs": scores.outputs}
        try:
            temperature = fit_temperature(scores.data[fits], truth[fits], h, **form)
        except DataError as error:
            raise DataError(
                f"No temperature fits the {fits.sum()} of {len(truth)} calibration samples set aside for it: {error} Give "
                "one: --temperature 1 (temperature=1) leaves scores as they are."
            ) from error
    check_number("temperature", temperature, "a number above 0", is_number(temperature) and temperature > 0)
    rest = replace(scores, data=scores.data[~fits] / temperature)
    left = None if groups is None else groups[~fits]
    return HeldOut(float(temperature), rest, truth[~fits], left, int(fits.sum()), outside)


def _one_truth(truth: np.ndarray, names: np.ndarray, place: np.ndarray) -> np.ndarray:
    """(G,) the truth of each group, which all of its samples share."""
    first = np.unique(place, return_index=True)[1]
    mixed = np.flatnonzero(truth != truth[first[place]])
    if len(mixed):
        raise DataError(f"A group must have one truth to be pooled. {names[place[mixed[0]]]!r} has several.")
    return truth[first]
