"""Ask a finished run about new images: the most probable classes, and an answer at the rank that it is sure of. Images stream
in batches, so a folder may hold any number of them.

Examples:
  hace predict runs/4cd033b43672ca23 photo.jpg
  hace predict model.onnx *.jpg                                what hace export wrote
  hace predict runs/4cd033b43672ca23 photos --threshold 0.9 --out answers.csv
  hace predict runs/4cd033b43672ca23 photos --accuracy 0.95    after hace calibrate runs/4cd033b43672ca23
  hace predict runs/4cd033b43672ca23 list.csv --threshold 0.95,0.9,0.8 --format jsonl
  hace predict runs/4cd033b43672ca23 photos --subset species_of_bavaria.txt --level family
  hace predict runs/4cd033b43672ca23 photos --checkpoint dinov2.safetensors
  hace predict runs/4cd033b43672ca23 features.npz
  hace predict runs/4cd033b43672ca23 list.csv --pool burst     one answer for all photos of a burst

INPUT is an image, a folder of images (at any depth), a .csv or .tsv list with a column path (relative to the list), or the
.json of MegaDetector beside its images, whose boxes are cropped; give as many as you like. A run of `hace train` takes images
directly; a run of `hace probe` sees them through the frozen model that `hace features` recorded, and also takes features: a
file (.npy, .npz, .safetensors, .parquet) or a folder of `hace features`.

The answer is the best class; with --threshold the deepest node that is probable enough, with --level the best node there.
With --accuracy it is at the rank that keeps a guarantee: of new samples, at most 1 - A get a false answer (--of samples), or of
the answers that say something at least A are true (--of answers). Its probabilities are the calibrated ones. The guarantee is
part of the output; it holds for samples from the same source as those the run was calibrated on.
An image that cannot be read gets a row with the reason as its error, all others are answered, and the exit code is 2; with
--skip-broken it is skipped, named on stderr, and the exit code is 0.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hace.cli.options import (
    Parser,
    add_checkpoint,
    add_device,
    add_guarantee,
    add_restrictions,
    guarantee_of,
    level_index_of,
    pick_device,
    restrictions,
    threshold_of,
)
from hace.errors import ConfigError, DataError, printable
from hace.files.documents import csv_text
from hace.files.writing import atomic_path, writing

if TYPE_CHECKING:
    from hace.lab.serve.predictor import Predictions, Predictor, Question

SUFFIXES = {".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".txt": "table"}
TABLES = ("camtrap", "wildlife-insights", "timelapse")  # observations.csv, images.csv, a CSV to import
SAMPLE_WIDTH, ANSWER_WIDTH = 40, 28


def add_arguments(parser: Parser) -> None:
    """Declare the command's arguments."""
    add = parser.option
    add("run_folder", "RUN", "a finished run of `hace probe` or `hace train`, or what `hace export` wrote")
    add("input", "INPUT", "images, folders or lists of them; or features", nargs="+")
    add("--column", "NAME", "for a model of texts: the column of a table (default: that of the training)")
    add("--top-k", "K", "how many classes to give (default: 5)", type=int, default=5)
    add("--threshold", "T", "answer the deepest node above a probability: 0.9, or one per level: 0.9,0.8")
    add("--level", "LEVEL", "answer the best node of a level, by depth or name")
    add_guarantee(parser)
    add("--calibration", "FILE", "written by `hace calibrate --out` (default: the one in RUN)")
    add_restrictions(parser)
    about = "one answer per group: the column of a list, or the array of a feature file, that names each sample's group"
    add("--pool", "COLUMN", about)
    about = "default: by --out; table on a terminal, csv in a pipe; the others are tables of camera traps"
    add("--format", ("table", "csv", "jsonl", *TABLES), about)
    add("--out", "FILE", "write to this file instead: .csv, .jsonl or .txt")
    parser.flag("--skip-broken", "skip images that cannot be read")
    about = "of a .json of MegaDetector: the largest box of an image, or all (default: largest)"
    add("--boxes", ("largest", "all"), about, default="largest")
    add("--min-confidence", "C", "of its boxes (default: 0.2)", type=float, default=0.2)
    add("--padding", "P", "around a box, as a share of its sides (default: 0.1)", type=float, default=0.1)
    add_checkpoint(parser)
    add("--batch-size", "N", "images at once (default: as the run had it)", type=int)
    add_device(parser)


