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

from hace.cli.options import Parser, show_report


def add_arguments(parser: Parser) -> None:
    """Declare the command's arguments."""
    add = parser.option
    add("study", "STUDY", "the folder of `hace study`")
    add("--out", "DIR", "where to write (default: STUDY/report)")
    add("--compare", "A,B", "the methods whose difference is shown (default: hace,sce)")
    add("--names", "FILE", 'names of nodes, one line "id name" each, for a study with only ids')
    parser.flag("--quiet", "print only the path of the page")


def run(args: argparse.Namespace) -> None:
    """Read, write, print the summary."""
    compare = None if args.compare is None else [name.strip() for name in args.compare.split(",")]
    show_report(args.study, args.out, compare, names=args.names, quiet=args.quiet)
