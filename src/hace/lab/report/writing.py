"""Writes the report of a study: one page, Markdown, LaTeX and CSV."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hace import environment
from hace.errors import ConfigError
from hace.files.writing import write_whole, writing
from hace.lab.report.arenas import PROTOCOLS, method_title, shown
from hace.lab.report.document import SectionBuilder, build_document
from hace.lab.report.page import files_of, to_page, to_report_latex, to_report_markdown
from hace.lab.report.results import Results
from hace.lab.report.tables import runs_csv
from hace.lab.report.text import counts_text, selection_text
from hace.lab.runs.run import RUN
from hace.lab.study.cells import Record
from hace.lab.study.locations import OPTIONS
from hace.lab.study.study import Study, read_study

PAGE = "report.html"
CITE = (
    "the paper, When Labels Have Structure: Improving Image Classification with Hierarchy-Aware Cross-Entropy, for the method; "
    "the file CITATION.cff of hace for the software"
)
MADE_UP = (
    "Synthetic data, drawn by descent down the tree: a hierarchy helps by construction. This shows how a study works, not what "
    "a method gains on real data."
)


@dataclass(frozen=True)
class About:
    """What a report says of the study behind its records.

    Attributes:
        title: Of the page.
        command: That makes the study again.
        made_with: Versions.
        data: What is known of the data sets, by name: classes, nodes, samples.
        problems: What was skipped, and why.
    """

    title: str
    command: str = ""
    made_with: dict[str, str] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


def write_report(
    study_folder: str | Path,
    out: str | Path | None = None,
    *,
    compare: Sequence[str] | None = None,
    sections: Sequence[SectionBuilder] = (),
    tell: Callable[[str], None] = lambda line: None,
) -> Path:
    """Write the report of a study.

    Args:
        study_folder: The study.
        out: Where to; by default the folder `report` within the study. Files of an older report are replaced.
        compare: Two methods whose difference is shown, by default ("hace", "sce").
        sections: More sections, such as `hace.paper.report_sections`.
        tell: Called with one line for each folder that is skipped.

    Returns:
        The page.

    Raises:
        FormatError: The folder is not a study.
        DataError: No run has finished.
        ConfigError: A compared method is not in the study, or `out` is a file.
    """
    study = read_study(study_folder)
    records = study.records()
    about = about_study(study)
    for problem in about.problems:
        tell(problem)
    target = Path(out) if out is not None else study.folder / "report"
    return write_records(Results(records, compare), about, target, sections)


def write_records(results: Results, about: About, out: Path, sections: Sequence[SectionBuilder] = ()) -> Path:
    """Write the report of any records; see :func:`write_report`."""
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out must be a folder. Got the file {out}. Choose another name.")
    made_up = any(_is_made_up(about.data.get(arena.dataset)) for arena in results.choices)
    document = build_document(
        results,
        about.title,
        facts(results.records, about),
        about.problems,
        sections,
        caution=MADE_UP if made_up else "",
    )
    compared = (results.first, results.second)
    with writing(out):
        for folder in (out / "tables", out / "figures"):
            folder.mkdir(parents=True, exist_ok=True)
    for name, content in files_of(document):
        write_whole(out / name, content)
    write_whole(out / "runs.csv", runs_csv(results.records).encode())
    write_whole(out / "report.md", to_report_markdown(document).encode())
    write_whole(out / "report.tex", to_report_latex(document).encode())
    write_whole(out / PAGE, to_page(document, compared, environment.config()["hace"]).encode())
    return out / PAGE


def about_study(study: Study) -> About:
    """What study.json says, and which folders among its runs are not runs."""
    return About(
        title=f"hace study: {study.preset}",
        command=command_of(study.preset, study.document["choices"], study.data),
        made_with=dict(study.document.get("made_with", {})),
        data=dict(study.data),
        problems=tuple(foreign(study.runs)),
    )


def command_of(preset: str, choices: Mapping[str, Any], data: Mapping[str, Any]) -> str:
    """The command that makes a study, with PATH for the data.

    Example:
        >>> command_of("fair-probe", {"methods": ["hace", "sce"], "seeds": 3}, {"cifar100": {"kind": "probe"}})
        'hace study fair-probe --features cifar100=PATH --methods hace,sce --seeds 3 --out STUDY'
    """
    words = ["hace", "study", *preset.split()]
    for name, known in data.items():
        hierarchy = None
        for part in (known, known.get("also") or {}):
            config = part.get("config") or {}
            option = OPTIONS.get(part.get("kind", ""))
            if option is not None and not str(config.get("name")).startswith("synthetic"):
                words += [option, f"{name}=PATH"]
                for key, value in (config.get("options") or {}).items():
                    words += [
                        "-o",
                        f"{name}.{key}={str(value).lower() if isinstance(value, bool) else value}",
                    ]
                hierarchy = config.get("hierarchy") or hierarchy
        if hierarchy:  # a name that comes with hace, or a file
            words += ["--hierarchy", f"{name}={'PATH' if Path(hierarchy).is_absolute() else hierarchy}"]
    for name in ("methods", "models", "rates", "decays", "fine"):
        if choices.get(name):
            words += [
                f"--{name}",
                ",".join(f"{x:g}" if isinstance(x, float) else str(x) for x in choices[name]),
            ]
    if choices.get("widen") is not None:
        words += ["--widen", str(choices["widen"])]
    words += ["--search-once"] if choices.get("search_once") else []
    if choices.get("shares"):
        words += ["--shares", ",".join(f"{100 * share:g}" for share in choices["shares"])]
    for name in ("coarse_to", "seeds"):
        if choices.get(name):
            words += [f"--{name.replace('_', '-')}", str(choices[name])]
    if choices.get("epochs_scale", 1.0) != 1.0:
        words += ["--epochs-scale", f"{choices['epochs_scale']:g}"]
    if choices.get("only"):
        said = {k: v if isinstance(v, str) else ",".join(map(str, v)) for k, v in choices["only"].items()}
        words += ["--only", *(f"{k}={v}" for k, v in said.items())]
    if choices.get("settings"):
        words += ["--set", *(f"{k}={v}" for k, v in choices["settings"].items())]
    return shlex.join([*words, "--out", "STUDY"])


def foreign(folder: Path) -> list[str]:
    """What is among run directories and is not a run."""
    if not folder.is_dir():
        return []
    return [
        f"{path.name} in {folder.name} is not a run: it has no {RUN}."
        for path in sorted(folder.iterdir())
        if not path.name.startswith(".") and not (path / RUN).is_file()
    ]


def facts(records: Sequence[Record], about: About) -> list[tuple[str, str]]:
    """What was run, for the head of the page."""
    keys = [record.key for record in records]
    datasets = list(dict.fromkeys(key.dataset for key in keys))
    seeds = sorted({key.seed for key in keys})
    found = [
        ("runs", counts_text(records)),
        ("data", "; ".join(_data_words(name, about.data.get(name)) for name in datasets)),
        ("models", ", ".join(dict.fromkeys(shown(key.model) for key in keys))),
        ("methods", "; ".join(dict.fromkeys(method_title(key.method) for key in keys))),
        ("protocols", ", ".join(dict.fromkeys(PROTOCOLS[key.protocol] for key in keys))),
        ("rates chosen on", selection_text(records)),
        ("seeds", f"{len(seeds)}: {seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else str(seeds[0])),
        ("versions", _versions(records, about)),
        ("reproduce", f"`{about.command}`" if about.command else ""),
        ("cite", CITE),
    ]
    return [(term, text) for term, text in found if text]


def _data_words(name: str, known: Any) -> str:
    if not isinstance(known, dict) or "classes" not in known:
        return shown(name)
    samples = ", ".join(f"{count:,} {split}" for split, count in (known.get("samples") or {}).items())
    return f"{shown(name)} ({known['classes']:,} classes, {known['nodes']:,} nodes{f'; samples: {samples}' if samples else ''})"


def _is_made_up(known: Any) -> bool:
    config = known.get("config") if isinstance(known, dict) else None
    return isinstance(config, dict) and str(config.get("name")).startswith("synthetic")


def _versions(records: Sequence[Record], about: About) -> str:
    """Versions of the study, and the number of runs made with others."""
    wanted = ("hace", "python", "torch", "numpy")
    made = about.made_with or next(
        (r.run.about.get("made_with", {}) for r in records if r.run is not None), {}
    )
    text = ", ".join(f"{name} {made[name]}" for name in wanted if name in made)
    other = 0
    for record in records:
        theirs = record.run.about.get("made_with", {}) if record.run is not None else made
        other += any(theirs.get(name) != made.get(name) for name in wanted)
    return text + (f"; {other:,} runs were made with other versions" if other else "")
