"""What `hace report` and `hace demo` share: writing a study's report and printing its summary."""

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
    """Write the report of a study, print the summary and the path of the page. What is skipped goes to stderr."""
    from hace.lab.report import Results, about_study, write_records
    from hace.lab.report.summary import failures, results_text, shortened, verdicts_text
    from hace.lab.report.verdict import verdicts
    from hace.lab.study.cells import each_run
    from hace.lab.study.folder import read_study
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
