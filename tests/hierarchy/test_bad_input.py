"""What a hierarchy refuses, by the type and the text of the error."""

from __future__ import annotations

import pickle
import re
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from hace import HaceError, Hierarchy, HierarchyError
from tests.hierarchies import ANIMALS, DIAMOND, TOP_NOT_ROOT

edges, parents, paths, flat = (
    Hierarchy.from_edges,
    Hierarchy.from_parents,
    Hierarchy.from_paths,
    Hierarchy.flat,
)
ANIMAL_EDGES = [("animal", "dog"), ("animal", "cat"), ("dog", "husky"), ("dog", "beagle")]


def problems(build: Any, *args: Any, **options: Any) -> tuple[str, ...]:
    with pytest.raises(HierarchyError) as caught:
        build(*args, **options)
    assert isinstance(caught.value, HaceError)
    assert isinstance(caught.value, ValueError)
    return caught.value.problems


# ------------------------------------------------------------------ the graph


def test_cycle_is_printed_as_a_path() -> None:
    (problem,) = problems(edges, [("root", "a"), ("a", "b"), ("b", "c"), ("c", "a"), ("c", "leaf")])
    start = "Cycle: "
    assert problem.startswith(start)
    path = problem[len(start) :].split(".")[0].split(" -> ")
    assert path[0] == path[-1]
    assert sorted(path[1:]) == ["a", "b", "c"]
    assert {("a", "b"), ("b", "c"), ("c", "a")} >= set(pairwise(path))
    assert "remove one of these edges" in problem


def test_cycle_without_a_way_in() -> None:
    (problem,) = problems(parents, {"a": "b", "b": "a", "c": None})
    assert "Cycle: " in problem


def test_a_cycle_of_a_thousand_nodes_is_cut_short() -> None:
    (problem,) = problems(edges, [(i, (i + 1) % 1000) for i in range(1000)])
    assert "-> ... " not in problem
    assert " -> ...." in problem
    assert len(problem) < 400


def test_a_cycle_is_found_beside_a_tail_that_leads_nowhere() -> None:
    walk = [("t", "a"), ("a", "b"), ("b", "a"), ("b", "x"), ("x", "y")]
    (problem,) = problems(edges, walk)
    assert "a -> b -> a" in problem or "b -> a -> b" in problem


def test_the_path_of_a_cycle_leaves_out_how_one_gets_there() -> None:
    (problem,) = problems(edges, [("a", "b"), ("b", "c"), ("c", "b"), ("c", "a"), ("a", "leaf")])
    assert problem.startswith("Cycle: b -> c -> b. ")


def test_many_cycles_are_counted() -> None:
    messages = problems(edges, [e for i in range(8) for e in ((f"a{i}", f"b{i}"), (f"b{i}", f"a{i}"))])
    assert len(messages) == 6
    assert sum(problem.startswith("Cycle: ") for problem in messages) == 5
    assert messages[-1] == "3 more cycles."


def test_an_edge_given_256_times_hides_no_cycle() -> None:
    messages = problems(edges, [("a", "b")] * 256 + [("b", "a")] * 256)
    assert [problem.split(":")[0] for problem in messages] == ["Edges given more than once", "Cycle"]


def test_self_loop() -> None:
    (problem,) = problems(edges, [*ANIMAL_EDGES, ("husky", "husky")], leaves=["husky", "beagle", "cat"])
    assert problem == "A node cannot be its own parent: 'husky'. Remove these edges."
    (problem,) = problems(parents, [-1, 0, 2])
    assert "its own parent: '2'" in problem


def test_edge_given_twice() -> None:
    (problem,) = problems(edges, [*ANIMAL_EDGES, ("dog", "husky"), ("dog", "husky"), ("animal", "cat")])
    assert problem == "Edges given more than once: 'animal -> cat', 'dog -> husky'. Give each edge once."
    (problem,) = problems(parents, {"dog": None, "husky": ["dog", "dog"]})
    assert "'dog -> husky'" in problem


