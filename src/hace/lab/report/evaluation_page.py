"""The page of an evaluation, in the style of a study's: headline, mistakes, levels, confidence, thresholds, sunburst."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from hace import environment
from hace.decisions import Decisions
from hace.files.documents import write_table
from hace.files.writing import atomic_folder, without_nan
from hace.lab.report.cards import Card
from hace.lab.report.document import WORDS, Document, Entry, Folded, Section, Table
from hace.lab.report.drawing import Picture, picture
from hace.lab.report.evaluation_figures import evaluation_figures
from hace.lab.report.metric import BEST_NODE_BY_LEVEL
from hace.lab.report.nodes import drawn_counts
from hace.lab.report.page import to_page
from hace.lab.report.sentences import say
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
    """One row per sample: its name or number, truth, best leaf, and the answers of the other rules and of the guarantee."""
    h = e.hierarchy
    s = e.samples
    table: dict[str, list] = {"sample": list(range(len(s))) if e.names is None else e.names.tolist()}
    for title, nodes in (("truth", s.truth.tolist()), ("leaf", s.answers.tolist())):
        table |= {title: [h.nodes[v] for v in nodes], f"{title}_name": [h.names[v] for v in nodes]}
    if not s.only_leaves:
        table["leaf_probability"] = s.confidence.tolist()
    table["distance"] = s.distance.tolist()
    calibrated = {} if e.calibrated is None else e.calibrated.samples.decided
    for title, (nodes, probabilities) in (s.decided | calibrated).items():
        if nodes.ndim == 2:
            ids = [[h.nodes[v] for v in each if v >= 0] for each in nodes.tolist()]
            table |= {f"{title}: ids": [" | ".join(each) for each in ids]}
            table |= {f"{title}: probability": np.minimum(probabilities.sum(axis=1), 1.0).tolist()}
            continue
        decided = Decisions(h, torch.from_numpy(nodes), torch.from_numpy(probabilities)).columns()
        table |= {f"{title}: {n}": decided[n] for n in ("id", "name", "level", "probability", "path")}
    return table


def evaluation_page(evaluation: Evaluation, figures: _Figures) -> str:
    """The page of a model, or of two on the same samples."""
    models = _models(evaluation)
    first = evaluation
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
    document.cards = [_card(name, e) for name, e in models]
    differences = {} if first.comparison is None else first.comparison.differences
    if differences:
        document.cards.insert(0, _difference_card(models, differences))
    captions = WORDS["pictures"]
    wide = ("mistakes", "reliability")
    pictures = {
        name: picture(figure, name, captions[name], captions[name], wide=name in wide)
        for name, figure in figures.items()
    }
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
    document.drawings = [sunburst_of(models)]
    compared = (names[0], names[1] if len(names) > 1 else "")
    return to_page(document, compared, environment.config()["hace"])


def _card(name: str, evaluation: Evaluation) -> Card:
    """How good a model is."""
    first, *lines = summary_lines(evaluation, name)
    if evaluation.guarantee is not None:
        lines.append(f"Guarantee: {evaluation.guarantee.guarantee} {evaluation.guarantee_outcome()}")
    answer = first.removeprefix(f"{name}: ")
    return Card(
        name,
        "how good is it?",
        answer[:1].upper() + answer[1:],
        "part",
        lines=tuple(lines),
        alarm=evaluation.guarantee_broken,
        caveats=tuple(_caveats(evaluation)),
    )


def _difference_card(models: _Models, differences: Mapping[MetricKey, Difference]) -> Card:
    """The card that compares two models: accuracy, coarse answers and mistakes, each with its interval."""
    (first, evaluation), (second, _) = models
    accuracy = differences["leaves", "top-1"]
    better = (second if accuracy.value > 0 else first) if accuracy.excludes_zero else ""
    lines = [_change("Right class", accuracy, percent=True)]
    if len(evaluation.level_titles) > 1:
        title = evaluation.level_titles[-2]
        lines.append(_change(f"Right {node_of_level(title)}", differences[CARRIED_UP, title], percent=True))
    lines.append(_change("Levels off", differences["leaves", "severity"], percent=False))
    return Card(
        f"{first}, then {second}",
        "which is better?",
        say("right_more_often", better=better),
        "part" if better else "open",
        lines=tuple(lines),
        caveats=(WORDS["one_run_each"],),
    )


def _change(name: str, difference: Difference, *, percent: bool) -> str:
    """A metric of two models and its change, in a sentence."""
    if np.isnan(difference.low):
        return f"{name}: unknown."
    scale, digits, sign = (100, 1, "%") if percent else (1, 3, "")
    first = f"{scale * difference.first:.{digits}f}{sign}"
    second = f"{scale * difference.second:.{digits}f}{sign}"
    ends = (difference.value, difference.low, difference.high)
    gap, low, high = (f"{scale * value:+.{digits}f}" for value in ends)
    return say(
        "change",
        name=name,
        first=first,
        second=second,
        gap=gap,
        unit="points" if percent else "levels",
        low=low,
        high=high,
        includes_zero=not difference.excludes_zero,
    )


def _caveats(e: Evaluation) -> list[str]:
    counts = np.bincount(e.samples.truth, minlength=e.hierarchy.num_nodes)[e.hierarchy.leaf_nodes]
    none = int((counts == 0).sum())
    few = int(((counts > 0) & (counts < _FEW)).sum())
    notes = []
    if none:
        notes.append(say("no_samples", missing=none, classes=len(counts)))
    if few:
        notes.append(say("few_samples", few=few, classes=len(counts), least=_FEW))
    gap = float(np.mean(e.samples.confidence)) - (1 - e.mistakes / max(len(e.samples), 1))
    if e.calibrated is None and abs(gap) > 0.05:
        notes.append(say("confidence_off", points=f"{100 * abs(gap):.0f}"))
    return notes


def _mistakes(e: Evaluation, pictures: Mapping[str, Picture]) -> tuple[Any, ...]:
    drawn = [pictures["mistakes"]] if "mistakes" in pictures else []
    if not e.mistakes:
        return ("No mistakes.", *drawn)
    return (*drawn, Folded("The most frequent mistakes as a table", (_mistakes_table(e),)))


def _mistakes_table(e: Evaluation) -> Table:
    h = e.hierarchy
    columns = e.confusion.pair_columns(_PAIRS)
    samples = np.bincount(e.samples.truth, minlength=h.num_nodes)
    pairs = e.confusion.pairs[:_PAIRS].tolist()
    frame = pd.DataFrame(
        {
            "truth": columns["truth_name"],
            "answer": [name or "no answer" for name in columns["answer_name"]],
            "samples": [f"{count:,} of {samples[truth]:,}" for truth, _, count in pairs],
            "share of mistakes": [f"{100 * share:.1f}%" for share in columns["share_of_mistakes"]],
            "meet at": ["root" if lca is None else h.name(lca) for lca in columns["lca"]],
        }
    )
    return Table("mistakes", "The most frequent mistakes", frame, stub=2)


def _levels_table(models: _Models) -> Table:
    columns: list[tuple[str, str, list[str | Entry]]] = [("", "level", [*models[0][1].level_titles])]
    for name, e in models:
        columns.append(
            (name, "best class, carried up", [_carried_up(e, k) for k in range(len(e.level_titles))])
        )
        best = [f"{100 * e.values[BEST_NODE_BY_LEVEL, title]:.1f}%" for title in e.level_titles]
        columns.append((name, "best node of the level", [*best]))
    title = "Share of samples with the right node at a level"
    return Table("levels", title, _model_columns(columns, len(models)))


def _carried_up(e: Evaluation, level: int) -> Entry:
    carried = e.hierarchy.level_nodes(level + 1)
    right = int((carried[e.samples.answers] == carried[e.samples.truth]).sum())
    return _share(right, len(e.samples))


def _slices_table(models: _Models) -> Table:
    """How good the best class is on parts of the samples, by model."""
    slices = models[0][1].slices
    titles = {
        "right or below": "right class",
        "balanced accuracy": "balanced accuracy",
        "macro-F1": "macro-F1",
    }
    columns: list[tuple[str, str, list[str | Entry]]] = [
        ("", "part", [*slices]),
        ("", "samples", [f"{values['samples']:,.0f}" for values in slices.values()]),
    ]
    for name, e in models:
        for key, title in titles.items():
            columns.append((name, title, [f"{100 * e.slices[part][key]:.1f}%" for part in slices]))
    return Table("slices", "The best class on parts of the samples", _model_columns(columns, len(models)))


def _model_columns(columns: Sequence[tuple[str, str, Sequence[str | Entry]]], models: int) -> pd.DataFrame:
    """Columns with a heading each; those of several models have their model's name above."""
    heads = [(model, title) if models > 1 else (title,) for model, title, _ in columns]
    rows = zip(*(entries for _, _, entries in columns), strict=True)
    return pd.DataFrame(list(rows), columns=pd.MultiIndex.from_tuples(heads))


