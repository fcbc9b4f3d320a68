"""The page of an evaluation, in the style of a study's: headline, mistakes, levels, confidence, thresholds, sunburst."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hace import environment
from hace.decisions import Decisions
from hace.files.documents import write_table
from hace.files.writing import atomic_folder, without_nan
from hace.lab.report.document import WORDS, Document, Entry, Folded, ReportTable, Section
from hace.lab.report.figures import Picture, evaluation_figures, picture
from hace.lab.report.nodes import drawn_counts
from hace.lab.report.page import to_page
from hace.lab.report.results import BEST_NODE_BY_LEVEL
from hace.lab.report.verdict import Verdict
from hace.metrics.comparison import Difference
from hace.metrics.evaluation import Evaluation, summary_lines
from hace.metrics.intervals import share_interval
from hace.metrics.measures import CARRIED_UP, node_of_level
from hace.metrics.sample_statistics import MetricKey

EVALUATION_PAGE = "report.html"
_PAIRS = 15
_FEW = 5  # samples of a class
_THRESHOLDS = (0.0, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99)
_FILES = "Numbers: report.json. Tables: decisions.csv, classes.csv, mistakes.csv."

_Figures = Mapping[str, Any]  # of `evaluation_figures`
_Models = list[tuple[str, Evaluation]]  # one or two, with their names


def write_evaluation(evaluation: Evaluation, folder: str | Path, *, raw_cells: bool = False) -> Path:
    """Write the page, report.json, tables and pictures of an evaluation into a folder: all of them, or none.

    Where only the metrics of the leaves were computed, there is neither page nor picture.

    Args:
        evaluation: Of `hace.evaluate`, with or without a second model.
        folder: Where to; files of the same names are replaced.
        raw_cells: Whether text in tables is written unchanged, formulas included.

    Returns:
        The page.
    """
    with atomic_folder(Path(folder)) as temporary:
        _write_tables(temporary, evaluation, raw_cells)
        if not evaluation.samples.only_leaves:
            figures = evaluation_figures(_models(evaluation))
            for name, figure in figures.items():
                figure.savefig(temporary / f"{name}.png", metadata={"Software": None})
            page = evaluation_page(evaluation, figures)
            (temporary / EVALUATION_PAGE).write_text(page, encoding="utf-8", newline="\n")
    return (Path(folder) / EVALUATION_PAGE).resolve()


def _models(evaluation: Evaluation) -> _Models:
    second = [] if evaluation.comparison is None else [evaluation.comparison.second]
    return [(each.name, each) for each in (evaluation, *second)]


def _write_tables(folder: Path, e: Evaluation, raw: bool) -> None:
    known = without_nan({**e.about, **e.to_dict()})
    document = json.dumps(known, indent=2, ensure_ascii=False, allow_nan=False)
    (folder / "report.json").write_text(document + "\n", encoding="utf-8")
    tables = {"decisions.csv": _decision_columns(e), "mistakes.csv": e.confusion.pair_columns()}
    if e.hierarchy.is_tree:
        level = e.hierarchy.max_depth if e.level is None else e.level
        tables["classes.csv"] = e.class_table(level).columns()
    for name, table in tables.items():
        with (folder / name).open("w", newline="", encoding="utf-8") as file:
            write_table(file, table, raw=raw)


def _decision_columns(e: Evaluation) -> dict[str, list]:
    """One row per sample: truth, best leaf, and the answers of the other rules."""
    h, s = e.hierarchy, e.samples
    table: dict[str, list] = {"sample": list(range(len(s)))}
    for title, nodes in (("truth", s.truth.tolist()), ("leaf", s.answers.tolist())):
        table |= {title: [h.nodes[v] for v in nodes], f"{title}_name": [h.names[v] for v in nodes]}
    if not s.only_leaves:
        table["leaf_probability"] = s.confidence.tolist()
    table["distance"] = s.distance.tolist()
    for title, (nodes, probabilities) in s.decided.items():
        decided = Decisions(h, torch.from_numpy(nodes), torch.from_numpy(probabilities)).columns()
        table |= {f"{title}: {n}": decided[n] for n in ("id", "name", "level", "probability", "path")}
    return table


def evaluation_page(evaluation: Evaluation, figures: _Figures) -> str:
    """The page of a model, or of two on the same samples."""
    models, first = _models(evaluation), evaluation
    names = [name for name, _ in models]
    facts = {**first.about, "scores": ", ".join(e.source for _, e in models if e.source)}
    facts |= {"samples": f"{len(first.samples):,}", "hierarchy": repr(first.hierarchy)}
    facts |= {"distance": first.distance, **environment.config()}
    document = Document(
        " against ".join(names),
        [(term, text) for term, text in facts.items() if text or term != "scores"],
        about="About this evaluation: data, versions",
        listed=_FILES,
        naming="Run hace evaluate again with --names FILE.",
    )
    document.verdicts = [_verdict(name, e) for name, e in models]
    differences = {} if first.comparison is None else first.comparison.differences
    if differences:
        document.verdicts.insert(0, _difference(models, differences))
    said, wide = WORDS["pictures"], ("mistakes", "reliability")
    pictures = {n: picture(figure, n, said[n], said[n], wide=n in wide) for n, figure in figures.items()}
    if differences:
        table = comparison_table(names, differences)
        title = f"All metrics: {names[0]} and {names[1]}"
        document.sections.append(Section("comparison", title, (table,), folded=True))
    document.sections.append(Section("mistakes", "What confuses what", _mistakes(first, pictures)))
    if first.level_titles:
        document.sections.append(Section("levels", "Right answers by level", (_levels_table(models),)))
    if first.slices:
        folded = len(first.slices) > 20
        table = _slices_table(models)
        document.sections.append(Section("slices", "Rare classes and groups", (table,), folded=folded))
    document.sections += [
        Section("confidence", "Confidence, before and after calibration", _confidence(first, pictures)),
        Section("thresholds", "What a threshold costs and gives", _thresholds(first, pictures)),
        Section("explore", "Explore the hierarchy", ()),
        Section("reading", "How to read this page", (WORDS["reading_evaluation"],), folded=True),
    ]
    document.comparisons = [_sunburst(models)]
    compared = (names[0], names[1] if len(names) > 1 else "")
    return to_page(document, compared, environment.config()["hace"])


def _verdict(name: str, evaluation: Evaluation) -> Verdict:
    first, *rest = summary_lines(evaluation, name)
    if evaluation.guarantee is not None:
        rest += [f"Guarantee: {evaluation.guarantee.guarantee} {evaluation.guarantee_outcome()}"]
    said = first.removeprefix(f"{name}: ")
    more = {"lines": tuple(rest), "caveats": tuple(_caveats(evaluation)), "question": "how good is it?"}
    return Verdict(name, said[:1].upper() + said[1:], "part", **more)


def _difference(models: _Models, differences: Mapping[MetricKey, Difference]) -> Verdict:
    """The card that compares two models: accuracy, coarse answers and mistakes, each with its interval."""
    (first, evaluation), (second, _) = models
    top1 = differences["leaves", "top-1"]
    known, better = top1.excludes_zero, second if top1.value > 0 else first
    answer = f"{better} is right more often." if known else "No difference in accuracy is shown."
    lines = [_change("Right class", top1, percent=True)]
    if len(evaluation.level_titles) > 1:
        title = evaluation.level_titles[-2]
        lines.append(_change(f"Right {node_of_level(title)}", differences[CARRIED_UP, title], percent=True))
    lines.append(_change("Severity of mistakes", differences["leaves", "severity"], percent=False))
    more = {"lines": tuple(lines), "caveats": (WORDS["one_run_each"],), "question": "which is better?"}
    return Verdict(f"{first}, then {second}", answer, "part" if known else "open", **more)


def _change(name: str, d: Difference, *, percent: bool) -> str:
    """A metric of two models and its change, in a sentence."""
    scale, digits, unit, points = (100, 1, "%", "points ") if percent else (1, 3, "", "")
    if np.isnan(d.low):
        return f"{name}: unknown."
    values = f"{scale * d.first:.{digits}f}{unit} to {scale * d.second:.{digits}f}{unit}"
    gap, low, high = (f"{scale * value:+.{digits}f}" for value in (d.value, d.low, d.high))
    word = "" if d.excludes_zero else ", which includes 0"
    return f"{name}: {values}, {gap} {points}[{low}, {high}]{word}."


def _caveats(e: Evaluation) -> list[str]:
    found = []
    counts = np.bincount(e.samples.truth, minlength=e.hierarchy.num_nodes)[e.hierarchy.leaf_nodes]
    none, few = int((counts == 0).sum()), int(((counts > 0) & (counts < _FEW)).sum())
    if none:
        found.append(f"{none:,} of {len(counts):,} classes have no sample here: nothing is known of them.")
    if few:
        small = f"{few:,} of {len(counts):,} classes have fewer than {_FEW} samples"
        found.append(f"{small}: their own numbers mean little.")
    gap = float(np.mean(e.samples.confidence)) - (1 - e.mistakes / max(len(e.samples), 1))
    if e.calibrated is None and abs(gap) > 0.05:
        found.append(WORDS["off"].format(f"{100 * abs(gap):.0f}"))
    return found


def _mistakes(e: Evaluation, pictures: Mapping[str, Picture]) -> tuple[Any, ...]:
    drawn = [pictures["mistakes"]] if "mistakes" in pictures else []
    if not e.mistakes:
        return ("No mistakes.", *drawn)
    return (*drawn, Folded("The most frequent mistakes as a table", (_mistakes_table(e),)))


def _mistakes_table(e: Evaluation) -> ReportTable:
    h, table = e.hierarchy, e.confusion.pair_columns()
    samples = np.bincount(e.samples.truth, minlength=h.num_nodes)
    rows = []
    for i, (truth, _, count) in enumerate(e.confusion.pairs[:_PAIRS].tolist()):
        names = (table["truth_name"][i], table["answer_name"][i] or "no answer")
        shares = (f"{count:,} of {samples[truth]:,}", f"{100 * table['share_of_mistakes'][i]:.1f}%")
        lca = table["lca"][i]
        rows.append(tuple(map(Entry, (*names, *shares, "root" if lca is None else h.name(lca)))))
    heads = ("truth", "answer", "samples", "share of mistakes", "meet at")
    return ReportTable("mistakes", "The most frequent mistakes", (heads,), tuple(rows), stub=2)


def _levels_table(models: _Models) -> ReportTable:
    rows = []
    for k, title in enumerate(models[0][1].level_titles):
        cells = [Entry(title)]
        for _, e in models:
            carried = e.hierarchy.level_nodes(k + 1)
            right = int((carried[e.samples.answers] == carried[e.samples.truth]).sum())
            best = e.values[BEST_NODE_BY_LEVEL, title]
            cells += [_share(right, len(e.samples)), Entry(f"{100 * best:.1f}%")]
        rows.append(tuple(cells))
    names = [name for name, _ in models for _ in range(2)]
    rules = ["best class, carried up", "best node of the level"] * len(models)
    heads = (("", *names), ("level", *rules)) if len(models) > 1 else (("level", *rules),)
    return ReportTable("levels", "Share of samples with the right node at a level", heads, tuple(rows))


def _slices_table(models: _Models) -> ReportTable:
    shown = {"right or below": "right class"} | {name: name for name in ("balanced accuracy", "macro-F1")}
    rows = []
    for part, values in models[0][1].slices.items():
        cells = [f"{100 * e.slices[part][key]:.1f}%" for _, e in models for key in shown]
        rows.append(tuple(map(Entry, (part, f"{values['samples']:,.0f}", *cells))))
    names = [name for name, _ in models for _ in shown]
    columns = ("part", "samples", *(title for _ in models for title in shown.values()))
    heads = (("", "", *names), columns) if len(models) > 1 else (columns,)
    return ReportTable("slices", "The best class on parts of the samples", heads, tuple(rows))


def _share(right: int, samples: int) -> Entry:
    if not samples:
        return Entry("")
    low, high = share_interval(right, samples)
    return Entry(f"{100 * right / samples:.1f}%", f"[{100 * low:.1f}, {100 * high:.1f}]")


def _confidence(e: Evaluation, pictures: Mapping[str, Picture]) -> tuple[Any, ...]:
    if not e.level_titles:
        none = "On a DAG a node has no single ancestor at a level, so there is no diagram by level."
        return (none, pictures["risk_coverage"])
    rows = []
    for title, diagram in e.reliability.items():
        after = Entry("not calibrated", soft=True)
        if e.calibrated is not None:
            after = Entry(f"{100 * e.calibrated.reliability[title].ece:.1f}%")
        rows.append((Entry(title), Entry(f"{100 * diagram.ece:.1f}%"), after))
    heads = ("level", "calibration error (ECE)", "after one temperature")
    words = "How far the stated probability of the best node of a level is from the share of right answers."
    if e.temperature is not None:
        words += f" One temperature, {e.temperature:.3g}, fitted on held-out samples."
    if e.calibrated is None:
        words += " `hace calibrate` fits one temperature on held-out samples."
    title = "Mean difference between stated confidence and accuracy"
    table = ReportTable("calibration", title, (heads,), tuple(rows))
    return (words, table, pictures["reliability"], pictures["risk_coverage"])


def _thresholds(e: Evaluation, pictures: Mapping[str, Picture]) -> tuple[Any, ...]:
    shown = e.calibrated or e
    curve = shown.operating_curve
    rows = []
    for threshold in _THRESHOLDS:
        at = int(np.argmin(np.abs(curve.thresholds - threshold)))
        values = (curve.precision[at], curve.answered[at], curve.answer_precision[at], curve.specificity[at])
        rows.append((Entry(f"{threshold:g}"), *(Entry("" if v != v else f"{100 * v:.1f}%") for v in values)))
    counted = ("samples without a false answer", "samples with an answer", "true among these")
    heads = ("threshold", *counted, "detail")
    title = f"Answers of the deepest node above a threshold{', calibrated scores' if shown is not e else ''}"
    return (ReportTable("thresholds", title, (heads,), tuple(rows)), pictures["operating_curve"])


def comparison_table(names: Sequence[str], differences: Mapping[MetricKey, Difference]) -> ReportTable:
    """Every metric of two models, and the change with its interval; faint where that includes 0."""
    rows, blocks, heading = [], [], ""
    for (group, name), d in differences.items():
        if group != heading:
            blocks.append(len(rows))
        if np.isnan(d.low):
            continue
        change = Entry(f"{d.value:+.4f}", f"[{d.low:+.4f}, {d.high:+.4f}]", soft=not d.excludes_zero)
        texts = (group if group != heading else "", name, f"{d.first:.4f}", f"{d.second:.4f}")
        rows.append((*map(Entry, texts), change))
        heading = group
    heads = (("", "metric", *names, "change"),)
    remark = "95% intervals, paired; in italics where the interval includes 0."
    more = {"stub": 2, "remarks": (remark,), "blocks": tuple(blocks)}
    return ReportTable("comparison", "All metrics", heads, tuple(rows), **more)


def _sunburst(models: _Models) -> dict[str, Any]:
    h, truth = models[0][1].hierarchy, models[0][1].samples.truth
    methods = {}
    for name, e in models:
        right, went = drawn_counts(h, truth, [e.samples.answers])
        top1 = 1 - e.mistakes / max(len(truth), 1)
        methods[name] = {"seeds": 1, "top1": top1, "right": right, "went": went}
    about = {"title": f"{len(truth):,} samples", "hierarchy": h}
    return {**about, "samples": drawn_counts(h, truth, [truth])[0], "methods": methods}
