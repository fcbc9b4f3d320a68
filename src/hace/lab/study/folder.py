"""A study on disk: its configurations, its runs, and what failed. A report needs nothing else, not even the data.

study.json      preset, choices, data with their fingerprints, configurations; written once, whole
failures.json   failed runs, with the error and the number of attempts
runs/<id>       run directories, or wherever `runs` puts them; studies can share them
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

from hace import environment
from hace.errors import ConfigError, DataError, FormatError, HaceError
from hace.files.documents import differences, read_mapping
from hace.files.writing import json_bytes, only_process, write_whole, writing
from hace.lab.runs.config import DataConfig, RunConfig
from hace.lab.runs.run import RUN, read_run
from hace.lab.study.comparison import MethodComparison, comparisons
from hace.lab.study.configurations import Configuration, ConfigurationKey, configuration_from_dict
from hace.lab.study.plan import Choices, StudyPlan
from hace.lab.study.records import Record
from hace.lab.study.survey import Survey
from hace.settings import fits, from_dict, in_words

STUDY_FORMAT = 2
STUDY, FAILURES, RUNS = "study.json", "failures.json", "runs"
_STUDY: dict[str, Any] = {"preset": str, "command": str, "choices": Mapping[str, Any], "runs": str, "data": Mapping[str, Any],
                          "configurations": list, "made_with": Mapping[str, Any]}  # fmt: skip
_DATA: dict[str, Any] = {"kind": Literal["probe", "train"], "fingerprint": str, "hierarchy": str, "classes": int,
                         "nodes": int, "samples": Mapping[str, Any], "config": Mapping[str, Any],
                         "changed": Mapping[str, Any] | None}  # fmt: skip
_SHOWN = 8  # differences


@dataclass(frozen=True, eq=False)
class StudyFolder:
    """A study on disk, open for reading."""

    folder: Path  # its folder
    document: Mapping[str, Any]  # the content of study.json

    @property
    def runs(self) -> Path:
        """The folder of its run directories."""
        return self.folder / self.document["runs"]

    @property
    def data(self) -> Mapping[str, Mapping[str, Any]]:
        """Facts about its datasets, by name; of one with both images and features the second is "also" there."""
        return self.document["data"]

    @cached_property
    def sets(self) -> Mapping[tuple[str, str], Mapping[str, Any]]:
        """The same, by name and kind of runs."""
        found = [(name, part) for name, about in self.data.items() for part in (about, about.get("also"))]
        return {(name, part["kind"]): part for name, part in found if part is not None}

    @cached_property
    def configurations(self) -> tuple[Configuration, ...]:
        """Its configurations."""
        return tuple(map(configuration_from_dict, self.document["configurations"]))

    def identity(self, configuration: Configuration, config: RunConfig) -> str:
        """The id of a run of a configuration."""
        return config.identity(self.sets[configuration.key.dataset, config.kind]["fingerprint"])

    def failures(self) -> dict[str, dict[str, Any]]:
        """What is known of failed runs, by id."""
        path = self.folder / FAILURES
        found = read_mapping(path) if path.is_file() else {}
        if not all(isinstance(v, dict) and isinstance(v.get("error", ""), str) for v in found.values()):
            raise FormatError(
                f"{path} must hold a mapping with an error for each run. Remove it to try again."
            )
        return found

    def write_failures(self, failures: Mapping[str, Mapping[str, Any]]) -> None:
        """Replace failures.json; without failures, remove it."""
        path = self.folder / FAILURES
        if failures:
            write_whole(path, json_bytes(failures))
        elif path.exists():
            with writing(self.folder):
                path.unlink()

    def records(self) -> list[Record]:
        """Every run of the study, searches and final ones. A final run that is not chosen yet has the rate NaN."""
        failures = self.failures()
        look = cache(lambda run: self._open(run, failures.get(run, {})))
        found: dict[ConfigurationKey, list[Record]] = {
            configuration.key: [] for configuration in self.configurations
        }
        for configurations in comparisons(self.configurations):
            for record in MethodComparison(configurations, self.identity).records(look):
                found[record.key].append(record)
        return [record for records in found.values() for record in records]

    def _open(self, run_id: str, failure: Mapping[str, Any]) -> Mapping[str, Any]:
        """What is known of a run, as :data:`hace.lab.study.comparison.Look` has it."""
        failed = {"error": failure.get("error", ""), "again": failure.get("again", False)}
        try:
            if not (self.runs / run_id / RUN).is_file():
                return failed
            run = read_run(self.runs / run_id)
            run.verify()
        except HaceError as problem:
            return {"error": str(problem)}
        return failed if run.result is None else {"run": run}


def read_study(folder: str | Path) -> StudyFolder:
    """Open a study."""
    folder = Path(folder)
    path = folder / STUDY
    if not path.is_file():
        found = f"a folder without {STUDY}" if folder.is_dir() else "no such folder"
        raise FormatError(
            f"{folder} must be a study. Got {found}: `hace study PRESET --out FOLDER` makes one."
        )
    document = read_mapping(path)
    if document.get("format") != STUDY_FORMAT:
        raise FormatError(
            f"{path} must be a study of format {STUDY_FORMAT}. Got format {document.get('format')!r}: it is damaged, or of "
            "another version."
        )
    study = StudyFolder(folder, document)
    if problems := _problems(study):
        raise FormatError([f"{path}: {problem}" for problem in problems])
    return study


def _problems(study: StudyFolder) -> list[str]:
    """What is wrong with a study.json, in sentences; what a report and a command read of it is then as they expect it."""
    document = study.document
    wrong = _mistyped("", document, _STUDY)
    parts: list[tuple[str, Any]] = []
    for name, about in [] if wrong else document["data"].items():
        also = about.get("also") if isinstance(about, Mapping) else None
        parts += [(f"data.{name}", part) for part in (about, also) if part is not None]
    for name, part in parts:
        found = _mistyped(f"{name}: ", part, _DATA)
        if not found and not all(fits(count, int) for count in part["samples"].values()):
            found.append(f"{name}: samples must be counts. Got {part['samples']!r}.")
        if not found and not all(fits(share, float) for share in (part.get("changed") or {}).values()):
            found.append(f"{name}: changed must be shares. Got {part['changed']!r}.")
        wrong += found
    try:
        for name, part in [] if wrong else parts:
            from_dict(DataConfig, part["config"], f"{name}.config.")
        for configuration in () if wrong else study.configurations:
            if (configuration.key.dataset, configuration.config.kind) not in study.sets:
                name, kind = configuration.key.dataset, configuration.config.kind
                return [f"configurations must be about its data. Got {name!r}, of kind {kind!r}."]
    except ConfigError as error:
        return list(error.problems)
    return wrong


def _mistyped(where: str, document: Any, hints: Mapping[str, Any]) -> list[str]:
    if not isinstance(document, Mapping):
        return [f"{where}it must be a mapping. Got {document!r}."]
    found = {key: document.get(key) for key in hints}
    wrong = {k: v for k, v in found.items() if not fits(v, hints[k])}
    return [f"{where}{k} must be {in_words(hints[k])}. Got {v!r}." for k, v in wrong.items()]


def draft(
    folder: str | Path, plan: StudyPlan, choices: Choices, survey: Survey, runs: str | Path | None = None
) -> StudyFolder:
    """A study as it would be written, with its runs in `runs`; one that is there keeps their place."""
    folder = Path(folder)
    place = RUNS if runs is None else str(Path(runs).resolve())
    if runs is None and (folder / STUDY).is_file():
        place = read_study(folder).document["runs"]
    document = {
        "format": STUDY_FORMAT,
        "preset": plan.preset,
        "command": choices.command(plan.preset),
        "choices": choices.changed(),
        "runs": place,
        "data": survey.document(),
        "configurations": [survey.resolved(configuration).to_dict() for configuration in plan.configurations],
        "began": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "made_with": environment.config(),
    }
    return StudyFolder(folder, document)


@contextmanager
def started(
    folder: str | Path,
    plan: StudyPlan,
    choices: Choices,
    survey: Survey,
    *,
    runs: str | Path | None = None,
    update: bool = False,
) -> Iterator[StudyFolder]:
    """A new study, or the one that the same choices started on the same data; locked, so that no one else changes it.

    `update` accepts a changed one.
    """
    folder = Path(folder)
    if survey.problems:
        raise DataError([f"{name}: {problem}" for name, problem in survey.problems.items()])
    others = folder.is_dir() and any(not path.name.startswith(".") for path in folder.iterdir())
    if not (folder / STUDY).is_file() and (others or (folder.exists() and not folder.is_dir())):
        raise ConfigError(
            f"out must be a study, a new or an empty folder. Got {folder}, which holds other files."
        )
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with only_process(folder):
        new = draft(folder, plan, choices, survey, runs)
        document = dict(new.document)
        if (folder / STUDY).is_file():
            old = read_study(folder)
            changed = _changes(old, new)
            if changed and not update:
                more = [f"and {len(changed) - _SHOWN} more"] if len(changed) > _SHOWN else []
                raise ConfigError(
                    f"{folder} holds another study. Changed:\n"
                    + "\n".join(f"  - {line}" for line in [*changed[:_SHOWN], *more])
                    + "\nGive another folder, or update (--update) to go on with the new one; runs that both have are kept."
                )
            if not changed:  # but the data may have moved, and other choices may give the same configurations
                document |= {key: old.document[key] for key in ("command", "choices", "began", "made_with")}
        write_whole(folder / STUDY, json_bytes(document))
        yield read_study(folder)


def _changes(old: StudyFolder, new: StudyFolder) -> list[str]:
    """What differs between two studies, in words; nothing where different choices give the same configurations."""
    found = differences({"runs": old.document["runs"]}, {"runs": new.document["runs"]})
    for place in dict.fromkeys([*old.sets, *new.sets]):
        before, after = (s.sets.get(place, {}).get("fingerprint", "none")[:12] for s in (old, new))
        if before != after:
            found.append(f"data {place[0]}: fingerprint {before} -> {after}")
    ours, theirs = (
        {f"{c.key}, seed {c.key.seed}": c.deciding() for c in s.configurations} for s in (old, new)
    )
    for what, here, there in (("gone", ours, theirs), ("new", theirs, ours)):
        gone = [key for key in here if key not in there]
        found += [f"{what} configurations: {len(gone)}, the first is {gone[0]}"] if gone else []
    for key in ours:
        found += [f"{key}: {line}" for line in differences(ours[key], theirs.get(key, ours[key]))]
    parts = ("preset", "choices")
    said = differences({p: old.document[p] for p in parts}, {p: new.document[p] for p in parts})
    return [*said, *found] if found else []
