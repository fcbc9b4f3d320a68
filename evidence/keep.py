"""Run a benchmark and keep the tables it prints: python evidence/keep.py NAME SCRIPT [ARGUMENT ...]

    python evidence/keep.py loss-bars/table benchmarks/losses.py

keeps its first Markdown table in results/loss-bars/table.csv, a second one in table-2.csv, and writes into about.json of the
same folder what made each. `make results` then brings them into the pages.
"""

from __future__ import annotations

import csv
import datetime
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from hace import environment

RESULTS = Path(__file__).parent / "results"
_VALUE = re.compile(r"([+-]?[\d.,]+) ([\[(].*)")  # 54.5 [53.1, 55.9]


def main() -> None:
    """Run, show and keep."""
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    name, *command = sys.argv[1:]
    with subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        tables = list(printed_tables(_shown(process.stdout)))
    if process.returncode:
        sys.exit(process.returncode)
    if not tables:
        sys.exit(f"{command[0]} must print a Markdown table. Got none.")
    made_with = environment.config()
    about = {
        "command": shlex.join(["python", *command]),
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "made_with": {name: made_with[name] for name in ("hace", "python", "torch", "numpy")},
    }
    for number, rows in enumerate(tables, 1):
        keep(RESULTS / f"{name}{'' if number == 1 else f'-{number}'}.csv", rows, about)


def printed_tables(lines: Iterable[str]) -> Iterator[list[list[str]]]:
    """The Markdown tables of a text, the header first."""
    rows: list[list[str]] = []
    for line in [*lines, ""]:
        if line.startswith("|"):
            rows.append([cell.strip() for cell in line.strip().strip("|").split("|")])
        elif rows:
            yield [rows[0], *rows[2:]]
            rows = []


def keep(path: Path, rows: list[list[str]], about: dict[str, object]) -> None:
    """Write a table, intervals in columns of their own, and what made it."""
    header, *rest = rows
    results = [[_VALUE.fullmatch(row[i]) for row in rest] for i in range(len(header))]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        to = csv.writer(file, lineterminator="\n")
        to.writerow(
            [c for i, h in enumerate(header) for c in ([h, f"{h} (detail)"] if any(results[i]) else [h])]
        )
        for number, row in enumerate(rest):
            cells = []
            for i, cell in enumerate(row):
                match = results[i][number]
                cells += (match.groups() if match else (cell, "")) if any(results[i]) else (cell,)
            to.writerow(cells)
    listed = path.parent / "about.json"
    known = json.loads(listed.read_text(encoding="utf-8")) if listed.exists() else {"tables": {}}
    known["tables"][path.name] = about
    listed.write_text(json.dumps(known, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _shown(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        print(line, end="", flush=True)
        yield line


if __name__ == "__main__":
    main()
