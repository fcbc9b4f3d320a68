"""Drawings: files that are whole, the same every time, and safe whatever the names are."""

from __future__ import annotations

import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from hace import ConfigError, Hierarchy, cifar100_hierarchy
from hace.draw import DRAWN, draw_hierarchy, lay_out
from tests.hierarchies import DIAMOND, NAMED, NAMED_TREES, Plain, random_plain
from tests.reference import structure as oracle

HOSTILE = "</script><img src=x onerror=alert(1)>"
NAMES = [
    HOSTILE,
    "<!--",
    "$x_{$",
    "\\frac",
    "a\x00b\nc",
    "\ud800",
    "日本語",
    "&amp;",
    '"quoted"',
    "<!--script-->",
]
suffixes = pytest.mark.parametrize("suffix", DRAWN)


@pytest.fixture(autouse=True)
def _matplotlib(request: pytest.FixtureRequest) -> None:
    if "suffix" in request.fixturenames and request.getfixturevalue("suffix") != ".html":
        pytest.importorskip("matplotlib")


class Page(HTMLParser):
    """The tags of a page and the data in it, as a browser sees them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.scripts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for key, value in attributes if key in ("src", "href")]
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.scripts and self.lasttag == "script":
            self.scripts[-1] += data

    @property
    def data(self) -> dict:
        return json.loads(self.scripts[0])


def hostile() -> Hierarchy:
    return Hierarchy.from_parents(
        {"top": None, **{str(i): "top" for i in range(len(NAMES))}},
        names={str(i): name for i, name in enumerate(NAMES)},
    )


@suffixes
def test_every_shape_is_drawn(suffix: str, tmp_path: Path) -> None:
    out = tmp_path / f"h{suffix}"
    for plain in (
        NAMED.values()
        if suffix == ".html"
        else (NAMED[name] for name in ("one_node", "ragged", "dag_forest"))
    ):
        draw_hierarchy(plain.build(), out)
        assert out.stat().st_size > 500
        assert list(tmp_path.iterdir()) == [out]
        out.unlink()


@suffixes
def test_the_same_hierarchy_gives_the_same_bytes(suffix: str, tmp_path: Path) -> None:
    h = random_plain("dag", 1, 40).build()
    for name in ("a", "b"):
        draw_hierarchy(h, tmp_path / (name + suffix))
    assert (tmp_path / f"a{suffix}").read_bytes() == (tmp_path / f"b{suffix}").read_bytes()


def test_a_page_holds_everything_and_loads_nothing(tmp_path: Path) -> None:
    h = cifar100_hierarchy()
    draw_hierarchy(h, tmp_path / "c.HTML")
    text = (tmp_path / "c.HTML").read_text(encoding="utf-8")
    page = Page(text)
    assert page.data["ids"] == list(h.nodes)
    assert page.data["names"] == list(h.names)
    assert page.data["parent"] == h.parent_nodes.tolist()
    assert page.data["label"] == h.labels.tolist()
    assert page.data["caption"] == "forest: 120 nodes, 100 leaves, depth 2"
    assert page.links == []
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|@import|url\(|innerHTML|fetch\(", text)


def test_names_stay_names_in_a_page(tmp_path: Path) -> None:
    draw_hierarchy(hostile(), tmp_path / "h.html")
    page = Page((tmp_path / "h.html").read_text(encoding="utf-8"))
    assert "img" not in page.tags
    assert page.tags.count("script") == 2
    names = dict(zip(page.data["ids"], page.data["names"], strict=True))
    assert [names[str(i)] for i in range(4)] == NAMES[:4]
    assert (names["4"], names["5"]) == ("a\ufffdb\ufffdc", "\ufffd")
    assert names["9"] == "<!--script-->"  # not taken for a place to fill


def test_names_stay_names_in_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    draw_hierarchy(hostile(), tmp_path / "h.svg")
    text = (tmp_path / "h.svg").read_text(encoding="utf-8")
    shown = {element.text for element in ElementTree.fromstring(text).iter() if element.tag.endswith("}text")}
    assert {HOSTILE, "$x_{$", "\\frac", "日本語", "&amp;", "a\ufffdb\ufffdc"} <= shown
    assert "<img" not in text
    draw_hierarchy(hostile(), tmp_path / "h.png")


@pytest.mark.parametrize("root", [False, True])
def test_every_name_of_cifar100_is_in_the_picture(root: bool, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    h = cifar100_hierarchy(root=root)
    draw_hierarchy(h, tmp_path / "c.svg")
    tree = ElementTree.parse(tmp_path / "c.svg")
    shown = {element.text for element in tree.iter() if element.tag.endswith("}text")}
    assert set(h.names) <= shown


@pytest.mark.slow
def test_many_classes_become_rings_with_the_names_that_fit(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    h = Hierarchy.from_paths([(f"g{i // 20}", f"class {i}") for i in range(400)])
    draw_hierarchy(h, tmp_path / "rings.svg")
    text = (tmp_path / "rings.svg").read_text(encoding="utf-8")
    assert all(f">class {i}<" in text for i in range(400))
    large = Hierarchy.from_parents(np.concatenate([[-1], np.zeros(20_000, dtype=int)]))
    draw_hierarchy(large, tmp_path / "large.svg")
    assert "20,001 nodes" in (tmp_path / "large.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize("plain", NAMED_TREES.values(), ids=NAMED_TREES)
def test_a_range_covers_what_is_below(plain: Plain) -> None:
    h = plain.build()
    cells = lay_out(h)
    assert cells.parent.tolist() == h.parent_nodes.tolist()
    assert cells.rows == h.num_leaves
    assert not cells.extra
    for v, node in enumerate(h.nodes):
        below = [h.index(leaf) for leaf in oracle.leaves_below(plain, node)]
        assert cells.end[v] - cells.start[v] == len(below)
        assert (cells.start[below] >= cells.start[v]).all()
        assert (cells.end[below] <= cells.end[v]).all()


@pytest.mark.parametrize("seed", range(5))
def test_on_a_dag_a_node_stands_below_its_deepest_parent(seed: int) -> None:
    plain = random_plain("dag_forest", seed, 40)
    h = plain.build()
    cells = lay_out(h)
    for v, node in enumerate(h.nodes):
        path = h.path(node)
        assert cells.parent[v] == (h.index(path[1]) if len(path) > 1 else -1)
        drawn = {h.nodes[cells.parent[v]]} if len(path) > 1 else set()
        assert {h.nodes[u] for u in cells.extra.get(v, [])} == set(plain.parents[node]) - drawn
        siblings = np.flatnonzero(cells.parent == cells.parent[v])
        assert all(
            cells.end[u] <= cells.start[v] or cells.start[u] >= cells.end[v] for u in siblings if u != v
        )
        assert cells.ends[v] == (v not in cells.parent)


def test_the_caption_of_a_dag_says_what_is_not_drawn(tmp_path: Path) -> None:
    draw_hierarchy(DIAMOND.build(), tmp_path / "d.html")
    data = Page((tmp_path / "d.html").read_text(encoding="utf-8")).data
    assert data["caption"].endswith(
        "depth 2. Nodes with further parents, marked +, are below their deepest one: 1"
    )
    assert list(data["extra"]) == [str(DIAMOND.build().index("shared"))]


@pytest.mark.parametrize("name", ["tree.gif", "tree", "tree.html.bak"])
def test_other_suffixes_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        draw_hierarchy(DIAMOND.build(), tmp_path / name)
    assert "path must end in one of .html, .svg, .png. Got" in str(caught.value)
    assert name in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_without_matplotlib_the_message_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "hace.draw.picture", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r'pip install "\.\[report\]"'):
        draw_hierarchy(DIAMOND.build(), tmp_path / "d.png")
    draw_hierarchy(DIAMOND.build(), tmp_path / "d.html")
    assert [file.name for file in tmp_path.iterdir()] == ["d.html"]


def test_a_drawing_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "d.html"
    out.write_text("old", encoding="utf-8")
    monkeypatch.setattr("hace.draw.page_data", lambda h: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        draw_hierarchy(DIAMOND.build(), out)
    assert out.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [out]
