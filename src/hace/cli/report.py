"""`hace report`: what came out of a study."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

DESCRIPTION = """\
Write the report of a study: one page that opens from disk, with the comparison and its intervals, figures, a drawing of the
hierarchy to click through and, for the paper's data sets, its printed numbers beside yours. Tables are also CSV and LaTeX.
"""

EXAMPLES = """\
examples:
  hace report STUDY                           writes STUDY/report/report.html and prints a summary
  hace report STUDY --out public
  hace report STUDY --compare hace,hxe_0.5    which two methods to compare (default: hace,sce)
  hace report STUDY --names classes.txt       names for a hierarchy of numbers: one line "id name" per node

You can report on a running study: missing results are marked. Exit code 2: no run has finished. To compare two runs, see
`hace evaluate --run RUN --compare RUN`.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add = parser.add_argument
    add("study", metavar="STUDY", help="the folder of `hace study`")
    add("--out", metavar="DIR", help="where to write (default: STUDY/report)")
    add("--compare", metavar="A,B", help="the methods whose difference is shown (default: hace,sce)")
    add("--names", metavar="FILE", help='names of nodes, one line "id name" each, for a study with only ids')
    add("--quiet", action="store_true", help="print only the path of the page")


def run(args: argparse.Namespace) -> None:
    """Read, write, print the summary."""
    compare = None if args.compare is None else [name.strip() for name in args.compare.split(",")]
    show_report(args.study, args.out, compare, names=args.names, quiet=args.quiet)


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
    from hace.lab.report.summary import failures, results_text, shortened, verdicts_text
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
