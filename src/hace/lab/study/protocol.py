"""How a learning rate is chosen: the same for every method, on samples that are held out of the training set.

The paper chooses the best of several runs on the test set, and gives one method more runs than the other. Here every method
gets the same rates; each is tried on part of the training samples, the best on the rest is chosen, and the model is
trained again on all of them. The test set is used once. A seed is a replicate of all of that, its split included.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from hace.errors import DataError
from hace.lab.runs.config import ProbeConfig, RunConfig
from hace.lab.runs.run import Run

C = TypeVar("C", bound=RunConfig)

FAIR_RATES = tuple(0.25 * 2**k for k in range(8))  # 0.25 to 32: the best ones on unit vectors lie at 8 to 20
FAIR_VALIDATION = 0.1
FAIR_SEEDS = 5


def search_configs(
    config: C, rates: Iterable[float] = FAIR_RATES, validation: float = FAIR_VALIDATION
) -> list[C]:
    """One run for each rate, trained without the held-out samples and judged on them. They keep only their result."""
    found = [replace(config, lr=rate, validation=validation, evaluate="val") for rate in rates]
    return [replace(c, keep=False) if isinstance(c, ProbeConfig) else c for c in found]


def select(runs: Sequence[Run]) -> float:
    """The rate with the best top-1 accuracy on held-out samples; of equals the smaller one. Diverged runs never win.

    Raises:
        DataError: All have diverged.
    """
    found = []
    for run in runs:
        if run.status == "finished" and run.result is not None:
            found.append((-run.result["metrics"]["leaves"]["top-1"], run.config.lr))
    if not found:
        rates = ", ".join(f"{run.config.lr:g}" for run in runs)
        raise DataError(f"No rate can be chosen: all of {rates} have diverged. Try smaller ones.")
    return min(found)[1]


def final_config(config: C, lr: float) -> C:
    """The run at the chosen rate: trained on all training samples, judged on the test samples."""
    return replace(config, lr=lr, validation=0.0, evaluate="test")