def _share(right: int, samples: int) -> Entry:
    if not samples:
        return Entry("")
    low, high = share_interval(right, samples)
    return Entry(f"{100 * right / samples:.1f}%", f"[{100 * low:.1f}, {100 * high:.1f}]")


def _confidence(e: Evaluation, pictures: Mapping[str, Picture]) -> tuple[Any, ...]:
    """What stated probabilities are worth, level by level, with its pictures."""
    if not e.level_titles:
        none = "On a DAG a node has no single ancestor at a level, so there is no diagram by level."
        return (none, pictures["risk_coverage"])
    words = "How far the stated probability of the best node of a level is from the share of right answers."
    if e.temperature is not None:
        words += f" One temperature, {e.temperature:.3g}, fitted on held-out samples."
    if e.calibrated is None:
        words += " `hace calibrate` fits one temperature on held-out samples."
        after = [Entry("not calibrated", soft=True) for _ in e.reliability]
    else:
        after = [Entry(f"{100 * e.calibrated.reliability[title].ece:.1f}%") for title in e.reliability]
    frame = pd.DataFrame(
        {
            "level": list(e.reliability),
            "calibration error (ECE)": [f"{100 * diagram.ece:.1f}%" for diagram in e.reliability.values()],
            "after one temperature": after,
        }
    )
    table = Table("calibration", "Mean difference between stated confidence and accuracy", frame)
    return (words, table, pictures["reliability"], pictures["risk_coverage"])


