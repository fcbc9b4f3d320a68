"""`hace report`: what came out of a study."""

from __future__ import annotations

import argparse

from hace.cli.options_report import show_report, show_two
from hace.errors import ConfigError

DESCRIPTION = """\
Write the report of a study: one page that opens from disk, with the comparison and its intervals, figures, a drawing of the
hierarchy to click through and, for the paper's data sets, its printed numbers beside yours. Also as Markdown, LaTeX and CSV.
"""

EXAMPLES = """\
examples:
  hace report STUDY                           writes STUDY/report/report.html and prints a summary
  hace report STUDY --out public
  hace report STUDY --compare hace,hxe_0.5    which two methods to compare (default: hace,sce)
  hace report STUDY --names classes.txt       names for a hierarchy of numbers: one line "id name" per node
  hace report A B --out both                  two studies, or two runs, side by side: B minus A

You can report on a running study: missing results are marked. Exit code 2: no run has finished.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "study", metavar="STUDY", help="the folder of `hace study`; or a run, if you also give B"
    )
    parser.add_argument(
        "other", metavar="B", nargs="?", help="a second study or run, to compare with the first"
    )
    parser.add_argument(
        "--out", metavar="DIR", help="where to write (default: STUDY/report; of two: report-of-two)"
    )
    parser.add_argument(
        "--compare", metavar="A,B", help="the methods whose difference is shown (default: hace,sce)"
    )
    parser.add_argument(
        "--names",
        metavar="FILE",
        help='names of nodes, one line "id name" each, for a study with only ids',
    )
    parser.add_argument("--quiet", action="store_true", help="print only the path of the page")


def run(args: argparse.Namespace) -> None:
    """Read, write, print the summary."""
    compare = None if args.compare is None else [name.strip() for name in args.compare.split(",")]
    if args.other is None:
        return show_report(args.study, args.out, compare, names=args.names, quiet=args.quiet)
    if compare is not None:
        raise ConfigError("--compare must be left out with two folders: each method is compared with itself.")
    show_two(args.study, args.other, args.out or "report-of-two", names=args.names, quiet=args.quiet)
