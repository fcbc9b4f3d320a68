"""Taxonomies as they are published: the real files, relatives in the same layouts, and what one format hands to another."""

from __future__ import annotations

import gzip
import io
import json
import re
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hace
from hace import FormatError, Hierarchy, HierarchyError
from hace.cli import main
from hace.formats import parse_hierarchy, read_hierarchy, render_hierarchy
from tests.hierarchies import Plain, hierarchies

RealData = Callable[[str], Path]
DOCS = Path(__file__).parents[2] / "docs" / "taxonomies.md"

# File, what it is, nodes, leaves, tops; None where the file is refused by name.
PUBLISHED: dict[str, tuple[str, tuple[int, int, int] | None]] = {
    "google_taxonomy-with-ids.en-US.txt": ("Google product taxonomy, with ids", (5595, 4719, 21)),
    "google_taxonomy.en-US.txt": ("Google product taxonomy, without ids", (5795, 4748, 21)),
    "shopify_categories.txt": ("Shopify product taxonomy, categories.txt", (14606, 11942, 26)),
    "shopify_lb_luggage_bags.yml": ("Shopify, one branch in YAML", (37, 31, 1)),
    "coco_panoptic_categories.json": ("COCO categories", (159, 133, 27)),
    "openimages_bbox_labels_600_hierarchy.json": ("Open Images hierarchy", (602, 525, 1)),
    "ncbi_nodes.dmp": ("NCBI taxdump", (10, 2, 1)),
    "ncbi_names.dmp": ("NCBI taxdump, by its names", (10, 2, 1)),
    "gtdb_sample.tsv": ("GTDB taxonomy", (1513, 600, 1)),
    "coldp_hominidae_name-usage.csv": ("Catalogue of Life data package", (116, 71, 1)),
    "inaturalist_dwca_taxa.csv": ("Darwin Core taxa", (2, 2, 2)),
    "obographs_nucleus.json": ("obographs JSON", (10, 3, 1)),
    "nucleus.obo": ("OBO", (10, 3, 1)),
    "cl-basic.obo": ("Cell Ontology, OBO", (2526, 1818, 527)),
    "ro.owl": ("OWL", (75, 28, 5)),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_taxonomies_open(
    name: str, real_data: RealData, capsys: pytest.CaptureFixture[str]
) -> None:
    path, (_, counts) = real_data("taxonomies") / name, PUBLISHED[name]
    h = read_hierarchy(path)
    assert (h.num_nodes, h.num_leaves, len(h.tops)) == counts
    assert main(["hierarchy", str(path)]) == 0
    said = capsys.readouterr().out
    assert all(f"note: {note}" in said for note in h.notes)
    for form in ("json", "csv"):  # what is written comes back, ranks and other names included
        again = parse_hierarchy(render_hierarchy(h, form), form, rooted=h.rooted, flat=True)
        assert (again.nodes, again.names, again.ranks) == (h.nodes, h.names, h.ranks)
        synonyms = {name: id for name, id in h.synonyms.items() if form == "json" or "|" not in name}
        assert again.synonyms == synonyms


def test_the_page_lists_what_opens() -> None:
    """The table "which taxonomies open" in the docs is the one above."""
    rows = [
        f"| {what} | `{name}` | {counts[0]:,} nodes, {counts[1]:,} classes |"
        for name, (what, counts) in PUBLISHED.items()
    ]
    assert "\n".join(rows) in DOCS.read_text(encoding="utf-8")


def test_facts_of_the_published_files(real_data: RealData) -> None:
    folder = real_data("taxonomies")
    shop = read_hierarchy(folder / "shopify_categories.txt")
    assert shop.max_depth == 8
    images = read_hierarchy(folder / "openimages_bbox_labels_600_hierarchy.json")
    assert images.num_edges == 647
    assert images.kind == "DAG"
    parts = read_hierarchy(folder / "openimages_bbox_labels_600_hierarchy.json", parts=True)
    assert 647 < parts.num_edges <= 647 + 38
    taxa = read_hierarchy(folder / "inaturalist_dwca_taxa.csv")
    assert "the parents of 2 nodes are not in the file; they are tops" in taxa.notes[0]
    gtdb = read_hierarchy(folder / "gtdb_sample.tsv")
    assert gtdb.level_names == ("phylum", "class", "order", "family", "genus", "species")
    assert gtdb.match(["Escherichia coli"])[0].id == "s__Escherichia coli"
    obo, graph = (read_hierarchy(folder / name) for name in ("nucleus.obo", "obographs_nucleus.json"))
    assert set(obo.nodes) == set(graph.nodes)
    assert {(obo.nodes[a], obo.nodes[b]) for a, b in obo.edges} == {
        (graph.nodes[a], graph.nodes[b]) for a, b in graph.edges
    }
    cells = read_hierarchy(folder / "cl-basic.obo")
    assert any(note.startswith("158 obsolete terms") for note in cells.notes)
    assert cells.match(["T-cell"])[0].id == cells.match(["T cell"])[0].id == "CL:0000084"


@pytest.mark.slow
def test_shopify_migrates_by_its_own_mapping(real_data: RealData, tmp_path: Path) -> None:
    """The vendor's mapping, from the version before: the new categories with the old paths in place of the new ones."""
    folder = real_data("taxonomies")
    with pytest.raises(FormatError, match=r"Got a mapping: hace\.read_mapping reads it"):
        read_hierarchy(folder / "shopify_2025-12_to_2026-08.txt")
    mapping = hace.read_mapping(folder / "shopify_2025-12_to_2026-08.txt")
    assert len(mapping) == 108
    assert all(len(ends) == 1 for ends in mapping.values())
    new = read_hierarchy(folder / "shopify_categories.txt")
    before = {ends[0]: path for path, ends in mapping.items()}
    lines = (folder / "shopify_categories.txt").read_text(encoding="utf-8").splitlines()
    lines = [line.partition(" : ")[::2] for line in lines if line.startswith("gid:")]
    ids = {path: f"{id.strip()}-old" if path in before else id for id, path in lines}
    (tmp_path / "old.txt").write_text(
        "".join(f"{id} : {before.get(path, path)}\n" for path, id in ids.items()), encoding="utf-8"
    )
    old = read_hierarchy(tmp_path / "old.txt", "paths")
    m = old.migrate(mapping, new)
    moved = old.index(f"{dict(map(reversed, lines))[next(iter(before))].strip()}-old")
    assert old.names[moved] != new.names[m.nodes[moved]]
    labels = np.array([v for v, case in enumerate(m.cases) if case == "renamed" and old.labels[v] >= 0] * 2)
    assert m.report(labels) == {
        "kept": 0,
        "renamed": len(labels),
        "merged": 0,
        "split": 0,
        "dropped": 0,
        "scattered": 0,
    }
    assert (m.nodes >= 0).all()
    eye = np.eye(old.num_leaves, dtype=np.float32)[:50]
    assert (m.scores(eye).argmax(axis=1) == m.nodes[old.leaf_nodes[:50]]).all()
    weight, bias = m.head(np.arange(old.num_leaves)[:, None], np.arange(old.num_leaves))
    place = {int(v): label for label, v in enumerate(m.nodes[old.leaf_nodes].tolist())}
    assert weight[:, 0].tolist() == [place[v] for v in new.leaf_nodes.tolist()] == list(bias)


# ---------------------------------------------------------------------- the same kinds, in other copies

DWC = """taxonID\tparentNameUsageID\tacceptedNameUsageID\ttaxonomicStatus\ttaxonRank\tscientificName\tscientificNameAuthorship
k\t\t\taccepted\tkingdom\tAnimalia\t
c\tk\t\taccepted\tclass\tAves\t
f\tc\t\taccepted\tfamily\tIcteridae\t
s\tf\t\taccepted\tspecies\tEuphagus cyanocephalus (Wagler, 1829)\t(Wagler, 1829)
y\t\ts\tsynonym\tspecies\tScolecophagus mexicanus Swainson, 1829\tSwainson, 1829
o\tc\t\taccepted\tspecies\tCorvus "corax"\tL.
"""
COMMON = "taxonID\tvernacularName\tlanguage\ns\tBrewer's Blackbird\ten\no\tCommon Raven\ten\n"


def test_a_darwin_core_archive(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "dwca.zip", "w") as packed:
        for name, text in {"meta.xml": "<archive/>", "taxon.txt": DWC, "vernacularname.txt": COMMON}.items():
            packed.writestr(name, text)
    h = read_hierarchy(tmp_path / "dwca.zip")
    assert h.leaves == ("o", "s")
    assert h.name("s") == "Euphagus cyanocephalus"
    assert h.level("family") == ("f",)
    names = [
        "Brewer Blackbird",
        "Scolecophagus mexicanus",
        "Euphagus cyanocephalus Wagler, 1829",
        "common raven",
    ]
    assert [m.id for m in h.match(names)] == ["s", "s", "s", "o"]
    part = h.within(["brewer_blackbird", "Common Raven"], ranks=["class", "family"])
    assert part.nodes == ("c", "f", "s", "o")


def _tar(path: Path, files: dict[str, str]) -> Path:
    with tarfile.open(path, "w:gz") as packed:
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            packed.addfile(info, io.BytesIO(text.encode()))
    return path


NODES = "".join(f"{id}\t|\t{parent}\t|\t{rank}\t|\tXX\t|\n" for id, parent, rank in [
    (1, 1, "no rank"), (9, 1, "family"), (10, 9, "genus"), (11, 10, "species"), (12, 10, "species"),
    (13, 77, "species")])  # fmt: skip
NAMES = "".join(f"{id}\t|\t{name}\t|\t\t|\t{kind}\t|\n" for id, name, kind in [
    (1, "root", "scientific name"), (9, "Felidae", "scientific name"), (10, "Panthera", "scientific name"),
    (11, "Panthera leo", "scientific name"), (11, "lion", "genbank common name"), (11, "Felis leo", "synonym"),
    (12, "Panthera onca", "scientific name"), (13, "Lost thing", "scientific name")])  # fmt: skip


@pytest.mark.parametrize("kind", ["tar.gz", "zip", "folder"])
def test_a_taxdump(kind: str, tmp_path: Path) -> None:
    files = {"nodes.dmp": NODES, "names.dmp": NAMES, "merged.dmp": "5\t|\t11\t|\n", "citations.dmp": "x"}
    path = tmp_path / f"taxdump.{kind}"
    if kind == "tar.gz":
        _tar(path, files)
    elif kind == "zip":
        with zipfile.ZipFile(path, "w") as packed:
            for name, text in files.items():
                packed.writestr(name, text)
    else:
        path = tmp_path / "nodes.dmp"
        for name, text in files.items():
            (tmp_path / name).write_text(text)
    h = read_hierarchy(path)
    assert h.num_nodes == 6
    assert h.name("11") == "Panthera leo"
    assert [m.id for m in h.match(["lion", "Felis leo", "5", "felidae"])] == ["11", "11", "11", "9"]
    assert h.notes == ("the parent of '13' is not in the file; it is a top",)
    assert h.within(["lion", "Panthera onca"]).level_names == ("family", "genus", "species")


INAT = (
    "taxon_id,ancestry,rank_level,rank,name,active\n48460,,100,stateofmatter,Life,true\n1,48460,70,kingdom,Animalia,true\n"
    "3,48460/1,50,class,Aves,true\n8,48460/1/3,10,species,Corvus corax,true\n9,48460/1/3,10,species,Pica pica,true\n"
)
RANKS = (
    "kingdom,class,order,family,genus,species,common name\nAnimalia,Aves,,Corvidae,Corvus,corax,raven\n"
    "Animalia,Aves,,Corvidae,,,crow family\nAnimalia,,Decapoda,,Cancer,Cancer pagurus,\nPlantae,,,Corvidae,Xus,Xus y,\n"
)


def test_ancestry_and_columns_of_ranks(tmp_path: Path) -> None:
    (tmp_path / "taxa.csv").write_text(INAT)
    h = read_hierarchy(tmp_path / "taxa.csv")
    assert h.path("8") == ("8", "3", "1", "48460")
    assert h.level_names == ("kingdom", "class", "species")
    with gzip.open(tmp_path / "taxa2.csv.gz", "wt") as file:
        file.write(INAT)
    assert read_hierarchy(tmp_path / "taxa2.csv.gz") == h
    h = parse_hierarchy(RANKS, "csv")
    assert h.match(["raven", "crow family", "Corvus corax"])[0].id == "Corvus corax"
    assert h.path("Corvus corax") == ("Corvus corax", "Corvus", "Animalia/Aves/Corvidae", "Aves", "Animalia")
    assert h.path("Xus y")[2] == "Plantae/Corvidae"  # another family of the same name
    assert h.path("Cancer pagurus") == (
        "Cancer pagurus",
        "Cancer",
        "Decapoda",
        "Animalia",
    )  # empty ranks are skipped


def test_other_copies(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "taxa.csv.gz", "wt") as file:  # iNaturalist's own copy is divided by tabs
        file.write(INAT.replace(",", "\t"))
    assert read_hierarchy(tmp_path / "taxa.csv.gz").path("8") == ("8", "3", "1", "48460")
    (tmp_path / "taxonomy.tsv").write_text(
        "Feature ID\tTaxon\nx1\tk__Bacteria; p__A; g__; s__\nx2\tk__Bacteria; p__B\n"
    )
    h = read_hierarchy(tmp_path / "taxonomy.tsv")
    assert h.leaves == ("p__A", "p__B")
    assert h.match(["x1"])[0].id == "p__A"
    (tmp_path / "names.csv").write_text("/m/0,Thing\n/m/1,Toy, small\n")
    (tmp_path / "images.json").write_text('{"LabelName": "/m/0", "Subcategory": [{"LabelName": "/m/1"}]}')
    assert read_hierarchy(tmp_path / "images.json", names=tmp_path / "names.csv").names == (
        "Thing",
        "Toy, small",
    )


def test_more_path_lists(tmp_path: Path) -> None:
    """Most lines are tops; semicolons with and without one at the end; a table with semicolons is none."""
    (tmp_path / "few.txt").write_text("1 - A\n2 - A > B\n3 - C\n4 - D\n")
    assert read_hierarchy(tmp_path / "few.txt").path("2") == ("2", "1")
    for end in ("", ";"):
        (tmp_path / "silva.txt").write_text(
            f"Bacteria;Firmicutes;Bacilli{end}\nBacteria;Cyanobacteria{end}\n"
        )
        h = read_hierarchy(tmp_path / "silva.txt")
        assert h.leaves == ("Bacilli", "Cyanobacteria")
        assert h.tops == ("Bacteria",)
    for table in ("parent;child\nx;y\n", "taxonID;name\n1;x\n"):
        (tmp_path / "table.txt").write_text(table)
        with pytest.raises(FormatError, match=r"must say the format|Got 'taxonID', 'name'"):
            read_hierarchy(tmp_path / "table.txt")


def test_an_epithet_that_repeats_its_genus() -> None:
    h = parse_hierarchy("genus,species\nPica,pica\nlynx,lynx\nGorilla,Gorilla\nBubo,Bubo bubo\n", "csv")
    assert {"Pica pica", "lynx lynx", "Bubo bubo"} <= set(h.leaves)
    assert not {"Gorilla Gorilla", "pica"} & set(h.nodes)


def test_lvis_and_coco_annotation_files() -> None:
    lvis = {"categories": [{"id": 1, "name": "aerosol_can", "synonyms": ["aerosol_can", "spray_can"], "synset": "aerosol.n.02"},
                           {"id": 2, "name": "air_conditioner", "synonyms": ["air_conditioner"], "synset": "x"}],
            "images": [], "annotations": []}  # fmt: skip
    h = parse_hierarchy(json.dumps(lvis), "json")
    assert h.leaves == ("aerosol_can", "air_conditioner")
    assert "flat" in h.notes[0]
    assert h.match(["spray can"])[0].id == "aerosol_can"
    coco = {"categories": [{"id": 1, "name": "person", "supercategory": "person"},
                           {"id": 2, "name": "food", "supercategory": "thing"},
                           {"id": 3, "name": "pizza", "supercategory": "food"},
                           {"id": 4, "name": "cake", "supercategory": "food"}]}  # fmt: skip
    h = parse_hierarchy(json.dumps(coco), "json")
    assert h.leaves == ("person", "food", "pizza", "cake")
    assert h.path("pizza") == ("pizza", "food (group)", "thing")
    assert h.path("food") == ("food", "food (group)", "thing")


def test_obo_names_and_relations() -> None:
    text = """[Term]
id: X:1
name: cell
[Term]
id: X:2
name: T cell
alt_id: X:20
synonym: "T \\"lympho\\" cyte" EXACT []
is_a: X:1
is_a: Y:9 ! elsewhere
[Term]
id: X:3
name: receptor
relationship: part_of X:2 ! T cell
[Term]
id: X:4
name: obsolete thing
is_obsolete: true
replaced_by: X:2
"""
    h = parse_hierarchy(text, "obo")
    assert h.synonyms == {"X:20": "X:2", 'T "lympho" cyte': "X:2", "X:4": "X:2"}
    assert h.parents("X:3") == ()
    assert parse_hierarchy(text, "obo", relations="part_of").parents("X:3") == ("X:2",)


@pytest.mark.parametrize(
    ("name", "text", "kind", "words"),
    [
        ("a.txt", "1 - A > B\n1 - A > C\n", HierarchyError, "every path must have its own id. Got '1' twice"),
        ("a.txt", "A > > B\nA > C\n", FormatError, "every part of a path must have a name"),
        ("a.txt", "1 - A > B\n2 - A > B\n3 - A\n", HierarchyError, "its own id. Got .* twice"),
        ("t.csv", "taxonID,parentNameUsageID,scientificName\n1,,a\n1,,b\n", HierarchyError, "the id '1' is on line 2 already"),
        ("t.csv", "taxonID,parentNameUsageID,scientificName\n1,2,a\n2,1,b\n", HierarchyError, "Cycle"),
        ("t.csv", "taxonID,parentNameUsageID,scientificName\n1,a\n", FormatError, "expected 3 columns"),
        ("nodes.dmp", "1\t|\t1\t|\tx\t|\n1\t|\t2\t|\tx\t|\n", HierarchyError, "the node '1' is there twice"),
        ("nodes.dmp", "1\t|\t2\t|\tx\t|\n2\t|\t1\t|\tx\t|\n", HierarchyError, "Cycle"),
        ("x.json", '{"categories": [{"name": "a"}, {"name": "a"}]}', FormatError, "its own name"),
        ("x.json", '{"LabelName": "a", "Subcategory": [{}]}', FormatError, "nodes must have a LabelName"),
        ("x.json", '{"graphs": [{"nodes": [{"lbl": "a"}]}]}', FormatError, "nodes must have id"),
        ("x.yml", "a: [b\n", FormatError, "not YAML"),
        ("x.yml", "model:\n  size: 50\n", FormatError, "needs a name or an id"),
        ("x.owl", '<?xml version="1.0"?>\n<rdf:RDF>\n  <a/>\n', FormatError, "not RDF/XML"),
        ("x.ttl", "@prefix : <x> .\n", FormatError, "must have SKOS concepts or classes"),
        ("x.ttl", "@prefix : <x> \n", FormatError, "not Turtle"),
        ("x.owx", '<?xml version="1.0"?>\n<Ontology xmlns="http://www.w3.org/2002/07/owl#"/>', FormatError, "must not be OWL"),
        ("x.owl", '<!DOCTYPE rdf:RDF [<!ENTITY a "b"><!ENTITY c "&a;&a;">]>\n<rdf:RDF/>', FormatError, "must be plain text"),
        ("x.owl", '<!DOCTYPE rdf:RDF [<!ENTITY a SYSTEM "file:///etc/passwd">]>\n<rdf:RDF/>', FormatError, "must be plain"),
        ("x.py", "class A:\n    b\n", FormatError, "--hierarchy-format indented"),
    ],
)  # fmt: skip
def test_hostile_versions(name: str, text: str, kind: type, words: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(kind, match=words):
        read_hierarchy(tmp_path / name)


def test_archives_that_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HACE_MAX_MEMORY", "1M")
    with gzip.open(tmp_path / "bomb.csv.gz", "wb") as file:
        file.write(b"0" * 3_000_000)
    with pytest.raises(FormatError, match=r"must take at most 0\.0 GiB"):
        read_hierarchy(tmp_path / "bomb.csv.gz")
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("a.csv", b"0" * 3_000_000)
    with pytest.raises(FormatError, match=r"must take at most 0\.0 GiB"):
        read_hierarchy(tmp_path / "bomb.zip")
    (tmp_path / "cut.gz").write_bytes((tmp_path / "bomb.csv.gz").read_bytes()[:50])
    with pytest.raises(FormatError, match="damaged"):
        read_hierarchy(tmp_path / "cut.gz")
    with zipfile.ZipFile(tmp_path / "two.zip", "w") as packed:
        packed.writestr("a.csv", "parent,child\nx,y\n")
        packed.writestr("b.csv", "parent,child\nx,z\n")
    with pytest.raises(FormatError, match=r"which file of the archive.*'a.csv', 'b.csv'.*member="):
        read_hierarchy(tmp_path / "two.zip")
    assert read_hierarchy(tmp_path / "two.zip", member="b.csv").leaves == ("z",)


# ---------------------------------------------------------------------- what one format writes another reads


@given(hierarchies(), st.randoms(use_true_random=False))
@settings(max_examples=40)
def test_ranks_and_synonyms_survive(plain: Plain, random: Random) -> None:
    h = plain.build()
    ranks = {node: random.choice(["", "family", "genus"]) for node in h.nodes}
    synonyms = {f"other {node}": node for node in h.nodes if random.random() < 0.5}
    edges = [(h.nodes[a], h.nodes[b]) for a, b in h.edges.tolist()]
    h = Hierarchy.from_edges(
        edges, nodes=h.nodes, leaves=h.leaves, rooted=h.rooted, ranks=ranks, synonyms=synonyms
    )
    for form in ("json", "csv", "tsv"):
        again = parse_hierarchy(render_hierarchy(h, form), form, rooted=h.rooted, flat=True)
        assert (again.nodes, again.ranks, again.synonyms) == (h.nodes, h.ranks, h.synonyms)


def test_from_200_bird_names_to_a_hierarchy(
    real_data: RealData, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The folder names of CUB within files in the layouts of GBIF, NCBI and Catalogue of Life, each by one command."""
    folder = real_data("cub200_hierarchy")
    birds = read_hierarchy(folder / "cub_flat.parent-child.txt", "edges", names=folder / "classes_flat.txt")
    files = (real_data("cub200_features_lite0") / "files_test.txt").read_text().split()
    classes = sorted({file.split("/")[1] for file in files})  # 001.Black_footed_Albatross, ...
    common = {
        str(int(name[:3])): re.sub(r"_(\w+ed)_", r"-\1 ", name[4:]).replace("_", " ") for name in classes
    }
    rows = [
        (
            id,
            *(birds.parents(id) or ("",)),
            birds.name(id),
            "species" if id in common else "group",
            common.get(id, ""),
        )
        for id in birds.nodes
    ]
    gbif = "taxonID\tparentNameUsageID\tscientificName\ttaxonRank\tvernacularName\n"
    (tmp_path / "Taxon.tsv").write_text(gbif + "".join("\t".join(row) + "\n" for row in rows))
    nodes = "".join(f"{id}\t|\t{up or id}\t|\t{rank}\t|\n" for id, up, _, rank, _ in rows)
    names = "".join(f"{id}\t|\t{name}\t|\t\t|\tscientific name\t|\n" for id, _, name, _, _ in rows)
    names += "".join(f"{id}\t|\t{name}\t|\t\t|\tcommon name\t|\n" for id, *_, name in rows if name)
    _tar(tmp_path / "taxdump.tar.gz", {"nodes.dmp": nodes, "names.dmp": names})
    col = "col:ID\tcol:parentID\tcol:status\tcol:rank\tcol:scientificName\tcol:authorship\n"
    col += "".join(f"{id}\t{up}\taccepted\t{rank}\t{name}\tL.\n" for id, up, name, rank, _ in rows)
    col += "".join(f"s{id}\t{id}\tsynonym\tspecies\tOld nomen{id}\tGmelin\n" for id in common)
    called = "col:taxonID\tcol:name\tcol:language\n" + "".join(
        f"{id}\t{n}\teng\n" for id, n in common.items()
    )
    with zipfile.ZipFile(tmp_path / "coldp.zip", "w") as packed:
        for name, text in {
            "NameUsage.tsv": col,
            "VernacularName.tsv": called,
            "metadata.yaml": "a: b",
        }.items():
            packed.writestr(name, text)
    (tmp_path / "names.txt").write_text("\n".join(classes) + "\n")
    for taxonomy in ("Taxon.tsv", "taxdump.tar.gz", "coldp.zip"):
        out = tmp_path / f"{taxonomy}.csv"
        call = [
            "hierarchy",
            "--classes",
            str(tmp_path / "names.txt"),
            "--within",
            str(tmp_path / taxonomy),
            "--out",
            str(out),
        ]
        assert main(call) == 0
        assert "200 names" in capsys.readouterr().out
        h = read_hierarchy(out)
        assert h.leaves == tuple(str(int(name[:3])) for name in classes)
        assert h.num_nodes == birds.num_nodes
        assert len(h.level("species")) == 200


def test_matches_are_corrected_and_read_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "tree.csv").write_text(
        "parent,child\nCanidae,Canis lupus\nCanidae,Vulpes vulpes\nFelidae,Lynx lynx\n"
    )
    (tmp_path / "names.txt").write_text("canis_lupus\nfox\nblank\n")
    call = ["hierarchy", "--classes", str(tmp_path / "names.txt"), "--within", str(tmp_path / "tree.csv"), "--matches",
            str(tmp_path / "m.csv"), "--out", str(tmp_path / "mine.csv")]  # fmt: skip
    assert main(call) == 2
    assert "2 of 3 names must be matched by hand" in capsys.readouterr().err
    table = (tmp_path / "m.csv").read_text()
    assert "fox,,unknown," in table
    assert "canis_lupus,Canis lupus,spelling," in table
    (tmp_path / "m.csv").write_text("name,id\nfox,Vulpes vulpes\nblank,-\n")
    assert main(call) == 0
    h = read_hierarchy(tmp_path / "mine.csv")
    assert h.leaves == ("Canis lupus", "Vulpes vulpes")
    assert h.match(["fox"])[0].id == "Vulpes vulpes"
    assert main(call[:3]) == 2
    assert "--classes must come with --within" in capsys.readouterr().err
