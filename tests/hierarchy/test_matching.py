"""From class names to a hierarchy, and from one version of a taxonomy to the next."""

from __future__ import annotations

import pickle
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hace
from hace import ConfigError, FormatError, Hierarchy, HierarchyError
from hace.hierarchy.names import known_names
from hace.losses.registry import LOSSES
from tests.hierarchies import Plain, hierarchies

BIRDS = Hierarchy.from_edges(
    [("o", "f"), ("f", "g"), ("g", "1"), ("g", "2"), ("o", "x"), ("x", "3"), ("x", "4")],
    names={"o": "Aves", "f": "Diomedeidae", "g": "Phoebastria", "1": "Phoebastria nigripes", "2": "Phoebastria immutabilis",
           "x": "Icteridae", "3": "Euphagus cyanocephalus", "4": "Molothrus ater (Boddaert, 1783)"},
    ranks={"o": "class", "f": "family", "g": "genus", "x": "family", **dict.fromkeys("1234", "species")},
    synonyms={"Black-footed Albatross": "1", "Laysan Albatross": "2", "Brewer's Blackbird": "3", "Scolecophagus m.": "3"},
)  # fmt: skip
CELLS = Hierarchy.from_edges(
    [("cell", "lymphocyte"), ("lymphocyte", "T"), ("lymphocyte", "B"), ("T", "CD4"), ("T", "CD8"), ("cell", "blood"),
     ("blood", "lymphocyte"), ("cell", "neuron")],
    names={"T": "T cell", "B": "B cell", "CD4": "CD4-positive, alpha-beta T cell"},
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "id", "how"),
    [
        ("1", "1", "id"),
        ("Phoebastria nigripes", "1", "name"),
        ("Laysan Albatross", "2", "synonym"),
        ("phoebastria_NIGRIPES", "1", "spelling"),
        ("Black footed albatross", "1", "spelling"),
        ("Phoebastria nigripes (Audubon, 1839)", "1", "without author"),
        ("Phoebastria nigripes Audubon, 1839", "1", "without author"),
        ("Molothrus ater", "4", "without author"),
        ("Phoebastria L.", "g", "without author"),
        ("009.Brewer_Blackbird", "3", "close"),
        ("Phoebastria ni\N{LATIN SMALL LETTER G}ripes\N{NO-BREAK SPACE}", "1", "spelling"),
        ("\N{FULLWIDTH LATIN CAPITAL LETTER A}ves", "o", "spelling"),
    ],
)
def test_names_match(name: str, id: str, how: str) -> None:
    assert BIRDS.match([name])[0][:3] == (name, id, how)


def test_what_is_not_matched_is_listed_with_candidates() -> None:
    with pytest.raises(HierarchyError) as caught:
        BIRDS.within(["Phoebastria nigrepes", "Albatross of Laysan", "1", "qqq"])
    said = "\n".join(caught.value.problems)
    assert "3 of 4 names must be matched by hand" in said
    assert "'Phoebastria nigrepes' is not in the taxonomy: Phoebastria nigripes [1]" in said
    assert len(BIRDS.match(["Phoebastria nigrepes"])[0].candidates) == 3
    assert BIRDS.match(["Albatross of Laysan"])[0].candidates[0] == "2"
    fixed = {"Phoebastria nigrepes": "1", "Albatross of Laysan": "Laysan Albatross", "qqq": None}
    h = BIRDS.within(["Phoebastria nigrepes", "Albatross of Laysan", "qqq"], matches=fixed)
    assert h.leaves == ("1", "2")


def test_an_ambiguous_name_is_refused_with_its_meanings() -> None:
    h = Hierarchy.from_edges([("a", "a1"), ("b", "b1")], names={"a1": "Oenanthe", "b1": "oenanthe"})
    matches = h.match(["OENANTHE"])[0]
    assert (matches.id, matches.how, matches.candidates) == (None, "ambiguous", ("a1", "b1"))
    with pytest.raises(
        HierarchyError, match=r"'OENANTHE' means several nodes: Oenanthe \[a1\]; oenanthe \[b1\]"
    ):
        h.within(["OENANTHE", "a"])


