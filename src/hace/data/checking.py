"""What opening every image of a dataset shows: broken and odd ones, the same image twice, doubtful labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from hace.data.dataset import Dataset, duplicates
from hace.errors import DataError, amount, listed

MOST_NOTES = 20


@dataclass(frozen=True)
class ImageCheck:
    """A dataset whose images were all opened.

    Attributes:
        name: The dataset.
        fingerprint: Its fingerprint.
        total: Number of images.
        broken: A line for each image that cannot be read.
        odd: How many images have which oddity.
        twice: Pairs of images that are in two splits.
        notes: Doubts about labels.
    """

    name: str
    fingerprint: str
    total: int
    broken: tuple[str, ...]
    odd: Counter[str]
    twice: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]

    @property
    def doubts(self) -> list[str]:
        """Everything that a person should look at, one line each."""
        return [*(f"{what}: {count:,}" for what, count in self.odd.most_common()), *self.notes, *self.broken]

    @property
    def summary(self) -> str:
        """How many images can be read, and the fingerprint."""
        good = self.total - len(self.broken)
        read = f"{good:,} of {amount(self.total, 'image')}" if self.broken else amount(self.total, "image")
        note = ""
        if self.twice:
            first, second = self.twice[0]
            note = f"; {len(self.twice):,} in two splits, such as {first} and {second}"
        return f"{read} can be read{note}\nfingerprint {self.fingerprint}"

    def require(self, *, skip_broken: bool = False, shared: bool = False) -> None:
        """Refuse broken images, and images in two splits.

        Args:
            skip_broken: Broken images are left out later.
            shared: Images in two splits are as published.

        Raises:
            DataError: A rule is broken; `doubts` has the images.
        """
        if self.broken and not skip_broken:
            raise DataError(
                f"Every image must be readable. {len(self.broken):,} of {self.total:,} cannot be read; they are listed above. "
                "Repair or remove them, or give --skip-broken to this command, `hace features` and `hace train`."
            )
        if self.twice and not shared:
            pairs = [f"{first!r} and {second!r}" for first, second in self.twice[:MOST_NOTES]]
            raise DataError(
                f"{self.name}: every image must be in one split. Got {len(self.twice):,} in two: {', '.join(pairs)}. A test on "
                "training images says nothing."
            )


def check_images(data: Dataset[Any], on_image: Callable[[int], Any] | None = None) -> ImageCheck:
    """Open every image.

    Args:
        data: The dataset.
        on_image: Called with 1 after each image.
    """
    broken: list[str] = []
    odd: Counter[str] = Counter()
    for split in data.splits.values():
        for i in range(len(split)):
            oddities: list[str] = []
            try:
                split.image(i, oddities)
            except DataError as error:
                broken.append(str(error))
            odd.update(oddities)
            if on_image is not None:
                on_image(1)
    total = sum(len(split) for split in data.splits.values())
    twice = tuple(duplicates(data.splits))
    notes = tuple(label_notes(data))
    return ImageCheck(data.name, data.fingerprint, total, tuple(broken), odd, twice, notes)


def label_notes(data: Dataset[Any]) -> list[str]:
    """Doubts about labels: classes with one image, and images that occur twice within a split."""
    h = data.hierarchy
    notes = []
    counts = sum(np.bincount(split.nodes, minlength=h.num_nodes) for split in data.splits.values())
    single = [h.leaves[i] for i in np.flatnonzero(np.asarray(counts)[h.leaf_nodes] == 1)]
    if single:
        notes.append(f"classes with one image, which cannot both train and test: {listed(single)}")
    for name, split in data.splits.items():
        places: dict[bytes, list[int]] = {}
        for i, digest in enumerate(split.digests()):
            places.setdefault(digest.tobytes(), []).append(i)
        for copies in places.values():
            if len(copies) > 1:
                labels = dict.fromkeys(h.nodes[split.nodes[i]] for i in copies)
                where = listed([split.names[i] for i in copies])
                what = (
                    f"in {len(labels)} classes ({listed(labels)})"
                    if len(labels) > 1
                    else f"{len(copies)} times"
                )
                notes.append(f"one image is {what} in {name}: {where}")
    more = len(notes) - MOST_NOTES
    return notes if more <= 0 else [*notes[:MOST_NOTES], f"... and {more:,} more images that occur twice"]
