"""Trees that people have: nested dicts, tree libraries, WordNet, frames, Newick."""

from __future__ import annotations

import re
from collections import namedtuple
from typing import Any

import pytest

from hace import Hierarchy, HierarchyError
from hace.formats import parse_hierarchy

LEAVES = ["husky", "beagle", "cat"]
ANIMALS = Hierarchy.from_edges(
    [("animal", "dog"), ("animal", "cat"), ("dog", "husky"), ("dog", "beagle")], leaves=LEAVES
)


@pytest.mark.parametrize(
    "tree",
    [
        {"animal": {"dog": {"husky": {}, "beagle": {}}, "cat": {}}},
        {"animal": {"dog": ["husky", "beagle"], "cat": None}},
        {"animal": [{"dog": ("husky", "beagle")}, "cat"]},
        {
            "name": "animal",
            "children": [
                {"name": "dog", "children": [{"name": "husky"}, {"name": "beagle"}]},
                {"name": "cat"},
            ],
        },
    ],
    ids=["dicts", "lists", "mixed", "records"],
)
def test_nested_dicts(tree: Any) -> None:
    assert Hierarchy.from_tree(tree, leaves=LEAVES) == ANIMALS


def test_a_forest_and_names_at_two_places() -> None:
    tree = {"bird": {"other": None, "owl": None}, "fish": ["other", "eel"]}
    with pytest.raises(HierarchyError, match=r"Two nodes are called 'other'. Rename one, or use ids='path'"):
        Hierarchy.from_tree(tree)
    h = Hierarchy.from_tree(tree, ids="path")
    assert h.nodes == ("bird", "bird/other", "bird/owl", "fish", "fish/eel", "fish/other")
    assert h.name("fish/other") == "other"


def test_objects_without_the_attribute_say_so() -> None:
    Node = namedtuple("Node", "name kids")
    tree = Node("a", [Node("b", []), Node("c", [])])
    assert Hierarchy.from_tree([tree], children="kids").leaves == ("b", "c")
    with pytest.raises(HierarchyError, match=r"must have the attribute 'children'. Got Node without it"):
        Hierarchy.from_tree([tree])


def test_anytree() -> None:
    anytree = pytest.importorskip("anytree")
    animal = anytree.Node("animal")
    dog = anytree.Node("dog", parent=animal)
    for name, parent in (("husky", dog), ("beagle", dog), ("cat", animal)):
        anytree.Node(name, parent=parent)
    assert Hierarchy.from_tree(animal, leaves=LEAVES) == ANIMALS
    anytree.Node("dog", parent=dog)
    with pytest.raises(HierarchyError, match="Two nodes are called 'dog'"):
        Hierarchy.from_tree(animal)


def test_bigtree() -> None:
    bigtree = pytest.importorskip("bigtree")
    root = bigtree.list_to_tree(["animal/dog/husky", "animal/dog/beagle", "animal/cat"])
    assert Hierarchy.from_tree(root, leaves=LEAVES) == ANIMALS


@pytest.mark.filterwarnings("ignore")
def test_ete() -> None:
    for library in ("ete4", "ete3"):
        try:
            tree_class = __import__(library).Tree
        except ImportError:
            continue
        options = {"parser": 1} if library == "ete4" else {"format": 1}
        tree = tree_class("((husky,beagle)dog,cat)animal;", **options)
        assert Hierarchy.from_tree(tree, leaves=LEAVES) == ANIMALS
        unnamed = tree_class("((husky,beagle),cat);")
        assert Hierarchy.from_tree(unnamed, leaves=LEAVES).nodes[:2] == ("node1", "node2")
        return
    pytest.skip("needs ete4 or ete3")


class Synset:
    """What NLTK's WordNet gives: methods, equal by name, several hypernyms."""

    ABOVE = {  # noqa: RUF012
        "dog.n.01": ["canine.n.02", "pet.n.01"],
        "wolf.n.01": ["canine.n.02"],
        "canine.n.02": ["animal.n.01"],
        "pet.n.01": ["animal.n.01"],
        "animal.n.01": [],
    }

    def __init__(self, name: str) -> None:
        self._name = name

    def name(self) -> str:
        return self._name

    def hypernyms(self) -> list[Synset]:
        return [Synset(above) for above in self.ABOVE[self._name]]

    def hyponyms(self) -> list[Synset]:
        return [Synset(below) for below, above in self.ABOVE.items() if self._name in above]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Synset) and self._name == other._name

    def __hash__(self) -> int:
        return hash(self._name)


def test_synsets_upward_and_downward() -> None:
    up = Hierarchy.from_tree([Synset("wolf.n.01"), Synset("dog.n.01")], parents="hypernyms")
    assert up.leaves == ("wolf.n.01", "dog.n.01")
    assert set(up.parents("dog.n.01")) == {"canine.n.02", "pet.n.01"}
    down = Hierarchy.from_tree(Synset("animal.n.01"), children="hyponyms", leaves=up.leaves)
    assert down == up


def test_the_methods_of_synsets_are_those_of_nltk() -> None:
    wordnet = pytest.importorskip("nltk.corpus.reader.wordnet")
    assert all(callable(getattr(wordnet.Synset, method)) for method in ("name", "hypernyms", "hyponyms"))


def test_pandas_series_and_frames() -> None:
    pd = pytest.importorskip("pandas")
    parents = {"animal": None, "dog": "animal", "cat": "animal", "husky": "dog", "beagle": "dog"}
    assert Hierarchy.from_parents(pd.Series(parents), leaves=LEAVES) == ANIMALS
    numbers = pd.Series([float("nan"), 1, 1, 2], index=[1, 2, 3, 4])
    assert Hierarchy.from_parents(numbers).nodes == ("1", "3", "2", "4")
    several = pd.Series(["a", "b", "a", None, None], index=["x", "x", "y", "a", "b"])
    assert Hierarchy.from_parents(several).parents("x") == ("a", "b")


def test_polars_frames() -> None:
    polars = pytest.importorskip("polars")
    rows = {"parent": ["animal", "animal", "dog", "dog"], "child": ["dog", "cat", "husky", "beagle"]}
    assert Hierarchy.from_edges(polars.DataFrame(rows), leaves=LEAVES) == ANIMALS
    series = polars.Series(["animal/dog/husky", "animal/dog/beagle", "animal/cat"])
    assert Hierarchy.from_paths(series.str.split("/"), leaves=LEAVES) == ANIMALS


@pytest.mark.parametrize("text", ["((husky,beagle)dog,cat)animal", "((husky:1,beagle:2)dog,cat)animal:3\n"])
def test_newick_without_a_semicolon(text: str) -> None:
    assert parse_hierarchy(text, "newick", leaves=LEAVES) == ANIMALS
    for cut in range(1, len(text.strip()) - len("animal:3")):
        with pytest.raises(ValueError, match=re.escape("newick") + "|text|line"):
            parse_hierarchy(text[:cut], "newick", leaves=LEAVES)