def test_two_names_of_one_node_are_refused() -> None:
    with pytest.raises(HierarchyError, match=r"'1', 'Black-footed Albatross' are all '1'"):
        BIRDS.within(["1", "Black-footed Albatross"])


def test_within_keeps_order_ranks_and_the_users_names() -> None:
    h = BIRDS.within(["Laysan_Albatross", "brewer blackbird"])
    assert h.leaves == ("2", "3")
    assert h.nodes == ("o", "f", "g", "2", "x", "3")
    assert h.nodes[known_names(h)["Laysan_Albatross"]] == "2"
    assert h.level("family") == ("f", "x")
    assert [h.nodes[v] for v in h.level_nodes("family")[h.leaf_nodes]] == ["f", "x"]
    assert h.within(["brewer blackbird"]).leaves == ("3",)
    assert BIRDS.within(["1", "3"], collapse=True).nodes == ("o", "1", "3")
    assert BIRDS.within(["1", "3"], ranks=["family"]).nodes == ("f", "1", "x", "3")
    assert BIRDS.within(["1", "2"], below="Diomedeidae").nodes == ("f", "g", "1", "2")
    with pytest.raises(HierarchyError, match="ranks must be among 'class', 'family', 'genus'"):
        BIRDS.within(["1", "3"], ranks=["tribe"])
    with pytest.raises(HierarchyError, match=r"names must hold at least one class"):
        BIRDS.within([])
    assert pickle.loads(pickle.dumps(h)) == h


def test_an_inner_node_may_be_a_class_in_every_loss_decision_and_metric() -> None:
    h = CELLS.within(["T cell", "CD4", "B cell", "neuron"])  # a DAG: lymphocyte has two parents
    assert h.leaves == ("T", "CD4", "B", "neuron")
    assert h.parents("T") == ("T (group)",) == h.parents("CD4")
    assert h.path("T")[-1] == "cell"
    z = torch.randn(5, h.num_nodes, generator=torch.Generator().manual_seed(0), requires_grad=True)
    y = torch.tensor([0, 1, 2, 3, 0])
    tree = Hierarchy.from_paths([("cell", "T", "CD4"), ("cell", "T", "CD8"), ("cell", "B")]).subset(
        ["T", "CD4", "CD8", "B"]
    )
    assert tree.num_nodes == 6
    for name in LOSSES:
        loss = hace.build_loss(name, tree)
        value = loss(z[:, : loss.num_outputs], y)
        assert torch.isfinite(value)
        value.backward()
    scores = z.detach()[:, :4].numpy()
    assert len(hace.predict(scores, h, rule="threshold", threshold=0.5)) == 5
    assert 0 <= hace.evaluate(scores, y.numpy(), h).values["leaves", "top-1"] <= 1
    assert CELLS.subset(["T", "neuron"]).leaves == ("T", "neuron")  # nothing below T is a class: T is a leaf
    assert CELLS.subset(["cell", "neuron"]).nodes == ("cell (group)", "cell", "neuron")


@given(hierarchies(), st.randoms(use_true_random=False))
@settings(max_examples=60)
def test_subset_of_any_nodes(plain: Plain, random: Random) -> None:
    """Any set of nodes can be the classes; what is above them stays above them."""
    h = plain.build()
    chosen = random.sample(h.nodes, random.randint(1, h.num_nodes))
    part = h.subset(chosen)
    assert part.leaves == tuple(chosen)
    for a in chosen:
        for b in set(chosen) - {a}:
            above = b in h.ancestors(a)
            group = [node for node in part.ancestors(a) if node.rstrip("*") == f"{b} (group)"]
            assert bool(group) == above
    assert h.within(chosen).leaves == part.leaves


# ---------------------------------------------------------------------- ranks on ragged trees


