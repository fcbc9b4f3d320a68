"""A study on disk: its configurations, its runs, and what failed. A report needs nothing else, not even the data.

study.json      preset, choices, data with their fingerprints, configurations; written once, whole
failures.json   failed runs, with the error and the number of attempts
runs/<id>       run directories, or wherever `runs` puts them; studies can share them
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
STUDY = "study.json"
FAILURES = "failures.json"
RUNS = "runs"
# The types of what study.json holds, and of what it holds for each dataset.
_STUDY: dict[str, Any] = {
    "preset": str,
    "command": str,
    "choices": Mapping[str, Any],
    "runs": str,
    "data": Mapping[str, Any],
    "configurations": list,
    "made_with": Mapping[str, Any],
}
_DATA: dict[str, Any] = {
    "kind": Literal["probe", "train"],
    "fingerprint": str,
    "hierarchy": str,
    "classes": int,
    "nodes": int,
    "samples": Mapping[str, Any],
    "config": Mapping[str, Any],
    "changed": Mapping[str, Any] | None,
}
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
        return {(name, about["kind"]): about for name, about in _parts(self.data)}

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
        failures = read_mapping(path) if path.is_file() else {}
        if not all(isinstance(v, dict) and isinstance(v.get("error", ""), str) for v in failures.values()):
            raise FormatError(
                f"{path} must hold a mapping with an error for each run. Remove it to try again."
            )
        return failures

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
        by_key: dict[ConfigurationKey, list[Record]] = {c.key: [] for c in self.configurations}
        for group in comparisons(self.configurations):
            for record in MethodComparison(group, self.identity).records(look):
                by_key[record.key].append(record)
        return [record for records in by_key.values() for record in records]

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
        given = f"a folder without {STUDY}" if folder.is_dir() else "no such folder"
        raise FormatError(
            f"{folder} must be a study. Got {given}: `hace study PRESET --out FOLDER` makes one."
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


def _parts(data: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """What study.json holds of each dataset, by name; of one with both images and features both."""
    parts = []
    for name, about in data.items():
        parts.append((name, about))
        also = about.get("also") if isinstance(about, Mapping) else None
        if also is not None:
            parts.append((name, also))
    return parts


def _problems(study: StudyFolder) -> list[str]:
    """What is wrong with a study.json, in sentences; without any, reports and commands can rely on it."""
    problems = _mistyped("", study.document, _STUDY)
    if problems:
        return problems
    parts = [(f"data.{name}", about) for name, about in _parts(study.data)]
    for name, about in parts:
        problems += _problems_of_data(name, about)
    if problems:
        return problems
    try:
        for name, about in parts:
            from_dict(DataConfig, about["config"], f"{name}.config.")
        for configuration in study.configurations:
            place = (configuration.key.dataset, configuration.config.kind)
            if place not in study.sets:
                return [f"configurations must be about its data. Got {place[0]!r}, of kind {place[1]!r}."]
    except ConfigError as error:
        return list(error.problems)
    return []


def _problems_of_data(name: str, about: Any) -> list[str]:
    """What is wrong with what study.json holds of a dataset."""
    problems = _mistyped(f"{name}: ", about, _DATA)
    if problems:
        return problems
    if not all(fits(count, int) for count in about["samples"].values()):
        problems.append(f"{name}: samples must be counts. Got {about['samples']!r}.")
    if not all(fits(share, float) for share in (about.get("changed") or {}).values()):
        problems.append(f"{name}: changed must be shares. Got {about['changed']!r}.")
    return problems


def _mistyped(where: str, document: Any, hints: Mapping[str, Any]) -> list[str]:
    """What in a document is not of its type, in sentences."""
    if not isinstance(document, Mapping):
        return [f"{where}it must be a mapping. Got {document!r}."]
    return [
        f"{where}{key} must be {in_words(hint)}. Got {document.get(key)!r}."
        for key, hint in hints.items()
        if not fits(document.get(key), hint)
    ]


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
            changes = _changes(old, new)
            if changes and not update:
                raise ConfigError(_refusal(folder, changes))
            if not changes:  # but the data may have moved, and other choices may give the same configurations
                document |= {key: old.document[key] for key in ("command", "choices", "began", "made_with")}
        write_whole(folder / STUDY, json_bytes(document))
        yield read_study(folder)


def _refusal(folder: Path, changes: Sequence[str]) -> str:
    """The message about a folder with another study."""
    lines = [f"  - {change}" for change in changes[:_SHOWN]]
    if len(changes) > _SHOWN:
        lines.append(f"  - and {len(changes) - _SHOWN} more")
    return "\n".join(
        [
            f"{folder} holds another study. Changed:",
            *lines,
            "Give another folder, or update (--update) to continue with the new one; runs that both have stay.",
        ]
    )


def _changes(old: StudyFolder, new: StudyFolder) -> list[str]:
    """What differs between two studies, in words; nothing where different choices give the same configurations."""
    changes = differences({"runs": old.document["runs"]}, {"runs": new.document["runs"]})
    for place in dict.fromkeys([*old.sets, *new.sets]):
        before = old.sets.get(place, {}).get("fingerprint", "none")[:12]
        after = new.sets.get(place, {}).get("fingerprint", "none")[:12]
        if before != after:
            changes.append(f"data {place[0]}: fingerprint {before} -> {after}")
    ours = _deciding(old)
    theirs = _deciding(new)
    changes += _only_in("gone", ours, theirs)
    changes += _only_in("new", theirs, ours)
    for key in ours:
        changes += [f"{key}: {line}" for line in differences(ours[key], theirs.get(key, ours[key]))]
    if not changes:
        return []
    parts = ("preset", "choices")
    return [*differences({p: old.document[p] for p in parts}, {p: new.document[p] for p in parts}), *changes]


def _deciding(study: StudyFolder) -> dict[str, dict[str, Any]]:
    """What decides the results of each configuration, by its name."""
    return {f"{c.key}, seed {c.key.seed}": c.deciding() for c in study.configurations}


def _only_in(what: str, here: Mapping[str, Any], there: Mapping[str, Any]) -> list[str]:
    """A line about the configurations that one of two studies has alone."""
    names = [name for name in here if name not in there]
    return [f"{what} configurations: {len(names)}, the first is {names[0]}"] if names else []
