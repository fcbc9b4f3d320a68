"""The calibration of a model, as a record: read, written, and refused where it does not fit the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import Any

from hace.checks import is_number
from hace.decisions import GuaranteedThreshold
from hace.decisions.promises import PROMISES
from hace.errors import ConfigError, FormatError, HaceError
from hace.files.documents import read_mapping
from hace.files.writing import json_bytes, sha256, write_whole
from hace.hierarchy import Hierarchy
from hace.lab.runs.run import CALIBRATION, WEIGHTS, Run

FORMAT = "hace.calibration.1"


@dataclass(frozen=True)
class Calibration:
    """What was learned of a model's confidence, and what it was learned from.

    Attributes:
        temperature: Scores are divided by it.
        thresholds: The promises, over scores divided by the temperature.
        split: The calibration samples: "val", "test", or a file of scores.
        samples: How many of them the thresholds rest on.
        temperature_samples: How many others fitted the temperature; 0: it was given.
        outputs: What the columns of the scores are: "leaves" or "nodes".
        hierarchy: The fingerprint of the hierarchy.
        weights: The sha256 of the run's weights; None for a file of scores.
        notes: What else a reader should know.
        missing: Promises that could not be made, with the reason; not stored.
    """

    temperature: float
    thresholds: tuple[GuaranteedThreshold, ...]
    split: str
    samples: int
    temperature_samples: int
    outputs: str
    hierarchy: str
    weights: str | None = None
    notes: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    def promise(
        self, accuracy: float, of: str = "samples", where: str = "hace calibrate RUN"
    ) -> GuaranteedThreshold:
        """The threshold for a promise.

        Args:
            accuracy: The promised share.
            of: "samples" or "answers".
            where: The command that calibrates, for the message.

        Raises:
            ConfigError: There is no such promise; says which there are, and the command that adds it.
        """
        check_promise(accuracy, of)
        found = [t for t in self.thresholds if t.of == of and t.accuracy == accuracy]
        if found:
            return found[0]
        known = ", ".join(f"{t.accuracy:g} of {t.of}" for t in self.thresholds)
        raise ConfigError(
            f"accuracy must be one that was calibrated: {known}. Got {accuracy:g} of {of}. To add it: {where} "
            f"{self._options(accuracy, of)}"
        )

    def _options(self, accuracy: float, of: str) -> str:
        """The options of `hace calibrate` that add a promise to these; both kinds are its default, as far as possible."""
        first = self.thresholds[0]
        wanted = sorted({accuracy, *(t.accuracy for t in self.thresholds if t.accuracy is not None)})
        words = ["--accuracy", *(f"{a:g}" for a in wanted)]
        if {of, *(t.of for t in self.thresholds)} == {of}:
            words += ["--of", of]
        if first.confidence is not None and first.of == "samples":
            words += ["--confidence", f"{first.confidence:g}"]
        if first.rule != "threshold":
            words += ["--rule", first.rule]
        return " ".join(words)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        plain = asdict(replace(self, thresholds=(), missing=()))
        del plain["missing"]
        thresholds = [t.to_dict() for t in self.thresholds]
        return {"format": FORMAT, **plain, "thresholds": thresholds, "notes": list(self.notes)}


def check_promise(accuracy: float, of: str) -> None:
    """Refuse what no promise can be about.

    Raises:
        ConfigError: `accuracy` is not between 0 and 1, or `of` is unknown.
    """
    if not is_number(accuracy) or not 0 < accuracy < 1:
        raise ConfigError(f"accuracy must be a number above 0 and below 1. Got {accuracy!r}.")
    if of not in PROMISES:
        raise ConfigError(f"of must be 'samples' or 'answers'. Got {of!r}.")


def weights_print(run: Run) -> str:
    """The sha256 of a run's weights."""
    known = (run.result or {}).get("files", {}).get(WEIGHTS)
    return known["sha256"] if known is not None else sha256(run.folder / WEIGHTS)


def write_calibration(calibration: Calibration, path: str | Path) -> None:
    """Write a calibration, whole or not at all."""
    write_whole(Path(path), json_bytes(calibration.to_dict()))


def read_calibration(path: str | Path) -> Calibration:
    """Read a calibration.

    Raises:
        FormatError: It is damaged, or not a calibration.
    """
    return parse_calibration(read_mapping(path), path)


def parse_calibration(document: Mapping[str, Any], path: str | Path) -> Calibration:
    """A calibration from plain values.

    Args:
        document: What :meth:`Calibration.to_dict` gave.
        path: What messages call it.

    Raises:
        FormatError: It is damaged, or not a calibration.
    """
    document = dict(document)
    try:
        return _checked(document)
    except (HaceError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise FormatError(
            f"{path} must be a calibration that `hace calibrate` wrote: {error!s:.200}"
        ) from error


def _checked(document: dict[str, Any]) -> Calibration:
    if document.pop("format", None) != FORMAT:
        raise ValueError(f"its format must be {FORMAT!r}.")
    fields = {field.name for field in dataclass_fields(Calibration)} - {"missing"}
    if set(document) != fields:
        raise ValueError(f"its keys must be {', '.join(sorted(fields))}.")
    if not all(isinstance(document[name], list) for name in ("thresholds", "notes")):
        raise ValueError("its thresholds and notes must be lists.")
    thresholds = tuple(GuaranteedThreshold.from_dict(t) for t in document.pop("thresholds"))
    found = Calibration(thresholds=thresholds, **{**document, "notes": tuple(document["notes"])})
    texts = (found.split, found.hierarchy, *found.notes, *([] if found.weights is None else [found.weights]))
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("its split, hierarchy, weights and notes must be texts.")
    if not all(isinstance(count, int) for count in (found.samples, found.temperature_samples)):
        raise ValueError("its samples and temperature_samples must be whole numbers.")
    if not is_number(found.temperature) or found.temperature <= 0:
        raise ValueError("its temperature must be above 0.")
    if not thresholds or any(t.hierarchy != found.hierarchy for t in thresholds):
        raise ValueError("its thresholds must be at least one, all for its hierarchy.")
    return found


def calibration_of(run: Run) -> Calibration:
    """The calibration in a run directory.

    Raises:
        ConfigError: There is none, or it was made for another hierarchy or other weights; says the command to run.
        FormatError: It is damaged.
    """
    path = run.folder / CALIBRATION
    again = f"hace calibrate {run.folder}"
    if not path.is_file():
        raise ConfigError(
            f"{run.folder} must be calibrated before it can promise an accuracy: it has no {CALIBRATION}. Run: {again}"
        )
    try:
        found = read_calibration(path)
    except FormatError as error:
        raise FormatError(
            f"{str(error).removesuffix(' Calibrate again.')} Calibrate again: {again}"
        ) from error
    check_hierarchy(found, run.hierarchy, path, again)
    weights = weights_print(run)
    if found.weights != weights:
        raise ConfigError(
            f"{path} must be made with the weights of the run. It was made with {str(found.weights)[:12]}, and the run has "
            f"{weights[:12]}. Calibrate again: {again}"
        )
    return found


def check_hierarchy(found: Calibration, hierarchy: Hierarchy, path: str | Path, again: str) -> None:
    """Refuse a calibration over another hierarchy.

    Raises:
        ConfigError: With both fingerprints, and the command to run.
    """
    if found.hierarchy != hierarchy.fingerprint:
        raise ConfigError(
            f"{path} must be made with this hierarchy, {hierarchy.fingerprint[:12]}. It was made with {found.hierarchy[:12]}. "
            f"Calibrate again: {again}"
        )
