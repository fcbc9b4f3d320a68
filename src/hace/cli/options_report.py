"""What `hace report` and `hace demo` share: writing a study's report and saying what is in it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path


def show_report(
    study: str | Path,
    out: str | None = None,
    compare: Sequence[str] | None = None,
    *,
    names: str | None = None,
    quiet: bool = False,
) -> None:
    """Write the report of a study, print the summary and the path of the page. What is skipped goes to stderr.

    Args:
        study: The folder of the study.
        out: Where to write; by default STUDY/report.
        compare: Two methods to compare; by default hace and sce.
        names: A file with the names of nodes.
        quiet: Whether to print only the path.
    """
    from hace.lab.report import Results, about_study, write_records
    from hace.lab.report.document import failures, shortened
    from hace.lab.report.text import results_text, verdicts_text
    from hace.lab.report.verdict import verdicts
    from hace.lab.study.searches import each_run
    from hace.lab.study.study import read_study
    from hace.paper import report_sections

    opened = read_study(study)
    about = about_study(opened)
    records = list(opened.records())
    print(f"hace: writing the report of {len(each_run(records)):,} runs", file=sys.stderr, flush=True)
    results = Results(records, compare, names=names)
    page = write_records(results, about, Path(out) if out else opened.folder / "report", [report_sections])
    for line in shortened([*about.problems, *results.problems], 20):
        print(f"skipped: {line}", file=sys.stderr)
    for line in shortened(failures(results.records), 20):
        print(f"no result: {line}", file=sys.stderr)
    if not quiet:
        print(verdicts_text(verdicts(results)), results_text(results), sep="\n\n", end="\n\n")
    print(page if quiet else f"The page: {page.resolve()}")


def show_two(first: str, second: str, out: str, *, names: str | None = None, quiet: bool = False) -> None:
    """Write the report of two studies or runs side by side, print what differs and the path of the page.

    Args:
        first: A folder.
        second: The folder whose difference from the first is shown.
        out: Where to write.
        names: A file with the names of nodes.
        quiet: Whether to print only the path.
    """
    from hace.lab.report.document import Section
    from hace.lab.report.render import to_text
    from hace.lab.report.side_by_side import pairs_table, read_side, side_by_side
    from hace.lab.report.text import results_text
    from hace.lab.report.writing import About, write_records

    sides = [read_side(folder) for folder in (first, second)]
    results = side_by_side(*sides, names=names)
    called = [side.name for side in sides] if sides[0].name != sides[1].name else ["A", "B"]
    tables = [t for arena in results.choices if (t := pairs_table(results, arena, called)) is not None]

    def section(*_: object) -> list[Section]:
        return (
            [Section("sides", f"{called[0]} and {called[1]}, method by method", tuple(tables))]
            if tables
            else []
        )

    title = (
        f"{called[0]} and {called[1]}" if tables else f"{results.second} and {results.first}"
    )  # two runs have names
    about = About(title, data={**sides[0].data, **sides[1].data})
    page = write_records(results, about, Path(out), [section])
    if not quiet:
        print("\n\n".join(map(to_text, tables)) if tables else results_text(results), end="\n\n")
    print(page if quiet else f"The page: {page.resolve()}")
