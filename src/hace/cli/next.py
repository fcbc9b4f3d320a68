"""`hace next`: which samples to label next."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

from hace.cli.engine import more
from hace.cli.options import Checkpoint, Device
from hace.errors import ConfigError


def next(
    model: str,
    /,
    *pool: str,
    budget: int,
    out: Path | None = None,
    column: Annotated[str | None, more] = None,
    seed: Annotated[int, more] = 0,
    checkpoint: Checkpoint = None,
    batch_size: Annotated[int | None, more] = None,
    on: Device = Device(),
) -> None:
    """Choose which samples of a pool to label next: samples the model is unsure about that do not resemble each other. The most
    doubtful come first.

    Examples
      hace next photos.hace unlabelled --budget 200 --out next.csv
      hace next runs/4cd033b43672ca23 pool.npz --budget 200
      hace predict photos.hace next.csv --to label-studio --out tasks.json     as annotation tasks

    Leave labelled samples out of the pool. The table lists the most probable class of each sample and its lead over the second.

    Args:
        model: Finished run of `hace probe` or `hace train`, or a file of `hace fit` or `hace export`.
        pool: Images, folders or lists of them, texts, or features, as for `hace predict`.
        budget: Number of samples to label.
        out: CSV file to write (default: standard output).
        column: Column of texts in a table, for a model of texts (default: as in training).
        seed: Random seed.
        batch_size: Samples per batch.
    """
    from hace.lab.runs.process import keep_freed_memory

    keep_freed_memory()
    from hace.files.documents import write_rows
    from hace.files.writing import atomic_path, writing
    from hace.fitting.new_samples import opened
    from hace.lab.runs.process import progress
    from hace.lab.serve.next_questions import next_questions
    from hace.lab.serve.predictor import Predictor, broken_message

    if not pool:
        raise ConfigError(
            "hace next must have a POOL: images, folders or lists of them, texts, or features. Got none."
        )
    device, workers = on.pick()
    with ExitStack() as stack:
        stream = sys.stdout
        if out is not None:
            with writing(out.resolve().parent):
                path = stack.enter_context(atomic_path(out))
                stream = stack.enter_context(path.open("w", encoding="utf-8", newline=""))
        predictor = Predictor.from_run(model, device=device, checkpoint=checkpoint)
        given = opened(predictor, pool, column)
        step = stack.enter_context(progress("next", "samples"))(len(given), 0)
        about: dict[str, Any] = {"seed": seed, "batch_size": batch_size, "workers": workers, "step": step}
        beside = Path() if out is None else out.parent
        questions = next_questions(predictor, given, budget, beside=beside, **about)
        rows = questions.rows()
        write_rows(stream, [list(rows[0]), *(row.values() for row in rows)], end="\n")
    print(f"{len(rows):,} of {questions.pool:,} samples to label next.", file=sys.stderr)
    if questions.broken:
        print(f"hace: {broken_message(questions.broken, len(given))}", file=sys.stderr)
