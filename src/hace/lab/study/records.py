"""One line of a study's results: which cell of the grid, and the run that fills it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

from hace.lab.runs.run import Run


@dataclass(frozen=True)
class CellKey:
    """What a number in a table is about.

    Attributes:
        protocol: "paper" (fixed rates, best of them on the test set) or "fair" (same rates for all, chosen on held-out
            samples, then trained again on all).
        dataset: Its key in the study: "cifar100", "aircraft", "nabirds", or another name.
        model: The architecture, or the backbone behind the features.
        method: A key of `hace.lab.study.methods.METHODS`.
        dilution: d, where the method has one.
        pairing: Of the paper protocol: "standard" or "adjusted" (table of learning-rate pairings); None otherwise.
        seed: Of the run.
    """

    protocol: Literal["paper", "fair"]
    dataset: str
    model: str
    method: str
    dilution: float | None
    pairing: str | None
    seed: int

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


@dataclass(frozen=True, eq=False)
class Record:
    """A run of a study.

    Attributes:
        key: The cell it belongs to.
        stage: "search": one rate among several, judged on held-out samples; "final": the run that the tables show.
        lr: Its learning rate.
        run: The run; None while there is none.
        error: Why there is none: the last error of a run that failed, or "" if it was not tried.
    """

    key: CellKey
    stage: Literal["search", "final"]
    lr: float
    run: Run | None
    error: str = ""

    @property
    def status(self) -> str:
        """How it stands: "finished", "diverged", "failed" or "not run"."""
        if self.run is not None and self.run.result is not None:
            return self.run.status
        return "failed" if self.error else "not run"

    def metric(self, heading: str, name: str) -> float | None:
        """A metric of the result; None where there is none."""
        if self.run is None or self.run.result is None:
            return None
        return (self.run.result.get("metrics") or {}).get(heading, {}).get(name)

    @property
    def top1(self) -> float | None:
        """The accuracy of the most probable leaf, from 0 to 1."""
        return self.metric("leaves", "top-1")
