"""`hace unseen`: what a model says about classes it has never seen."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

from hace.cli.engine import With, Words, more
from hace.cli.options import DataOption, Groups, data_options
from hace.errors import ConfigError


def unseen(
    *,
    features: Path,
    hierarchy: str | None = None,
    leave_out: str = "0.2",
    whole_groups: bool = False,
    outside: Path | None = None,
    accuracy: float | None = None,
    prefer: Annotated[Literal["steadier", "sharper"], With("--accuracy")] = "steadier",
    draws: int = 5,
    seeds: int = 5,
    epochs: int = 30,
    methods: Words | None = None,
    out: Path | None = None,
    page: Path | None = None,
    option: Annotated[DataOption, more] = (),
    groups: Annotated[Groups, more] = None,
) -> None:
    """See what a model says when something new appears. Whole classes are left out of training; heads and rules are compared on
    them, at equal accuracy on the classes they know.

    Examples
      hace unseen --features birds.npz --hierarchy taxonomy.csv --leave-out 40
      hace unseen --features birds.npz --hierarchy taxonomy.csv --leave-out 0.2 --whole-groups --draws 3 --seeds 2
      hace unseen --features birds.npz --hierarchy taxonomy.csv --accuracy 0.9 --page unseen.html
      hace unseen --features F --leave-out new-species.txt --methods cross-entropy,leave-one-out --out rows.csv

    The features need a test split with samples of all classes. A class is left out only if a sister under the same parent
    stays. An answer is true if it is an ancestor of the class (the root says nothing), exact if it is the closest listed one.

    Args:
        features: Feature file, or a folder of `hace features`.
        hierarchy: Taxonomy for a feature file, in any form that `hace hierarchy` reads.
        leave_out: Classes to leave out: a number, a share, or a file of ids.
        whole_groups: Leave out whole groups of classes.
        outside: Features of samples that belong to no class at all, to be answered too.
        accuracy: Guarantee to set a threshold by: this share of the samples of new classes gets no false answer.
        prefer: Samples the guarantee rests on: all of each class left out (steadier), or one at random (sharper), which
            answers more with few classes but varies more.
        draws: Number of draws of classes.
        seeds: Heads per draw.
        epochs: Passes over the training samples.
        methods: Methods to compare, separated by commas (default: all).
        out: CSV file of every draw, seed, method and operating point.
        page: Page to write, with the summary and the curves of all methods.
    """
    from hace.data.feature_files import feature_parts
    from hace.formats.score_files import read_list
    from hace.lab.runs.config import DataConfig
    from hace.lab.runs.samples import data_of
    from hace.linear.unseen_classes import METHODS, Rows, UnseenStudy, card, write_rows

    config = DataConfig("features", str(features), hierarchy=hierarchy, options=data_options(option, groups))
    data = data_of(config)
    parts = {name: (data[name].x, data.hierarchy.labels[data[name].nodes]) for name in ("train", "test")}
    if any((y < 0).any() for _, y in parts.values()):
        raise ConfigError("labels must be classes for hace unseen. Some are inner nodes.")
    try:
        left_out: float | list[str] = float(leave_out)
    except ValueError:
        left_out = read_list(leave_out)
    study = UnseenStudy(
        data.hierarchy,
        parts["train"],
        parts["test"],
        left_out,
        methods=tuple(METHODS) if methods is None else methods,
        draws=draws if isinstance(left_out, float) else 1,
        groups=whole_groups,
        seeds=seeds,
        epochs=epochs,
        outside=None if outside is None else list(feature_parts(outside).values())[-1],
        guarantee=accuracy,
        prefer=prefer,
    )

    def after_each_draw(text: str, rows: Rows) -> None:
        print(text, file=sys.stderr, flush=True)
        if out is not None:
            write_rows(rows, out)

    rows = study.run(after_each_draw)
    if page is not None:
        from hace.lab.report.unseen_page import write_unseen_page

        write_unseen_page(rows, str(features), page)
    print(card(rows))