def test_unknown_parent() -> None:
    (problem,) = problems(parents, {"dog": None, "husky": "dgo"})
    assert problem.startswith("Unknown parent 'dgo' of 'husky': it is not a key of parents.")
    assert "Add {'dgo': None} if it is a top, or correct it." in problem
    messages = problems(parents, [-1, 0, 7, -2])
    assert messages[0].startswith("Unknown parent 7 of node 2: parents must be positions from 0 to 3, or -1")
    assert messages[1].startswith("Unknown parent -2 of node 3")


def test_every_unknown_parent_is_reported_once() -> None:
    messages = problems(parents, {f"c{i}": f"p{i // 2}" for i in range(40)})
    assert len(messages) == 20


@pytest.mark.parametrize("given", [None, 1, object()])
@pytest.mark.parametrize("build", [Hierarchy.from_edges, Hierarchy.from_paths, Hierarchy.from_parents])
def test_what_is_no_list(build: Any, given: Any) -> None:
    assert re.match("(edges|paths|parents) must be .* Got ", problems(build, given)[0])


@pytest.mark.parametrize("build", [edges, parents, paths, flat])
def test_empty(build: Any) -> None:
    assert problems(build, []) == ("The hierarchy is empty: it must have at least one node.",)
    assert problems(build, {} if build is parents else ()) == problems(build, [])


def test_rows_that_are_all_empty() -> None:
    assert "is empty" in problems(paths, [("", None), ()])[0]


# ------------------------------------------------------------------ ids


def test_duplicate_ids() -> None:
    (problem,) = problems(edges, [("a", "b")], nodes=["x", "x", 1, "1"])
    assert problem == "nodes repeats 'x', '1'. Each id must occur once (1 and '1' are the same id)."
    (problem,) = problems(parents, {1: None, "1": None})
    assert problem == "parents has two keys for the id '1'. Each id must occur once."
    (problem,) = problems(flat, ["cat", "dog", "cat"])
    assert problem == "classes repeats 'cat'. Each id must occur once (1 and '1' are the same id)."


@pytest.mark.parametrize("bad", [1.5, None, True, ("a", "b"), b"dog"])
def test_ids_are_strings_or_integers(bad: object) -> None:
    (problem,) = problems(edges, [("a", bad)])
    assert f"edges holds {bad!r} of type {type(bad).__name__}. Ids must be strings or integers" in problem
    assert "str()" in problem


def test_an_id_is_not_empty() -> None:
    assert problems(edges, [("", "b")])[0].startswith("edges holds an empty id")
    assert problems(edges, [("a", "b")], leaves=["b", ""])[0].startswith("leaves holds an empty id")


@pytest.mark.parametrize("edge", ["ab", ("a",), ("a", "b", "c"), 3, ()])
def test_edges_are_pairs(edge: object) -> None:
    assert problems(edges, [edge]) == (f"edges must be pairs (parent, child). Got {edge!r}.",)


@pytest.mark.parametrize("array", [[[0, 1]], [0.5, 1.0], ["a", "b"], 3])
def test_parent_arrays_hold_positions(array: object) -> None:
    (problem,) = problems(parents, array)
    assert problem.startswith(
        "parents must be a mapping or a 1-D array of integers (-1 for a top). Got shape"
    )


@pytest.mark.parametrize(
    ("build", "options", "name"),
    [
        (edges, {"leaves": "husky"}, "leaves"),
        (edges, {"leaves": 3}, "leaves"),
        (edges, {"nodes": "abc"}, "nodes"),
    ],
)
def test_a_string_is_not_a_list_of_ids(build: Any, options: dict[str, Any], name: str) -> None:
    (problem,) = problems(build, ANIMAL_EDGES, **options)
    assert problem == f"{name} must be a list of ids. Got {options[name]!r}."
    assert problems(flat, "cat") == ("classes must be a list of ids. Got 'cat'.",)


