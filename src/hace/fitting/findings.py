"""What a fit found, as plain values that a file holds, and the six lines that say it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hace.fitting.evaluation import NOTHING
from hace.settings import Config


@dataclass(frozen=True)
class Findings(Config):
    """What a fit found.

    Attributes:
        kind: what the data are.
        samples: how many samples train, calibrate and test.
        classes: how many classes there are.
        chosen: what was chosen, in words.
        is_flat: whether that is plain logistic regression.
        candidates: of each candidate its key, what became of coarse labels, accuracy by cross-validation and weight decay.
        accuracy: share of right classes with its interval: on test samples, or by cross-validation where there are none.
        tested: whether that is on test samples.
        held_out: accuracy on calibration samples with its interval; None where there are none.
        gain: accuracy minus that of plain logistic regression, with its interval.
        coarse: share of training labels that are coarse.
        coarse_gain: what coarse labels added, with its interval; None where there are none.
        guarantee: how answers with a guarantee turned out; None where there is none.
        no_guarantee: why there is none, or none for 95%.
        broken: why the guarantee must not be trusted; "" where nothing speaks against it.
        notes: what was decided about the data, and what is odd.
        path: the file that commands name.
    """

    kind: str
    samples: dict[str, int]
    classes: int
    chosen: str
    is_flat: bool
    candidates: tuple[dict[str, Any], ...]
    accuracy: tuple[float, ...]
    tested: bool
    held_out: tuple[float, ...] | None
    gain: tuple[float, ...]
    coarse: float
    coarse_gain: tuple[float, ...] | None
    guarantee: dict[str, Any] | None
    no_guarantee: str = ""
    broken: str = ""
    notes: tuple[str, ...] = ()
    path: str = "model.hace"

    def lines(self) -> list[str]:
        """Six lines: how good, how specific, what the taxonomy and coarse labels added, what to watch, what to do next."""
        return [
            self._good(),
            self._specific(),
            self._taxonomy(),
            self._coarse(),
            self._watch(),
            f"Next:       hace predict {self.path} NEW{self._option()}    or    hace serve {self.path}",
        ]

    def _option(self) -> str:
        return "" if self.guarantee is None else f" --accuracy {self.guarantee['accuracy']:g}"

    def _good(self) -> str:
        value, low, high = self.accuracy
        where = (
            f"{self.samples['test']:,} test samples"
            if self.tested
            else "samples held out in turn (no test samples)"
        )
        return f"How good:   right class in {value:.1%} of {where} [{_range(low, high)}], {self.classes:,} classes, {self.chosen}"

    def _specific(self) -> str:
        if self.guarantee is None:
            return f"Guarantee:  none. {self.no_guarantee}"
        shares = ", ".join(f"{name} {share:.0%}" for name, share in self.guarantee["ranks"].items())
        if NOTHING not in self.guarantee["ranks"]:
            shares += f", {NOTHING} 0%"
        told = f"Guarantee:  {self.guarantee['accuracy']:.0%} not false: {shares}"
        return f"{told}; {self.guarantee['false'][0]:.1%} were false" if self.tested else told

    def _taxonomy(self) -> str:
        value, low, high = (100 * v for v in self.gain)
        words = f"{value:+.1f} points over plain logistic regression [{low:+.1f}, {high:+.1f}]"
        if self.is_flat:
            return f"Taxonomy:   not used: the best use of it was worth {words}, by cross-validation"
        verdict = "it helped" if low > 0 else "it did harm" if high < 0 else "no more than chance"
        where = "on test samples" if self.tested else "by cross-validation"
        return f"Taxonomy:   {words} {where}: {verdict}"

    def _coarse(self) -> str:
        if self.coarse_gain is None:
            return "Coarse:     all labels are classes"
        value, low, high = (100 * v for v in self.coarse_gain)
        verdict = "they helped" if low > 0 else "they did harm" if high < 0 else "no more than chance"
        return (
            f"Coarse:     {self.coarse:.0%} of the labels; worth {value:+.1f} points [{low:+.1f}, {high:+.1f}] by cross-validation: "
            f"{verdict}"
        )

    def _watch(self) -> str:
        if self.broken:
            return f"Watch:      THE GUARANTEE IS BROKEN: {self.broken}"
        odd = [self.no_guarantee, *self.notes] if self.guarantee is not None else self.notes
        return next((f"Watch:      {note}" for note in odd if note), "Watch:      nothing odd was found")


def _range(low: float, high: float) -> str:
    return f"{low:.1%}, {high:.1%}"
