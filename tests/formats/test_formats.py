"""Reading and writing hierarchies: each format says what it should, and what is written comes back."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable
from pathlib import Path

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hace.errors import ConfigError, FormatError, HierarchyError
from hace.formats import (
    FORMATS,
    cifar100_hierarchy,
    fgvc_hierarchy,
    nabirds_hierarchy,
    parse_hierarchy,
    read_hierarchy,
    render_hierarchy,
    write_hierarchy,
)
from hace.hierarchy import Hierarchy
from tests.hierarchies import Plain, forests, hierarchies, trees

RealData = Callable[[str], Path]

PETS = Hierarchy.from_edges(
    [("animal", "dog"), ("animal", "cat"), ("dog", "husky"), ("dog", "beagle")],
    leaves=["husky", "cat", "beagle"],
)


def edge_ids(h: Hierarchy) -> set[tuple[str, str]]:
    return {(h.nodes[p], h.nodes[c]) for p, c in h.edges.tolist()}


# ---------------------------------------------------------------- the same small tree in every format

PETS_EDGES = {("animal", "dog"), ("animal", "cat"), ("dog", "husky"), ("dog", "beagle")}
WRITTEN = {
    "rdf": "Ontology(\n"
    + "".join(f"Declaration(Class({id}))\n" for id in ("animal", "dog", "cat", "husky", "beagle"))
    + "SubClassOf(dog animal)\nSubClassOf(cat animal)\nSubClassOf(husky dog)\nSubClassOf(beagle dog)\n)\n",
    "edges": "animal dog\nanimal cat\ndog husky\ndog beagle\n",
    "indented": "animal\n  dog\n    husky\n    beagle\n  cat\n",
    "newick": "((husky,beagle)dog,cat)animal;",
    "csv": "parent,child\nanimal,dog\nanimal,cat\ndog,husky\ndog,beagle\n",
    "tsv": "id\tparent\nanimal\t\ndog\tanimal\ncat\tanimal\nhusky\tdog\nbeagle\tdog\n",
    "json": '{"name": "animal", "children": ['
    '{"name": "dog", "children": [{"name": "husky"}, {"name": "beagle"}]}, {"name": "cat"}]}',
    "obo": "[Term]\nid: animal\n\n[Term]\nid: dog\nis_a: animal\n\n[Term]\nid: cat\nis_a: animal ! comment\n\n"
    '[Term]\nid: husky\nis_a: dog {source="x"} ! dog\n\n[Term]\nid: beagle\nis_a: dog\n',
    "yaml": "- id: animal\n  children: [dog, cat]\n- id: dog\n  children: [husky, beagle]\n"
    "- id: cat\n- id: husky\n- id: beagle\n",
    "paths": "# one path per line\nanimal\nanimal > dog > husky\nanimal > dog > beagle\nanimal > cat\n",
    "topics": "parent: None child: animal\nparent: animal child: dog\nparent: animal child: cat\nparent: dog child: husky\n"
    "parent: dog child: beagle\n",
    "label-studio": "<View>\n<Image name='i' value='$i'/>\n<Taxonomy name='t' toName='i'>\n<Choice value='animal'>\n"
    "<Choice value='dog'>\n<Choice value='husky'/>\n<Choice value='beagle'/>\n</Choice>\n<Choice value='cat'/>\n"
    "</Choice>\n</Taxonomy>\n</View>\n",
    "xml": "<a>\n<b id='animal' name='animal'>\n<c id='dog' name='dog'>\n<d id='husky' name='husky'/>\n"
    "<d id='beagle' name='beagle'/>\n</c>\n<c id='cat' name='cat'/>\n</b>\n</a>\n",
    "claml": "<ClaML>\n" + "".join(
        f"<Class code='{id}'>\n<SuperClass code='{above}'/></Class>\n" for id, above in
        [("animal", "animal"), ("dog", "animal"), ("cat", "animal"), ("husky", "dog"), ("beagle", "dog")]) + "</ClaML>\n",
    "ncbi": "".join(f"{id}\t|\t{parent}\t|\tno rank\t|\t\t|\n" for id, parent in
                    [("animal", "animal"), ("dog", "animal"), ("cat", "animal"), ("husky", "dog"), ("beagle", "dog")]),
}  # fmt: skip


def test_every_reader_has_an_example() -> None:
    assert {*WRITTEN, "speciesnet", "xlsx", "entries"} == {
        name for name, kind in FORMATS.items() if kind.parse
    }


@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.parametrize("ends", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_reads_the_same_tree(name: str, ends: str, mark: str) -> None:
    data = (mark + WRITTEN[name].replace("\n", ends)).encode()
    h = parse_hierarchy(data, name)
    assert edge_ids(h) == PETS_EDGES
    assert h.leaves == ("beagle", "cat", "husky")  # natural order, not that of the lines
    assert h.rooted


@pytest.mark.parametrize("name", WRITTEN)
def test_shared_options(name: str, tmp_path: Path) -> None:
    path = tmp_path / "tree"
    path.write_text(WRITTEN[name])
    (tmp_path / "names.txt").write_text("husky Siberian Husky\ncat\tHouse Cat\n")
    options = {
        "leaves": ["husky", "cat", "beagle"],
        "names": tmp_path / "names.txt",
        "level_names": ["kind", "breed"],
    }
    h = read_hierarchy(path, name, **options)
    assert h.leaves == ("husky", "cat", "beagle")
    assert (h.name("husky"), h.name("cat"), h.name("beagle")) == ("Siberian Husky", "House Cat", "beagle")
    assert h.level_names == ("kind", "breed")
    assert not read_hierarchy(path, name, rooted=False).rooted
    assert read_hierarchy(path, name, root=False).tops == ("dog", "cat")
    assert read_hierarchy(path, name, root=True) == read_hierarchy(path, name)
    path.write_text(WRITTEN[name], encoding="utf-16")
    assert edge_ids(read_hierarchy(path, name, encoding="utf-16")) == PETS_EDGES


# ---------------------------------------------------------------- which format a file has


@pytest.mark.parametrize("name", ["edges", "indented", "newick", "json", "label-studio", "obo", "paths"])
def test_content_tells_the_format(name: str, tmp_path: Path) -> None:
    (tmp_path / "tree.txt").write_text(WRITTEN[name])
    assert edge_ids(read_hierarchy(tmp_path / "tree.txt")) == PETS_EDGES


@pytest.mark.parametrize("suffix", [s for name in WRITTEN for s in FORMATS[name].suffixes])
def test_suffix_tells_the_format(suffix: str, tmp_path: Path) -> None:
    name = next(name for name, kind in FORMATS.items() if suffix in kind.suffixes)
    (tmp_path / f"tree{suffix.upper()}").write_text(WRITTEN[name])
    assert edge_ids(read_hierarchy(tmp_path / f"tree{suffix.upper()}")) == PETS_EDGES


def test_unclear_content_asks_for_the_format(tmp_path: Path) -> None:
    (tmp_path / "tree.txt").write_text("dog\nhouse cat\n")
    with pytest.raises(
        FormatError,
        match=r"tree.txt: .*must say the format.*Pass format=.*one of json, csv.*--hierarchy-format indented",
    ):
        read_hierarchy(tmp_path / "tree.txt")
    assert read_hierarchy(tmp_path / "tree.txt", "indented", flat=True).leaves == ("dog", "house cat")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"format": "newik"}, "format of a file must be one of .*Got 'newik'. Did you mean 'newick'"),
        ({"format": "folder"}, "Got 'folder'. It does not read a file"),
        (
            {"format": "edges", "ordre": "x"},
            "'edges' has no option 'ordre'. It has order.*Did you mean 'order'",
        ),
        ({"format": "edges", "order": "x"}, "order must be one of 'parent child', 'child parent'. Got 'x'"),
        ({"format": "obo", "isolated": "x"}, "isolated must be one of 'keep', 'drop'. Got 'x'"),
        (
            {"format": "newick", "ids": "level"},
            "ids, for this format, must be one of 'name', 'shared', 'merged', 'path'. Got 'level'",
        ),
        ({"format": "csv", "delimiter": ";;"}, "delimiter must be one character"),
        ({"format": "csv", "columns": []}, "columns must name at least one level column"),
        (
            {"format": "csv", "columns": {"node": "x"}},
            "columns may name id, parent, name, label, rank, synonyms and child. Got 'node'",
        ),
        ({"format": "csv", "ids": "path"}, "label and ids need columns="),
        ({"format": "edges", "encoding": "klingon"}, "encoding must be the name of a text encoding"),
        ({"format": "edges", "encoding": True}, r"encoding must be text. Got True"),
        ({"format": "edges", "leaves": "a"}, r"leaves must be a list of ids. Got 'a'"),
        ({"format": "edges", "names": [1]}, r"names must be a mapping"),
        ({"format": "edges", "level_names": "a"}, r"level_names must have one name for each"),
        ({"format": "edges", "rooted": "maybe"}, r"rooted must be true or false. Got 'maybe'"),
        ({"format": "edges", "order": ["a"]}, r"order must be text. Got \['a'\]"),
        ({"format": "csv", "columns": "a"}, r"columns must be a mapping to text or a list of text. Got 'a'"),
        ({"format": "csv", "columns": {"id": 3}}, r"columns must be a mapping to text"),
        ({"format": "newick", "internal_labels": "no"}, r"internal_labels must be true or false"),
        ({"format": "obo", "prefix": False}, r"prefix must be text. Got False"),
    ],
)
def test_wrong_options(options: dict, words: str, tmp_path: Path) -> None:
    name = options["format"]
    (tmp_path / "tree").write_text(WRITTEN.get(name, WRITTEN["edges"]))
    with pytest.raises((ConfigError, HierarchyError), match=words):
        read_hierarchy(tmp_path / "tree", **options)


# ---------------------------------------------------------------- single formats


@pytest.mark.parametrize("order", ["child parent", "child-parent"])
def test_edges_upside_down_are_refused_unless_the_order_is_reported(order: str) -> None:
    with pytest.raises(FormatError, match=r"looks like 'child parent' lines.*order='child parent'"):
        parse_hierarchy("husky dog\nbeagle dog\n", "edges")
    assert parse_hierarchy("husky dog\nbeagle dog\n", "edges", order=order).tops == ("dog",)
    assert parse_hierarchy("husky dog\nbeagle dog\n", "edges", order="parent child").leaves == ("dog",)
    dag = parse_hierarchy("a c\nb c\na d\n", "edges")  # two parents alone are no sign
    assert (dag.kind, dag.leaves) == ("DAG", ("c", "d"))


def test_a_list_of_pairs_is_no_hierarchy_and_a_single_edge_is() -> None:
    with pytest.raises(FormatError, match="3 pairs have no node in common"):
        parse_hierarchy("1 cat\n2 dog\n3 cow\n", "edges")
    assert parse_hierarchy("1 cat\n2 dog\n", "edges", order="parent child").num_leaves == 2
    assert repr(parse_hierarchy("1 cat\n", "edges")) == "<Hierarchy tree: 2 nodes, 1 leaf, depth 1>"


def test_edges_in_the_other_order_and_with_tabs() -> None:
    h = parse_hierarchy("house cat\tanimal\nwild dog\tanimal\n", "edges", order="child parent")
    assert edge_ids(h) == {("animal", "house cat"), ("animal", "wild dog")}


@pytest.mark.parametrize(
    "text",
    [
        "animal\n\n-- dog\n---- husky\n\n---- beagle\n-- cat\n",
        "animal\n\tdog\n\t\thusky\n\t\tbeagle\n\n\tcat\n",
        "  animal\n     dog\n        husky   \n        beagle\n     cat",
    ],
)
def test_indentation_by_dashes_tabs_and_uneven_spaces(text: str) -> None:
    assert edge_ids(parse_hierarchy(text, "indented")) == PETS_EDGES


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("indented", "a\n  x\n  y\nb\n  x\n"),
        ("newick", "(x,y)a;(x)b;"),
        (
            "json",
            '[{"name": "a", "children": [{"name": "x"}, {"name": "y"}]}, {"name": "b", "children": [{"name": "x"}]}]',
        ),
    ],
)
def test_ids_by_path(name: str, text: str) -> None:
    h = parse_hierarchy(text, name, ids="path")
    assert edge_ids(h) == {("a", "a/x"), ("a", "a/y"), ("b", "b/x")}
    assert h.name("b/x") == "x"
    with pytest.raises(
        HierarchyError, match="the name 'x' is there twice: a leaf below 'b' here, and a leaf below 'a'"
    ):
        parse_hierarchy(text, name)


def test_newick_in_full() -> None:
    text = """[a [nested] comment] (('Ross''s Goose':1.5e-3, snow_goose : 2)[x]'Anser; (geese)':0.1,
              (duck:-1,teal:.5):7)Anatidae:0;
              (wren,owl)node1;"""
    h = parse_hierarchy(text, "newick")
    assert h.tops == ("Anatidae", "node1")
    assert h.children("Anser; (geese)") == ("Ross's Goose", "snow_goose")
    assert h.parents("duck") == ("node2",)  # node1 is taken
    assert h.kind == "forest"


def test_newick_support_values_can_be_left_out() -> None:
    text = "((a,b)95,(c,d)95);"
    with pytest.raises(HierarchyError, match="the name '95' is there twice"):
        parse_hierarchy(text, "newick")
    h = parse_hierarchy(text, "newick", internal_labels=False)
    assert edge_ids(h) >= {("node1", "node2"), ("node2", "a"), ("node3", "d")}


OBO = r"""format-version: 1.2
! a comment
[Term]
id: X:1
name: top \! of all ! not this
comment: goes \
on here

