"""The report of a study: its document, computed comparison by comparison, the files it is written to, and its text."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hace import environment
from hace.errors import ConfigError
from hace.files.reading import optional
from hace.files.writing import own_folder, write_whole
from hace.lab.report import method_tables
from hace.lab.report.document import (
    WORDS,
    Document,
    Entry,
    Folded,
    ReportTable,
    Section,
    SectionBuilder,
    Switch,
    to_text,
)
from hace.lab.report.findings import findings, forests
from hace.lab.report.method_tables import gap_entry, score_column
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
    MethodScores,
    Metric,
    Results,
    level_names,
    may_be_used,
    method_title,
    shown,
    tally,
    unseen_classes,
)
from hace.lab.report.verdict import Verdict, caveats, label_blocks, label_questions, label_tables, verdicts
from hace.lab.runs.run import RUN
from hace.lab.study import records as study_records
from hace.lab.study.folder import StudyFolder, read_study
from hace.lab.study.records import Record

PAGE = "report.html"
MARKS = "1st, 2nd: the best and the second of a column; * marks differences whose interval excludes 0"
_WIDTH = 100  # of lines


@dataclass(frozen=True)
class About:
    """What a report says of the study behind its records."""

    title: str
    command: str = ""  # makes the study again
    made_with: dict[str, str] = field(default_factory=dict)  # versions
    data: dict[str, Any] = field(default_factory=dict)  # by dataset: classes, nodes, samples
    problems: tuple[str, ...] = ()  # what was skipped, and why


def write_report(
    study_folder: str | Path,
    out: str | Path | None = None,
    *,
    compare: Sequence[str] | None = None,
    sections: Sequence[SectionBuilder] = (),
) -> Path:
    """Write the report of a study. Returns the path of the page.

    Args:
        study_folder: Folder of the study.
        out: Folder of the report, by default `report` in the study's.
        compare: Two methods to compare throughout, by default the study's.
        sections: Functions that add sections to the page.
    """
    study = read_study(study_folder)
    target = Path(out) if out is not None else own_folder(study.folder / "report")
    return write_records(Results(study.records(), compare), about_study(study), target, sections)


def write_records(
    results: Results,
    about: About,
    out: Path,
    sections: Sequence[SectionBuilder] = (),
    cards: list[Verdict] | None = None,
) -> Path:
    """Write the report of any records; see :func:`write_report`. With `cards` of its own, most sections are folded."""
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out must be a folder. Got the file {out}. Choose another name.")
    document = build_document(results, about, sections)
    if cards is not None:
        document.verdicts = cards
        found = [s._replace(folded=s.id not in ("labels", "explore")) for s in document.sections]
        document.sections = sorted(found, key=lambda section: section.folded)
    page = to_page(document, (results.first, results.second), environment.config()["hace"])
    for folder in (out / "tables", out / "figures"):
        own_folder(folder)
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
        document.sections.append(Section("together", "All datasets and models", tuple(together)))
    document.sections.append(Section("explore", "Explore the hierarchy", ()))
    document.sections += [section for more in sections for section in more(results, draw)]
    document.sections += [_reading(results), _runs(results, about.problems)]
    return document


def _reading(results: Results) -> Section:
    protocols = dict.fromkeys(comparison.protocol for comparison in results.choices)
    more = [WORDS["reading_of"][protocol] for protocol in protocols if protocol in WORDS["reading_of"]]
    seed = study_records.searched_at(results.records)
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
    blocks = [forests(results, comparison)]  # before the tables: the scores of differences are theirs too
    makers = (method_tables.methods_table, method_tables.levels_switch, method_tables.confidence_table)
    tables = tuple(table for make in makers if (table := make(comparison, arrays)) is not None)
    nodes = _nodes(results, comparison)
    every = Folded("All nodes above the classes", tuple(nodes)) if nodes else None
    blocks += _pictures(results, comparison) if draw else []
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
    optional("matplotlib", "Drawing figures", "report")
    from hace.lab.report import figures

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


# --- the summary for the terminal


def report_text(records: Iterable[Record], compare: Sequence[str] | None = None) -> str:
    """The summary of a study: its answers, tables, and what is missing."""
    results = Results(records, compare)
    return f"{verdicts_text(verdicts(results))}\n\n{results_text(results)}"


def results_text(results: Results) -> str:
    """The numbers: one table per question about labels, or else one per comparison, and how to read them."""
    found = [table for question in label_questions(results) for table in label_tables(question)]
    found = found or [summary_table(c.title, a, results.second) for c, a in results.arrays.items()]
    tables = [to_text(table, _WIDTH) for table in found]
    chosen = selection_text(results.records)
    grouped = any(a.store.groups is not None for a in results.arrays.values())
    lines = [f"[95% intervals] over seeds and {'groups of ' if grouped else ''}test samples.", f"{MARKS}."]
    lines += [f"Rates chosen on {chosen}."] if chosen else []
    lines += [*notes(results.records), counts_text(results.records)]
    return "\n\n".join([*tables, _wrapped("\n".join(lines))])


def verdicts_text(found: Iterable[Verdict]) -> str:
    """The answers of the page's first screen."""
    lines = []
    for verdict in found:
        lines.append(f"{verdict.where}: {verdict.question}")
        more = [*(step.line for step in verdict.steps), *verdict.lines]
        more += [f"Use {verdict.use}{verdict.why}"] if verdict.use else []
        more += [f"  {line}" for command in verdict.commands for line in command.splitlines()]
        lines += [f"  {part}" for part in (verdict.answer, *more)]
    return _wrapped("\n".join(lines))


