"""Bring the kept results into the docs: python evidence/write.py [--check]

A page asks for a table with a pair of comments, and everything between them is rewritten:

    <!-- evidence: cub200-mixed-labels/methods-x.csv columns="method, top-1 ↑" rows="SCE; HACE" -->
    <!-- end of evidence -->

`columns` chooses and orders columns, by default all; `rows` does the same by the first column; `intervals="no"` leaves
intervals out. --check changes nothing and fails where a page differs from the results.
"""

from __future__ import annotations

import argparse
import csv
import re
import shlex
import sys
from pathlib import Path

HERE = Path(__file__).parent
RESULTS = HERE / "results"
PAGES = (HERE.parent / "README.md", *sorted((HERE.parent / "docs").glob("*.md")))
DETAIL = " (detail)"  # the report's columns of intervals
_BLOCK = re.compile(
    r"(<!-- evidence: (?P<request>[^\n]*?) -->\n)(?P<table>.*?)(<!-- end of evidence -->)", re.DOTALL
)


def main() -> None:
    """Rewrite all pages, or compare them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="compare only")
    check = parser.parse_args().check
    stale = []
    for page in PAGES:
        before = page.read_text(encoding="utf-8")
        after = _BLOCK.sub(lambda found: f"{found[1]}{table(found['request'])}{found[4]}", before)
        if before != after:
            stale.append(page.name)
            if not check:
                page.write_text(after, encoding="utf-8")
    if check and stale:
        sys.exit(f"{', '.join(stale)} must show the kept results. Run: make results")
    print("unchanged" if not stale else f"rewritten: {', '.join(stale)}")


def table(request: str) -> str:
    """The Markdown table of a request: a file below results/, and options as name="value"."""
    name, *words = shlex.split(request)
    options = dict(word.split("=", 1) for word in words)
    path = RESULTS / name
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    if not rows:
        raise SystemExit(f"{path} must have rows. Got none.")
    details = options.get("intervals", "yes") != "no"
    columns = _listed(options.get("columns"), ",") or [c for c in rows[0] if not c.endswith(DETAIL)]
    by_name = {row[columns[0]]: row for row in rows}
    chosen = _listed(options.get("rows"), ";") or list(by_name)
    for known, wanted in ((rows[0], columns), (by_name, chosen)):
        missing = [item for item in wanted if item not in known]
        if missing:
            raise SystemExit(f"{path} must have {missing[0]!r}. Got {', '.join(map(repr, known))}.")
    lines = [columns, ["---"] * len(columns)]
    lines += [[_cell(by_name[row], column, details) for column in columns] for row in chosen]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _listed(text: str | None, separator: str) -> list[str]:
    return [part.strip() for part in text.split(separator)] if text else []


def _cell(row: dict[str, str], column: str, details: bool) -> str:
    detail = row.get(column + DETAIL, "") if details else ""
    return f"{row[column]} {detail}".strip().replace("|", r"\|")


if __name__ == "__main__":
    main()
