"""`hace data`: describe, download and check datasets."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from hace.cli.engine import With
from hace.cli.options import DataOptions
from hace.errors import DataError, listed

if TYPE_CHECKING:
    from hace.data import Dataset


MOST_NOTES = 20


def data(
    name: str,
    /,
    *,
    dataset: DataOptions = DataOptions(),
    check: bool = False,
    skip_broken: Annotated[bool, With("--check")] = False,
) -> None:
    """Read a dataset and print its table: samples, classes, nodes, depth, beside what the paper prints, with footnotes where the
    two differ. Lists and counts are compared with the files; --check also opens every image.

    Examples
      hace data synthetic                                            synthetic, needs no files
      hace data cifar100 --data-root data --download                 fetch it into data/, then print its table
      hace data aircraft --data-root data --check                    open every image, look for images in two splits
      hace data nabirds --data-root data/nabirds -o crop=true        your own copy, cropped to bounding boxes
      hace data folders --data-root photos --hierarchy tree.csv      train/husky/1.jpg, test/husky/2.jpg, ...
      hace data folders --data-root photos -o test=0.2               husky/1.jpg, ...: a fifth of each class is the test
      hace data manifest --data-root list.csv --hierarchy tree.csv   columns path, label, split
      hace data camera-traps --data-root images.csv --hierarchy tree.csv -o detections=md.json
                                                                     labels, sites, boxes of animals
      hace data features --data-root f.npz --hierarchy tree.csv      arrays X, y, split

    Args:
        name: A dataset: cifar100, aircraft, nabirds, folders, manifest, features, synthetic, ...
        check: Open every image, look for odd and broken ones, for the same image twice and for doubtful labels.
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
        print(f"\n{image_report(loaded, DATASETS[name].official, skip_broken)}")


def image_report(data: Dataset[Any], official: bool, skip_broken: bool = False) -> str:
    """What opening every image shows; an error where some are broken or in two splits."""
    from hace.data.dataset import duplicates
    from hace.data.split import Features
    from hace.lab.runs.process import progress

    if any(isinstance(split, Features) for split in data.splits.values()):
        return f"fingerprint {data.fingerprint}"
    broken: list[str] = []
    odd: Counter[str] = Counter()
    total = sum(len(split) for split in data.splits.values())
    with progress("check", "images") as start:
        step = start(total, 0)
        for split in data.splits.values():
            for i in range(len(split)):
                oddities: list[str] = []
                try:
                    split.image(i, oddities)
                except DataError as error:
                    broken.append(str(error))
                odd.update(oddities)
                step(1)
    twice = duplicates(data.splits)
    words = [f"{what}: {count:,}" for what, count in odd.most_common()]
    words += [*label_notes(data), *broken]
    if broken and not skip_broken:
        print("\n".join(words))
        raise DataError(
            f"Every image must be readable. {len(broken):,} of {total:,} are not; they are listed above. Mend or remove them, "
            "or give --skip-broken to this command, `hace features` and `hace train`."
        )
    if twice and not official:
        print("\n".join(words))
        pairs = [f"{first!r} and {second!r}" for first, second in twice[:20]]
        raise DataError(
            f"{data.name}: every image must be in one split. {len(twice):,} are in two: {', '.join(pairs)}. A test on training "
            "images says nothing."
        )
    note = f"; {len(twice):,} are in two splits, such as {twice[0][0]} and {twice[0][1]}" if twice else ""
    read = f"{total - len(broken):,} of {total:,}" if broken else f"all {total:,}"
    return "\n".join([*words, f"{read} images can be read{note}", f"fingerprint {data.fingerprint}"])


def label_notes(data: Dataset[Any]) -> list[str]:
    """Doubts about labels: classes with one image, and images that occur twice within a split."""
    h, notes = data.hierarchy, []
    counts = sum(np.bincount(split.nodes, minlength=h.num_nodes) for split in data.splits.values())
    single = [h.leaves[i] for i in np.flatnonzero(np.asarray(counts)[h.leaf_nodes] == 1)]
    if single:
        notes.append(f"classes with one image, which cannot both train and test: {listed(single)}")
    for name, split in data.splits.items():
        places: dict[bytes, list[int]] = {}
        for i, digest in enumerate(split.digests()):
            places.setdefault(digest.tobytes(), []).append(i)
        for same in (found for found in places.values() if len(found) > 1):
            labels = dict.fromkeys(h.nodes[split.nodes[i]] for i in same)
            where = listed([split.names[i] for i in same])
            what = f"in {len(labels)} classes ({listed(labels)})" if len(labels) > 1 else f"{len(same)} times"
            notes.append(f"one image is {what} in {name}: {where}")
    more = len(notes) - MOST_NOTES
    return notes if more <= 0 else [*notes[:MOST_NOTES], f"... and {more:,} more images that occur twice"]
