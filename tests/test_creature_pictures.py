"""Pictures with numbers are drawn from the committed answers, and small."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("PIL")
ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"


@pytest.fixture(scope="module")
def pictures() -> ModuleType:
    spec = importlib.util.spec_from_file_location("creature_pictures", ROOT / "docs" / "creature_pictures.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def without_photos(svg: str) -> str:
    """An SVG without its photos, which Pillow's releases may write in other bytes."""
    return re.sub(r"data:image/jpeg;base64,[\w+/=]+", "photo", svg)


def test_pictures_show_the_committed_answers(pictures: ModuleType) -> None:
    for name, drawing in pictures.drawings():
        committed = (IMAGES / f"{name}.svg").read_text(encoding="utf-8")
        assert without_photos(committed) == without_photos(drawing.svg()), (
            f"run docs/creature_pictures.py: {name}.svg is stale"
        )


def test_pictures_say_what_the_answers_say(pictures: ModuleType) -> None:
    document = json.loads(pictures.ANSWERS.read_text(encoding="utf-8"))
    said = dict(pictures.drawings())["answer"].svg()
    for node, _ in document["photos"][0]["ladder"]:
        assert f">{node}</text>" in said
    for photo in document["photos"]:
        assert [q for _, q in photo["ladder"]] == sorted((q for _, q in photo["ladder"]), reverse=True)
        assert set(photo["answers"].values()) <= {node for node, _ in photo["ladder"]}
    for one in document["strangers"]:
        path = next(species.path for species in pictures.UNLISTED if species.name == one["species"])
        assert one["true"] == (one["answer"] in path)
    for point in document["guarantees"]:
        assert sum(point["ranks"].values()) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize(
    "name", ["answer.svg", "ranks.svg", "slider.svg", "strangers.svg", "photos.svg", "creatures.jpg"]
)
def test_pictures_are_small(name: str) -> None:
    assert (IMAGES / name).stat().st_size < 150_000
