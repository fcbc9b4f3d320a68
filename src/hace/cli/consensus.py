"""`hace consensus`: one answer from several opinions."""

from __future__ import annotations

import sys
from pathlib import Path


def consensus(
    votes: Path,
    /,
    *,
    hierarchy: str,
    agree: float = 2 / 3,
    least: int = 2,
    out: Path | None = None,
    sample_column: str = "sample",
    label_column: str = "label",
    annotator_column: str | None = None,
) -> None:
    """Give each sample the deepest node that enough people support, from a table with a line for each opinion. Opinions may
    be at any rank. With the default share this is how iNaturalist finds the community taxon.

    Examples
      hace consensus votes.csv --hierarchy taxonomy.csv
      hace consensus votes.csv --hierarchy taxonomy.csv --agree 0.7 --out labels.csv
      hace consensus votes.csv --hierarchy taxonomy.csv --sample-column path --annotator-column who --out list.csv
      hace fit list.csv --label label --hierarchy taxonomy.csv      the labels, coarse ones included, as training data
      hace probe --features F --votes votes.csv                     the opinions themselves, as soft labels

    Samples that people do not agree on have no line in the output. Prints the agreement of people at each level.

    Args:
        votes: A CSV or TSV table: a line for each opinion, with the columns sample and label.
        hierarchy: The taxonomy: a file, or cifar100 or animals.
        agree: The share of votes that the answer must exceed; votes for nodes above it do not count.
        least: How many votes the answer must have.
        out: Where to write the answers as CSV (default: standard output).
        sample_column: The column of the samples.
        label_column: The column of the labels.
        annotator_column: The column of who said it: the last opinion of each on a sample counts (default: all count).
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