def _wrapped(text: str) -> str:
    """Text whose lines fit; what goes on in the next line is indented."""
    indents = ((line, " " * (2 + len(line) - len(line.lstrip()))) for line in text.splitlines())
    whole = ("hace calibrate ", "hace predict ", "hace probe ", "hace train ", "hace.Predictor", "--")
    return "\n".join(
        line if line.lstrip().startswith(whole) else textwrap.fill(line, _WIDTH, subsequent_indent=indent)
        for line, indent in indents
    )


def counts_text(records: Sequence[Record]) -> str:
    """How many runs there are, by status; a run that configurations share is one."""
    records = study_records.each_run(records)
    count = Counter(record.status for record in records)
    parts = [
        f"{count[s]:,} {s}" for s in ("finished", *study_records.NO_RESULT) if count[s] or s == "finished"
    ]
    total = f"{len(records):,} {'run' if len(records) == 1 else 'runs'}"
    return f"{total}: {', '.join(parts)}" if records else total


def failures(records: Sequence[Record]) -> list[str]:
    """Each error of runs without a result, with the number of runs and the first of them."""
    found: dict[str, list[str]] = {}
    for r in records:
        if r.status in ("failed", "diverged"):
            key = r.key
            where = [shown(key.dataset), shown(key.model), method_title(key.method)]
            where += ["" if key.dilution is None else f"d {key.dilution:g}", f"seed {key.seed}"]
            where += [f"rate {r.lr:g}" if r.lr == r.lr else "", r.stage]
            error = r.error or "diverged: the loss became infinite or NaN"
            found.setdefault(error, []).append(", ".join(filter(None, where)))
    return [f"{e} ({len(w)}: {'; '.join(w[:5])}{' ...' if len(w) > 5 else ''})" for e, w in found.items()]


def shortened(lines: Sequence[str], most: int = 50) -> list[str]:
    """The first of many lines, and how many more there are."""
    return [*lines] if len(lines) <= most else [*lines[:most], f"and {len(lines) - most:,} more"]


def selection_text(records: Sequence[Record]) -> str:
    """What rates are chosen on, for each dataset where that differs; "" where nothing is searched."""
    searches: dict[str, list[Record]] = {}
    for record in records:
        if record.stage == "search":
            searches.setdefault(record.key.dataset, []).append(record)
    words = {name: study_records.chosen_on(found) for name, found in searches.items()}
    if len(set(words.values())) < 2:
        return next(iter(words.values()), "")
    return "; ".join(f"{text} ({shown(name)})" for name, text in words.items())


def notes(records: Sequence[Record]) -> Iterator[str]:
    """What a reader of the table should know: classes without samples, L-BFGS that stopped early, rates at the edge."""
    trained = [r.result["train"] for r in records if r.stage == "final" and r.result]
    if unseen := unseen_classes(r for r in records if r.stage == "final"):
        yield unseen
    if short := sum(train.get("converged") is False for train in trained):
        yield f"{short} of {len(trained)} L-BFGS runs did not converge: raise max_iter or tolerance in a --config."
    edges, searches = study_records.at_the_edge(records)
    if edges:
        yield f"{edges:,} of {searches:,} searches end at the edge of their grid: a wider range may do better."
    if coarse := sorted({method_title(key.method) for key in study_records.coarse_searches(records)}):
        yield f"The grid of rates is coarse for {', '.join(coarse)}: a rate between its neighbours may do better."


def summary_table(
    title: str,
    arrays: MethodScores,
    reference: str,
    *,
    gaps: Sequence[Metric] = HEADLINES[:1],
    name: Callable[[str], str] = method_title,
) -> ReportTable:
    """Methods with their headline metrics, and how they differ from a reference in the metrics `gaps`."""
    methods = list(arrays.choices)
    columns = [("method", [Entry(name(m)) for m in methods])]
    for metric in HEADLINES[:3]:
        column = score_column(arrays, metric, methods)
        if metric is not HEADLINES[0]:  # the first column has the intervals, and says why there is no result
            column = [Entry("", soft=True) if e.soft else replace(e, detail="") for e in column]
        columns.append((metric.title, column))
        if metric in gaps:
            found = {m: arrays.difference(m, reference, metric.key) for m in methods if m != reference}
            minus = [gap_entry(gap[0] if (gap := found.get(m)) else None, metric, "") for m in methods]
            columns.append((f"minus {name(reference)}", minus))
    columns.append(("tried", [Entry(arrays.choices[m].budget) for m in methods]))
    columns.append(("chosen", [Entry(arrays.choices[m].settings) for m in methods]))
    done = [(len(c.finished), c) for c in arrays.choices.values()]
    seeds = [str(n) if n == len(c.records) else f"{n} ({c.state})" for n, c in done]
    if len(set(seeds)) > 1:
        columns.append(("seeds", [Entry(count) for count in seeds]))
    else:  # as usual: the title has room for it
        title += f", {seeds[0]} {'seed' if seeds[0] == '1' else 'seeds'}"
    filled = [(head, column) for head, column in columns if any(entry.text for entry in column)]
    rows = tuple(zip(*(column for _, column in filled), strict=True))
    return ReportTable("summary", title, (tuple(head for head, _ in filled),), rows)
