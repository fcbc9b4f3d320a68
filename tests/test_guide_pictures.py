"""Pictures of the guide show the committed results, the tables of the pages, or what the library computes today."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

for needed in ("matplotlib", "onnxruntime", "sklearn"):
    pytest.importorskip(needed)
Image = pytest.importorskip("PIL.Image")
ROOT = Path(__file__).parents[1]
QUICK = [
    "targets",
    "threshold",
    "coarse_labels",
    "segments",
    "peers",
    "decisions",
    "metrics",
]


@pytest.fixture(scope="module")
def pictures() -> ModuleType:
    spec = importlib.util.spec_from_file_location("guide_pictures", ROOT / "docs" / "guide_pictures.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", QUICK)
def test_a_picture_is_not_stale(pictures: ModuleType, name: str) -> None:
    figure = pictures.PICTURES[name]()
    file = pictures.IMAGES / f"{name.replace('_', '-')}.png"
    assert Image.open(file).text["shown"] == pictures.shown(figure), f"run docs/guide_pictures.py {name}"
    pictures.plt.close(figure)


def test_another_number_makes_a_picture_stale(pictures: ModuleType) -> None:
    figure = pictures.threshold()
    before = pictures.shown(figure)
    figure.axes[0].patches[0].set_width(0.5)
    assert pictures.shown(figure) != before
    pictures.plt.close(figure)


@pytest.mark.parametrize(
    ("name", "drawn"),
    [("when-it-helps", "before_and_after"), ("paper-rates", "by_rate"), ("groups", "new_groups")],
)
def test_the_pictures_of_the_evidence_show_the_committed_results(
    pictures: ModuleType, name: str, drawn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An SVG of matplotlib has its words as comments."""
    monkeypatch.syspath_prepend(str(ROOT / "evidence"))
    figure = getattr(importlib.import_module("draw"), drawn)()
    svg = (pictures.IMAGES / f"{name}.svg").read_text(encoding="utf-8")
    words = [text.get_text() for axes in figure.axes for text in axes.texts]
    words += [axes.get_title(loc="left") for axes in figure.axes]
    assert [text for text in words if text and f"<!-- {text} -->" not in svg] == [], "run evidence/draw.py"
    pictures.plt.close(figure)
