"""The content of a report: sections of paragraphs, tables and figures, for the page and for Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from hace.errors import ConfigError
from hace.lab.report.arenas import (
    HEADLINES,
    PROTOCOLS,
    TOP1,
    TOP5,
    Arena,
    level_names,
    may_be_used,
    method_title,
    shown,
)
from hace.lab.report.aspects import findings
from hace.lab.report.blocks import Folded, leaves_of
from hace.lab.report.confidence import confidence_table
from hace.lab.report.doubts import doubts
from hace.lab.report.forest import Forest, forests
from hace.lab.report.labels import label_blocks
from hace.lab.report.nodes import arena_data
from hace.lab.report.render import ReportTable
from hace.lab.report.results import Results, tally
from hace.lab.report.tables import (
    against_table,
    dilutions_table,
    levels_switch,
    methods_table,
    pair_table,
)
from hace.lab.report.verdict import Verdict, verdicts
from hace.lab.study.cells import Record
from hace.lab.study.searches import searched_at


@dataclass(frozen=True)
class Section:
    """A part of the report.

    Attributes:
        id: Its anchor.
        title: Its heading.
        blocks: Paragraphs (str), bullet lists, tables, pictures, and the blocks of `hace.lab.report.blocks`.
        level: Of its heading.
        folded: Whether a click opens it.
    """

    id: str
    title: str
    blocks: tuple[Any, ...]
    level: int = 2
    folded: bool = False


@dataclass
class Document:
    """A whole report.

    Attributes:
        title: Of the page.
        facts: What was run: term and text.
        caution: What a reader must know before everything else.
        verdicts: The answers.
        sections: In order.
        arenas: For the interactive drawing: title, hierarchy and sums of each arena.
        about: Heading of the facts.
        footer: With a place for the version.
        naming: How to give names to a hierarchy whose names are all numbers.
    """

    title: str
    facts: list[tuple[str, str]]
    caution: str = ""
    verdicts: list[Verdict] = field(default_factory=list)
    sections: list[Section] = field(default_factory=list)
    arenas: list[dict[str, Any]] = field(default_factory=list)
    about: str = "About this study: data, versions, command to reproduce"
    footer: str = (
        "Made by hace {version}. Tables: tables/ (CSV, LaTeX). Figures: figures/ (PNG, SVG). Runs: runs.csv."
    )
    naming: str = "Run hace report again with --names FILE."

    def tables(self) -> Iterator[ReportTable]:
        """All tables."""
        for section in self.sections:
            for block in leaves_of(section.blocks):
                if isinstance(block, Forest):
                    yield block.table()
                elif isinstance(block, ReportTable):
                    yield block

    def pictures(self) -> Iterator[Any]:
        """All figures."""
        return (b for section in self.sections for b in leaves_of(section.blocks) if hasattr(b, "svg"))


SectionBuilder = Callable[[Results, bool], Sequence[Section]]  # from results and whether to draw

READING = (
    "A number is the mean over seeds, with its 95 % interval in brackets, from a bootstrap over seeds and test samples. A seed "
    "is a full repetition: initialisation, batch order, split{}.",
    "Accuracy at a level is that of the best class, carried up. The other rule, the most probable node of the level, has a "
    "switch: by it under-confident models lose points that no user loses.",
    "Bold is the best of a column, underlined the second; marks do not say that a difference is real, intervals do.",
    "Severity is the mean height of the lowest common ancestor of answer and truth over the mistakes alone, so fewer but worse "
    "mistakes raise it. HD@1 is the same over all samples, so it counts both.",
    "Detail at a promise: answers climb from the best class until at most 5 % of the samples get a wrong answer; the threshold "
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


def build_document(
    results: Results,
    title: str,
    facts: list[tuple[str, str]],
    problems: Sequence[str],
    sections: Sequence[SectionBuilder] = (),
    draw: bool = True,
    caution: str = "",
) -> Document:
    """Compute everything, arena by arena, so that each run's predictions are read once.

    Args:
        results: The study's results.
        title: Of the page.
        facts: What was run.
        problems: What was skipped, with the reason.
        sections: More sections, each built from the results; they come before that of the runs.
        draw: Whether to draw figures; they need matplotlib.
        caution: What a reader must know first.
    """
    document = Document(title, facts, caution)
    by_arena = {arena: _arena_section(results, arena, document, draw) for arena in results.choices}
    document.verdicts = verdicts(results)
    document.sections += [section for section in by_arena.values() if not section.folded]
    if labels := label_blocks(results, draw):
        document.sections.append(Section("labels", "Labels: use or drop, and which method", tuple(labels)))
    document.sections += [section for section in by_arena.values() if section.folded]
    if together := _together(results):
        document.sections.append(Section("together", "All data sets and models", tuple(together)))
    document.sections.append(Section("explore", "Explore the hierarchy", ()))
    document.sections += [section for more in sections for section in more(results, draw)]
    document.sections.append(_reading(results))
    document.sections.append(_runs(results, problems))
    return document


def _reading(results: Results) -> Section:
    protocols = dict.fromkeys(arena.protocol for arena in results.choices)
    more = tuple(READING_OF[protocol] for protocol in protocols if protocol in READING_OF)
    seed = searched_at(results.records)
    choice = " and choice of the learning rate"
    once = f"; the learning rate was chosen at seed {seed} for all, so intervals leave that choice out"
    first = READING[0].format(choice if seed is None else once)
    return Section(
        "reading", "How to read this page", ([first, READING[1], *more, *READING[2:]],), folded=True
    )


def _arena_section(results: Results, arena: Arena, document: Document, draw: bool) -> Section:
    arrays = results.arrays[arena]
    # Whatever other sections will ask for is computed now, while the predictions are in memory.
    for metric in HEADLINES[:4]:
        results.gap(arena, results.first, results.second, metric.key)
    for more, keys in ((results.matched, (TOP1, TOP5)), (results.best_top5, (TOP5,))):
        if (found := more.get(arena)) is not None:
            for name in found.choices:
                for key in keys:
                    found.score(name, key)
    held = [m for m in results.held_out(arena) if may_be_used(m)]
    if held and results.first != results.second:
        findings(arrays, held[0], results.second)
    doubts(results, {arena: ()})
    tables = (methods_table(arena, arrays), levels_switch(arena, arrays), confidence_table(arena, arrays),
              dilutions_table(results, arena))  # fmt: skip
    numbers = Folded("All numbers: methods, levels, confidence", tuple(t for t in tables if t is not None))
    blocks: list[Any] = [forests(results, arena), *(_pictures(results, arena) if draw else []), numbers]
    data = arena_data(arrays, list(dict.fromkeys((results.first, results.second))))
    if data is not None and arrays.hierarchy is not None:
        about = {"title": arena.title, "dataset": shown(arena.dataset), "hierarchy": arrays.hierarchy}
        document.arenas.append({**about, **data})
    arrays.store.drop()
    folded = bool(arena.labels)  # one of several states of the labels, which are compared above
    return Section(
        f"results-{arena.slug}",
        f"{arena.title}: all methods",
        tuple(b for b in blocks if b is not None),
        folded=folded,
    )


def _pictures(results: Results, arena: Arena) -> list[Any]:
    try:
        from hace.lab.report import figures
        from hace.lab.report.dumbbells import dumbbell_picture, node_accuracies
    except ImportError as error:
        raise ConfigError('Figures need matplotlib. Install it with: pip install "hace[report]".') from error
    arrays, choices = results.arrays[arena], dict(results.choices[arena])
    compared = list(dict.fromkeys((results.first, results.second)))
    rates = figures.rates_picture(arena, results.records, compared)
    if arena.labels:  # one of many states of the labels: the figure over all of them says more
        return [rates]
    found: list[Any] = [
        figures.operating_picture(arena, choices, compared),
        rates,
        figures.reliability_picture(arena, choices, compared),
    ]
    names = level_names(arrays.hierarchy) if arrays.hierarchy is not None else ()
    if len(compared) == 2 and len(names) > 1:
        accuracy = node_accuracies(arrays, compared[0], compared[1], len(names) - 2, names[-2])
        if accuracy is not None and len(accuracy.names) > 1:
            found.append(dumbbell_picture(arena, accuracy, compared[0], compared[1]))
    return found


def _together(results: Results) -> list[Any]:
    """Differences over all arenas of a protocol, where there are several."""
    first, second = results.first, results.second
    blocks: list[Any] = []
    for protocol in PROTOCOLS:
        gaps = [g.interval.value for g in results.gaps(first, second, protocol)]
        if len({(arena.dataset, arena.model) for arena in results.arenas(protocol)}) < 2:
            continue
        if first != second and (t := tally(gaps)) is not None and t.of > 1:
            blocks.append(
                f"Over all {t.of} pairs of data set and model, {PROTOCOLS[protocol]}: {method_title(first)} beats "
                f"{method_title(second)} in "
                f"{t.won}; the mean difference is {100 * t.mean:+.2f} points, the median {100 * t.median:+.2f}."
            )
            blocks += [pair_table(results, protocol), against_table(results, protocol)]
    return [b for b in blocks if b is not None]


def _runs(results: Results, problems: Sequence[str]) -> Section:
    from hace.lab.report.text import counts_text

    blocks: list[Any] = [f"{counts_text(results.records)}. runs.csv lists them all, with every metric."]
    failed = failures(results.records)
    if failed:
        blocks += ["Runs without a result:", shortened(failed)]
    skipped = [*problems, *results.problems]
    if skipped:
        blocks += ["Skipped:", shortened(skipped)]
    return Section("runs", "Runs", tuple(blocks), folded=True)


def failures(records: Sequence[Record]) -> list[str]:
    """Each error of runs without a result, with the number of runs and the first of them."""
    found: dict[str, list[str]] = {}
    for r in records:
        if r.status in ("failed", "diverged"):
            key = r.key
            where = [shown(key.dataset), shown(key.model), method_title(key.method)]
            where += [] if key.dilution is None else [f"d {key.dilution:g}"]
            where += [f"seed {key.seed}", *([f"rate {r.lr:g}"] if r.lr == r.lr else []), r.stage]
            found.setdefault(r.error or "diverged: the loss became infinite or NaN", []).append(
                ", ".join(where)
            )
    return [f"{e} ({len(w)}: {'; '.join(w[:5])}{' ...' if len(w) > 5 else ''})" for e, w in found.items()]


def shortened(lines: Sequence[str], most: int = 50) -> list[str]:
    """The first of many lines, and how many more there are.

    Example:
        >>> shortened(["a", "b", "c"], 2)
        ['a', 'b', 'and 1 more']
    """
    return [*lines] if len(lines) <= most else [*lines[:most], f"and {len(lines) - most:,} more"]
