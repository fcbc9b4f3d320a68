"""Trees that people have: nested dicts, tree libraries, WordNet, frames, Newick."""

from __future__ import annotations

import re
import warnings
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
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


def test_a_dag_of_bigtree_is_a_list_of_edges() -> None:
    bigtree = pytest.importorskip("bigtree")
    edges = [("pet", "dog"), ("canine", "dog"), ("canine", "wolf")]
    node = bigtree.list_to_dag(edges)
    assert Hierarchy.from_edges(bigtree.dag_to_list(node)) == Hierarchy.from_edges(edges)


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


HYPERNYMS = {
    "animal": [],
    "canine": ["animal"],
    "pet": ["animal"],
    "wolf": ["canine"],
    "dog": ["canine", "pet"],
}


@pytest.fixture
def wordnet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """NLTK's reader on a dictionary of five nouns, in WordNet's own files: a line is found by its byte offset."""
    reader = pytest.importorskip("nltk.corpus.reader.wordnet")
    monkeypatch.setattr("nltk.data.path", [str(tmp_path)])  # NLTK reads nothing from elsewhere
    folder = tmp_path / "corpora" / "wordnet"
    folder.mkdir(parents=True)
    parts = [f"{kind}.{part}" for part in ("adj", "adv", "noun", "verb") for kind in ("index", "data")]
    for name in ("cntlist.rev", "index.sense", *parts, "adj.exc", "adv.exc", "noun.exc", "verb.exc"):
        (folder / name).write_text("")
    (folder / "lexnames").write_text("00\tnoun.Tops\t1\n")
    related = {
        word: [("@", above) for above in HYPERNYMS[word]]
        + [("~", below) for below in HYPERNYMS if word in HYPERNYMS[below]]
        for word in HYPERNYMS
    }

    def line(word: str, offsets: dict[str, int]) -> str:
        pointers = "".join(f"{kind} {offsets[other]:08d} n 0000 " for kind, other in related[word])
        return f"{offsets[word]:08d} 00 n 01 {word} 0 {len(related[word]):03d} {pointers}| a {word}\n"

    offsets, end = {}, 0
    for word in HYPERNYMS:
        offsets[word] = end
        end += len(line(word, dict.fromkeys(HYPERNYMS, 0)))
    (folder / "data.noun").write_text("".join(line(word, offsets) for word in HYPERNYMS))
    (folder / "index.noun").write_text(
        "".join(f"{word} n 1 0 1 0 {offsets[word]:08d}\n" for word in sorted(HYPERNYMS))
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it has no other languages
        opened = reader.WordNetCorpusReader(str(folder), None)
    yield opened
    for file in opened._data_file_map.values():  # NLTK never closes them
        file.close()


def test_synsets_of_wordnet_upward_and_downward(wordnet: Any) -> None:
    wolf, dog = wordnet.synset("wolf.n.01"), wordnet.synset("dog.n.01")
    up = Hierarchy.from_tree([wolf, dog], parents="hypernyms")
    assert up.leaves == ("wolf.n.01", "dog.n.01")
    assert set(up.parents("dog.n.01")) == {"canine.n.01", "pet.n.01"}
    assert up.tops == ("animal.n.01",)
    down = Hierarchy.from_tree(wordnet.synset("animal.n.01"), children="hyponyms", leaves=up.leaves)
    assert down == up


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
