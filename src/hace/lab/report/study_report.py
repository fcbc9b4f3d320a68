"""The report of a study: its document, computed comparison by comparison, and the files it is written to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hace import environment
from hace.errors import ConfigError, install
from hace.files.writing import write_whole, writing
from hace.lab.report import method_tables
from hace.lab.report.document import WORDS, Document, Folded, Section, SectionBuilder, Switch
from hace.lab.report.findings import findings, forests
from hace.lab.report.nodes import NodeAccuracies, node_accuracies, node_data
from hace.lab.report.page import to_page
from hace.lab.report.results import (
    BEST_NODE_BY_LEVEL,
    BY_LEVEL,
    HEADLINES,
    PROTOCOLS,
    TOP1,
    TOP5,
    Comparison,
    Results,
    level_names,
    may_be_used,
    method_title,
    shown,
    tally,
)
from hace.lab.report.summary import counts_text, failures, selection_text, shortened
from hace.lab.report.verdict import caveats, label_blocks, verdicts
from hace.lab.runs.run import RUN
from hace.lab.study.cells import Record, searched_at
from hace.lab.study.folder import StudyFolder, read_study

PAGE = "report.html"


@dataclass(frozen=True)
class About:
    """What a report says of the study behind its records."""

    title: str
    command: str = ""  # makes the study again
    made_with: dict[str, str] = field(default_factory=dict)  # versions
    data: dict[str, Any] = field(default_factory=dict)  # by data set: classes, nodes, samples
    problems: tuple[str, ...] = ()  # what was skipped, and why


def write_report(
    study_folder: str | Path,
    out: str | Path | None = None,
    *,
    compare: Sequence[str] | None = None,
    sections: Sequence[SectionBuilder] = (),
) -> Path:
    """Write the report of a study: by default into its folder `report`. Returns the page."""
    study = read_study(study_folder)
    target = Path(out) if out is not None else study.folder / "report"
    return write_records(Results(study.records(), compare), about_study(study), target, sections)


def write_records(results: Results, about: About, out: Path, sections: Sequence[SectionBuilder] = ()) -> Path:
    """Write the report of any records; see :func:`write_report`."""
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out must be a folder. Got the file {out}. Choose another name.")
    document = build_document(results, about, sections)
    page = to_page(document, (results.first, results.second), environment.config()["hace"])
    with writing(out):
        for folder in (out / "tables", out / "figures"):
            folder.mkdir(parents=True, exist_ok=True)
    for name, content in document.files():
        write_whole(out / name, content)
    write_whole(out / "runs.csv", method_tables.runs_csv(results.records).encode())
    write_whole(out / PAGE, page.encode())
    return out / PAGE


def build_document(
    results: Results, about: About, sections: Sequence[SectionBuilder] = (), draw: bool = True
) -> Document:
    """Compute everything, comparison by comparison, so that each run's predictions are read once.

    Further `sections` come before that of the runs. Without `draw` there are no figures, and no need of matplotlib.
    """
    synthetic = any(_is_synthetic(about.data.get(comparison.dataset)) for comparison in results.choices)
    document = Document(about.title, facts(results.records, about), WORDS["synthetic"] if synthetic else "")
    found = [_comparison_section(results, comparison, document, draw) for comparison in results.choices]
    document.verdicts = verdicts(results)
    document.sections += [section for section in found if not section.folded]
    if labels := label_blocks(results, draw):
        document.sections.append(Section("labels", "Labels: use or drop, and which method", tuple(labels)))
    document.sections += [section for section in found if section.folded]
    if together := _together(results):
        document.sections.append(Section("together", "All data sets and models", tuple(together)))
    document.sections.append(Section("explore", "Explore the hierarchy", ()))
    document.sections += [section for more in sections for section in more(results, draw)]
    document.sections += [_reading(results), _runs(results, about.problems)]
    return document


def _reading(results: Results) -> Section:
    protocols = dict.fromkeys(comparison.protocol for comparison in results.choices)
    more = [WORDS["reading_of"][protocol] for protocol in protocols if protocol in WORDS["reading_of"]]
    seed = searched_at(results.records)
    choice = " and choice of the learning rate"
    once = f"; the learning rate was chosen at seed {seed} for all, so intervals leave that choice out"
    first, second, *rest = WORDS["reading"]
    lines = [first.format(choice if seed is None else once), second, *more, *rest]
    return Section("reading", "How to read this page", (lines,), folded=True)


def _comparison_section(results: Results, comparison: Comparison, document: Document, draw: bool) -> Section:
    arrays = results.arrays[comparison]
    # Whatever other sections will ask for is computed now, while the predictions are in memory.
    for metric in HEADLINES[:4]:
        arrays.difference(results.first, results.second, metric.key)
    for more, key in ((results.matched, TOP1), (results.matched, TOP5), (results.best_top5, TOP5)):
        for name in more[comparison].choices if comparison in more else ():
            more[comparison].score(name, key)
    held = [m for m in results.held_out(comparison) if may_be_used(m)]
    if held and results.first != results.second:
        findings(arrays, held[0], results.second)
    caveats(results, {comparison: ()})
    makers = (method_tables.methods_table, method_tables.levels_switch, method_tables.confidence_table)
    tables = tuple(table for make in makers if (table := make(comparison, arrays)) is not None)
    nodes = _nodes(results, comparison)
    every = Folded("All nodes above the classes", tuple(nodes)) if nodes else None
    blocks = [forests(results, comparison), *(_pictures(results, comparison) if draw else [])]
    blocks += [Folded("All numbers: methods, levels, confidence", tables), every]
    data = node_data(arrays, list(dict.fromkeys((results.first, results.second))))
    if data is not None and arrays.hierarchy is not None:
        about = {"title": comparison.title, "dataset": shown(comparison.dataset)}
        document.comparisons.append({**about, "hierarchy": arrays.hierarchy, **data})
    arrays.store.read.clear()
    kept = tuple(block for block in blocks if block is not None)
    folded = bool(comparison.labels)  # one of several states of the labels, which are compared above
    return Section(f"results-{comparison.slug}", f"{comparison.title}: all methods", kept, folded)


def _pictures(results: Results, comparison: Comparison) -> list[Any]:
    try:
        from hace.lab.report import figures
    except ImportError as error:
        raise ConfigError(f"Figures need matplotlib. {install('report')}") from error
    choices = dict(results.choices[comparison])
    compared = list(dict.fromkeys((results.first, results.second)))
    rates = figures.rates_picture(comparison, results.records, compared)
    if comparison.labels:  # one of many states of the labels: the figure over all of them says more
        return [rates]
    operating = figures.operating_picture(comparison, choices, compared)
    reliability = figures.reliability_picture(comparison, choices, compared)
    two_above = _node_accuracies(results, comparison, BEST_NODE_BY_LEVEL)[-2:]  # the levels above the classes
    nodes = [figures.nodes_picture(comparison, accuracy, *compared) for accuracy in two_above]
    return [operating, rates, reliability, *nodes]


def _node_accuracies(results: Results, comparison: Comparison, rule: str) -> list[NodeAccuracies]:
    """Both methods at the nodes of every inner level with several of them."""
    arrays, (first, second) = results.arrays[comparison], (results.first, results.second)
    levels = range(len(level_names(arrays.hierarchy)) - 1)
    if first == second or comparison.labels:
        return []
    found = [node_accuracies(arrays, first, second, level, rule) for level in levels]
    return [accuracy for accuracy in found if accuracy is not None and len(accuracy.names) > 1]


def _nodes(results: Results, comparison: Comparison) -> list[Switch]:
    """All nodes of each inner level, by either rule."""
    names = [method_title(m) for m in (results.first, results.second)]
    rules = {BEST_NODE_BY_LEVEL: "most probable node of the level", BY_LEVEL: "best class, carried up"}
    options: dict[str, list[tuple[str, Any]]] = {}
    for rule, title in rules.items():
        for accuracy in _node_accuracies(results, comparison, rule):
            slug = f"{comparison.slug}-{len(options)}-{'best_node' if rule == BEST_NODE_BY_LEVEL else 'carried_up'}"
            options.setdefault(accuracy.level, []).append((title, accuracy.table(slug, *names)))
    return [Switch("Rule", tuple(found)) for found in options.values()]


def _together(results: Results) -> list[Any]:
    """Differences over all comparisons of a protocol, where there are several."""
    first, second = results.first, results.second
    blocks: list[Any] = []
    for protocol in PROTOCOLS:
        gaps = [gap.value for gap in results.gaps(first, second, protocol).values()]
        if len({(c.dataset, c.model) for c in results.comparisons(protocol)}) < 2 or first == second:
            continue
        if (t := tally(gaps)) is not None and t.of > 1:
            names = {"first": method_title(first), "second": method_title(second), "won": t.won, "of": t.of}
            means = {"mean": f"{100 * t.mean:+.2f}", "median": f"{100 * t.median:+.2f}"}
            blocks.append(WORDS["together"].format(protocol=PROTOCOLS[protocol], **names, **means))
            blocks.append(method_tables.against_table(results, protocol))
    return [b for b in blocks if b is not None]


def _runs(results: Results, problems: Sequence[str]) -> Section:
    blocks: list[Any] = [f"{counts_text(results.records)}. runs.csv lists them all, with every metric."]
    if failed := failures(results.records):
        blocks += ["Runs without a result:", shortened(failed)]
    if skipped := [*problems, *results.problems]:
        blocks += ["Skipped:", shortened(skipped)]
    return Section("runs", "Runs", tuple(blocks), folded=True)


def about_study(study: StudyFolder) -> About:
    """What study.json says, and which folders among its runs are not runs."""
    folders = sorted(study.runs.iterdir()) if study.runs.is_dir() else ()
    foreign = [path.name for path in folders if not path.name.startswith(".") and not (path / RUN).is_file()]
    problems = tuple(f"{name} in {study.runs.name} is not a run: it has no {RUN}." for name in foreign)
    title, command = f"hace study: {study.document['preset']}", study.document["command"]
    return About(title, command, dict(study.document.get("made_with", {})), dict(study.data), problems)


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
        ("cite", WORDS["cite"]),
    ]
    return [(term, text) for term, text in found if text]


def _data_words(name: str, known: Any) -> str:
    if not isinstance(known, dict) or "classes" not in known:
        return shown(name)
    samples, changed = known.get("samples") or {}, known.get("changed") or {}
    words = [f"{known['classes']:,} classes, {known['nodes']:,} nodes"]
    if samples:
        words.append(f"samples: {', '.join(f'{count:,} {split}' for split, count in samples.items())}")
    words += [f"{state} changes {100 * share:.0f}% of the labels" for state, share in changed.items()]
    return f"{shown(name)} ({'; '.join(words)})"


def _is_synthetic(known: Any) -> bool:
    config = known.get("config") if isinstance(known, dict) else None
    return isinstance(config, dict) and str(config.get("name")).startswith("synthetic")


def _versions(records: Sequence[Record], about: About) -> str:
    """Versions of the study, and the number of runs made with others."""
    wanted = ("hace", "python", "torch", "numpy")
    each = [r.run.about.get("made_with") or {} for r in records if r.run is not None]
    made = about.made_with or next(iter(each), {})
    text = ", ".join(f"{name} {made[name]}" for name in wanted if name in made)
    other = sum(any(theirs.get(name) != made.get(name) for name in wanted) for theirs in each)
    return text + (f"; {other:,} runs were made with other versions" if other else "")