[Typedef]
id: part_of
is_a: nothing

[Term]
id: X:2
name: two
is_a: X:1 {a="b"} ! top
is_a: Y:9 ! elsewhere

[Term]
id: X:3
is_a: X:1
is_a: X:2

[Term]
id: X:4
name: lonely

[Term]
id: X:5
is_obsolete: true
is_a: gone

[Term]
id: Y:9
"""


def test_obo() -> None:
    h = parse_hierarchy(OBO, "obo")
    assert edge_ids(h) == {("X:1", "X:2"), ("Y:9", "X:2"), ("X:1", "X:3"), ("X:2", "X:3")}
    assert h.names == tuple({"X:1": "top ! of all", "X:2": "two", "X:4": "lonely"}.get(i, i) for i in h.nodes)
    assert set(h.nodes) == {"X:1", "X:2", "X:3", "X:4", "Y:9"}
    assert set(parse_hierarchy(OBO, "obo", prefix="X:").nodes) == {"X:1", "X:2", "X:3", "X:4"}
    without_isolated = parse_hierarchy(OBO, "obo", prefix="X:", isolated="drop")
    assert set(without_isolated.nodes) == {"X:1", "X:2", "X:3"}
    assert without_isolated.rooted


def test_csv_with_other_column_names() -> None:
    text = "code;above;words\n1;;Animals\n2;1;Dogs\n3;1;Cats\n"
    h = parse_hierarchy(
        text, "csv", columns={"id": "code", "parent": "above", "name": "words"}, delimiter=";"
    )
    assert edge_ids(h) == {("1", "2"), ("1", "3")}
    assert h.names == ("Animals", "Dogs", "Cats")
    h = parse_hierarchy("low,high\na,b\n", "csv", columns={"child": "low", "parent": "high"})
    assert edge_ids(h) == {("b", "a")}


PATHS = """label,maker,family,variant
1,Boeing,B747,747-400
0,Boeing,B747,747-100
2,Saab,2000,
1,Boeing,B747,747-400
"""


@pytest.mark.parametrize("ids", ["name", "level", "path"])
def test_csv_of_label_paths_equals_from_paths(ids: str) -> None:
    levels = ["maker", "family", "variant"]
    h = parse_hierarchy(PATHS, "csv", columns=levels, ids=ids)
    rows = [[row[c] for c in levels] for row in csv.DictReader(PATHS.splitlines())]
    assert h == Hierarchy.from_paths(rows, ids=ids, level_names=levels)  # pyright: ignore[reportArgumentType]
    assert h.level_names == ("maker", "family", "variant")


def test_csv_of_label_paths_with_labels_and_a_root_column() -> None:
    h = parse_hierarchy(PATHS, "csv", columns=["maker", "family", "variant"], label="label")
    assert h.leaves == ("747-100", "747-400", "2000")
    h = parse_hierarchy("all,kind,breed\nx,dog,husky\nx,cat,tabby\n", "csv", columns=["all", "kind", "breed"])
    assert h.rooted
    assert h.level_names == ("kind", "breed")


def test_nested_json_with_ids() -> None:
    text = '{"id": 1, "name": "x", "size": 3, "children": [{"id": 2, "name": "x", "children": null}, {"id": "c"}]}'
    h = parse_hierarchy(text, "json")
    assert edge_ids(h) == {("1", "2"), ("1", "c")}
    assert h.names == ("x", "x", "c")


def test_folder_tree(tmp_path: Path) -> None:
    for name in ["dog/class10", "dog/class2", "cat", ".hidden/x", "dog/.git"]:
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "readme.txt").write_text("no class")
    os.symlink(tmp_path, tmp_path / "loop")
    h = read_hierarchy(tmp_path)
    assert edge_ids(h) == {("dog", "class10"), ("dog", "class2")}
    assert h.leaves == ("cat", "class10", "class2")  # as torchvision numbers folders
    assert read_hierarchy(tmp_path, root=True).tops == ("root",)
    (tmp_path / "cat" / "class2").mkdir()
    with pytest.raises(
        HierarchyError, match="'class2' is there twice: a leaf below 'dog' here, and a leaf below 'cat'"
    ):
        read_hierarchy(tmp_path)
    assert read_hierarchy(tmp_path, ids="path").leaves == ("cat/class2", "dog/class10", "dog/class2")


# ---------------------------------------------------------------- what is written comes back

NASTY = st.text(
    st.one_of(
        st.sampled_from(",;:\"'\\\t\r\n <>&#[](){}|_-\ufeff\u2028\x0b\x85"),
        st.characters(exclude_categories=["Cs"]),
    ),
    min_size=1,
    max_size=6,
)


@st.composite
def nasty(draw: st.DrawFn, plains: st.SearchStrategy[Plain]) -> Hierarchy:
    """A hierarchy whose ids and names hold everything that a format might trip over."""
    plain = draw(plains)
    ids = draw(st.lists(NASTY, min_size=len(plain.nodes), max_size=len(plain.nodes), unique=True))
    new = dict(zip(plain.nodes, ids, strict=True))
    h = Hierarchy.from_edges(
        [(new[p], new[c]) for p, c in plain.edges],
        nodes=ids,
        leaves=[new[leaf] for leaf in plain.leaves],
        names={i: draw(NASTY) for i in ids},
        rooted=plain.rooted,
    )
    if draw(st.booleans()):
        return h
    return Hierarchy.from_networkx(_with_levels(h, [draw(NASTY) for _ in range(h.max_depth)]))


def _with_levels(h: Hierarchy, names: list[str]) -> nx.DiGraph:
    graph = h.to_networkx()
    graph.graph["level_names"] = names
    return graph


@pytest.mark.slow
@given(nasty(hierarchies()))
def test_json_keeps_everything(h: Hierarchy) -> None:
    text = render_hierarchy(h, "json")
    assert parse_hierarchy(text, "json") == h
    assert parse_hierarchy(text.encode(), "json") == h
    assert parse_hierarchy(text, "json").rooted == h.rooted


@pytest.mark.slow
@pytest.mark.parametrize("name", ["csv", "tsv"])
@given(nasty(hierarchies()))
def test_tables_keep_all_but_levels_and_root(name: str, h: Hierarchy) -> None:
    if any("\0" in text for text in (*h.nodes, *h.names)):
        with pytest.raises(HierarchyError, match=f"a zero character, which {name} cannot hold"):
            render_hierarchy(h, name)
        return
    text = render_hierarchy(h, name)
    assert parse_hierarchy(text, name, level_names=h.level_names, rooted=h.rooted) == h


@pytest.mark.slow
@given(nasty(st.one_of(trees(), forests())))
def test_newick_keeps_ids_and_edges(h: Hierarchy) -> None:
    if any("\0" in id for id in h.nodes):
        return
    back = parse_hierarchy(
        render_hierarchy(h, "newick"), "newick", leaves=h.leaves, rooted=h.rooted, flat=True
    )
    assert back.fingerprint == h.fingerprint


def test_newick_refuses_several_parents() -> None:
    h = Hierarchy.from_edges([("a", "c"), ("b", "c")])
    with pytest.raises(HierarchyError, match=r"Newick can hold trees and forests only.*Write it as json"):
        render_hierarchy(h, "newick")


# ---------------------------------------------------------------- files


@pytest.mark.parametrize("name", [name for name, kind in FORMATS.items() if kind.render])
def test_writes_by_suffix_and_by_name(name: str, tmp_path: Path) -> None:
    for suffix in FORMATS[name].suffixes:
        write_hierarchy(PETS, tmp_path / f"tree{suffix}")
        assert (tmp_path / f"tree{suffix}").read_text() == render_hierarchy(PETS, name)
    write_hierarchy(PETS, str(tmp_path / "tree"), name)
    assert (tmp_path / "tree").read_text() == render_hierarchy(PETS, name)


@pytest.mark.parametrize(
    ("file", "name", "words"),
    [
        ("tree.txt", None, r"tree.txt: the suffix must be one of .json, .csv.*Or pass format="),
        ("tree.obo", None, r"tree.obo: the suffix must be one of"),
        ("tree.json", "jsn", "format must be one of 'json', 'csv', .* Got 'jsn'. Did you mean 'json'"),
        ("tree.json", "obo", "format must be one of 'json', 'csv', .* Got 'obo'"),
        ("no/tree.json", None, "Create it first"),
    ],
)
def test_writing_what_cannot_be_written(file: str, name: str | None, words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        write_hierarchy(PETS, tmp_path / file, name)
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tree.json"
    path.write_text("precious")

    def half(self: Path, data: bytes) -> int:
        with open(self, "wb") as file:
            file.write(data[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", half)
    with pytest.raises(FormatError, match=r"tree.json: cannot be written: No space left on device"):
        write_hierarchy(PETS, path)
    assert path.read_text() == "precious"
    assert list(tmp_path.iterdir()) == [path]


def test_halves_of_surrogate_pairs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="half a surrogate pair"):
        write_hierarchy(Hierarchy.flat(["\ud800"]), tmp_path / "tree.json")
    with pytest.raises(FormatError, match="half a surrogate pair"):
        parse_hierarchy('{"name": "\\ud800"}', "json")


# ---------------------------------------------------------------- datasets


def test_cifar100_is_in_the_package() -> None:
    h = read_hierarchy("cifar100")
    assert h == cifar100_hierarchy()
    assert (h.num_nodes, h.num_leaves, len(h.tops), h.rooted) == (120, 100, 20, False)
    assert h.leaves == tuple(sorted(h.leaves))
    assert {len(h.children(top)) for top in h.tops} == {5}
    assert h.level_names == ("superclass", "class")
    rooted = read_hierarchy("cifar100", root=True)
    assert rooted == cifar100_hierarchy(root=True)
    assert (rooted.num_nodes, rooted.rooted, rooted.level_names) == (121, True, ("superclass", "class"))
    with pytest.raises(ConfigError, match="'cifar100' has no option 'ids'"):
        read_hierarchy("cifar100", ids="path")


def test_a_folder_named_as_a_builtin_needs_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cifar100" / "dog").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert read_hierarchy("cifar100").num_nodes == 120
    assert read_hierarchy("./cifar100").nodes == ("dog",)
    assert read_hierarchy(Path("cifar100")).nodes == ("dog",)


def test_cifar100_equals_the_published_table(real_data: RealData) -> None:
    path = real_data("cifar100") / "hierarchy.csv"
    levels = ["superclass", "class"]
    assert (
        read_hierarchy(path, columns=["coarse", "fine"], label="fine_index", level_names=levels)
        == cifar100_hierarchy()
    )


def test_nabirds(real_data: RealData) -> None:
    h = read_hierarchy(real_data("nabirds"))
    assert h == nabirds_hierarchy(real_data("nabirds"))
    assert (h.num_nodes, h.num_leaves, h.kind, h.tops) == (1011, 555, "tree", ("0",))
    leaf_depths = h.depths[h.leaf_nodes].tolist()
    assert (leaf_depths.count(3), leaf_depths.count(4)) == (290, 265)
    assert [h.depths.tolist().count(k) for k in range(5)] == [1, 22, 228, 495, 265]
    assert (h.name("0"), h.name("1")) == ("Birds", "Ducks, Geese, and Swans")
    assert h.leaves == tuple(sorted(h.leaves, key=int))
    assert len(nabirds_hierarchy(real_data("nabirds"), root=False).tops) == 22


def test_fgvc(real_data: RealData) -> None:
    folder = real_data("fgvc_aircraft")
    h = read_hierarchy(folder)
    assert h == fgvc_hierarchy(folder)
    assert (h.num_nodes, h.num_leaves, h.kind) == (201, 100, "tree")
    assert [h.depths.tolist().count(k) for k in range(4)] == [1, 30, 70, 100]
    assert h.level_names == ("manufacturer", "family", "variant")
    assert list(h.leaves) == (folder / "variants.txt").read_text().split("\n")[:100]
    assert h.path("Boeing 717") == ("Boeing 717", "family:Boeing 717", "manufacturer:Boeing", "root")
    assert h.name("family:Boeing 717") == "Boeing 717"
    forest = fgvc_hierarchy(folder, root=False)
    assert (forest.num_nodes, forest.rooted, forest.level_names) == (200, False, h.level_names)
    table = read_hierarchy(
        folder / "variant_family_manufacturer.csv",
        columns=["manufacturer", "family", "variant"],
        ids="level",
        leaves=h.leaves,
    )
    assert table == forest


@pytest.mark.parametrize(
    ("name", "nodes", "depth"), [("flat", 368, 4), ("wikispecies", 383, 6), ("balanced", 421, 7)]
)
def test_cub(name: str, nodes: int, depth: int, real_data: RealData) -> None:
    folder = real_data("cub200_hierarchy")
    names = {"wikispecies": "wikispecies-hierarchy"}.get(name, name)
    h = read_hierarchy(folder / f"cub_{name}.parent-child.txt", names=folder / f"classes_{names}.txt")
    assert (h.num_nodes, h.num_leaves, h.kind, h.max_depth) == (nodes, 200, "tree", depth)
    assert h.leaves == tuple(str(i) for i in range(1, 201))
    indented = read_hierarchy(folder / f"hierarchy_{name}.txt")
    assert (indented.num_nodes, indented.num_leaves, indented.max_depth) == (nodes, 200, depth)
    assert {indented.name(leaf) for leaf in indented.leaves} == {h.name(leaf) for leaf in h.leaves}


@pytest.mark.parametrize(("name", "nodes", "leaves"), [("inat", 14036, 8142), ("inat2019", 1190, 1010)])
def test_inaturalist(name: str, nodes: int, leaves: int, real_data: RealData) -> None:
    h = read_hierarchy(real_data("inat19") / f"hierarchy_{name}.txt")
    assert (h.num_nodes, h.num_leaves, h.kind, h.tops, h.max_depth) == (
        nodes,
        leaves,
        "tree",
        ("__NULL__",),
        7,
    )
    assert h.leaves == tuple(str(i) for i in range(leaves))


def test_cifar100_wordnet(real_data: RealData) -> None:
    folder = real_data("cifar100_wordnet")
    h = read_hierarchy(folder / "cifar.parent-child.txt", names=folder / "class_names.txt")
    assert (h.num_nodes, h.num_leaves, h.num_edges, h.max_depth) == (163, 100, 162, 8)
    assert tuple(h.name(leaf) for leaf in h.leaves) == cifar100_hierarchy().leaves
    indented = read_hierarchy(folder / "hierarchy.txt")
    assert {(h.name(p), h.name(c)) for p, c in edge_ids(h)} == edge_ids(indented)


def test_cell_ontology(real_data: RealData) -> None:
    path = real_data("cell_ontology") / "general_cell_types_upper_slim.obo"
    assert read_hierarchy(path).num_nodes == 713
    every = read_hierarchy(path, prefix="CL:")
    assert (every.num_nodes, every.num_edges, every.rooted) == (85, 117, False)
    lonely = [id for id in every.tops if not every.children(id)]
    assert len(lonely) == 3
    h = read_hierarchy(path, prefix="CL:", isolated="drop")
    assert (h.num_nodes, h.num_edges, h.num_leaves, h.tops) == (82, 117, 38, ("CL:0000000",))
    assert sum(len(h.parents(id)) > 1 for id in h.nodes) == 27
    assert set(h.nodes) == set(every.nodes) - set(lonely)
    assert h.name("CL:0000000") == "cell"


@pytest.mark.parametrize("name", ["nabirds", "fgvc_aircraft"])
def test_real_hierarchies_survive_every_format(name: str, real_data: RealData, tmp_path: Path) -> None:
    h = read_hierarchy(real_data(name))
    for format in ("json", "csv", "tsv"):
        write_hierarchy(h, tmp_path / f"tree.{format}")
        assert read_hierarchy(tmp_path / f"tree.{format}", level_names=h.level_names) == h
    write_hierarchy(h, tmp_path / "tree.nwk")
    assert read_hierarchy(tmp_path / "tree.nwk", leaves=h.leaves).fingerprint == h.fingerprint


def test_content_that_looks_like_two_formats_is_asked_about(tmp_path: Path) -> None:
    path = tmp_path / "tree.txt"
    path.write_text("format-version: 1.2\ndata-version: 1.2\n")  # the head of an OBO file, or edges
    with pytest.raises(FormatError, match=r"looks like edges and obo: pass format="):
        read_hierarchy(path)
    assert read_hierarchy(path, format="edges", order="parent child").leaves == ("1.2",)


def test_deep_paths_take_linear_time() -> None:
    """1,000 rows of 1,500 names each: quadratic work would take minutes."""
    chain = [str(i) for i in range(1500)]
    h = Hierarchy.from_paths([*([*chain, f"leaf {i}"] for i in range(1000))])
    assert (h.num_leaves, h.num_nodes) == (1000, 2500)
    with pytest.raises(HierarchyError, match="too deep to be ids"):
        Hierarchy.from_paths([["x" * 1000] * 1500], ids="path")