def test_ranks_work_as_levels_in_metrics_and_decisions() -> None:
    h = Hierarchy.from_edges(
        [
            ("r", "F1"),
            ("F1", "G1"),
            ("G1", "a"),
            ("G1", "b"),
            ("r", "S"),
            ("S", "F2"),
            ("F2", "c"),
            ("r", "d"),
        ],
        ranks={"F1": "family", "F2": "family", "G1": "genus", "S": "superfamily", "a": "species"},
    )
    assert h.level_names is None
    assert set(h.rank_names) == {"family", "genus", "superfamily", "species"}
    family = [
        h.nodes[v] for v in h.level_nodes("family")[[h.index(n) for n in ("a", "b", "c", "d", "S", "r")]]
    ]
    assert family == ["F1", "F1", "F2", "d", "S", "r"]  # d has no family and stands for itself
    probs = np.array([[0.4, 0.35, 0.25, 0.0], [0.1, 0.1, 0.5, 0.3], [0.0, 0.3, 0.1, 0.6]])
    predictions = hace.predict(probs, h, kind="probs", rule="level", level="family")
    assert predictions.ids == ["F1", "F2", "d"]
    np.testing.assert_allclose(predictions.probabilities, [0.75, 0.5, 0.6])
    table = hace.metrics.class_accuracy([0, 2, 3], [1, 2, 0], h, level="family").columns()
    assert dict(zip(table["id"], table["accuracy"], strict=True))["F1"] == 0.5
    assert "family" in hace.evaluate(np.log(probs + 1e-9), [1, 2, 0], h, level="family").to_text()
    by_level = hace.metrics.level_accuracy(
        [0, 2, 0], [1, 2, 3], h
    )  # answers a, c, a to b, c and d, which has no family
    assert by_level[h.level_index("family") - 1] == 1.0
    assert (
        hace.metrics.AnswerMetric("level_accuracy", h, level="family")(["b", "c", "d"], ["a", "d", "a"])
        == 0.5
    )
    with pytest.raises(HierarchyError, match=r"or one of .*'family'"):
        h.level("tribe")


def test_uniform_ranks_name_the_levels() -> None:
    h = Hierarchy.from_edges(
        [("f", "a"), ("g", "b")], ranks={"f": "family", "g": "family", "a": "species", "b": "species"}
    )
    assert h.level_names == ("family", "species")
    assert h.rank_names == ()
    assert h.with_root().level_names == ("family", "species")


# ---------------------------------------------------------------------- versions

OLD = Hierarchy.from_paths(
    [("pet", "dog"), ("pet", "cat"), ("pet", "kitten"), ("farm", "cow"), ("farm", "ox")]
)
NEW = Hierarchy.from_paths(
    [
        ("pet", "canine", "husky"),
        ("pet", "canine", "beagle"),
        ("pet", "feline"),
        ("farm", "cattle"),
        ("farm", "emu"),
    ]
)
MAPPING = {"dog": ["husky", "beagle"], "cat": "feline", "kitten": "feline", "cow": "cattle", "ox": None}


def test_migration_moves_labels_scores_and_heads() -> None:
    m = OLD.migrate(MAPPING, NEW)
    labels = m.labels(["dog", "cat", "kitten", "cow", "ox", "pet"])
    assert [NEW.nodes[v] if v >= 0 else None for v in labels] == [
        "canine",
        "feline",
        "feline",
        "cattle",
        None,
        "pet",
    ]
    assert m.report(["dog", "dog", "cat", "kitten", "cow", "ox"]) == {
        "kept": 0, "renamed": 1, "merged": 2, "split": 2, "scattered": 0, "dropped": 1,
    }  # fmt: skip
    p = np.array([[0.1, 0.2, 0.3, 0.15, 0.25]])  # label order: cat, cow, dog, kitten, ox
    assert OLD.leaves == ("cat", "cow", "dog", "kitten", "ox")
    q = m.scores(p)[0]
    assert {NEW.nodes[v]: round(float(x), 6) for v, x in enumerate(q) if x} == {
        "feline": 0.25, "cattle": 0.2, "canine": 0.3,
    }  # fmt: skip
    weight, bias = m.head(np.arange(10.0).reshape(5, 2), np.arange(5.0))
    rows = dict(zip(NEW.leaves, weight.tolist(), strict=True))
    assert rows == {"beagle": [4, 5], "husky": [4, 5], "feline": [3, 4], "cattle": [2, 3], "emu": [0, 0]}
    assert bias is not None
    assert bias[NEW.label("feline")] == 1.5
    np.testing.assert_allclose(m.scores(np.eye(OLD.num_nodes)).sum(), (m.nodes >= 0).sum())


