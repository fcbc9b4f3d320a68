"""`hace demo`: a fair study on made-up features, from nothing to a report, in two minutes."""

from __future__ import annotations

import argparse
import os
import sys

from hace.cli.report import show_report
from hace.cli.study import add_study_arguments, do_study

DESCRIPTION = """\
The fair study in small, on features that are made up: the paper's methods and the controls, the shuffled tree among them, each
with the same learning rates, chosen on held-out samples, over three seeds. It ends with the table and a page to look at.
"""

EXAMPLES = """\
examples:
  hace demo                    into ./hace-demo
  hace demo --out elsewhere    run twice, it goes on where it was
  hace demo --dry-run          what it would do

On made-up features a hierarchy means something by construction: the demo shows how a study works, not what HACE gains.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_study_arguments(parser, "--out", "hace-demo")
    parser.set_defaults(workers=min(2, os.cpu_count() or 1))


def run(args: argparse.Namespace) -> None:
    """Study, table, page."""
    from hace.lab.study.plans import Choices

    tally = do_study(["demo"], Choices(), args)
    if tally is None:
        return
    print()
    show_report(args.out)
    if tally.sum("failed"):
        sys.exit(1)
