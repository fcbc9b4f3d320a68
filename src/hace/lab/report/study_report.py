"""The report of a study: its document, computed comparison by comparison, and the files it is written to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hace import environment
from hace.errors import ConfigError
from hace.files.writing import write_whole, writing
from hace.lab.report.comparisons import (
    BEST_NODE_BY_LEVEL,
    BY_LEVEL,
    HEADLINES,
    PROTOCOLS,
    TOP1,
    TOP5,
    Comparison,
    level_names,
    may_be_used,
    method_title,
    shown,
)
from hace.lab.report.document import Document, Folded, Section, SectionBuilder, Switch, to_csv, to_latex
from hace.lab.report.findings import findings, forests
from hace.lab.report.labels import label_blocks
from hace.lab.report.method_tables import (
    against_table,
    confidence_table,
    levels_switch,
    methods_table,
    runs_csv,
)
from hace.lab.report.nodes import NodeAccuracies, node_accuracies, node_data
from hace.lab.report.page import to_page
from hace.lab.report.results import Results, tally
from hace.lab.report.summary import counts_text, failures, selection_text, shortened
from hace.lab.report.verdict import caveats, verdicts
from hace.lab.runs.run import RUN
from hace.lab.study.cells import Record, searched_at
from hace.lab.study.folder import StudyFolder, read_study

PAGE = "report.html"
CITE = (
    "the paper, When Labels Have Structure: Improving Image Classification with Hierarchy-Aware Cross-Entropy, for the method; "
    "the file CITATION.cff of hace for the software"
)
SYNTHETIC = (
    "Synthetic data, drawn by descent down the tree: a hierarchy helps by construction. This shows how a study works, not what "
    "a method gains on real data."
)
READING = (
    "A number is the mean over seeds, with its 95% interval over seeds and test samples in brackets. A seed "
    "is a full repetition: initialisation, batch order, split{}.",
    "Accuracy at a level is that of the best class, carried up. The other rule, the most probable node of the level, has a "
    "switch: by it under-confident models lose points that no user loses.",
    "Bold is the best of a column, underlined the second; marks do not say that a difference is real, intervals do.",
    "Severity is the mean height of the lowest common ancestor of answer and truth over the mistakes alone, so fewer but worse "
    "mistakes raise it. HD@1 is the same over all samples, so it counts both.",
    "Detail at a promise: answers climb from the best class until at most 5% of the samples get a wrong answer; the threshold "
    "of each half of the test samples comes from the other half. Detail is the share of the possible information that is left.",
    '"not run": this study has no such run yet. "to be retried": it failed, and the study tries it again. "failed": it ended '
    'with an error, shown below. "diverged": its loss became infinite or NaN.',
)
READING_OF = {
    "fair": "Under the fair protocol all methods get the same learning rates, chosen on held-out samples; the test set is used "
    "once.",
    "paper": "Under the paper's protocol the best run on the test set counts, and methods differ in how many runs they have. "
    "It serves to compare with the printed numbers.",
}


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
    tell: Callable[[str], None] = lambda line: None,
) -> Path:
    """Write the report of a study."""
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
    synthetic = any(_is_synthetic(about.data.get(comparison.dataset)) for comparison in results.choices)
    facts_ = facts(results.records, about)
    caution = SYNTHETIC if synthetic else ""
    document = build_document(results, about.title, facts_, about.problems, sections, caution=caution)
    page = to_page(document, (results.first, results.second), environment.config()["hace"])
    with writing(out):
        for folder in (out / "tables", out / "figures"):
            folder.mkdir(parents=True, exist_ok=True)
    for name, content in _files(document):
        write_whole(out / name, content)
    write_whole(out / "runs.csv", runs_csv(results.records).encode())
    write_whole(out / PAGE, page.encode())
    return out / PAGE


def _files(document: Document) -> Iterator[tuple[str, bytes]]:
    """The files of tables and figures: path and content."""
    for table in document.tables():
        yield f"tables/{table.id}.csv", to_csv(table).encode()
        yield f"tables/{table.id}.tex", to_latex(table).encode()
    for picture in document.pictures():
        yield f"figures/{picture.name}.png", picture.png
        yield f"figures/{picture.name}.svg", picture.svg


def build_document(
    results: Results,
    title: str,
    facts: list[tuple[str, str]],
    problems: Sequence[str],
    sections: Sequence[SectionBuilder] = (),
    draw: bool = True,
    caution: str = "",
) -> Document:
    """Compute everything, comparison by comparison, so that each run's predictions are read once.

    `facts` say what was run, `problems` what was skipped, `caution` what a reader must know first. Further `sections` come
    before that of the runs. Without `draw` there are no figures, and no need of matplotlib.
    """
    document = Document(title, facts, caution)
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
    document.sections += [_reading(results), _runs(results, problems)]
    return document


def _reading(results: Results) -> Section:
    protocols = dict.fromkeys(comparison.protocol for comparison in results.choices)
    more = tuple(READING_OF[protocol] for protocol in protocols if protocol in READING_OF)
    seed = searched_at(results.records)
    choice = " and choice of the learning rate"
    once = f"; the learning rate was chosen at seed {seed} for all, so intervals leave that choice out"
    lines = [READING[0].format(choice if seed is None else once), READING[1], *more, *READING[2:]]
    return Section("reading", "How to read this page", (lines,), folded=True)


def _comparison_section(results: Results, comparison: Comparison, document: Document, draw: bool) -> Section:
    arrays = results.arrays[comparison]
    # Whatever other sections will ask for is computed now, while the predictions are in memory.
    for metric in HEADLINES[:4]:
        results.gap(comparison, results.first, results.second, metric.key)
    for more, keys in ((results.matched, (TOP1, TOP5)), (results.best_top5, (TOP5,))):
        if (found := more.get(comparison)) is not None:
            for name in found.choices:
                for key in keys:
                    found.score(name, key)
    held = [m for m in results.held_out(comparison) if may_be_used(m)]
    if held and results.first != results.second:
        findings(arrays, held[0], results.second)
    caveats(results, {comparison: ()})
    tables = [table(comparison, arrays) for table in (methods_table, levels_switch, confidence_table)]
    numbers = Folded("All numbers: methods, levels, confidence", tuple(t for t in tables if t is not None))
    nodes = _nodes(results, comparison)
    every = Folded("All nodes above the classes", tuple(nodes)) if nodes else None
    blocks = [forests(results, comparison), *(_pictures(results, comparison) if draw else []), numbers, every]
    data = node_data(arrays, list(dict.fromkeys((results.first, results.second))))
    if data is not None and arrays.hierarchy is not None:
        about = {"title": comparison.title, "dataset": shown(comparison.dataset)}
        document.comparisons.append({**about, "hierarchy": arrays.hierarchy, **data})
    arrays.store.drop()
    kept = tuple(block for block in blocks if block is not None)
    folded = bool(comparison.labels)  # one of several states of the labels, which are compared above
    return Section(f"results-{comparison.slug}", f"{comparison.title}: all methods", kept, folded)


def _pictures(results: Results, comparison: Comparison) -> list[Any]:
    try:
        from hace.lab.report import figures
    except ImportError as error:
        raise ConfigError('Figures need matplotlib. Install it with: pip install "hace[report]".') from error
    choices = dict(results.choices[comparison])
    compared = list(dict.fromkeys((results.first, results.second)))
    rates = figures.rates_picture(comparison, results.records, compared)
    if comparison.labels:  # one of many states of the labels: the figure over all of them says more
        return [rates]
    found: list[Any] = [
        figures.operating_picture(comparison, choices, compared),
        rates,
        figures.reliability_picture(comparison, choices, compared),
    ]
    for accuracy in _node_accuracies(results, comparison, BEST_NODE_BY_LEVEL)[
        -2:
    ]:  # the two levels above the classes
        found.append(figures.nodes_picture(comparison, accuracy, *compared))
    return found


def _node_accuracies(results: Results, comparison: Comparison, rule: str) -> list[NodeAccuracies]:
    """Both methods at the nodes of every inner level with several of them."""
    arrays, (first, second) = results.arrays[comparison], (results.first, results.second)
    levels = range(len(level_names(arrays.hierarchy)) - 1) if arrays.hierarchy is not None else ()
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
        gaps = [g.interval.value for g in results.gaps(first, second, protocol)]
        if len({(c.dataset, c.model) for c in results.comparisons(protocol)}) < 2 or first == second:
            continue
        if (t := tally(gaps)) is not None and t.of > 1:
            blocks.append(
                f"Over all {t.of} pairs of data set and model, {PROTOCOLS[protocol]}: {method_title(first)} beats "
                f"{method_title(second)} in {t.won}; the mean difference is {100 * t.mean:+.2f} points, the median "
                f"{100 * t.median:+.2f}."
            )
            blocks.append(against_table(results, protocol))
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
    return About(
        title=f"hace study: {study.document['preset']}",
        command=study.document["command"],
        made_with=dict(study.document.get("made_with", {})),
        data=dict(study.data),
        problems=tuple(foreign(study.runs)),
    )


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
    words = [
        f"{known['classes']:,} classes, {known['nodes']:,} nodes",
        *([f"samples: {samples}"] if samples else []),
    ]
    words += [
        f"{state} changes {100 * share:.0f}% of the labels"
        for state, share in (known.get("changed") or {}).items()
    ]
    return f"{shown(name)} ({'; '.join(words)})"


def _is_synthetic(known: Any) -> bool:
    config = known.get("config") if isinstance(known, dict) else None
    return isinstance(config, dict) and str(config.get("name")).startswith("synthetic")


def _versions(records: Sequence[Record], about: About) -> str:
    """Versions of the study, and the number of runs made with others."""
    wanted = ("hace", "python", "torch", "numpy")
    made = about.made_with or next(
        ((r.run.about.get("made_with") or {}) for r in records if r.run is not None), {}
    )
    text = ", ".join(f"{name} {made[name]}" for name in wanted if name in made)
    other = 0
    for record in records:
        theirs = (record.run.about.get("made_with") or {}) if record.run is not None else made
        other += any(theirs.get(name) != made.get(name) for name in wanted)
    return text + (f"; {other:,} runs were made with other versions" if other else "")
