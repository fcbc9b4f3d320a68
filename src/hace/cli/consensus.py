"""`hace consensus`: one answer from several opinions."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


def consensus(
    votes: Path,
    /,
    *,
    hierarchy: str,
    agree: Annotated[float, Parameter(show_default=lambda _: "2/3")] = 2 / 3,
    least: int = 2,
    out: Path | None = None,
    sample_column: str = "sample",
    label_column: str = "label",
    annotator_column: str | None = None,
) -> None:
    """Find the deepest node that enough people support for each sample, from a table with one opinion per line. Opinions may be
    at any rank. By default this is how iNaturalist finds the community taxon.

    Examples
      hace consensus votes.csv --hierarchy taxonomy.csv
      hace consensus votes.csv --hierarchy taxonomy.csv --agree 0.7 --out labels.csv
      hace consensus votes.csv --hierarchy taxonomy.csv --sample-column path --annotator-column who --out list.csv
      hace fit list.csv --label label --hierarchy taxonomy.csv      train on the labels, coarse ones included
      hace probe --features F --votes votes.csv                     train on the opinions as soft labels

    Samples without agreement are left out of the output. The command also prints how often people agree at each level.

    Args:
        votes: CSV or TSV table with one opinion per line and the columns sample and label.
        hierarchy: Taxonomy: a file, or the built-in cifar100 or animals.
        agree: Share of votes that the answer must exceed; votes for nodes above it do not count.
        least: Least number of votes for the answer.
        out: CSV file to write (default: standard output).
        sample_column: Column of the samples.
        label_column: Column of the labels.
        annotator_column: Column of the annotators; only the last opinion of each on a sample counts (default: all count).
    """
    from hace.data.consensus import consensus as find_consensus
    from hace.data.consensus import read_votes
    from hace.files.documents import write_rows
    from hace.files.writing import atomic_path
    from hace.formats import read_hierarchy

    h = read_hierarchy(hierarchy)
    opinions = read_votes(votes, sample_column, label_column, annotator_column)
    result = find_consensus(opinions, h, agree=agree, least=least)
    rows = result.rows()
    table = [[sample_column, label_column, "support", "votes"], *(row.values() for row in rows)]
    if out is None:
        write_rows(sys.stdout, table, raw=True, end="\n")
    else:
        with atomic_path(out) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
            write_rows(file, table, raw=True, end="\n")
    print(f"{len(rows):,} of {len(opinions):,} samples have an answer.", file=sys.stderr)
    for level, share in result.agreement().items():
        name = h.level_names[level - 1] if h.level_names else f"level {level}"
        print(f"{name}: {share:.0%} of pairs of opinions agree", file=sys.stderr)