def _thresholds(e: Evaluation, pictures: Mapping[str, Picture]) -> tuple[Any, ...]:
    """Answers at a few thresholds, with their curve."""
    shown = e.calibrated or e
    curve = shown.operating_curve
    places = [int(np.argmin(np.abs(curve.thresholds - threshold))) for threshold in _THRESHOLDS]
    frame = pd.DataFrame(
        {
            "threshold": [f"{threshold:g}" for threshold in _THRESHOLDS],
            "samples without a false answer": _percents(curve.precision[places]),
            "samples with an answer": _percents(curve.answered[places]),
            "true among these": _percents(curve.answer_precision[places]),
            "specificity": _percents(curve.specificity[places]),
        }
    )
    title = f"Answers of the deepest node above a threshold{', calibrated scores' if shown is not e else ''}"
    return (Table("thresholds", title, frame), pictures["operating_curve"])


def _percents(shares: np.ndarray) -> list[str]:
    return ["" if share != share else f"{100 * share:.1f}%" for share in shares.tolist()]


def comparison_table(names: Sequence[str], differences: Mapping[MetricKey, Difference]) -> Table:
    """Every metric of two models, and the change with its interval; faint where that includes 0."""
    known = {key: d for key, d in differences.items() if not np.isnan(d.low)}
    headings = [heading for heading, _ in known]
    starts = [i for i, heading in enumerate(headings) if i == 0 or heading != headings[i - 1]]
    rows = [
        (
            heading if i in starts else "",
            name,
            f"{d.first:.4f}",
            f"{d.second:.4f}",
            Entry(f"{d.value:+.4f}", f"[{d.low:+.4f}, {d.high:+.4f}]", soft=not d.excludes_zero),
        )
        for i, ((heading, name), d) in enumerate(known.items())
    ]
    frame = pd.DataFrame(rows, columns=pd.Index(["", "metric", *names, "change"]))
    remark = "95% intervals, paired; in italics where the interval includes 0."
    return Table("comparison", "All metrics", frame, stub=2, remarks=(remark,), rules=tuple(starts))


def sunburst_of(models: _Models) -> dict[str, Any]:
    """What the drawing shows."""
    h = models[0][1].hierarchy
    truth = models[0][1].samples.truth
    methods = {}
    for name, e in models:
        right, mistakes = drawn_counts(h, truth, [e.samples.answers])
        top1 = 1 - e.mistakes / max(len(truth), 1)
        methods[name] = {"seeds": 1, "top1": top1, "right": right, "mistakes": mistakes}
    samples, _ = drawn_counts(h, truth, [truth])
    return {"title": f"{len(truth):,} samples", "hierarchy": h, "samples": samples, "methods": methods}
