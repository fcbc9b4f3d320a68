"""`hace predict`: the answers of a finished run about new samples."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TextIO

from hace.cli.engine import Numbers, With, Without, alarmed, more
from hace.cli.options import Checkpoint, Device, Guarantee, Restrictions, level_index_of, threshold_of
from hace.errors import BROKEN, ConfigError, DataError, amount, printable
from hace.files.documents import csv_text
from hace.files.writing import atomic_path, writing

if TYPE_CHECKING:
    from hace.lab.serve.predictor import Predictions, Predictor, Question

SUFFIXES = {".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".txt": "table"}
TABLES = ("camtrap", "wildlife-insights", "timelapse")  # observations.csv, images.csv, a CSV to import
WHOLE = ("label-studio", "fiftyone")  # one JSON document about whole images
SAMPLE_WIDTH = 40
ANSWER_WIDTH = 28


def predict(
    run: str,
    /,
    *inputs: str,
    accuracy: Guarantee = Guarantee(),
    threshold: Annotated[Numbers | None, Without("--accuracy", "--level")] = None,
    nodes: Annotated[int | None, With("--threshold")] = None,
    level: Annotated[str | None, Without("--accuracy")] = None,
    top_k: int = 5,
    out: Path | None = None,
    to: Literal[
        "table", "csv", "jsonl", "camtrap", "wildlife-insights", "timelapse", "label-studio", "fiftyone"
    ]
    | None = None,
    groups: str | None = None,
    calibration: Path | None = None,
    restrictions: Restrictions = Restrictions(),
    skip_broken: bool = False,
    column: Annotated[str | None, more] = None,
    boxes: Annotated[Literal["largest", "all"], more] = "largest",
    min_confidence: Annotated[float, more] = 0.2,
    padding: Annotated[float, more] = 0.1,
    prefix: Annotated[str, With("--to label-studio"), more] = "",
    checkpoint: Checkpoint = None,
    batch_size: Annotated[int | None, more] = None,
    on: Device = Device(),
) -> None:
    """Answer for new samples: the most probable classes of each, and an answer at the rank the model is sure of. Samples stream
    in batches, so a folder may hold any number of photos.

    Examples
      hace predict photos.hace new-photos --accuracy 0.95
      hace predict measurements.hace later.csv --accuracy 0.95 --out answers.csv
      hace predict runs/latest photo.jpg
      hace predict model.onnx *.jpg                                a file of hace export
      hace predict runs/latest photos --accuracy 0.95              after hace calibrate runs/latest
      hace predict runs/latest list.csv --threshold 0.95,0.9,0.8 --to jsonl
      hace predict runs/latest photos --subset species_of_bavaria.txt --level family
      hace predict runs/latest photos --checkpoint dinov2.safetensors
      hace predict runs/latest list.csv --groups burst             one answer per burst
      hace predict photos.hace new-photos --accuracy 0.95 --to label-studio --out tasks.json    pre-annotations
      hace predict photos.hace new-photos --to fiftyone --out labels.json

    INPUTS are what the model was trained on, without labels. Photos: files, folders at any depth, lists (.csv, .tsv, .parquet)
    with a column path, relative to the list, or the .json of MegaDetector or COCO beside its images, whose boxes are cropped.
    Texts: a table, or the texts themselves. Numbers: a table with the columns of the training in any order, an .h5ad, a feature
    file (.npy, .npz, .safetensors, .parquet) or a folder of `hace features`. A run of `hace probe` also takes photos, by the
    frozen model that `hace features` recorded.

    The answer is the best class. With --threshold it is the deepest node that is probable enough, with --level the best node of
    that level. With --accuracy A it is at the rank that keeps a guarantee: at most 1 - A of new samples get a false answer
    (--of samples), or at least A of the answers below the root are true (--of answers). Probabilities are then calibrated. The
    output states the guarantee; it holds for samples from the same source as the calibration samples.

    An unreadable image gets a row with the error, and the exit code is 2; with --skip-broken it is skipped and named on stderr,
    and the exit code is 0.

    Args:
        run: Finished run of `hace probe` or `hace train`, or a file of `hace fit` or `hace export`.
        inputs: Photos, folders or lists of them; texts; or a table, cells or features.
        threshold: Answer the deepest node above a probability: 0.9, or one per level: 0.9,0.8.
        nodes: Answer with up to this many nodes, "the truth is under one of these", that together reach the threshold. For a
            guarantee: `hace calibrate --rule set --nodes 3`, then --accuracy.
        level: Answer the best node of a level, by depth or name.
        top_k: Number of classes to list.
        out: File to write: .csv, .jsonl or .txt.
        to: Format (default: by --out; table on a terminal, csv in a pipe). camtrap, wildlife-insights and timelapse are
            camera-trap tables; label-studio writes tasks with pre-annotations, fiftyone a labels.json of classifications.
        groups: Column of a list, or array of a feature file, that names each sample's group; each group gets one answer.
        calibration: File of `hace calibrate --out` (default: the calibration in RUN).
        skip_broken: Skip images that cannot be read.
        column: Column of texts in a table, for a model of texts (default: as in training).
        boxes: MegaDetector boxes to use: the largest of each image, or all.
        min_confidence: Lowest confidence of a box.
        padding: Margin around a box, as a share of its sides.
        prefix: Prefix of image paths in Label Studio, such as /data/local-files/?d=.
        batch_size: Images per batch (default: as in training).
    """
    from hace.fitting.new_samples import opened
    from hace.lab.runs.process import keep_freed_memory, progress
    from hace.lab.serve.inputs import ImageList
    from hace.lab.serve.predictor import Predictor, broken_message

    keep_freed_memory()

    if not inputs:
        raise ConfigError(
            "hace predict must have INPUTS: photos, folders or lists of them, texts, a table or features. Got none."
        )
    form = to or form_of(out)
    device, workers = on.pick()
    with ExitStack() as stack:
        stream = sys.stdout
        if out is not None:  # before any work is done: it may not be possible
            with writing(out.resolve().parent):
                path = stack.enter_context(atomic_path(out))
                stream = stack.enter_context(path.open("w", encoding="utf-8", newline=""))
        predictor = Predictor.from_run(run, device=device, checkpoint=checkpoint, calibration=calibration)
        asked = question(
            predictor, top_k, threshold, nodes, level, accuracy, restrictions, groups is not None
        )
        say_guarantee(predictor, asked, form == "table" and out is None)
        about_boxes = {"confidence": min_confidence, "padding": padding, "all": boxes == "all"}
        given = opened(predictor, inputs, column, about_boxes, groups)
        check_inputs(given, inputs, checkpoint)
        if isinstance(given, ImageList):
            _ = predictor.vision  # its model loads here, before the clock of the progress runs
        quiet = out is None and sys.stdout.isatty()  # a bar would run through the table
        step = None if quiet else stack.enter_context(progress("predict", "samples"))(len(given), 0)
        speed: Any = {"batch_size": batch_size, "workers": workers}
        if asked.pool is None:
            batches = predictor.stream(given, asked, **speed)
        else:
            batches = [predictor.pooled(given, asked, given.groups or (), **speed)]
        writer = writer_of(form, predictor, given, prefix)
        rows, broken = write_batches(batches, stream, writer, skip_broken, step)
    if out is not None:
        note = " (broken images skipped)" if broken and skip_broken else ""
        print(f"wrote {amount(rows, 'row')} to {out}{note}")
    if broken and not skip_broken:
        raise DataError(
            broken_message(broken, len(given))
            + "\nAll other samples are answered. --skip-broken skips these."
        )
    if broken:
        print(f"hace: {broken_message(broken, len(given))}", file=sys.stderr)


def form_of(out: Path | None) -> str:
    """The format of the output, where --to does not say."""
    if out is None:
        return "table" if sys.stdout.isatty() else "csv"
    if out.suffix.lower() not in SUFFIXES:
        known = ", ".join(SUFFIXES)
        raise ConfigError(f"--out must end in {known}, or --to must be given. Got {str(out)!r}.")
    return SUFFIXES[out.suffix.lower()]


def question(
    predictor: Predictor,
    top_k: int,
    threshold: tuple[float, ...] | None,
    nodes: int | None,
    level: str | None,
    guarantee: Guarantee,
    restrictions: Restrictions,
    pooled: bool,
) -> Question:
    """What the options ask of every sample."""
    from hace.lab.serve.predictor import Question

    h = predictor.hierarchy
    accuracy, of = guarantee.asked or (None, "samples")
    pool = "mean" if accuracy is None else predictor.calibration.pool or "mean"
    return Question(
        top_k,
        None if threshold is None else threshold_of(threshold, h),
        None if level is None else level_index_of(level, h),
        accuracy=accuracy,
        of=of,
        pool=pool if pooled else None,
        nodes=nodes,
        **restrictions.on(h),
    )


def say_guarantee(predictor: Predictor, asked: Question, in_table: bool) -> None:
    """What the answers keep, and what their probabilities are."""
    from hace.metrics.evaluation import guarantee_text

    guarantee = predictor.threshold_for(asked)
    if guarantee is not None:
        text = guarantee_text(guarantee, "samples" if asked.pool is None else "groups")
        print(text, file=sys.stdout if in_table else sys.stderr)
        if predictor.calibration.broken:
            print(alarmed(f"{BROKEN}: {predictor.calibration.broken}", sys.stderr), file=sys.stderr)
    pooled = guarantee is not None and asked.pool is not None
    temperature = predictor.calibration.temperature if pooled else predictor.temperature
    how = "raw; `hace calibrate RUN` calibrates them"
    if temperature is not None:
        how = f"calibrated, temperature {temperature:.4g}"
    print(f"probabilities: {how}", file=sys.stderr)


def check_inputs(given: Any, inputs: tuple[str, ...], checkpoint: Path | None) -> None:
    """Refuse inputs without a sample, and a checkpoint where no image needs it."""
    from hace.lab.serve.inputs import ImageList

    if not len(given) and not getattr(given, "empty", ()):
        raise DataError(f"{' '.join(inputs)} holds no sample.")
    if checkpoint is not None and not isinstance(given, ImageList):
        raise ConfigError(f"--checkpoint must come with images. Got the features {inputs[0]}: leave it out.")


def write_batches(
    batches: Iterable[Predictions],
    stream: TextIO,
    writer: Writer,
    skip_broken: bool,
    step: Callable[[int], Any] | None,
) -> tuple[int, list[Any]]:
    """Write the answers batch by batch; how many rows those are, and the broken images."""
    from hace.lab.serve.inputs import EMPTY

    code = getattr(stream, "encoding", None) or "utf-8"
    first = True
    rows = 0
    broken = []
    stream.write(writer.head)
    for batch in batches:
        for line in writer.lines(batch, first, skip_broken):
            # Bytes that are not text, and letters the terminal cannot encode, appear as \\udce4.
            stream.write(line.encode(code, "backslashreplace").decode(code))
            first = False
        stream.flush()
        new = [image for image in batch.broken if image.reason != EMPTY]
        broken += new
        rows += len(batch) + len(batch.broken) - (len(new) if skip_broken else 0)
        if step is not None:
            step(len(batch) + len(batch.broken))
    stream.write(writer.end)
    return rows, broken


# The lines of a batch; whether it is the first one; without broken images.
Lines = Callable[["Predictions", bool, bool], Iterator[str]]


class Writer(NamedTuple):
    """How answers are written: lines batch by batch, and what is before and after them."""

    lines: Lines
    head: str = ""
    end: str = ""


def writer_of(form: str, predictor: Predictor, given: Any, prefix: str = "") -> Writer:
    """The writer of a format."""
    if form in WHOLE:
        check_whole(form, given)
    if form == "label-studio":
        return Writer(task_lines(predictor, given, prefix), "[\n", "\n]\n")
    if form == "fiftyone":
        return Writer(label_lines, '{"labels": {\n', "\n}}\n")
    return Writer(table_of(form) if form in TABLES else LINES[form])


def check_whole(form: str, given: Any) -> None:
    """Refuse inputs that other people's tools cannot show: parts of images, and for FiftyOne all that is no image."""
    from hace.lab.serve.inputs import Crop, ImageList, TextList

    photos = isinstance(given, ImageList) and not isinstance(given, TextList)
    if photos and any(isinstance(image, Crop) for image in given.images):
        raise ConfigError(f"--to {form} must come with whole images. Got boxes: give the images themselves.")
    if form == "fiftyone" and not photos:
        raise ConfigError("--to fiftyone must come with images. Got features or texts.")


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
            shown = fitted(title(answer), ANSWER_WIDTH, keep_end=False)
            best = ", ".join(f"{title(leaf)} {leaf['probability']:.3f}" for leaf in document["leaves"])
            sure = f"{answer['probability']:5.3f}" if answer["id"] is not None else " " * 5
            yield f"{sample}  {shown} {sure}  {best}\n"
        elif not skip_broken:
            yield f"{sample}  {printable(document['error'])}\n"