def run(args: argparse.Namespace) -> None:
    """Predict, batch by batch."""
    from hace.lab.runs.process import progress
    from hace.lab.serve.inputs import EMPTY, ImageList
    from hace.lab.serve.predictor import Predictor, broken_message
    from hace.metrics.evaluation import guarantee_text

    form = form_of(args)
    device, workers = pick_device(args)
    broken = []
    with ExitStack() as stack:
        stream = sys.stdout
        if args.out is not None:  # before any work is done: it may not be possible
            with writing(Path(args.out).resolve().parent):
                path = stack.enter_context(atomic_path(args.out))
                stream = stack.enter_context(path.open("w", encoding="utf-8", newline=""))
        given = {"checkpoint": args.checkpoint, "calibration": args.calibration}
        predictor = Predictor.from_run(args.run_folder, device=device, **given)
        asked = question(args, predictor)
        guarantee = predictor.threshold_for(asked)
        if guarantee is not None:
            shown = form == "table" and args.out is None
            unit = "samples" if args.pool is None else "groups"
            print(guarantee_text(guarantee, unit), file=sys.stdout if shown else sys.stderr)
        boxes = {"confidence": args.min_confidence, "padding": args.padding, "all": args.boxes == "all"}
        inputs = predictor.inputs(args.input, args.column, boxes, args.pool)
        empty = list(getattr(inputs, "empty", ()))
        pooled = guarantee is not None and args.pool is not None
        t = predictor.calibration.temperature if pooled else predictor.temperature
        told = "raw; `hace calibrate RUN` calibrates them"
        if t is not None:
            told = f"calibrated, temperature {t:.4g}"
        print(f"probabilities: {told}", file=sys.stderr)
        if not len(inputs) and not empty:
            raise DataError(f"{' '.join(args.input)} holds no sample.")
        if args.checkpoint is not None and not isinstance(inputs, ImageList):
            raise ConfigError(
                f"--checkpoint must come with images. Got the features {args.input[0]}: leave it out."
            )
        if isinstance(inputs, ImageList):
            _ = predictor.vision  # its model loads here, before the clock of the progress runs
        quiet = args.out is None and sys.stdout.isatty()  # a bar would run through the table
        step = None if quiet else stack.enter_context(progress("predict", "samples"))(len(inputs), 0)
        first = True
        speed: Any = {"batch_size": args.batch_size, "workers": workers}
        batches = predictor.stream(inputs, asked, **speed)
        if args.pool is not None:
            batches = [predictor.pooled(inputs, asked, inputs.groups or (), **speed)]
        for batch in batches:
            code = getattr(stream, "encoding", None) or "utf-8"
            for line in WRITERS[form](batch, first, args.skip_broken):
                # Bytes that are not text, and letters the terminal cannot encode, appear as \\udce4.
                stream.write(line.encode(code, "backslashreplace").decode(code))
                first = False
            stream.flush()
            broken += [image for image in batch.broken if image.reason != EMPTY]
            if step is not None:
                step(len(inputs) if args.pool is not None else len(batch) + len(batch.broken))
    if args.out is not None:
        left = " (broken images skipped)" if broken and args.skip_broken else ""
        rows = len(inputs) + len(empty) - len(broken) * args.skip_broken
        if args.pool is not None:
            rows = len(set(inputs.groups or ()))
        print(f"wrote {rows:,} rows to {args.out}{left}")
    if broken and not args.skip_broken:
        raise DataError(
            broken_message(broken, len(inputs)) + "\nAll others are answered. --skip-broken skips these."
        )
    if broken:
        print(f"hace: {broken_message(broken, len(inputs))}", file=sys.stderr)


def form_of(args: argparse.Namespace) -> str:
    """The format of the output."""
    if args.format is not None:
        return args.format
    if args.out is None:
        return "table" if sys.stdout.isatty() else "csv"
    if Path(args.out).suffix.lower() not in SUFFIXES:
        known = ", ".join(SUFFIXES)
        raise ConfigError(f"--out must end in {known}, or --format must be given. Got {args.out!r}.")
    return SUFFIXES[Path(args.out).suffix.lower()]


