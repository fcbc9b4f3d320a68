"""`hace fit`: from data to a calibrated model and its page, in one command."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from hace.cli.engine import With, Words, alarmed, more
from hace.cli.options import Option, reader_options
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
    option: Annotated[Option, With("--hierarchy"), more] = (),
    seed: Annotated[int, more] = 0,
    executor: Annotated[Literal["local", "ray"], more] = "local",
    workers: Annotated[int | None, more] = None,
    address: Annotated[str | None, With("--executor ray"), more] = None,
) -> None:
    """Make a model of your data: photos in folders, a table of photos, of texts or of numbers, a feature file, cells, boxes in
    COCO's format, or an export of Label Studio. The loss is chosen by cross-validation on your labels; then the model is
    trained, calibrated and tested. You get one file, its page and its model card.

    Examples
      hace fit photos                                         photos/gull/herring gull/1.jpg: folders are labels and taxonomy
      hace fit listing.csv                                    columns path, family, genus, species
      hace fit titles.csv --text title --hierarchy shop.csv   a column of texts
      hace fit measurements.parquet --groups site             numbers; guarantees are then about new sites
      hace fit features.npz --hierarchy taxonomy.csv
      hace fit photos --for new-photos                        hold out photos like those of the place of use
      hace fit annotations.json                               boxes of COCO, or an export of Label Studio
      hace fit cells.h5ad --label cell_type --hierarchy cl-basic.obo --groups donor

    Then: hace predict photos.hace new-photos --accuracy 0.95, and hace serve photos.hace.

    Labels may be coarse: a photo labelled only as a gull goes into photos/gull, and a row of a table may end early. Splits
    named train, val and test are used: val calibrates, test tests. Otherwise fit holds samples out; --groups names what to keep
    together, such as sites or donors. Photos and texts go through a frozen model once, and their features are cached: after a
    stop, the same command resumes. With too few samples for a guarantee or a test you still get a model, which says so.

    Args:
        data: A folder of photos, a table (.csv, .tsv, .parquet), a feature file (.npz, .safetensors, .parquet), an .h5ad, or
            a .json of annotations beside its photos.
        out: Model file to write, .hace (default: named after the data, in this folder).
        hierarchy: Taxonomy, in any form that `hace hierarchy` reads (default: the folders or the label columns).
        label: Column of labels, or one per rank from the top down (default: found by name).
        split: Column with train, val or test (default: found by name, else fit holds samples out).
        groups: Column of groups that splits keep together. Or: time (photos less than a minute apart), sequence (runs in the
            order of the data), none (samples one by one).
        place: Unlabelled samples from where the model will be used. Guarantees are then made for samples as unlike the
            training samples as these.
        text: Column of texts.
        image: Column with paths of photos.
        columns: Columns of features (default: all numbers).
        model: Frozen model for photos (timm; edges_and_colours needs no download) or texts (sentence-transformers; tfidf).
        checkpoint: Weights of the frozen model: a file, or a folder for texts (default: from the hub).
        page: Page to write, an .html file or a folder (default: named after the model).
        layer: Layer of an .h5ad with the features.
        obsm: Key of the .h5ad's embedding to use as features.
        option: Option for reading --hierarchy, NAME=VALUE; may repeat.
        seed: Random seed.
        executor: Where to try the settings, in parallel.
        workers: Processes that try settings (default: this one; ray: one per processor).
        address: Address of a running Ray cluster (default: one starts on this machine).
    """
    from hace.lab.runs.process import keep_freed_memory

    keep_freed_memory()
    from hace.files.writing import atomic_path, write_whole, writing
    from hace.fitting.model import SUFFIX
    from hace.fitting.pipeline import fit as fitted
    from hace.fitting.progress import Display
    from hace.formats import read_hierarchy
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
            hierarchy=read_hierarchy(hierarchy, **reader_options(option))
            if hierarchy and option
            else hierarchy,
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
    print(alarmed(str(made.named(str(target))), sys.stdout))
    print(f"\nwrote {target} ({target.stat().st_size / 1e6:.1f} MB), its page {written} and its card {card}")
