"""`hace demo`: a fair study on synthetic features, from nothing to a report, in two minutes."""

from __future__ import annotations

import argparse
import os
import sys

from hace.cli.options_report import show_report
from hace.cli.options_study import add_study_arguments, do_study

DESCRIPTION = """\
A small fair study on synthetic features: the paper's methods and the controls, including the shuffled tree, each with the
same learning rates, chosen on held-out samples, over three seeds. It ends with a table and a page to open.
"""

EXAMPLES = """\
examples:
  hace demo                    into ./hace-demo
  hace demo --out elsewhere    run it again to resume
  hace demo --dry-run          show what it would do

In synthetic features the hierarchy matters by construction: the demo shows how a study works, not what HACE gains.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_study_arguments(parser, "--out", "hace-demo")
    parser.set_defaults(workers=min(2, os.cpu_count() or 1))


def run(args: argparse.Namespace) -> None:
    """Run the study, print its table, write its page."""
    from hace.lab.study.plans import Choices
    from hace.lab.study.presets import find_presets

    tally = do_study(find_presets("demo"), Choices(), args)
    if tally is None:
        return
    print()
    show_report(args.out)
    if tally.sum("failed"):
        sys.exit(1)