# ------------------------------------------------------------------ the class list


def test_leaf_list_with_a_node_that_has_children() -> None:
    (problem,) = problems(edges, ANIMAL_EDGES, leaves=["husky", "dog", "beagle", "cat"])
    assert problem.startswith("leaves names nodes that have children: 'dog'. Classes must be leaves;")
    assert 'labels="nodes"' in problem


def test_leaf_list_with_an_unknown_entry() -> None:
    (problem,) = problems(edges, ANIMAL_EDGES, leaves=["husky", "beagle", "cat", "huskie"])
    assert problem == "leaves names ids that are not in the hierarchy: 'huskie'. Did you mean 'husky'?"


def test_leaf_list_with_a_missing_entry() -> None:
    (problem,) = problems(edges, ANIMAL_EDGES, leaves=["cat"])
    assert problem.startswith("Nodes without children that are not in leaves: 'beagle', 'husky'.")
    assert "Hierarchy.subset" in problem


def test_leaf_list_with_a_repeated_entry() -> None:
    (problem,) = problems(edges, ANIMAL_EDGES, leaves=["husky", "beagle", "cat", "husky"])
    assert problem == "leaves repeats 'husky'. Each class must occur once."


def test_isolated_node_that_is_not_a_leaf() -> None:
    (problem,) = problems(edges, ANIMAL_EDGES, nodes=["stone"], leaves=["husky", "beagle", "cat"])
    assert problem.startswith("Nodes without children that are not in leaves: 'stone'.")


def test_long_lists_are_cut() -> None:
    (problem,) = problems(edges, [("r", i) for i in range(2000)], leaves=[0])
    assert "'1', '2', '3', '4', '5' and 1,994 more" in problem


# ------------------------------------------------------------------ paths


def test_gap_in_a_path() -> None:
    messages = problems(paths, [("dog", "husky"), ("cat", None, "tabby"), ("", "x")])
    assert messages[0] == (
        "Row 2 has a gap: no name at level 2, but 'tabby' below it. Only the end of a row may be empty."
    )
    assert messages[1].startswith("Row 3 has a gap: no name at level 1, but 'x' below it.")


def test_name_that_is_both_a_class_and_inner() -> None:
    (problem,) = problems(paths, [("Boeing", "717", "717"), ("Saab", "2000")])
    assert problem == (
        "'717' is at two places: Boeing / 717 and Boeing / 717 / 717. Give them different names, "
        'or use ids="level" or ids="path". ids="merged" makes one node of a class and the group of its name.'
    )


def test_remedies_are_not_what_was_tried_already() -> None:
    rows = [("a", "x", "y"), ("b", "x", "z")]
    assert problems(paths, rows, ids="level")[0].endswith('different names, or use ids="path".')
    (problem,) = problems(paths, [("a/b", "c"), ("a", "b/c")], ids="path")
    assert problem.endswith("a/b / c and a / b/c. Give them different names.")


def test_other_mistakes_in_paths() -> None:
    assert (
        "must be one of 'name', 'shared', 'merged', 'level', 'path'. Got 'names'"
        in problems(paths, [("a",)], ids="names")[0]
    )
    assert problems(paths, ["dog"])[0].startswith("Row 1 of paths must be a sequence of names")
    assert "Row 1 has 3 names, but level_names only 2." in problems(
        paths, [("a", "b", "c")], level_names=("x", "y")
    )
    assert problems(paths, [("a", 1.5)])[0].startswith("Row 1 of paths holds 1.5 of type float")
    assert "level_names must be" in problems(paths, [("a",)], level_names="ab")[0]


# ------------------------------------------------------------------ root, levels, names


