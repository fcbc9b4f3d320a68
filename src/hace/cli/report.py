"""`hace report`: the page of a study."""

from __future__ import annotations

import sys
from pathlib import Path

from hace.cli.engine import Words
from hace.cli.options import Names
from hace.errors import amount


def report(
    study: Path,
    /,
    *,
    out: Path | None = None,
    difference: Words | None = None,
    names: Names = None,
    quiet: bool = False,
) -> None:
    """Write the report of a study: one page that opens from disk, with the comparison and its intervals, figures, a clickable
    drawing of the hierarchy and, for the paper's datasets, its printed numbers beside yours. Tables also come as CSV and
    LaTeX.

    Examples
      hace report STUDY                              writes STUDY/report/report.html and prints a summary
      hace report STUDY --out public
      hace report STUDY --difference hace,hxe_0.5    the two methods to compare
      hace report STUDY --names classes.txt          names for a hierarchy of numbers: one line "id name" per node

    Works on a running study too; missing results are marked. Exit code 2: no run has finished. To compare two runs, see
    `hace evaluate RUN --compare RUN`.

    Args:
        study: Folder of `hace study`.
        out: Folder to write (default: STUDY/report).
        difference: Two methods to compare, separated by a comma (default: hace,cross_entropy).
        quiet: Print only the path of the page.
    """
    from hace.files.writing import own_folder
    from hace.lab.report import Results, about_study, write_records
    from hace.lab.report.about import failures, shortened
    from hace.lab.report.cards import study_cards
    from hace.lab.report.summary import cards_text, results_text
    from hace.lab.study.folder import read_study
    from hace.lab.study.records import each_run
    from hace.paper import report_sections

    folder = read_study(study)
    about = about_study(folder)
    results = Results(folder.records(), difference, names=names)
    print(
        f"hace: writing the report of {amount(len(each_run(results.records)), 'run')}",
        file=sys.stderr,
        flush=True,
    )
    page = write_records(results, about, out or own_folder(folder.folder / "report"), [report_sections])
    for line in shortened([*about.problems, *results.problems], 20):
        print(f"skipped: {line}", file=sys.stderr)
    for line in shortened(failures(results.records), 20):
        print(f"no result: {line}", file=sys.stderr)
    if not quiet:
        print(cards_text(study_cards(results)), results_text(results), sep="\n\n", end="\n\n")
    print(page if quiet else f"The page: {page.resolve()}")
