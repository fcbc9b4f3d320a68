"""The findings as a model card: what the model is for, what it learned from, how good it is and what to watch, in Markdown."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hace import __version__

if TYPE_CHECKING:
    from hace.fitting.model import Model

_CLASSES = 30  # that a card lists


def card_of(model: Model) -> str:
    """The card of a model, in Markdown."""
    findings = model.findings
    h = model.hierarchy
    train, calibration, test = (findings.samples[part] for part in ("train", "calibration", "test"))
    what = findings.samples_in_words.split(" ", 1)[1]
    lines = [
        f"# {_escaped(Path(findings.path).stem)}",
        "",
        f"A classifier of {what}: {findings.classes:,} classes of a taxonomy with {h.num_nodes:,} nodes, {findings.chosen}. "
        "It answers with a class, with a group where it is less sure, or not at all.",
        "",
        "## How good it is",
        "",
        "| question | answer |",
        "| --- | --- |",
    ]
    for answer in findings.answers:
        words = _escaped(" ".join(part for part in (answer.number, answer.sentence) if part))
        lines.append(f"| {answer.question} | {f'**{words}**' if answer.bad else words} |")
    lines += [
        "",
        "## What it learned from",
        "",
        f"Samples: {train:,} trained the model and chose its loss, {calibration:,} calibrated it, {test:,} tested it.",
    ]
    if model.encoder is not None:
        lines.append(f"Features come from a frozen model, `{_escaped(model.encoder.backbone.name)}`.")
    if findings.notes:
        lines += ["", *(f"- {_escaped(note)}" for note in findings.notes)]
    names = [_escaped(h.name(leaf)) for leaf in h.leaves[:_CLASSES]]
    more = f", and {h.num_leaves - _CLASSES:,} more" if h.num_leaves > _CLASSES else ""
    lines += ["", f"Classes: {', '.join(names)}{more}.", "", "## Use it", "", "```console"]
    lines += [f"$ {command}" for command in findings.commands]
    lines += [
        "```",
        "",
        "## Limits",
        "",
        "- The guarantee covers samples like the ones it was calibrated on; for new samples, `hace check` tests it.",
        "- It cannot name a class it was not trained on: at best it names a group above that class, or nothing.",
        "",
        f"Made by hace {__version__}.",
        "",
    ]
    return "\n".join(lines)


def _escaped(text: str) -> str:
    """Text of the data, which must not be read as markup or end a row of a table."""
    for mark in "\\`*_[]<>|#":
        text = text.replace(mark, f"\\{mark}")
    return " ".join(text.split())