def test_rooted_needs_one_top_with_children() -> None:
    (problem,) = problems(edges, [("a", "b"), ("c", "d")], rooted=True)
    assert "rooted=True needs exactly one node without parent that has children, got 2: 'a', 'c'." in problem
    assert "with_root()" in problem
    assert "got 1: 'only'" in problems(edges, [], nodes=["only"], rooted=True)[0]


@pytest.mark.parametrize("names", [["one"], ["one", "two", "three"], "ab"])
def test_level_names_for_every_level(names: Any) -> None:
    (problem,) = problems(edges, ANIMAL_EDGES, level_names=names)
    assert problem == (f"level_names must have one name for each of the levels 1 to 2. Got {names!r}.")


def test_names_for_nodes_that_exist() -> None:
    (problem,) = problems(edges, ANIMAL_EDGES, names={"dogg": "Dog", "cat": "Cat"})
    assert problem == "names has entries for ids that are not in the hierarchy: 'dogg'."
    assert "names must be a mapping" in problems(edges, ANIMAL_EDGES, names=["Dog"])[0]


# ------------------------------------------------------------------ many at once


def test_all_problems_are_reported_together() -> None:
    wrong = [*ANIMAL_EDGES, ("cat", "cat"), ("dog", "husky"), ("x", "y"), ("y", "x")]
    messages = problems(
        edges, wrong, nodes=["s", "s"], leaves=["wolf", "dog", "husky", "husky"], names={"ghost": "G"}
    )
    kinds = (
        "nodes repeats 's'",
        "names has entries",
        "A node cannot be its own parent: 'cat'",
        "Edges given more than once: 'dog -> husky'",
        "Cycle: ",
        "leaves names ids that are not in the hierarchy: 'wolf'",
        "leaves names nodes that have children: 'dog'",
        "leaves repeats 'husky'",
        "Nodes without children that are not in leaves: 'beagle', 'cat', 's'",
    )
    assert len(messages) == len(kinds)
    for problem, kind in zip(messages, kinds, strict=True):
        assert problem.startswith(kind)


def test_the_message_shows_a_readable_number() -> None:
    with pytest.raises(HierarchyError) as caught:
        parents({f"c{i}": f"p{i}" for i in range(40)})
    lines = str(caught.value).splitlines()
    assert lines[0] == "40 problems:"
    assert lines[-1] == "  ... and 28 more."
    assert len(lines) == 14
    assert pickle.loads(pickle.dumps(caught.value)).problems == caught.value.problems


# ------------------------------------------------------------------ networkx


def test_networkx_graphs_that_do_not_fit() -> None:
    nx = pytest.importorskip("networkx")
    build = Hierarchy.from_networkx
    assert "graph must be directed" in problems(build, nx.Graph([("a", "b")]))[0]
    for other in (None, 1, {"a": ["b"]}, [("a", "b")]):
        assert "graph must be a directed graph of networkx" in problems(build, other)[0]
    graph = nx.DiGraph([("a", "b"), ("a", "c")])
    nx.set_node_attributes(graph, {"b": 0, "c": 0}, "label")
    assert problems(build, graph) == ("Labels must differ. Got '0' at several nodes.",)
    nx.set_node_attributes(graph, {"b": "first", "c": 1}, "label")
    assert "The node attribute label must be an integer. Got \"b: 'first'\"" in problems(build, graph)[0]
    nx.set_node_attributes(graph, {"a": 0, "b": 1, "c": 2}, "label")
    assert "nodes that have children: 'a'" in problems(build, graph)[0]
    assert build(nx.MultiDiGraph([("a", "b"), ("a", "b")])).nodes == ("a", "b")
    assert "nodes repeats '1'" in problems(build, nx.DiGraph([("a", 1), ("a", "1")]))[0]


# ------------------------------------------------------------------ questions


@pytest.mark.parametrize(
    "question",
    ["index", "label", "name", "parents", "children", "ancestors", "descendants", "path", "depth", "height"],
)
def test_questions_about_an_unknown_node(question: str) -> None:
    (problem,) = problems(getattr(ANIMALS.build(), question), "huskey")
    assert problem == "node 'huskey' is not in the hierarchy. Did you mean 'husky'?"


