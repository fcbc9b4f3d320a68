"""`hace fit`: from data to a calibrated model and its page, in one command."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from hace.cli.engine import With, Words, alarmed, more
from hace.errors import ConfigError


def fit(
    data: Path,
    /,
    *,
    out: Path | None = None,
    hierarchy: str | None = None,
    label: Words = (),
    split: str | None = None,
    groups: str | None = None,
    place: Annotated[Path | None, Parameter(name="--for")] = None,
    text: str | None = None,
    image: str | None = None,
    columns: Words = (),
    model: str | None = None,
    checkpoint: Path | None = None,
    page: Path | None = None,
    layer: Annotated[str | None, more] = None,
    obsm: Annotated[str | None, more] = None,
    seed: Annotated[int, more] = 0,
    executor: Annotated[Literal["local", "ray"], more] = "local",
    workers: Annotated[int | None, more] = None,
    address: Annotated[str | None, With("--executor ray"), more] = None,
) -> None:
    """Make a model of your data: photos in folders, a table of photos, of texts or of numbers, a feature file, cells, boxes in
    COCO's format, or an export of Label Studio. The loss is chosen by cross-validation on your labels, the model is trained,
    calibrated and tested, and you get one file, its page and its model card.

    Examples
      hace fit photos                                         photos/gull/herring gull/1.jpg: folders are labels and taxonomy
      hace fit listing.csv                                    columns path, family, genus, species
      hace fit titles.csv --text title --hierarchy shop.csv   a column of texts
      hace fit measurements.parquet --groups site             numbers; guarantees are then about new sites
      hace fit features.npz --hierarchy taxonomy.csv
      hace fit photos --for new-photos                        held-out photos that stand for those where it will be used
      hace fit annotations.json                               boxes of COCO, or an export of Label Studio
      hace fit cells.h5ad --label cell_type --hierarchy cl-basic.obo --groups donor

    Then: hace predict photos.hace new-photos --accuracy 0.95, and hace serve photos.hace.

    A label may be above the classes: a photo known only as a gull goes into photos/gull, a row ends early. Splits called train,
    val and test are honoured: val calibrates, test tests. Otherwise samples are held out; --groups names what must not be cut,
    such as sites or donors. Photos and texts go through a frozen model once, and features are cached by content: the same
    command goes on where it was stopped. Data that are too few for a guarantee or a test still make a model, which says so.

    Args:
        data: A folder of photos, a table (.csv, .tsv, .parquet), a feature file (.npz, .safetensors, .parquet), an .h5ad, or
            a .json of annotations beside its photos.
        out: The model, a .hace file (default: named after the data, in this folder).
        hierarchy: The taxonomy: what `hace hierarchy` reads (default: what folders or columns spell out).
        label: The column of labels, or one per rank from the top down (default: found by name).
        split: The column that says train, val or test (default: found by name, else samples are held out).
        groups: The column of groups that no split may cut; time: photos without a gap of a minute; sequence: runs in the order
            of the data; none: samples one by one.
        place: Unlabelled samples from where the model will be used: guarantees are then made for samples as unlike the
            training samples as these are.
        text: The column of texts.
        image: The column with paths of photos.
        columns: The columns of features (default: all numbers).
        model: The frozen model of photos (timm; edges_and_colours needs no download) or texts (sentence-transformers; tfidf).
        checkpoint: Weights of that model: a file, or a folder for texts (default: from the hub).
        page: The page, an .html file or a folder (default: named after the model).
        layer: The layer of an .h5ad with the features.
        obsm: The key of an .h5ad's embeddings with the features.
        seed: Random seed of everything that is drawn.
        executor: Where candidates are judged, side by side.
        workers: Processes that judge them (default: this one; ray: one per processor).
        address: Address of a running Ray cluster (default: one starts on this machine).
    """
    from hace.lab.runs.process import keep_freed_memory

    keep_freed_memory()
    from hace.files.writing import atomic_path, write_whole, writing
    from hace.fitting import fit as fitted
    from hace.fitting.model import SUFFIX
    from hace.fitting.progress import Display
    from hace.lab.study.executors import Cluster, InProcess, open_executor

    target = Path(f"{data.resolve().stem or 'model'}{SUFFIX}") if out is None else out
    if target.suffix.lower() != SUFFIX:
        raise ConfigError(f"--out must end in {SUFFIX}. Got {str(target)!r}.")
    shown = target.with_suffix(".html") if page is None else page
    if page is not None and not page.resolve().parent.is_dir():
        raise ConfigError(
            f"--page must be in a folder that exists. Got {str(shown)!r}. Create the folder first."
        )
    # Before any work is done: it may not be possible to write there.
    with (
        writing(target.resolve().parent),
        atomic_path(target) as temporary,
        open_executor(executor, workers, Cluster(address=address), target.parent) as (pool, _),
        Display() as display,
    ):
        made = fitted(
            data,
            hierarchy=hierarchy,
            label=label or None,
            split=split,
            groups=False if groups == "none" else groups,
            new=place,
            text=text,
            image=image,
            columns=columns or None,
            layer=layer,
            obsm=obsm,
            model=model,
            checkpoint=checkpoint,
            seed=seed,
            quiet=True,
            progress=display.show,
            executor=None if isinstance(pool, InProcess) else pool,
        ).named(target.name)
        made.save(temporary)
    written = made.report(shown)
    card = written.with_suffix(".card.md")
    write_whole(card, made.card().encode())
    print(alarmed(str(made), sys.stdout))
    print(f"\nwrote {target} ({target.stat().st_size / 1e6:.1f} MB), its page {written} and its card {card}")
