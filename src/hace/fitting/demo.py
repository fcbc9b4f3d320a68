"""The demo: photos of drawn creatures, a model of them, its page, and what it says about species that are not in its list."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from hace.data.creatures import (
    LISTING,
    drawing,
    drawn_again,
    individual,
    jpeg,
    photo_name,
    write_creatures,
)
from hace.errors import ConfigError
from hace.files.writing import write_whole
from hace.fitting.examples import as_address
from hace.fitting.model import Model
from hace.fitting.page import Framing, write_page
from hace.fitting.pipeline import fit
from hace.lab.features.backbones import EDGES

MODEL = "creatures.hace"
PAGE = "index.html"
PHOTOS = "photos"
STRANGERS = "strangers"
_SHOWN = 240  # pixels of a photo on the page
_EACH = 20  # photos of each species that is not in the list
TITLE = "Which creature is it?"
NOTICE = (
    "The photos are drawn by a program, so this page shows how hace works and says nothing about real photos. The model sees "
    "64 x 64 pixels through fixed filters for edges and colours, so nothing is downloaded; pictures are larger here."
)


class Demo(NamedTuple):
    """What a demo made."""

    model: Model
    page: Path
    strangers: str  # what became of them, in a sentence


def make_demo(
    folder: Path,
    photos: Mapping[str, Any] | None = None,
    progress: Callable[[str, int], object] = lambda step, done: None,
) -> Demo:
    """Draw photos, fit a model, and write both and a page to a folder; photos that are there are not drawn again.

    Args:
        folder: new, empty, or of a demo.
        photos: how many per species, as :func:`hace.data.write_creatures` takes them.
        progress: called with the name of a step, and how many parts of it are done.
    """
    listing = folder / PHOTOS / LISTING
    if folder.exists() and not listing.exists() and any(folder.iterdir()):
        raise ConfigError(
            f"--out must be the folder of a demo, a new or an empty one. Got {str(folder)!r}, which has other files."
        )
    write_creatures(folder / PHOTOS, **(photos or {}), on_photo=lambda done: progress("Drawing", done))
    model = fit(listing, label=drawing().RANKS, model=EDGES, quiet=True, progress=progress).named(MODEL)
    model.save(folder / MODEL)
    strangers, share = _strangers(model, folder / STRANGERS)
    examples = [example | {"photo": _photo(example["name"])} for example in model.findings.examples]
    larger = replace(model, findings=replace(model.findings, examples=examples))
    page = write_page(larger, folder / PAGE, Framing(TITLE, NOTICE, strangers, *share))
    return Demo(model, page, " ".join(share))


def _strangers(model: Model, folder: Path) -> tuple[list[dict[str, Any]], tuple[str, str]]:
    """Answers about species that are not in the list: one example of each, and a number with its sentence."""
    unlisted = drawing().UNLISTED
    photos = [(species, individual("test", i)) for i in range(_EACH) for species in unlisted]
    paths = [folder / photo_name(species, number) for species, number in photos]
    folder.mkdir(exist_ok=True)
    for path, (species, number) in zip(paths, photos, strict=True):
        if not path.exists():
            write_whole(path, jpeg(drawing().draw_creature(species, number)))
    answers = model.predict(paths)
    examples = []
    for (species, number), row in zip(photos, answers.itertuples(), strict=True):
        answer = None if pd.isna(row.answer) else row.answer
        examples.append(
            {
                "name": photo_name(species, number),
                "truth": species.name,
                "answer": answer,
                "rank": row.rank,
                "confidence": row.confidence,
                "right": answer is None or answer in species.path,
            }
        )
    outcome = Counter(
        "no answer" if e["answer"] is None else "true" if e["right"] else "wrong" for e in examples
    )
    true, silent, wrong = (f"{outcome[name] / len(examples):.0%}" for name in ("true", "no answer", "wrong"))
    rest = f"{wrong} a wrong name" if silent == "0%" else f"{silent} no answer, {wrong} a wrong name"
    sentence = f"of the photos of species that are not in its list get a true group, {rest}."
    shown = [example | {"photo": _photo(example["name"])} for example in examples[: len(unlisted)]]
    return shown, (true, sentence)


def _photo(name: str) -> str:
    """The photo of a name, large, as text that a page shows."""
    return as_address(jpeg(drawn_again(name, _SHOWN), quality=78))
