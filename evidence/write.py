"""Bring the committed results into the docs: python evidence/write.py [--check]

A page asks for a table with a pair of comments, and everything between them is rewritten:

    <!-- evidence: cub200-mixed-labels/methods-x.csv columns="method, top-1 ↑" rows="cross-entropy; HACE" -->
    <!-- end of evidence -->

`columns` chooses and orders columns, by default all; `rows` does the same by the first column, `where="metric=top-1;
labels=all labels"` keeps rows by any column; `intervals="no"` leaves intervals out. `metrics="top-1; severity"` turns an
effects.csv into a row per method: the first metric's value, then the difference in each with its interval, bold where it
remains after Holm's correction. Where the interval is over seeds alone, the header has † and nothing is bold. ‡ marks results
for which a seed's search ended at its smallest or largest rate, where these are known. `by="labels"` shows one
metric of an effects.csv as a row per method and a column per kind of labels. Numbers in sentences have names, listed in their
order at the start of the part that shows them; quotes.toml says which row each comes from, quoted.json what pages show now:

    <!-- results: coarse-1, coarse-5 -->
    Coarse labels gain +22.1 points with one fine label per class, and +9.9 with five.
    <!-- end of results -->

Results in withheld.csv are left out of tables, pictures and quotes until they are measured again.

--check changes nothing and fails where a page differs from the results.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hace.lab.study.presets import METHODS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).parent
RESULTS = HERE / "results"
QUOTED = HERE / "quoted.json"
PAGES = (
    HERE.parent / "README.md",
    *sorted((HERE.parent / "docs").rglob("*.md")),
    *(HERE / f"{name}.md" for name in ("details", "guarantees", "paper", "tables", "peers")),
)
DETAIL = " (detail)"  # the report's columns of intervals
SHOWN = {  # what pages call some columns
    "severity": "levels off",
    "Δ severity": "Δ levels off",
    "detail at 95%": "specificity at 95%",
    "tried": "settings tried",
    "candidates": "settings tried",
}
EDGE, SEEDS_ONLY, ANEW = " ‡", " †", "[measured anew](details.md#all-labels-are-fine)"
_BLOCK = re.compile(
    r"(<!-- evidence: (?P<request>[^\n]*?) -->\n)(?P<table>.*?)(<!-- end of evidence -->)", re.DOTALL
)
_PART = re.compile(r"<!-- results(?:: (?P<names>[^>]*?))? -->(?P<text>.*?)<!-- end of results -->", re.DOTALL)
_CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
_SETTING = re.compile(
    r"(?:\b(?:[dsk]|sharing|dilution|momentum|decay|decays|rate|rates)|[αβτ])\s*(?:=|of)?\s*\d+(?:\.\d+)?(?:e-\d+)?"
)
_MEASURED = re.compile(r"(?<![\w-])[+-]\d+(?:\.\d+)?|\b\d+\.\d+\b")


def main() -> None:
    """Rewrite all pages, or compare them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="compare only")
    check = parser.parse_args().check
    stale = []
    shown = json.loads(QUOTED.read_text(encoding="utf-8"))
    now = {name: quote(name, read_quotes()) for name in read_quotes()}
    for page in PAGES:
        before = page.read_text(encoding="utf-8")
        after = written(before, shown, now)
        if before != after:
            stale.append(page.name)
            if not check:
                page.write_text(after, encoding="utf-8")
    if not check:
        QUOTED.write_text(
            json.dumps(now, indent=1, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8"
        )
    if check and stale:
        sys.exit(f"{', '.join(stale)} must show the committed results. Run: make results")
    print("unchanged" if not stale else f"rewritten: {', '.join(stale)}")


def written(page: str, shown: dict[str, str], now: dict[str, str]) -> str:
    """A page with its tables as the results have them, and with the quotes of now in place of those shown."""
    page = _BLOCK.sub(lambda block: f"{block[1]}{table(block['request'])}{block[4]}", page)
    return _PART.sub(lambda part: _requoted(part, shown, now), page)


def _requoted(part: re.Match[str], shown: dict[str, str], now: dict[str, str]) -> str:
    """A part of a page with the quotes of now."""
    whole, end = "", part.start()
    for name, place in quoted(part, shown):
        whole += part.string[end : place[0]] + now[name]
        end = place[1]
    return whole + part.string[end : part.end()]


def quoted(part: re.Match[str], shown: dict[str, str]) -> list[tuple[str, tuple[int, int]]]:
    """The names at the start of a part, and the places in the page where each is shown, in the same order."""
    # Tables and comments become spaces, so that no place is found in them.
    plain = re.compile(f"{_BLOCK.pattern}|<!--.*?-->", re.DOTALL)
    text = plain.sub(lambda other: " " * len(other[0]), part[0])
    places, end = [], 0
    for name in _listed(part["names"], ","):
        if name not in shown:
            raise SystemExit(f"quotes.toml must have {name!r}. Got {', '.join(map(repr, shown))}.")
        place = re.compile(rf"(?<![\w.+-]){re.escape(shown[name])}(?!\w|\.\d)").search(text, end)
        if place is None:
            raise SystemExit(
                f"A part of results must show {shown[name]!r}, the quote {name!r}, in its place:\n{part[0]}"
            )
        end = place.end()
        places.append((name, (part.start() + place.start(), part.start() + end)))
    return places


def table(request: str) -> str:
    """The Markdown table of a request: a file below results/, and options as name="value"."""
    name, *words = shlex.split(request)
    options = dict(word.split("=", 1) for word in words)
    path = RESULTS / name
    where = dict(part.split("=", 1) for part in _listed(options.get("where"), ";"))
    rows = [row for row in _rows(path) if all(row.get(column) == value for column, value in where.items())]
    if not rows:
        raise SystemExit(f"{path} must have rows{f' where {where}' if where else ''}. Got none.")
    rows = _arranged(rows, path, options, where.get("labels", "all labels"))
    _withhold(rows, path)
    columns = _listed(options.get("columns"), ",") or [c for c in rows[0] if not c.endswith(DETAIL)]
    by_name = {row[columns[0]]: row for row in rows}
    chosen = _listed(options.get("rows"), ";")
    _require_all(path, columns, rows[0])
    _require_all(path, chosen, by_name)
    details = options.get("intervals", "yes") != "no"
    lines = [[_header(column) for column in columns], ["---"] * len(columns)]
    for row in [by_name[name] for name in chosen] or rows:
        lines.append([_cell(row, column, details) for column in columns])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _arranged(
    rows: list[dict[str, str]], path: Path, options: dict[str, str], labels: str
) -> list[dict[str, str]]:
    """The rows as a page shows them: those of an effects.csv by method, others as they are."""
    if path.name == "effects.csv":
        out = withheld(path.parent.name)
        for row in rows:
            if (row["labels"], row["method"], row["metric"]) in out:
                row |= {"first": "", "difference": ANEW}
    if "metrics" in options:
        return _by_method(rows, _listed(options["metrics"], ";"), at_edge(path.parent, labels))
    if "by" in options:
        return _by_labels(rows, path.parent)
    if path.name.startswith("labels-"):
        _mark_edges(rows, path.parent)
    return rows


def _require_all(path: Path, wanted: list[str], known: Mapping[str, object]) -> None:
    """Refuse columns or rows that a file does not have."""
    for name in wanted:
        if name not in known:
            raise SystemExit(f"{path} must have {name!r}. Got {', '.join(map(repr, known))}.")


def _withhold(rows: list[dict[str, str]], path: Path) -> None:
    """Empty the cells of a table of methods or of labels whose results are being measured anew."""
    for labels, method, metric in withheld(path.parent.name):
        for row in rows:
            if row.get("method") != method:
                continue
            if path.name.startswith("labels-") and metric == "top-1" and labels in row:
                row |= {labels: ANEW, labels + DETAIL: ""}
            if path.name.startswith("methods-") and labels == "all labels":
                for column in row:
                    if column.startswith(metric):
                        row[column] = "" if column.endswith(DETAIL) else ANEW


def at_edge(study: Path, labels: str) -> set[str]:
    """Titles of the methods of which a seed's search ended at its smallest or largest rate."""
    ending = "-fair.csv" if labels == "all labels" else f"-fair-{re.sub(r'[^0-9A-Za-z]', '_', labels)}.csv"
    rates = _searched_rates(study / "about.json")
    if not rates:
        return set()
    factors = {method.title: method.rate_factor for method in METHODS.values()}
    ended = set()
    for path in study.glob(f"methods-*{ending}"):
        for row in _rows(path):
            chosen = [float(rate) for rate in re.findall(r"(?:rate|to) ([\d.]+)", _rate_part(row["chosen"]))]
            factor = factors.get(row["method"], 1.0)
            if chosen and (min(chosen) <= min(rates) * factor or max(chosen) >= max(rates) * factor):
                ended.add(row["method"])
    return ended


def _searched_rates(about: Path) -> list[float]:
    """The rates of a study's grid, as it keeps them or as its command has them; none if it says neither."""
    known = json.loads(about.read_text(encoding="utf-8")) if about.exists() else {}
    grid = re.search(r"--rates ([\d.,]+)", str(known.get("command", "")))
    return known.get("rates") or ([float(rate) for rate in grid[1].split(",")] if grid else [])


def _rate_part(chosen: str) -> str:
    """Of "dilution 0.5, rate 8 to 32, decay 0 to 0.0001" the part about the rate."""
    return next((part for part in chosen.split(", ") if part.startswith("rate ")), "")


def _mark_edges(rows: list[dict[str, str]], study: Path) -> None:
    """Mark the cells of a table of labels."""
    for column in rows[0]:
        ended = at_edge(study, column)
        for row in rows:
            if row["method"] in ended:
                row[column + DETAIL] = row.get(column + DETAIL, "") + EDGE


def read_quotes() -> dict[str, dict[str, Any]]:
    """The quotes of all pages, by name."""
    return tomllib.loads((HERE / "quotes.toml").read_text(encoding="utf-8"))


def quote(name: str, quotes: dict[str, dict[str, Any]]) -> str:
    """The text of a quote: `show` with {columns} replaced by those of the one row of `from` that `where` describes.

    {column~1} is for sentences: rounded to one decimal, without the sign.
    """
    if name not in quotes:
        raise SystemExit(f"quotes.toml must have {name!r}. Got {', '.join(map(repr, quotes))}.")
    wanted = quotes[name]
    rows = [
        row
        for row in _rows(RESULTS / wanted["from"])
        if all(row.get(column) == value for column, value in wanted["where"].items())
    ]
    out = withheld(Path(wanted["from"]).parent.name)
    if (
        any((row.get("labels"), row.get("method"), row.get("metric")) in out for row in rows)
        and "{diff" in wanted["show"]
    ):
        raise SystemExit(
            f"The quote {name!r} must be of a result that holds. Got one that is being measured anew."
        )
    if len(rows) != 1:
        raise SystemExit(f"The quote {name!r} must match one row of {wanted['from']}. Got {len(rows)}.")
    return re.sub(r"{([^}~]+)(?:~(\d))?}", lambda part: _rounded(rows[0][part[1]], part[2]), wanted["show"])


def _rounded(value: str, decimals: str | None) -> str:
    return value if decimals is None else f"{abs(float(value)):.{decimals}f}"


def withheld(study: str) -> set[tuple[str, str, str]]:
    """Labels, method and metric of the results of a study that are being measured anew."""
    with (HERE / "withheld.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["study"] == study]
    return {(row["labels"], row["method"], row["metric"]) for row in rows}


def unquoted(page: str, shown: dict[str, str]) -> list[str]:
    """Numbers with a sign or a decimal point in the parts about results that come from none; code and d = 0.5 aside."""
    numbers = []
    for part in _PART.finditer(page):
        text = _requoted(part, shown, dict.fromkeys(shown, " "))
        for other in (_BLOCK, _CODE, _SETTING, re.compile(r"\]\([^)]*\)|<!--.*?-->", re.DOTALL)):
            text = other.sub(" ", text)
        numbers += _MEASURED.findall(text)
    return numbers


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _by_method(effects: list[dict[str, str]], metrics: list[str], ended: set[str]) -> list[dict[str, str]]:
    """The effects of each method side by side."""
    methods: dict[str, dict[str, str]] = {}
    titles = dict.fromkeys(metrics, "")
    for effect in effects:
        name, metric = effect["method"], effect["metric"]
        row = methods.setdefault(name, {"method": name + (EDGE if name in ended else "")})
        if metric == metrics[0]:
            row[metric] = effect["first"]
        if metric in metrics:
            titles[metric] = f"Δ {metric}{SEEDS_ONLY if _over_seeds(effect) else ''}"
            row[titles[metric]] = _difference(effect)
    return [
        {name: row[name] for name in ("method", metrics[0], *titles.values())} for row in methods.values()
    ]


def _by_labels(effects: list[dict[str, str]], study: Path) -> list[dict[str, str]]:
    """The effects of each method on every kind of labels."""
    methods: dict[str, dict[str, str]] = {}
    for effect in effects:
        labels, name = effect["labels"], effect["method"]
        row = methods.setdefault(name, {"method": name})
        row[labels] = _difference(effect) + (EDGE if {name, "cross-entropy"} & at_edge(study, labels) else "")
    return list(methods.values())


def _difference(effect: dict[str, str]) -> str:
    """A difference with its interval, bold where it remains after Holm's correction and is not over seeds alone."""
    if effect["difference"] == ANEW:
        return ANEW
    text = f"{effect['difference']} [{effect['low']}, {effect['high']}]"
    return f"**{text}**" if float(effect["holm"] or 1) < 0.05 and not _over_seeds(effect) else text


def _over_seeds(effect: dict[str, str]) -> bool:
    return effect.get("over") == "seeds"


def _header(column: str) -> str:
    """A kind of labels in words: "1 a class + parent" is "1 per class, rest coarse"."""
    shown = column.replace(" a class", " per class").replace(" + parent", ", rest coarse")
    shown = shown.replace("% wrong within parent", "% wrong, same group").replace(
        "% wrong any", "% wrong, any"
    )
    return SHOWN.get(shown, shown.replace("% parent", "% coarse"))


def _listed(text: str | None, separator: str) -> list[str]:
    return [part.strip() for part in text.split(separator)] if text else []


def _cell(row: dict[str, str], column: str, details: bool) -> str:
    detail = row.get(column + DETAIL, "") if details else ""
    return f"{row[column]} {detail}".strip().replace("|", r"\|")


if __name__ == "__main__":
    main()
