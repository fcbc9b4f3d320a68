"""The findings as one page that opens from disk without a network: samples, the bar of ranks, one sentence per question."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hace import __version__
from hace.draw import json_for_page, page_data, templates
from hace.files.writing import write_whole, writing
from hace.fitting.evaluation import NOTHING
from hace.metrics.answers import shared_counts

if TYPE_CHECKING:
    from hace.fitting.findings import Answer, Findings
    from hace.fitting.model import Model

MOST_NODES = 20_000  # of a drawing


class Framing(NamedTuple):
    """What a page says beyond the findings: a title, a notice below it, and samples of classes that are not in the list."""

    title: str
    notice: str = ""
    strangers: Sequence[Mapping[str, Any]] = ()  # as the examples of the findings
    strangers_number: str = ""
    strangers_sentence: str = ""


def write_page(model: Model, path: Path, framing: Framing | None = None) -> Path:
    """Write the page of a model: an .html file, or index.html in a folder."""
    if path.suffix.lower() != ".html":
        with writing(path):
            path.mkdir(parents=True, exist_ok=True)
        path = path / "index.html"
    write_whole(path, page_of(model, framing).encode())
    return path


def page_of(model: Model, framing: Framing | None = None) -> str:
    """The page. Whatever comes from the data is escaped."""
    findings = model.findings
    h = model.hierarchy
    framing = framing or Framing(Path(findings.path).stem)
    text = (
        templates("hace.fitting")
        .get_template("fit.html")
        .render(
            findings=findings,
            title=framing.title,
            framing=framing,
            examples=findings.examples,
            answers=_unsaid(findings, framing),
            candidates=findings.candidates,
            nothing=NOTHING,
            commands=findings.commands,
            hierarchy=repr(h)[1:-1],
            version=__version__,
            data=json_for_page(_drawn(model)),
        )
    )
    return re.sub("[\ud800-\udfff]", "\ufffd", text)  # half a surrogate pair, which UTF-8 cannot hold


def _unsaid(findings: Findings, framing: Framing) -> list[Answer]:
    """The questions that no section of the page has answered."""
    shown = {findings.specific.word} if findings.curve else set()
    if framing.strangers and findings.new is not None:
        shown.add(findings.something_new.word)
    return [answer for answer in findings.answers if answer.word not in shown]


def _drawn(model: Model) -> dict[str, Any]:
    """What the scripts of the page draw: shares by rank for each guarantee, and the tree with its test samples."""
    findings = model.findings
    h = model.hierarchy
    data: dict[str, Any] = {"curve": list(findings.curve), "nothing": NOTHING, "tree": None}
    data["judged"] = (
        f"the {findings.calibrated_on} that calibrated it" if findings.calibrated_on else "test samples"
    )
    ranks = {rank: None for point in findings.curve for rank in point["ranks"] if rank != NOTHING}
    data["ranks"] = [*ranks, NOTHING]
    if model.tested is None or h.num_nodes > MOST_NODES:
        return data
    tested = model.tested
    data["tree"] = page_data(h, "everything")
    data["samples"] = shared_counts(h, tested.truth, [tested.truth]).tolist()
    data["right"] = shared_counts(h, tested.truth, [tested.answer]).tolist()
    data["mistakes"] = _mistakes(tested.truth, tested.answer)
    return data


def _mistakes(truth: np.ndarray, answer: np.ndarray) -> dict[int, list[list[int]]]:
    """For each class the classes that it is taken for most often, with counts."""
    wrong = truth != answer
    pairs, counts = np.unique(np.stack([truth[wrong], answer[wrong]], axis=1), axis=0, return_counts=True)
    mistakes: dict[int, list[list[int]]] = {}
    for (true, given), count in sorted(
        zip(pairs.tolist(), counts.tolist(), strict=True), key=lambda row: -row[1]
    ):
        if len(mistakes.setdefault(true, [])) < 3:
            mistakes[true].append([given, count])
    return mistakes
