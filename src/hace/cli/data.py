"""`hace data`: describe, download and check datasets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from hace.cli.engine import With
from hace.cli.options import DataOptions

if TYPE_CHECKING:
    from hace.data import Dataset


def data(
    name: str,
    /,
    *,
    dataset: DataOptions = DataOptions(),
    check: bool = False,
    skip_broken: Annotated[bool, With("--check")] = False,
) -> None:
    """Read a dataset and print its table: samples, classes, nodes and depth, beside the paper's figures, with footnotes where
    they differ. Lists and counts are checked against the files; --check also opens every image.

    Examples
      hace data creatures                                            drawn by a program; needs no files
      hace data cifar100 --data-root data --download                 fetch it into data/, then print its table
      hace data aircraft --data-root data --check                    open every image, find images in two splits
      hace data nabirds --data-root data/nabirds -o crop=true        your own copy, cropped to bounding boxes
      hace data folders --data-root photos --hierarchy tree.csv      train/husky/1.jpg, test/husky/2.jpg, ...
      hace data folders --data-root photos -o test=0.2               husky/1.jpg, ...; a fifth of each class for the test
      hace data manifest --data-root list.csv --hierarchy tree.csv   columns path, label, split
      hace data camera-traps --data-root images.csv --hierarchy tree.csv -o detections=md.json
                                                                     labels, sites, boxes of animals
      hace data features --data-root f.npz --hierarchy tree.csv      arrays X, y, split

    Args:
        name: Dataset: cifar100, aircraft, nabirds, folders, manifest, features, creatures, ...
        check: Open every image; report odd, broken and repeated images, and doubtful labels.
        skip_broken: List images that cannot be read instead of failing.
    """
    from hace.data import DATASETS
    from hace.paper.printed import data_text

    loaded = dataset.load(name)
    print(data_text(loaded, name))
    if "test" not in loaded.splits and "test" in DATASETS[name].options:
        print(
            "no test split: a study needs one. -o test=0.2 holds out a fifth of each class; give it to `hace features`, "
            "`hace train` and `hace study` too"
        )
    if check:
        print()
        print_check(loaded, shared=DATASETS[name].official, skip_broken=skip_broken)


def print_check(data: Dataset[Any], *, shared: bool, skip_broken: bool) -> None:
    """Open every image, and say what that shows."""
    from hace.data.checking import check_images
    from hace.data.split import Features
    from hace.lab.runs.process import progress

    if any(isinstance(split, Features) for split in data.splits.values()):
        print(f"fingerprint {data.fingerprint}")
        return
    with progress("check", "images") as start:
        checked = check_images(data, start(sum(len(split) for split in data.splits.values()), 0))
    for line in checked.doubts:
        print(line)
    checked.require(skip_broken=skip_broken, shared=shared)
    print(checked.summary)
