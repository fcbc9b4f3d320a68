"""Two questions about a taxonomy of 61 animals, answered by a small fair study: does the hierarchy help when all training
labels are known, and when 80% are known only to their family: use or drop those, and with which method? Every method
searches the same learning rates on held-out samples, over five seeds, beside a shuffled tree as a control. It ends with a
page to open.

Examples:
  hace demo                    into ./hace-demo
  hace demo --out elsewhere    run it again to resume
  hace demo --dry-run          show what it would do

The features are synthetic, drawn by descent down the tree: the demo shows how a study works, not what a method gains.
"""

from __future__ import annotations

import argparse
import os
import sys

from hace.cli.options import show_report
from hace.cli.options_study import add_run_arguments, given, run_study


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_run_arguments(parser)
    parser.set_defaults(workers=min(2, os.cpu_count() or 1))


def run(args: argparse.Namespace) -> None:
    """Run the study, print its table, write its page."""
    from hace.study import Study

    results = run_study(Study("demo", **given(args, Study)), args)
    if results is not None:
        print()
        show_report(results.study.folder)
        if results.failed:
            sys.exit(1)