def question(args: argparse.Namespace, predictor: Predictor) -> Question:
    """What the options ask of every sample."""
    from hace.lab.serve.predictor import Question

    h = predictor.hierarchy
    threshold = None if args.threshold is None else threshold_of(args.threshold, h)
    level = None if args.level is None else level_index_of(args.level, h)
    accuracy, of = guarantee_of(args) or (None, "samples")
    made = "mean" if accuracy is None else predictor.calibration.pool or "mean"
    pool = None if args.pool is None else made
    return Question(
        args.top_k, threshold, level, accuracy=accuracy, of=of, pool=pool, **restrictions(args, h)
    )


# Names of classes and files are untrusted. Tables and CSV escape control characters, and CSV puts an apostrophe before text
# that a spreadsheet would take for a formula. JSON lines hold every name exactly.


def csv_lines(batch: Predictions, first: bool, skip_broken: bool) -> Iterator[str]:
    """Rows of comma-separated values; the first batch brings the header."""
    rows = [row.values() for row in batch.rows() if not (skip_broken and row["error"])]
    yield csv_text([*([batch.row_columns()] if first else []), *rows], end="\n")


def json_lines(batch: Predictions, first: bool, skip_broken: bool) -> Iterator[str]:
    """One JSON object per line."""
    for document in batch.documents():
        if not (skip_broken and "error" in document):
            yield json.dumps(document, ensure_ascii=False, allow_nan=False) + "\n"


def table_lines(batch: Predictions, first: bool, skip_broken: bool) -> Iterator[str]:
    """One line per sample: name, answer with its probability, and the best classes; the first batch brings the header."""
    if first:
        yield f"{'sample':{SAMPLE_WIDTH}}  {'answer':{ANSWER_WIDTH}} prob.  best classes\n"
    for document in batch.documents():
        sample = fitted(printable(document["sample"]), SAMPLE_WIDTH)
        if "empty" in document:
            yield f"{sample}  empty\n"
        elif "error" not in document:
            answer = document["answer"]
            said = fitted(title(answer), ANSWER_WIDTH, keep_end=False)
            best = ", ".join(f"{title(leaf)} {leaf['probability']:.3f}" for leaf in document["leaves"])
            sure = f"{answer['probability']:5.3f}" if answer["id"] is not None else " " * 5
            yield f"{sample}  {said} {sure}  {best}\n"
        elif not skip_broken:
            yield f"{sample}  {printable(document['error'])}\n"


def table_of(form: str) -> Callable[[Predictions, bool, bool], Iterator[str]]:
    """The writer of a table of camera traps; who answered is the version of hace."""

    def lines(batch: Predictions, first: bool, skip_broken: bool) -> Iterator[str]:
        from hace import __version__
        from hace.data.camera_traps import answer_row

        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        found = (d for d in batch.documents() if not (skip_broken and "error" in d))
        rows = [answer_row(document, form, f"hace {__version__}", now) for document in found]
        heads = [list(rows[0])] if first and rows else []
        yield csv_text([*heads, *(row.values() for row in rows)], end="\n")

    return lines


def title(node: dict[str, Any]) -> str:
    """A node as a person reads it: its name, and its id where that says more."""
    if node["id"] is None:
        return "no answer"
    name = node["name"] if node["name"] == node["id"] else f"{node['name']} [{node['id']}]"
    return printable(name)


def fitted(text: str, width: int, keep_end: bool = True) -> str:
    """Text padded to a width; of longer text the end, which tells files apart, or the beginning.

    Example:
        >>> fitted("photos/2024/husky.png", 12), fitted("Siberian husky", 8, keep_end=False)
        ('…4/husky.png', 'Siberia…')
    """
    if len(text) > width:
        text = "…" + text[1 - width :] if keep_end else text[: width - 1] + "…"
    return text.ljust(width)


WRITERS: dict[str, Callable[[Predictions, bool, bool], Iterator[str]]] = {
    "table": table_lines,
    "csv": csv_lines,
    "jsonl": json_lines,
    **{form: table_of(form) for form in TABLES},
}
