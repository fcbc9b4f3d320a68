"""Write the report of a study: one page that opens from disk, with the comparison and its intervals, figures, a drawing of the
hierarchy to click through and, for the paper's datasets, its printed numbers beside yours. Tables are also CSV and LaTeX.

Examples:
  hace report STUDY                           writes STUDY/report/report.html and prints a summary
  hace report STUDY --out public
  hace report STUDY --compare hace,hxe_0.5    which two methods to compare (default: hace,sce)
  hace report STUDY --names classes.txt       names for a hierarchy of numbers: one line "id name" per node

You can report on a running study: missing results are marked. Exit code 2: no run has finished. To compare two runs, see
`hace evaluate --run RUN --compare RUN`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from hace.cli.options import Parser


def add_arguments(parser: Parser) -> None:
    """Declare the command's arguments."""
    add = parser.option
    add("study", "STUDY", "the folder of `hace study`")
    add("--out", "DIR", "where to write (default: STUDY/report)")
    add("--compare", "A,B", "the methods whose difference is shown (default: hace,sce)")
    add("--names", "FILE", 'names of nodes, one line "id name" each, for a study with only ids')
    parser.flag("--quiet", "print only the path of the page")


def run(args: argparse.Namespace) -> None:
    """Read, write, print the summary. What is skipped goes to stderr."""
    from hace.files.writing import own_folder
    from hace.lab.report import Results, about_study, write_records
    from hace.lab.report.study_report import failures, results_text, shortened, verdicts_text
    from hace.lab.report.verdict import verdicts
    from hace.lab.study.folder import read_study
    from hace.lab.study.records import each_run
    from hace.paper import report_sections

    compare = None if args.compare is None else [name.strip() for name in args.compare.split(",")]
    study = read_study(args.study)
    about, results = about_study(study), Results(study.records(), compare, names=args.names)
    print(f"hace: writing the report of {len(each_run(results.records)):,} runs", file=sys.stderr, flush=True)
    out = Path(args.out) if args.out else own_folder(study.folder / "report")
    page = write_records(results, about, out, [report_sections])
    for line in shortened([*about.problems, *results.problems], 20):
        print(f"skipped: {line}", file=sys.stderr)
    for line in shortened(failures(results.records), 20):
        print(f"no result: {line}", file=sys.stderr)
    if not args.quiet:
        print(verdicts_text(verdicts(results)), results_text(results), sep="\n\n", end="\n\n")
    print(page if args.quiet else f"The page: {page.resolve()}")
