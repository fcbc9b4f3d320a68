"""Two studies, or two runs, in one report: every method once for each, in the arenas that both have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from hace.errors import ConfigError, FormatError
from hace.lab.report.arenas import Arena, arena_of, method_title
from hace.lab.report.render import Entry, ReportTable
from hace.lab.report.results import Results
from hace.lab.report.tables import bracket
from hace.lab.runs.run import RUN, read_run
from hace.lab.study.cells import CellKey, Record
from hace.lab.study.naming import behind, run_title, without_common_end
from hace.lab.study.study import STUDY, read_study


class Side(NamedTuple):
    """One of the two.

    Attributes:
        name: What the report calls it.
        records: Its runs.
        prints: The fingerprint of the hierarchy behind each data set.
        data: What is known of the data sets, of a study.
    """

    name: str
    records: list[Record]
    prints: dict[str, str]
    data: Mapping[str, Any] = {}


def read_side(folder: str | Path) -> Side:
    """A study or a run.

    Raises:
        FormatError: The folder is neither.
    """
    folder = Path(folder)
    name = folder.resolve().name
    if (folder / STUDY).is_file():
        study = read_study(folder)
        prints = {data: str(about.get("hierarchy")) for data, about in study.data.items()}
        return Side(name, study.records(), prints, study.data)
    if not (folder / RUN).is_file():
        raise FormatError(f"{folder} must be a study or a run. Got a folder without {STUDY} or {RUN}.")
    run = read_run(folder)
    config, about = run.config, run.about["data"]
    data = str(about["name"])
    model = getattr(config, "model", None) or behind(config.data)
    key = CellKey("single", data, model, run_title(config), None, None, config.seed)
    return Side(name, [Record(key, "final", config.lr, run)], {data: str(about["hierarchy"])})


def side_by_side(first: Side, second: Side, names: str | Path | None = None) -> Results:
    """The results of both, in the arenas that both have; models may differ where nothing else does.

    Args:
        first: The one.
        second: The other.
        names: As of :class:`Results`.

    Raises:
        ConfigError: They have no data set in common.
    """
    called = (first.name, second.name) if first.name != second.name else ("A", "B")
    sides = [first, second]
    for same_model in (True, False):
        found = [{_place(r.key, same_model) for r in side.records} for side in sides]
        common = {
            a for a in found[0] & found[1] if first.prints.get(a.dataset) == second.prints.get(a.dataset)
        }
        if common:
            break
    else:
        has = [", ".join(sorted({_described(a) for a in arenas})) for arenas in found]
        other = " over another hierarchy" if has[0] == has[1] else ""
        raise ConfigError(
            f"{called[0]} and {called[1]} must share a data set, its hierarchy, a protocol and what is known of the training "
            f"labels. Got {has[0]} and {has[1]}{other}."
        )
    titles = [{method_title(r.key.method) for r in side.records} for side in sides]
    apart = not titles[0] & titles[1] and all(
        len(side.records) == 1 for side in sides
    )  # two runs of two methods
    short = without_common_end([method_title(side.records[0].key.method) for side in sides]) if apart else []
    records = []
    for i, (name, side) in enumerate(zip(called, sides, strict=True)):
        for r in side.records:
            if (place := _place(r.key, same_model)) in common:
                method = short[i] if apart else f"{method_title(r.key.method)} · {name}"
                records.append(replace(r, key=replace(r.key, method=method, model=place.model)))
    if apart:
        first_title, second_title = (r.key.method for r in records)
        return Results(
            records, (second_title, first_title), f"is {second_title} better than {first_title}?", names
        )
    pairs = _pairs(records, called)
    if not pairs:
        raise ConfigError(f"{called[0]} and {called[1]} must share a method. Got none that both have.")
    return Results(records, pairs[0], f"is {called[1]} better than {called[0]}?", names)


def pairs_table(results: Results, arena: Arena, names: Sequence[str]) -> ReportTable | None:
    """Every method of both sides: its accuracy there, and the change with its interval."""
    from hace.lab.report.arenas import HEADLINES

    top1, arrays, rows = HEADLINES[0], results.arrays[arena], []
    for second, first in _pairs([r for r in results.records if arena_of(r.key) == arena], names):
        gap = arrays.difference(second, first, top1.key)
        scores = [arrays.score(method, top1.key).value for method in (first, second)]
        cells = [Entry("" if s is None else top1.text(s)) for s in scores]
        change = Entry("")
        if gap is not None:
            value, low, high = gap[0][:3]
            detail = "" if low != low else bracket(low, high, top1, sign=True)
            change = Entry(top1.text(value, sign=True), detail, soft=low <= 0 <= high)
        rows.append((Entry(first.rpartition(" · ")[0]), *cells, change))
    heads = (("method", *names, "change"),)
    remark = "Top-1 accuracy in percent; [95 % intervals] over seeds and test samples, paired where both have them."
    title = f"{arena.title}: {names[1]} minus {names[0]}"
    return ReportTable(f"sides-{arena.slug}", title, heads, tuple(rows), remarks=(remark,)) if rows else None


def _pairs(records: Sequence[Record], names: Sequence[str]) -> list[tuple[str, str]]:
    """The methods that both have: the second's, the first's. HACE comes first."""
    found = dict.fromkeys(r.key.method for r in records if r.stage == "final")
    titles = [m.removesuffix(f" · {names[0]}") for m in found if m.endswith(f" · {names[0]}")]
    both = [t for t in titles if f"{t} · {names[1]}" in found]
    return [(f"{t} · {names[1]}", f"{t} · {names[0]}") for t in sorted(both, key=lambda t: t != "HACE")]


def _described(arena: Arena) -> str:
    """An arena, for a message: "cub200 (fair, 80 % parent)"."""
    return f"{arena.dataset} ({', '.join(filter(None, (arena.protocol, arena.labels or 'all labels')))})"


def _place(key: CellKey, same_model: bool) -> Arena:
    arena = arena_of(key)
    return arena if same_model else arena._replace(model="different models")