def test_a_coarse_label_of_a_split_class_trains_the_next_version() -> None:
    m = OLD.migrate(MAPPING, NEW)
    loss = hace.build_loss("hace", NEW, labels="nodes")
    z = torch.zeros(2, loss.num_outputs, requires_grad=True)
    loss(z, torch.from_numpy(m.labels(["dog", "cat"]))).backward()
    assert z.grad is not None
    assert torch.isfinite(z.grad).all()


def test_a_class_that_has_parts_now_was_split() -> None:
    old = Hierarchy.from_paths([("pet", "canine"), ("pet", "feline"), ("farm", "emu")])
    assert old.migrate({}, NEW).report(["canine", "feline"]) == {
        "kept": 1, "renamed": 0, "merged": 0, "split": 1, "scattered": 0, "dropped": 0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("m.csv", "old,new\ndog,husky\ndog,beagle\ncat,feline\nox,\n"),
        ("m.txt", "# ours\n\n→ dog\n⇒ husky\n⇒ beagle\n\n→ cat\n⇒ feline\n\n→ ox\n"),
    ],
)
def test_a_mapping_from_a_file(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert hace.read_mapping(tmp_path / name) == {"dog": ["husky", "beagle"], "cat": ["feline"], "ox": []}
    for wrong in ("", "name,id\na,b\n", "⇒ husky\n→ dog\n", "→ dog\nhusky\n"):
        (tmp_path / name).write_text(wrong, encoding="utf-8")
        with pytest.raises(FormatError, match="must have columns old and new, or lines"):
            hace.read_mapping(tmp_path / name)


def test_migration_says_what_is_missing() -> None:
    with pytest.raises(HierarchyError) as caught:
        OLD.migrate({"dgo": "husky", "cat": "felidae"}, NEW)
    said = "\n".join(caught.value.problems)
    assert (
        "mapping must name nodes of the old version. Got 'dgo'. Did you mean 'dog'? Correct it, or pass strict=False"
        in said
    )
    assert "mapping must lead to nodes of the new version. Got 'felidae'" in said
    assert "Every class of the old version must have a place" in said
    assert OLD.migrate({"cat": "feline"}, NEW, strict=False).labels(["dog"]).tolist() == [-1]
    typos = OLD.migrate({"dgo": "husky", "dog": ["husky", "begle"], "cat": "feline"}, NEW, strict=False)
    assert typos.labels(["dog"]).tolist() == [NEW.index("husky")]
    assert NEW.migrate({}, NEW).cases == ("kept",) * NEW.num_nodes


@pytest.mark.long
def test_a_million_names_in_a_million_nodes() -> None:
    """About 20 s on a quiet core; no time is asserted."""
    n = 1_000_000
    parents = np.concatenate([[-1], np.arange(n - 1) // 50])
    names = {str(i): f"Genus{i // 7} species_{i}" for i in range(n)}
    h = Hierarchy.from_parents(parents, names=names)
    inside = h.within([f"genus{i // 7} Species {i}" for i in range(n // 50, n)])
    assert inside.num_leaves == n - n // 50


# -- tables of correspondence, small ones in the layouts of their publishers

ISCO = (
    "ISCO-88 code,ISCO-88 Title EN,ISCO 08 Code,ISCO-08 part,ISCO-08 Title EN,Comments\n"
    "1110,Legislators,1111,,Legislators,\n"
    "1120,Senior government officials,1112,,Senior government officials,\n"
    "1210,Directors,1112,p,Senior government officials,\n"
    "1210,Directors,1120,p,Managing directors,\n"
    "1311,General managers in agriculture,1311,p,Agricultural managers,see note\n"
    "1311,General managers in agriculture,1312,p,Aquaculture managers,\n"
    "0110,Armed forces,0110,,Commissioned officers,\n"
    "0110,Armed forces,0210,,Non-commissioned officers,\n"
)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        (
            "isco.csv",
            ISCO,
            {
                "1110": ["1111"],
                "1120": ["1112"],
                "1210": ["1112", "1120"],
                "1311": ["1311", "1312"],
                "0110": ["0110", "0210"],
            },
        ),
        (
            "ads.tsv",
            "Product 2.0\t\t\t\tProduct 1.1\t\t\nP2 Name\tUnique ID\tParent ID\tTier 1\tP1 UID\tP1 Parent ID\tName\n"
            "Bars\t1002\t1001\tAlcohol\t650\t648\tBars\nAlcohol\t1001\t\tAlcohol\t\t\t\n",
            {"1002": ["650"], "1001": []},
        ),
        (
            "content.tsv",
            "Content 1.0 Unique ID\tContent 1.0 Category\tContent 2.0 Unique ID\tContent 2.0 Parent\nIAB1\tArts\t1014\t1010\n",
            {"IAB1": ["1014"]},
        ),
        (
            "swapped.tsv",
            "New Taxonomy ID\tOLD RTB ID\tSubject\n603\tIAB19-1\tGraphics\n",
            {"IAB19-1": ["603"]},
        ),
        (
            "genres.tsv",
            "CTV Genres\tContent 3.1 Unique ID\tMapping\nAction\t325\tAction\n",
            {"Action": ["325"]},
        ),
        (
            "industries.txt",
            "|2012_naics_code|2012_naics_title|2007_naics_code|2007_naics_title\n0|11|Farms|12|Farms\n1|13|Mills|12|Farms\n",
            {"12": ["11", "13"]},
        ),
        (
            "industries.tsv",
            "2017 NAICS Code\t2017 NAICS Title\t2022 NAICS Code\t2022 NAICS Title\n11\tFarms\t12\tFarms\n",
            {"11": ["12"]},
        ),
        ("semicolons.csv", "Old ID;New ID\na;b\nc;\n", {"a": ["b"], "c": []}),
        ("tabs.csv", "Old ID\tNew ID\na\tb\nc\t\n", {"a": ["b"], "c": []}),
    ],
)
def test_correspondence_as_publishers_write_it(
    name: str, text: str, expected: dict[str, list[str]], tmp_path: Path
) -> None:
    for encoding in ("utf-8", "utf-8-sig", "utf-16"):
        (tmp_path / name).write_text(text, encoding=encoding)
        assert hace.read_mapping(tmp_path / name) == expected


def test_columns_of_a_correspondence_by_name_and_what_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    path.write_text("a code,b code,c code\n1,2,3\n")
    with pytest.raises(FormatError, match=r"Name them: columns=\(old, new\)"):
        hace.read_mapping(path)
    assert hace.read_mapping(path, columns=("a code", "c code")) == {"1": ["3"]}
    with pytest.raises(ConfigError, match="columns must name two columns"):
        hace.read_mapping(path, columns=("a code", "d"))
    for broken in ('"\n', "old,new\n,\n", "\x00\x01"):
        path.write_text(broken)
        with pytest.raises(FormatError):
            hace.read_mapping(path)
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for row in (["ISCO-88 code", "ISCO 08 Code"], [1110, 1111], [1110, "=1+1"]):
        book.active.append(row)
    book.save(tmp_path / "m.xlsx")
    assert hace.read_mapping(tmp_path / "m.xlsx") == {"1110": ["1111"]}


def test_occupations_move_to_their_next_version(tmp_path: Path) -> None:
    """Codes that were split become coarse labels above their parts, merged ones one label."""
    path = tmp_path / "corrtab88-08.csv"
    path.write_text(ISCO)
    mapping = hace.read_mapping(path)

    def version(codes: set[str]) -> Hierarchy:
        rows = {code[:end] for code in codes for end in range(1, 5)}
        return hace.formats.parse_hierarchy(
            "code,title\n" + "".join(f"{code},t{code}\n" for code in sorted(rows)), "csv", parents="prefix"
        )

    old, new = version(set(mapping)), version({code for codes in mapping.values() for code in codes})
    moved = old.migrate(mapping, new)
    labels = ["1110", "1120", "1210", "1311", "0110"]
    now = [None if v < 0 else new.nodes[v] for v in moved.labels(labels)]
    assert now == ["1111", "1112", "11", "131", "0"]
    report = moved.report(labels)
    assert report["split"] == 3
    far = old.migrate({**mapping, "1210": ["1112", "0110"]}, new)
    assert far.labels(["1210"]).tolist() == [-1]
    assert far.report(["1210"])["scattered"] == 1
    rooted = new.with_root()
    assert old.migrate({**mapping, "1210": ["1112", "0110"]}, rooted).labels(["1210"]).tolist() == [
        rooted.index(rooted.tops[0])
    ]
