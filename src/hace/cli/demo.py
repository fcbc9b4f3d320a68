"""`hace demo`: a small study that answers three questions."""

from __future__ import annotations

import os
import sys
from pathlib import Path

WORKERS = min(2, os.cpu_count() or 1)


def demo(*, out: Path = Path("hace-demo"), workers: int = WORKERS, dry_run: bool = False) -> None:
    """Three questions about a taxonomy of 61 animals. Coarse labels: use or drop? A guarantee: is it kept, and how specific are
    the answers? Something that is not in the list: what does it say? A small fair study answers them, in which every method
    searches the same learning rates on held-out samples, over five seeds. It ends with a page to open.

    Examples
      hace demo                    into ./hace-demo
      hace demo --out elsewhere    run it again to resume
      hace demo --dry-run          show what it would do
      hace report hace-demo        all methods, with intervals

    The features are synthetic, drawn by descent down the tree: the demo shows how a study works, not what a method gains. Other
    options are those of `hace study demo`.

    Args:
        out: Folder of the study.
        workers: Processes.
        dry_run: Show what would run, and about how long it takes.
    """
    from hace.lab.report.demo import write_demo
    from hace.study import Study

    study = Study("demo", out=str(out))
    if dry_run:
        return study.price()
    results = study.run(workers=workers)
    print(*results.summary, sep="\n")
    if results.failed:
        sys.exit(1)
    text, page = write_demo(results.study, study.presets["demo"].data["animals"])
    print(f"\n{text}\n\nThe page: {page.resolve()}")