def test_an_inner_node_has_no_label() -> None:
    (problem,) = problems(ANIMALS.build().label, "dog")
    assert problem == "node 'dog' is not a leaf, so it has no label. Its children: 'husky', 'beagle'."


@pytest.mark.parametrize("level", [-1, 3, "genus", 1.0, None])
def test_levels_that_do_not_exist(level: object) -> None:
    h = edges(ANIMALS.edges, level_names=["kind", "breed"])
    expected = f"level must be an integer from 0 to 2, or one of 'kind', 'breed'. Got {level!r}."
    assert problems(h.level, level) == problems(h.level_nodes, level) == (expected,)
    (problem,) = problems(TOP_NOT_ROOT.build().level, 0)
    assert problem == "level must be an integer from 1 to 3. Got 0."


def test_distances_that_do_not_exist() -> None:
    h = ANIMALS.build()
    expected = "distance must be one of 'lca_height', 'lca_depth', 'edges'. Got 'hops'."
    assert problems(h.distance, "husky", "dog", "hops") == (expected,)
    assert problems(h.max_distance, "hops") == problems(h.distance_matrix, "hops") == (expected,)
    assert problems(h.distances, [], [], "hops") == (expected,)


def test_labels_that_do_not_exist() -> None:
    h = ANIMALS.build()
    assert problems(h.distances, [0, 4], 0) == ("a must hold labels of leaves from 0 to 3. Got 4.",)
    assert problems(h.distances, 0, -1) == ("b must hold labels of leaves from 0 to 3. Got -1.",)
    assert problems(h.distances, 7, 0, labels="nodes") == ("a must hold node indices from 0 to 6. Got 7.",)
    assert "a must hold integers (leaves). Got float64." in problems(h.distances, [0.0], 0)
    assert "b must hold integers (leaves). Got bool." in problems(h.distances, 0, np.array([True]))
    assert "labels must be one of 'leaves', 'nodes'" in problems(h.distances, 0, 0, labels="leaf")[0]
    assert "labels must be one of 'leaves', 'nodes'" in problems(h.distance_matrix, labels="leaf")[0]


@pytest.mark.parametrize(
    "question",
    [lambda h: h.parent_nodes, lambda h: h.subtree_ends, lambda h: h.level_nodes(1)],
    ids=["parent_nodes", "subtree_ends", "level_nodes"],
)
def test_questions_that_need_a_tree(question: Any) -> None:
    (problem,) = problems(question, DIAMOND.build())
    assert "needs a tree or forest, but these nodes have several parents: 'shared'." in problem


def test_a_hierarchy_has_no_plain_constructor() -> None:
    with pytest.raises(TypeError, match="from_edges"):
        Hierarchy()


def test_rows_without_an_order() -> None:
    (problem,) = problems(paths, [{"genus": "dog", "species": "husky"}])
    assert "must be a sequence of names" in problem
    assert problem.endswith("Tables of columns go in as a DataFrame.")
    assert "must be a sequence of names" in problems(paths, [{"dog", "husky"}])[0]


@pytest.mark.parametrize("given", [["husky"], {"husky": ["Husky", "Siberian husky"]}, "husky"])
@pytest.mark.parametrize("argument", ["ranks", "synonyms"])
def test_what_maps_texts_to_texts(argument: str, given: Any) -> None:
    (problem,) = problems(edges, ANIMAL_EDGES, **{argument: given})
    assert problem.startswith(f"{argument} must be a mapping from texts to texts. Got ")


def test_a_class_in_place_of_a_graph() -> None:
    nx = pytest.importorskip("networkx")
    assert "must be a directed graph" in problems(Hierarchy.from_networkx, nx.DiGraph)[0]
