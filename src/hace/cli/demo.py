"""Three questions about a taxonomy of 61 animals. Coarse labels: use or drop? A guarantee: is it kept, and how specific are the
answers? Something that is not in the list: what does it say? A small fair study answers them, in which every method searches
the same learning rates on held-out samples, over five seeds. It ends with a page to open.

Examples:
  hace demo                    into ./hace-demo
  hace demo --out elsewhere    run it again to resume
  hace demo --dry-run          show what it would do
  hace report hace-demo        all methods, with intervals

The features are synthetic, drawn by descent down the tree: the demo shows how a study works, not what a method gains. Other
options are those of `hace study demo`.
"""

from __future__ import annotations

import argparse
import os
import sys

from hace.cli.options import Parser


def add_arguments(parser: Parser) -> None:
    """Declare the command's arguments."""
    workers = min(2, os.cpu_count() or 1)
    parser.option("--out", "DIR", "folder of the study (default: hace-demo)", default="hace-demo")
    parser.option("--workers", "N", "processes (default: 2)", type=int, default=workers)
    parser.flag("--dry-run", "show what would run, and about how long it takes")


def run(args: argparse.Namespace) -> None:
    """Run the study, print its answers, write its page."""
    from hace.lab.report.demo import write_demo
    from hace.study import Study

    study = Study("demo", out=args.out)
    if args.dry_run:
        return study.price()
    results = study.run(workers=args.workers)
    print(*results.summary, sep="\n")
    if results.failed:
        sys.exit(1)
    said, page = write_demo(results.study, study.presets["demo"].data["animals"])
    print(f"\n{said}\n\nThe page: {page.resolve()}")
