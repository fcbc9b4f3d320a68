"""What a report says of the study behind its runs: data, methods, versions, what is missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from hace.lab.report.document import WORDS
from hace.lab.report.runs import PROTOCOLS, method_title, shown, unseen_classes
from hace.lab.runs.run import RUN
from hace.lab.study import records as study_records
from hace.lab.study.folder import StudyFolder
from hace.lab.study.records import Record

_VERSIONS = ("hace", "python", "torch", "numpy")


@dataclass(frozen=True)
class About:
    """What a report says of the study behind its records."""

    title: str
    command: str = ""  # makes the study again
    made_with: dict[str, str] = field(default_factory=dict)  # versions
    data: dict[str, Any] = field(default_factory=dict)  # by dataset: classes, nodes, samples
    problems: tuple[str, ...] = ()  # what was skipped, and why

    def is_synthetic(self, dataset: str) -> bool:
        """Whether a dataset is drawn by a program."""
        known = self.data.get(dataset)
        config = known.get("config") if isinstance(known, dict) else None
        return isinstance(config, dict) and str(config.get("name")).startswith("synthetic")


def about_study(study: StudyFolder) -> About:
    """What study.json says, and which folders among its runs are not runs."""
    folders = sorted(study.runs.iterdir()) if study.runs.is_dir() else ()
    foreign = [path.name for path in folders if not path.name.startswith(".") and not (path / RUN).is_file()]
    return About(
        title=f"hace study: {study.document['preset']}",
        command=study.document["command"],
        made_with=dict(study.document.get("made_with", {})),
        data=dict(study.data),
        problems=tuple(f"{name} in {study.runs.name} is not a run: it has no {RUN}." for name in foreign),
    )


def facts(records: Sequence[Record], about: About) -> list[tuple[str, str]]:
    """What was run: terms and texts."""
    keys = [record.key for record in records]
    seeds = sorted({key.seed for key in keys})
    terms = {
        "runs": counts_text(records),
        "data": "; ".join(
            _data_text(name, about.data.get(name)) for name in dict.fromkeys(k.dataset for k in keys)
        ),
        "models": ", ".join(dict.fromkeys(shown(key.model) for key in keys)),
        "methods": "; ".join(dict.fromkeys(method_title(key.method) for key in keys)),
        "protocols": ", ".join(dict.fromkeys(PROTOCOLS[key.protocol] for key in keys)),
        "rates chosen on": selection_text(records),
        "seeds": f"{len(seeds)}: {seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else str(seeds[0]),
        "versions": _versions(records, about),
        "reproduce": f"`{about.command}`" if about.command else "",
        "cite": WORDS["cite"],
    }
    return [(term, text) for term, text in terms.items() if text]


def _data_text(name: str, known: Any) -> str:
    if not isinstance(known, dict) or "classes" not in known:
        return shown(name)
    parts = [f"{known['classes']:,} classes, {known['nodes']:,} nodes"]
    if samples := known.get("samples"):
        parts.append(f"samples: {', '.join(f'{count:,} {split}' for split, count in samples.items())}")
    changed = known.get("changed") or {}
    parts += [f"{state} changes {100 * share:.0f}% of the labels" for state, share in changed.items()]
    return f"{shown(name)} ({'; '.join(parts)})"


def _versions(records: Sequence[Record], about: About) -> str:
    """Versions of the study, and the number of runs made with others."""
    of_runs = [record.run.about.get("made_with") or {} for record in records if record.run is not None]
    made_with = about.made_with or next(iter(of_runs), {})
    text = ", ".join(f"{name} {made_with[name]}" for name in _VERSIONS if name in made_with)
    others = sum(any(own.get(name) != made_with.get(name) for name in _VERSIONS) for own in of_runs)
    return text + (f"; {others:,} runs were made with other versions" if others else "")


def counts_text(records: Sequence[Record]) -> str:
    """How many runs there are, by status; a run that configurations share is one."""
    records = study_records.each_run(records)
    count = Counter(record.status for record in records)
    statuses = [
        status for status in ("finished", *study_records.NO_RESULT) if count[status] or status == "finished"
    ]
    total = f"{len(records):,} {'run' if len(records) == 1 else 'runs'}"
    return f"{total}: {', '.join(f'{count[s]:,} {s}' for s in statuses)}" if records else total


def failures(records: Sequence[Record]) -> list[str]:
    """Each error of runs without a result, with the number of runs and the first of them."""
    runs: dict[str, list[str]] = {}
    for record in records:
        if record.status in ("failed", "diverged"):
            error = record.error or "diverged: the loss became infinite or NaN"
            runs.setdefault(error, []).append(_run_text(record))
    return [
        f"{error} ({len(names)}: {'; '.join(names[:5])}{' ...' if len(names) > 5 else ''})"
        for error, names in runs.items()
    ]


def _run_text(record: Record) -> str:
    """What a run is, in a few words."""
    key = record.key
    parts = [
        shown(key.dataset),
        shown(key.model),
        method_title(key.method),
        "" if key.dilution is None else f"dilution {key.dilution:g}",
        f"seed {key.seed}",
        f"rate {record.lr:g}" if record.lr == record.lr else "",
        record.stage,
    ]
    return ", ".join(filter(None, parts))


def shortened(lines: Sequence[str], most: int = 50) -> list[str]:
    """The first of many lines, and how many more there are."""
    return [*lines] if len(lines) <= most else [*lines[:most], f"and {len(lines) - most:,} more"]


def selection_text(records: Sequence[Record]) -> str:
    """What rates are chosen on, for each dataset where that differs; "" where nothing is searched."""
    searches: dict[str, list[Record]] = {}
    for record in records:
        if record.stage == "search":
            searches.setdefault(record.key.dataset, []).append(record)
    chosen_on = {name: study_records.chosen_on(own) for name, own in searches.items()}
    if len(set(chosen_on.values())) < 2:
        return next(iter(chosen_on.values()), "")
    return "; ".join(f"{text} ({shown(name)})" for name, text in chosen_on.items())


def notes(records: Sequence[Record]) -> Iterator[str]:
    """What a reader of the table should know: classes without samples, L-BFGS that stopped early, rates at the edge."""
    final = [record for record in records if record.stage == "final"]
    if unseen := unseen_classes(record.run for record in final):
        yield unseen
    trained = [record.result["train"] for record in final if record.result]
    if short := sum(train.get("converged") is False for train in trained):
        yield f"{short} of {len(trained)} L-BFGS runs did not converge: raise max_iter or tolerance in a --config."
    edges, searches = study_records.at_the_edge(records)
    if edges:
        yield f"{edges:,} of {searches:,} searches end at the edge of their grid: a wider range may do better."
    if coarse := sorted({method_title(key.method) for key in study_records.coarse_searches(records)}):
        yield f"The grid of rates is coarse for {', '.join(coarse)}: a rate between its neighbours may do better."
