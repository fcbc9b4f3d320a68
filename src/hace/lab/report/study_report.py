"""The report of a study: its document, computed condition by condition, and the files it is written to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hace import environment
from hace.errors import ConfigError
from hace.files.reading import optional
from hace.files.writing import own_folder, write_whole
from hace.lab.report.about import About, about_study, counts_text, facts, failures, shortened
from hace.lab.report.cards import study_cards
from hace.lab.report.caveats import caveats
from hace.lab.report.document import WORDS, Document, Folded, Section, SectionBuilder, Switch
from hace.lab.report.forest import forests
from hace.lab.report.labels import label_blocks
from hace.lab.report.metric import BEST_NODE_BY_LEVEL, BY_LEVEL, HEADLINES, TOP5_ACCURACY, level_names
from hace.lab.report.nodes import NodeAccuracies, node_accuracies, node_data
from hace.lab.report.page import to_page
from hace.lab.report.results import Results
from hace.lab.report.runs import PROTOCOLS, Condition, method_title, runs_csv, shown
from hace.lab.report.sentences import say
from hace.lab.report.tables import against_table, confidence_table, headline_table, levels_switch, tally
from hace.lab.study.folder import read_study
from hace.lab.study.records import searched_at

PAGE = "report.html"


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
) -> Path:
    """Write the report of any records; see :func:`write_report`."""
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out must be a folder. Got the file {out}. Choose another name.")
    document = build_document(results, about, sections)
    page = to_page(document, (results.first, results.second), environment.config()["hace"])
    for folder in (out / "tables", out / "figures"):
        own_folder(folder)
    for name, content in document.files():
        write_whole(out / name, content)
    write_whole(out / "runs.csv", runs_csv(results.runs).encode())
    write_whole(out / PAGE, page.encode())
    return out / PAGE


def build_document(
    results: Results, about: About, sections: Sequence[SectionBuilder] = (), draw: bool = True
) -> Document:
    """Compute everything, condition by condition, so that each run's predictions are read once.

    Further `sections` come before that of the runs. Without `draw` there are no figures, and no need of matplotlib.
    """
    synthetic = any(about.is_synthetic(condition.dataset) for condition in results.scores)
    document = Document(about.title, facts(results.records, about), WORDS["synthetic"] if synthetic else "")
    of_conditions = [_condition_section(results, condition, document, draw) for condition in results.scores]
    document.cards = study_cards(results)
    document.sections += [section for section in of_conditions if not section.folded]
    if labels := label_blocks(results, draw):
        document.sections.append(Section("labels", "Labels: use or drop, and which method", tuple(labels)))
    document.sections += [section for section in of_conditions if section.folded]
    if together := _together(results):
        document.sections.append(Section("together", "All datasets and models", tuple(together)))
    document.sections.append(Section("explore", "Explore the hierarchy", ()))
    document.sections += [section for more in sections for section in more(results, draw)]
    document.sections += [_reading(results), _runs(results, about.problems)]
    return document


# --- one condition


def _condition_section(results: Results, condition: Condition, document: Document, draw: bool) -> Section:
    """Everything about a condition. Its predictions are in memory only here."""
    scores = results.scores[condition]
    # Before the tables, which show the scores that these compare.
    blocks: list[Any] = [forests(results, condition)]
    tables = tuple(filter(None, (headline_table(scores), levels_switch(scores), confidence_table(scores))))
    nodes = _node_switches(results, condition)
    blocks += _pictures(results, condition) if draw else []
    blocks.append(Folded("All numbers: methods, levels, confidence", tables))
    blocks += [Folded("All nodes above the classes", tuple(nodes))] if nodes else []
    data = node_data(scores, list(dict.fromkeys((results.first, results.second))))
    if data is not None and scores.hierarchy is not None:
        names = {"title": condition.title, "dataset": shown(condition.dataset)}
        document.drawings.append({**names, "hierarchy": scores.hierarchy, **data})
    _compute_what_comes_later(results, condition)
    scores.store.forget()
    folded = bool(condition.labels)  # one of several states of the labels, which are compared above
    drawn = tuple(block for block in blocks if block is not None)
    return Section(f"results-{condition.slug}", f"{condition.title}: all methods", drawn, folded)


def _compute_what_comes_later(results: Results, condition: Condition) -> None:
    """Scores and caveats that other sections show, while the predictions are in memory."""
    caveats(results, {condition: ()})
    for scores, metric in (
        (results.matched, HEADLINES[0]),
        (results.matched, TOP5_ACCURACY),
        (results.best_top5, TOP5_ACCURACY),
    ):
        if condition in scores:
            scores[condition].means(metric)


def _pictures(results: Results, condition: Condition) -> list[Any]:
    """The pictures of a condition."""
    optional("matplotlib", "Drawing figures", "report")
    from hace.lab.report import figures

    scores = results.scores[condition]
    compared = list(dict.fromkeys((results.first, results.second)))
    rates = figures.rates_picture(condition, results.in_condition(condition), compared)
    if condition.labels:  # one of many states of the labels: the figure over all of them says more
        return [rates]
    two_above = _node_accuracies(results, condition, BEST_NODE_BY_LEVEL)[-2:]  # the levels above the classes
    return [
        figures.operating_picture(scores, compared),
        rates,
        figures.reliability_picture(scores, compared),
        *(figures.nodes_picture(condition, nodes, *compared) for nodes in two_above),
    ]


def _node_accuracies(results: Results, condition: Condition, rule: str) -> list[NodeAccuracies]:
    """Both methods at the nodes of every inner level with several of them."""
    scores = results.scores[condition]
    first = results.first
    second = results.second
    if first == second or condition.labels:
        return []
    levels = range(len(level_names(scores.hierarchy)) - 1)
    each = [node_accuracies(scores, first, second, level, rule) for level in levels]
    return [nodes for nodes in each if nodes is not None and len(nodes.names) > 1]


def _node_switches(results: Results, condition: Condition) -> list[Switch]:
    """All nodes of each inner level, by either rule."""
    names = [method_title(method) for method in (results.first, results.second)]
    options: dict[str, list[tuple[str, Any]]] = {}
    for rule, title, end in (
        (BEST_NODE_BY_LEVEL, "most probable node of the level", "best_node"),
        (BY_LEVEL, "best class, carried up", "carried_up"),
    ):
        for nodes in _node_accuracies(results, condition, rule):
            slug = f"{condition.slug}-{len(options)}-{end}"
            options.setdefault(nodes.level, []).append((title, nodes.table(slug, *names)))
    return [Switch("Rule", tuple(of_level)) for of_level in options.values()]


# --- the whole study


def _together(results: Results) -> list[Any]:
    """Differences over all conditions of a protocol, where there are several."""
    first = results.first
    second = results.second
    blocks: list[Any] = []
    for protocol in PROTOCOLS:
        places = {(condition.dataset, condition.model) for condition in results.conditions(protocol)}
        if len(places) < 2 or first == second:
            continue
        frame = results.against_reference(protocol)
        wins = tally(frame["difference"][frame["first"] == first].tolist())
        if wins is not None and wins.of > 1:
            sentence = say(
                "together",
                protocol=PROTOCOLS[protocol],
                first=method_title(first),
                second=method_title(second),
                won=wins.won,
                of=wins.of,
                mean=f"{100 * wins.mean:+.1f}",
            )
            blocks += [sentence, against_table(results, protocol)]
    return [block for block in blocks if block is not None]


def _reading(results: Results) -> Section:
    """The section that explains how to read the page."""
    protocols = dict.fromkeys(condition.protocol for condition in results.scores)
    more = [WORDS["reading_of"][protocol] for protocol in protocols if protocol in WORDS["reading_of"]]
    first, second, *rest = WORDS["reading"]
    lines = [
        say("seeds_and_intervals", search_seed=searched_at(results.records)),
        first,
        second,
        *more,
        *rest,
    ]
    return Section("reading", "How to read this page", (lines,), folded=True)


def _runs(results: Results, problems: Sequence[str]) -> Section:
    blocks: list[Any] = [f"{counts_text(results.records)}. runs.csv lists them all, with every metric."]
    if failed := failures(results.records):
        blocks += ["Runs without a result:", shortened(failed)]
    if skipped := [*problems, *results.problems]:
        blocks += ["Skipped:", shortened(skipped)]
    return Section("runs", "Runs", tuple(blocks), folded=True)
