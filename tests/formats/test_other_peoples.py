"""Hierarchies as other people write them: recognised and read, or refused with the options that work."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hace.cli import main
from hace.errors import ConfigError, FormatError, HierarchyError
from hace.formats import parse_hierarchy, read_hierarchy
from hace.hierarchy import Hierarchy

NODES = [
    {"id": "/m/1", "name": "Sound", "child_ids": ["/m/2", "/m/3"], "restrictions": ["abstract"]},
    {"id": "/m/2", "name": "Speech", "child_ids": [], "restrictions": []},
    {"id": "/m/3", "name": "Music", "child_ids": ["/m/4"], "restrictions": []},
    {"id": "/m/4", "name": "Flute", "child_ids": [], "restrictions": []},
]


def renamed(key: str) -> str:
    return json.dumps([{key if k == "child_ids" else k: v for k, v in node.items()} for node in NODES])


@pytest.mark.parametrize("key", ["child_ids", "childIds", "children", "narrower"])
def test_json_nodes_that_name_their_children(key: str) -> None:
    h = parse_hierarchy(renamed(key), "json")
    assert h.path("/m/4") == ("/m/4", "/m/3", "/m/1")
    assert h.name("/m/3") == "Music"
    assert h.leaves == ("/m/2", "/m/4")


def test_json_nodes_that_name_their_parents() -> None:
    nodes = [{"id": 1}, {"id": 2, "parent_id": 1}, {"id": 3, "parent_id": 1}, {"id": 4, "parent_id": [2, 3]}]
    h = parse_hierarchy(json.dumps(nodes), "json")
    assert set(h.parents("4")) == {"2", "3"}


def test_json_with_unknown_keys_asks_which_way_they_go() -> None:
    with pytest.raises(
        FormatError, match=r"name each other in 'xyz'. Pass .*-o children=xyz or -o parents=xyz"
    ):
        parse_hierarchy(renamed("xyz"), "json")
    assert parse_hierarchy(renamed("xyz"), "json", children="xyz").tops == ("/m/1",)
    assert parse_hierarchy(renamed("xyz"), "json", parents="xyz").leaves == ("/m/1",)
    with pytest.raises(ConfigError, match=r"some node must have the key 'abc'"):
        parse_hierarchy(renamed("xyz"), "json", children="abc")
    with pytest.raises(ConfigError, match="Pass one"):
        parse_hierarchy(renamed("xyz"), "json", children="xyz", parents="xyz")
    with pytest.raises(HierarchyError, match=r"child_ids of '/m/3' names '/m/9', and no node has this id"):
        parse_hierarchy(renamed("child_ids").replace('["/m/4"]', '["/m/9"]'), "json")


def test_csv_without_a_header() -> None:
    edges = "animal,dog\nanimal,cat\ndog,husky\n"
    h = parse_hierarchy(edges, "csv")
    assert h.tops == ("animal",)
    assert h.leaves == ("cat", "husky")
    assert parse_hierarchy(edges, "csv", header=False) == h
    assert parse_hierarchy(edges.replace(",", "\t"), "tsv") == h
    upward = "dog,animal\ncat,animal\nhusky,dog\n"
    with pytest.raises(FormatError, match=r"looks like 'child parent' lines.*-o order=child-parent"):
        parse_hierarchy(upward, "csv")
    assert parse_hierarchy(upward, "csv", order="child-parent") == h
    for options in ({}, {"columns": ["parent", "child"]}):
        with pytest.raises(ConfigError, match=r"order must be left out if columns have names. Got '7'"):
            parse_hierarchy("parent,child\na,b\n", "csv", order="7", **options)


def test_csv_with_another_delimiter() -> None:
    for mark in (";", "|", "\t"):
        text = "parent;child\na;b, large\na;c\n".replace(";", mark)
        assert parse_hierarchy(text, "csv").leaves == ("b, large", "c")
        assert parse_hierarchy(text, "csv", delimiter=mark).leaves == ("b, large", "c")


def test_csv_hints_work_and_no_hint_eats_the_first_edge() -> None:
    with pytest.raises(FormatError, match=r"-o columns=coarse,fine\).*-o header=false"):
        parse_hierarchy("coarse,fine\na,b\na,c\n", "csv")
    assert parse_hierarchy("coarse,fine\na,b\na,c\n", "csv", columns=["coarse", "fine"]).num_nodes == 3
    for columns in ({"parent": "animal", "child": "dog"}, ["animal", "dog"]):
        with pytest.raises(
            FormatError, match=r"line 2: the first line must name the columns. Got 'animal'.*-o header=false"
        ):
            parse_hierarchy("animal,dog\nanimal,cat\n", "csv", columns=columns)
    levels = "a,x,1\na,y,2\n"
    with pytest.raises(ConfigError, match="a name for each of the 3 columns"):
        parse_hierarchy(levels, "csv", header=False)
    with pytest.raises(ConfigError, match="must name each of the 3 columns"):
        parse_hierarchy(levels, "csv", header=False, columns=["top", "leaf"])
    assert parse_hierarchy(levels, "csv", header=False, columns=["top", "mid", "leaf"]).leaves == ("1", "2")


OBO = """[Term]
id: CL:1
[Term]
id: CL:2
is_a: CL:1
is_a: GO:7 ! elsewhere
[Term]
id: CL:3
is_a: GO:8
is_a: GO:9
is_a: GO:10
"""


def test_obo_with_parents_of_other_ontologies_leaves_them_out_and_says_so() -> None:
    h = parse_hierarchy(OBO, "obo")
    assert h.nodes == ("CL:1", "CL:2", "CL:3")
    assert h.notes == (
        "4 parents are not in the file and are left out ('GO:'); 1 terms without another one are tops",
    )
    assert parse_hierarchy(OBO, "obo", prefix="CL:", isolated="drop").nodes == ("CL:1", "CL:2")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("json", '[{"name": "a"}, {"name": "b"}]'),
        ("csv", "id,parent\na,\nb,\n"),
        ("indented", "a\nb\n"),
        ("newick", "a;b;"),
        ("obo", "[Term]\nid: a\n[Term]\nid: b\n"),
    ],
)
def test_a_file_without_edges_is_a_flat_list_only_if_asked_for(
    name: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tree").write_text(text)
    assert main(["hierarchy", str(tmp_path / "tree"), "--hierarchy-format", name]) == 2
    assert "Got 2 nodes without an edge, such as 'a'" in capsys.readouterr().err
    assert main(["hierarchy", str(tmp_path / "tree"), "--hierarchy-format", name, "-o", "flat=true"]) == 0
    assert read_hierarchy(tmp_path / "tree", name, flat=True).leaves == ("a", "b")


def test_files_that_say_that_they_are_flat_need_no_option() -> None:
    assert parse_hierarchy("id,parent,label\na,,0\nb,,1\n", "csv").num_edges == 0
    assert parse_hierarchy("class\na\nb\n", "csv", columns=["class"]).num_edges == 0


def test_classes_that_are_their_own_group_give_one_line_that_works() -> None:
    rows = "".join(f"{fruit},{fruit}\n" for fruit in ("banana", "kiwi", "lemon", "lime", "melon"))
    text = "group,fruit\ncitrus,orange\n" + rows
    with pytest.raises(HierarchyError) as caught:
        parse_hierarchy(text, "csv", columns=["group", "fruit"])
    (problem,) = caught.value.problems
    assert "'banana' is at two places: banana and banana / banana, and 4 more names likewise." in problem
    assert problem.endswith("On the command line: -o ids=merged or -o ids=level or -o ids=path.")
    h = parse_hierarchy(text, "csv", columns=["group", "fruit"], ids="level")
    assert "banana" in h.leaves
    indented = "".join(f"{fruit}\n  {fruit}\n" for fruit in ("banana", "kiwi", "lemon"))
    with pytest.raises(HierarchyError) as caught:
        parse_hierarchy(indented, "indented")
    (problem,) = caught.value.problems
    assert "So are 2 more. Give each its own name, or pass ids='path'" in problem
    assert problem.endswith("-o ids=merged makes one node of a class and the group of its name.")


def test_a_class_with_the_name_of_a_group_of_several_cannot_be_merged_and_says_so() -> None:
    text = "group,class\nmilk,milk\nmilk,oat milk\nrice,rice\nrice,basmati\navocado,avocado\n"
    with pytest.raises(HierarchyError) as caught:
        parse_hierarchy(text, "csv", columns=["group", "class"], ids="merged")
    (problem,) = caught.value.problems
    assert problem.startswith(
        "text: Row 1 ends at 'milk', which has classes below it in other rows, and 1 more row likewise. A class must be a leaf."
    )
    assert problem.endswith(
        'Give it another name than its group, or use ids="level". On the command line: -o ids=level.'
    )
    h = parse_hierarchy(text, "csv", columns=["group", "class"], ids="level")
    assert {"milk", "rice", "avocado"} <= set(h.leaves)


def test_a_child_without_a_parent_is_at_the_top() -> None:
    h = parse_hierarchy("parent,child\nfruit,apple\nfruit,pear\n,avocado\n", "csv")
    assert h.path("avocado") == ("avocado",)
    assert set(h.leaves) == {"apple", "pear", "avocado"}


def test_classes_that_are_their_own_group_become_one_node() -> None:
    fruits = ("banana", "kiwi", "lemon")
    rows = "".join(f"{fruit},{fruit}\n" for fruit in fruits)
    text = "group,fruit\ncitrus,orange\n" + rows + "banana,banana\n"
    h = parse_hierarchy(text, "csv", columns=["group", "fruit"], ids="merged")
    assert h.nodes == ("banana", "kiwi", "lemon", "citrus", "orange")
    assert h.leaves == ("banana", "kiwi", "lemon", "orange")
    paths = Hierarchy.from_paths([("citrus", "orange"), *((f, f) for f in fruits)], ids="merged")
    assert (paths.nodes, paths.edges.tolist()) == (h.nodes, h.edges.tolist())
    indented = "citrus\n  orange\n" + "".join(f"{fruit}\n  {fruit}\n" for fruit in fruits)
    assert parse_hierarchy(indented, "indented", ids="merged") == paths
    with pytest.raises(
        HierarchyError, match="'lemon' is at two places"
    ):  # another lemon is still another place
        parse_hierarchy(text + "citrus,lemon\n", "csv", columns=["group", "fruit"], ids="merged")
    with pytest.raises(HierarchyError, match="Row 1 ends at 'banana', which has classes below it"):
        Hierarchy.from_paths(
            [*((f, f) for f in fruits), ("a", "b"), ("banana",), ("banana", "x")], ids="merged"
        )
