"""The constructors: the same hierarchy, however it is written down."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hace import Hierarchy, HierarchyError
from hace.formats import parse_hierarchy
from hace.hierarchy.assembly import natural_key
from hace.hierarchy.names import node_of
from tests.hierarchies import Plain, forests, hierarchies, trees
from tests.reference import structure as oracle


@pytest.mark.parametrize(
    "expected",
    [
        ["2", "10"],
        ["dog", "dog2", "dog10", "doge"],
        ["", "0", "a"],
        ["class 9", "class 11"],
        ["001", "01", "1", "2"],  # equal numbers by their text
        ["a", "a1", "a1b", "a1b2", "b"],
        ["v1.9.3", "v1.10"],
        ["9" * 5000, "1" + "0" * 5000],  # more digits than int() accepts
        ["a\u00b2", "a\u0661"],  # digits of other scripts are text
    ],
)
def test_natural_sort(expected: list[str]) -> None:
    backwards = expected[::-1]
    assert sorted(backwards, key=natural_key) == expected


@given(st.lists(st.text(alphabet="ab01 9", min_size=1, max_size=5), min_size=1, unique=True))
def test_natural_sort_compares_any_two_texts(texts: list[str]) -> None:
    ordered = sorted(texts, key=natural_key)
    backwards = ordered[::-1]
    assert sorted(backwards, key=natural_key) == ordered
    assert Hierarchy.from_parents(dict.fromkeys(texts)).leaves == tuple(ordered)


@given(
    st.sampled_from(["Q", "n0", "v1.", "1 ", "a\0", "a10"]),
    st.lists(st.sampled_from("0 1 2 9 10 12 19 20 100 102 007 ٣".split()), min_size=1, unique=True),
)
def test_ids_that_differ_in_a_number_stand_in_natural_order(shared: str, numbers: list[str]) -> None:
    ids = [shared + number for number in numbers]
    assert Hierarchy.from_parents(dict.fromkeys(ids)).leaves == tuple(sorted(ids, key=natural_key))


@given(st.lists(st.integers(0, 10**20), min_size=1, unique=True))
def test_leaves_that_are_numbers_stand_by_value(numbers: list[int]) -> None:
    h = Hierarchy.from_parents(dict.fromkeys(numbers))
    assert h.leaves == tuple(map(str, sorted(numbers)))


def test_negative_numbers_sort_as_text_whatever_stands_beside_them() -> None:
    assert Hierarchy.from_parents(dict.fromkeys([-10, -5])).leaves == ("-5", "-10")
    assert Hierarchy.from_parents(dict.fromkeys([-10, -5, "x"])).leaves == ("-5", "-10", "x")


# ------------------------------------------------------------------ constructors


@given(plain=st.one_of(trees(), forests()))
def test_a_parent_array_is_the_same_as_a_mapping(plain: Plain) -> None:
    ids = plain.nodes
    position = {v: i for i, v in enumerate(ids)}
    array = [position[plain.parents[v][0]] if plain.parents[v] else -1 for v in ids]
    leaves = [position[leaf] for leaf in plain.leaves]
    for parents in (array, np.array(array, dtype=np.int32)):
        h = Hierarchy.from_parents(parents, leaves=leaves, rooted=plain.rooted)
        assert tuple(ids[int(v)] for v in h.nodes) == plain.build().nodes


@given(plain=st.one_of(trees(), forests()))
def test_paths_are_the_same_as_edges(plain: Plain) -> None:
    rows = [oracle.path(plain, leaf)[::-1] for leaf in plain.leaves]
    h = Hierarchy.from_paths(rows, leaves=plain.leaves)
    single_top = len(plain.tops) == 1 and plain.tops[0] not in plain.leaves
    expected = Hierarchy.from_edges(plain.edges, nodes=plain.nodes, leaves=plain.leaves)
    assert (h, h.rooted) == (expected, single_top)
    padded = [[*row, None, float("nan"), ""] for row in rows]
    assert Hierarchy.from_paths(padded + rows, leaves=plain.leaves) == h


BOEING = [("Boeing", "717", "717"), ("Boeing", "747", "747-100"), ("Saab", "2000")]


def test_paths_written_as_one_text() -> None:
    texts = ["Home > Garden > Pots", "Home > Garden", "Toys", "Toys > Cars", "Toys"]
    h = Hierarchy.from_paths(texts)
    assert h == Hierarchy.from_paths([("Home", "Garden", "Pots"), ("Toys", "Cars")])
    assert h.level_names is None
    assert Hierarchy.from_paths(pd.DataFrame({"category": [*texts, None]})) == h
    assert Hierarchy.from_paths(pd.DataFrame({"class": ["a", "b"]})).level_names == ("class",)
    for table in ("category\n" + "\n".join(texts), "\n".join(texts)):  # with a header and without
        assert parse_hierarchy(table, "csv") == h
    labelled = parse_hierarchy("path,n\nA > B,1\nA > C,0\n", "csv", columns=["path"], label="n")
    assert labelled.leaves == ("C", "B")
    repeated = ["Men > Shoes", "Women > Shoes"]
    with pytest.raises(HierarchyError, match="'Shoes' is at two places"):
        Hierarchy.from_paths(repeated)
    shoes = Hierarchy.from_paths(repeated, ids="path")
    assert [node_of(shoes, label) for label in (*repeated, "Men", "Shoes")] == [
        *map(shoes.index, ("Men/Shoes", "Women/Shoes", "Men")),
        -1,  # of two
    ]


@given(plain=st.one_of(trees(), forests()))
def test_a_path_of_names_leads_to_its_node(plain: Plain) -> None:
    h = plain.build()
    for node in h.nodes:
        path = [h.name(v) for v in reversed(h.path(node))]
        assert node_of(h, " > ".join(path)) == h.index(node)
        if h.rooted and len(path) > 2:
            assert node_of(h, " > ".join(path[1:])) == h.index(node)
        if len(path) > 1:
            assert node_of(h, " > ".join([*path, "no such"])) == -1


def test_path_ids_by_level() -> None:
    h = Hierarchy.from_paths(BOEING, ids="level")
    assert h.nodes == ("1:Boeing", "2:717", "717", "2:747", "747-100", "1:Saab", "2000")
    assert h.names == ("Boeing", "717", "717", "747", "747-100", "Saab", "2000")
    named = Hierarchy.from_paths(BOEING, ids="level", level_names=("maker", "family", "variant"))
    assert named.parents("717") == ("family:717",)
    assert named.level_names == ("maker", "family", "variant")
    assert named.level("family") == named.level(2) == ("family:717", "family:747", "2000")
    assert named.level_nodes("maker").tolist() == named.level_nodes(1).tolist()


def test_path_ids_by_path() -> None:
    h = Hierarchy.from_paths(BOEING, ids="path", names={"Boeing/717/717": "Boeing 717-200"})
    assert h.path("Boeing/717/717") == ("Boeing/717/717", "Boeing/717", "Boeing")
    assert h.name("Boeing/717/717") == "Boeing 717-200"
    assert h.name("Boeing/717") == "717"  # the other names stay


def test_a_column_with_the_root_has_no_level() -> None:
    rows = [("life", "dog", "husky"), ("life", "cat", "tabby")]
    h = Hierarchy.from_paths(rows, level_names=("all", "genus", "breed"))
    assert (h.rooted, h.level_names, h.level("genus")) == (True, ("genus", "breed"), ("dog", "cat"))


def test_columns_that_are_empty_name_no_level() -> None:
    h = Hierarchy.from_paths(
        [("dog", "husky", ""), ("cat", "tabby", "")], level_names=("genus", "breed", "coat")
    )
    assert h.level_names == ("genus", "breed")


@pytest.mark.parametrize("dtype", [object, "string"])
def test_a_data_frame_with_missing_values(dtype) -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"genus": ["dog", "dog", "cat"], "breed": ["husky", "beagle", None]}, dtype=dtype)
    h = Hierarchy.from_paths(frame)
    assert h.level_names == ("genus", "breed")
    assert h.nodes == ("dog", "beagle", "husky", "cat")
    assert h.leaves == ("beagle", "cat", "husky")


def test_numbers_in_a_data_frame_with_gaps_are_still_numbers() -> None:
    pd = pytest.importorskip("pandas")
    for column in ([1, 2, None], pd.array([1, 2, None], dtype="Int64")):
        h = Hierarchy.from_paths(pd.DataFrame({"genus": [10, 10, 20], "species": column}))
        assert h.nodes == ("10", "1", "2", "20")


def test_integers_are_ids_too() -> None:
    h = Hierarchy.from_edges([(0, 1), (0, np.int64(2))], leaves=[2, 1], names={1: "one"})
    assert h.nodes == ("0", "2", "1")
    assert h.names == ("0", "2", "one")
    assert h.index(2) == h.index("2") == 1


def test_numpy_strings_become_plain_ones() -> None:
    h = Hierarchy.from_edges(np.array([["a", "b"], ["a", "c"]]))
    assert {type(v) for v in h.nodes} == {str}


def test_automatic_root() -> None:
    assert Hierarchy.from_edges([("a", "b")]).rooted
    assert not Hierarchy.from_edges([("a", "b")], rooted=False).rooted
    assert not Hierarchy.from_edges([("a", "b"), ("c", "d")]).rooted
    assert not Hierarchy.from_edges([], nodes=["only"]).rooted  # a leaf is a class, not a root


def test_flat_is_a_forest_of_classes() -> None:
    h = Hierarchy.flat(["b", "a", 7])
    assert h.nodes == h.leaves == ("b", "a", "7")
    assert (h.kind, h.max_depth, h.num_edges) == ("forest", 1, 0)


@given(plain=hierarchies())
@settings(max_examples=50)
def test_networkx_and_back(plain: Plain) -> None:
    h = Hierarchy.from_edges(
        plain.edges,
        nodes=plain.nodes,
        leaves=plain.leaves,
        rooted=plain.rooted,
        names={plain.nodes[0]: "shown"},
        level_names=[f"L{k}" for k in range(1, oracle.max_depth(plain) + 1)],
    )
    graph = h.to_networkx()
    assert set(graph.edges) == set(plain.edges)
    assert graph.nodes[plain.leaves[-1]]["label"] == len(plain.leaves) - 1
    assert Hierarchy.from_networkx(graph) == h


def test_networkx_with_its_own_class_list_and_root() -> None:
    nx = pytest.importorskip("networkx")
    h = Hierarchy.from_networkx(nx.DiGraph([(0, 2), (0, 1)]), leaves=[2, 1], rooted=False)
    assert (h.leaves, h.rooted) == (("2", "1"), False)


# ------------------------------------------------------------------ frames and graphs of other libraries


class PolarsFrame:
    """What polars gives: iterating walks the columns, `iter_rows` the rows."""

    def __init__(self, columns: dict[str, list[str]]) -> None:
        self._columns, self.columns = columns, list(columns)

    def __iter__(self) -> Iterator[list[str]]:
        return iter(self._columns.values())

    def iter_rows(self) -> Iterator[tuple[str, ...]]:
        return zip(*self._columns.values(), strict=True)


EDGES = {"child": ["husky", "dog"], "weight": ["1", "2"], "Parent": ["dog", "animal"]}
PATHS = {"kind": ["dog", "cat"], "breed": ["husky", "persian"]}


@pytest.mark.parametrize("frame", [pd.DataFrame, PolarsFrame])
def test_frames_are_read_by_row_and_by_name(frame: Any) -> None:
    assert Hierarchy.from_edges(frame(EDGES)).nodes == ("animal", "dog", "husky")
    h = Hierarchy.from_paths(frame(PATHS))
    assert (h.nodes, h.level_names) == (("dog", "husky", "cat", "persian"), ("kind", "breed"))
    with pytest.raises(
        HierarchyError, match=r"must have a column 'parent' and a column 'child'\. Got 'kind'"
    ):
        Hierarchy.from_edges(frame(PATHS))
    with pytest.raises(HierarchyError, match=r"Got a frame: use Hierarchy\.from_edges"):
        Hierarchy.from_parents(frame(EDGES))


def test_other_tables_are_refused_with_the_way_out() -> None:
    table = pa.table(PATHS)
    for build in (Hierarchy.from_edges, Hierarchy.from_paths, Hierarchy.from_parents):
        with pytest.raises(HierarchyError, match=r"Got Table. Convert it, for instance with .to_pandas\(\)"):
            build(table)  # type: ignore[arg-type]


def test_edges_of_an_ontology_graph_point_upward() -> None:
    graph = nx.MultiDiGraph()
    graph.add_node("GO:2", name="death")
    graph.add_edges_from([("GO:2", "GO:1", "is_a"), ("GO:2", "GO:1", "part_of"), ("GO:3", "GO:1", "is_a")])
    graph.add_edge("GO:3", "GO:2", "part_of")  # no level of a hierarchy
    for direction in ("parent_to_child", "child_to_parent"):
        h = Hierarchy.from_networkx(graph, direction=direction)
        assert (h.nodes, h.name("GO:2"), h.parents("GO:3")) == (("GO:1", "GO:2", "GO:3"), "death", ("GO:1",))
    parts = graph.edge_subgraph([("GO:2", "GO:1", "part_of"), ("GO:3", "GO:2", "part_of")])
    with pytest.raises(HierarchyError, match="pass direction='child_to_parent'"):
        Hierarchy.from_networkx(parts)
    upside_down = nx.DiGraph([("husky", "dog"), ("beagle", "dog")])
    assert Hierarchy.from_networkx(upside_down, direction="child_to_parent").tops == ("dog",)
    with pytest.raises(HierarchyError, match="direction must be"):
        Hierarchy.from_networkx(upside_down, direction="up")  # type: ignore[arg-type]