def table_of(form: str) -> Lines:
    """The writer of a table of camera traps; who answered is the version of hace."""

    def lines(batch: Predictions, first: bool, skip_broken: bool) -> Iterator[str]:
        from hace import __version__
        from hace.data.camera_traps import answer_row

        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        shown = (d for d in batch.documents() if not (skip_broken and "error" in d))
        rows = [answer_row(document, form, f"hace {__version__}", now) for document in shown]
        heads = [list(rows[0])] if first and rows else []
        yield csv_text([*heads, *(row.values() for row in rows)], end="\n")

    return lines


def task_lines(predictor: Predictor, given: Any, prefix: str) -> Lines:
    """The writer of Label Studio's tasks; the version of the model is that of hace with the model's name."""
    from hace import __version__
    from hace.data.label_studio import annotation_task
    from hace.lab.serve.inputs import TextList

    kind = "text" if isinstance(given, TextList) else "image"
    version = f"hace {__version__} {predictor.title}"

    def lines(batch: Predictions, first: bool, skip_broken: bool) -> Iterator[str]:
        shown = (d for d in batch.documents() if not (skip_broken and "error" in d))
        tasks = (annotation_task(document, batch.hierarchy, kind, version, prefix) for document in shown)
        return separated((json.dumps(task, ensure_ascii=False, allow_nan=False) for task in tasks), first)

    return lines


def label_lines(batch: Predictions, first: bool, skip_broken: bool) -> Iterator[str]:
    """Entries of FiftyOne's labels, a line each."""
    from hace.data.fiftyone import classification, level_fields

    fields = level_fields(batch.hierarchy)
    shown = (d for d in batch.documents() if not (skip_broken and "error" in d))
    labels = (classification(document, batch.hierarchy, fields) for document in shown)
    dump = partial(json.dumps, ensure_ascii=False, allow_nan=False)
    return separated((f"{dump(key)}: {dump(label)}" for key, label in labels), first)


def separated(entries: Iterable[str], first: bool) -> Iterator[str]:
    """Entries of a JSON document, with a comma before each but the first of all."""
    for entry in entries:
        yield entry if first else f",\n{entry}"
        first = False


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


LINES: dict[str, Lines] = {"table": table_lines, "csv": csv_lines, "jsonl": json_lines}
