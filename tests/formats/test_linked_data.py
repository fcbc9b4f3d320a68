"""SKOS, RDF and OWL, in small documents of the layouts that thesauri and ontologies have."""

from __future__ import annotations

from pathlib import Path

import pytest

from hace.errors import ConfigError, FormatError, HierarchyError
from hace.formats import parse_hierarchy, read_hierarchy, write_hierarchy
from hace.hierarchy import Hierarchy

pytest.importorskip("rdflib")

TURTLE = """@prefix skos: <http://www.w3.org/2004/02/skos/core#> .
@prefix owl: <http://www.w3.org/2002/07/owl#> .
@prefix : <http://example.org/> .
:stars a skos:Concept ; skos:prefLabel "stars"@en, "Sterne"@de ; skos:narrower :giants .
:objects a skos:Concept ; skos:prefLabel "objects"@en .
:giants a skos:Concept ; skos:prefLabel "giants"@en, "Riesen"@de ; skos:altLabel "giant stars"@en ; skos:broader :objects .
:dwarfs a skos:Concept ; skos:prefLabel "dwarfs"@en ; skos:broader :stars .
:old a skos:Concept ; owl:deprecated true ; skos:broader :stars .
"""

RDF = """<?xml version="1.0"?>
<!DOCTYPE rdf:RDF [<!ENTITY owl "http://www.w3.org/2002/07/owl#">]>
<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#" xmlns:rdfs="http://www.w3.org/2000/01/rdf-schema#"
         xmlns:owl="&owl;" xmlns:oboInOwl="http://www.geneontology.org/formats/oboInOwl#">
  <owl:Class rdf:about="http://purl.obolibrary.org/obo/CL_0000000"><rdfs:label>cell</rdfs:label></owl:Class>
  <owl:Class rdf:about="http://purl.obolibrary.org/obo/CL_0000084">
    <rdfs:label>T cell</rdfs:label><oboInOwl:hasExactSynonym>T lymphocyte</oboInOwl:hasExactSynonym>
    <rdfs:subClassOf rdf:resource="http://purl.obolibrary.org/obo/CL_0000000"/>
    <rdfs:subClassOf><owl:Restriction><owl:onProperty rdf:resource="http://example.org/p"/></owl:Restriction></rdfs:subClassOf>
  </owl:Class>
</rdf:RDF>
"""

FUNCTIONAL = """Prefix(:=<http://purl.obolibrary.org/obo/>)
Prefix(rdfs:=<http://www.w3.org/2000/01/rdf-schema#>)
Ontology(<http://example.org/cells>
Declaration(Class(:CL_0000000))
Declaration(Class(:CL_0000084))
# a comment
AnnotationAssertion(rdfs:label :CL_0000000 "cell")
AnnotationAssertion(rdfs:label :CL_0000084 "T \\"cell\\""@en)
SubClassOf(:CL_0000084 :CL_0000000)
SubClassOf(:CL_0000084 ObjectSomeValuesFrom(:part_of :CL_0000000))
)
"""


def edges(h: Hierarchy) -> set[tuple[str, str]]:
    return {(h.name(h.nodes[p]), h.name(h.nodes[c])) for p, c in h.edges.tolist()}


def test_skos_in_turtle_with_names_in_a_language(tmp_path: Path) -> None:
    path = tmp_path / "thesaurus.ttl"
    path.write_text(TURTLE)
    h = read_hierarchy(path)
    assert edges(h) == {("stars", "giants"), ("objects", "giants"), ("stars", "dwarfs")}
    assert h.synonyms["giant stars"] == h.synonyms["Riesen"] == "http://example.org/giants"
    assert h.notes == ("1 obsolete terms are left out",)
    german = read_hierarchy(path, language="de")
    assert edges(german) == {("Sterne", "Riesen"), ("objects", "Riesen"), ("Sterne", "dwarfs")}
    with pytest.raises(ConfigError, match="language must be text"):
        read_hierarchy(path, language=3)


def test_owl_in_rdf_xml_and_in_functional_syntax() -> None:
    h = parse_hierarchy(RDF, "rdf")
    assert h.nodes == ("CL:0000000", "CL:0000084")
    assert (edges(h), h.synonyms) == ({("cell", "T cell")}, {"T lymphocyte": "CL:0000084"})
    functional = parse_hierarchy(FUNCTIONAL, "rdf")
    assert (functional.nodes, edges(functional)) == (h.nodes, {("cell", 'T "cell"')})


@pytest.mark.parametrize(
    "said",
    [
        "<http://physics.example/core#deprecated> true",
        '<http://example.org/isDeprecated> "true"',
        "<http://example.org/v/obsolete> 1",
        "a owl:DeprecatedClass",
    ],
)
def test_terms_that_are_no_longer_used_as_vocabularies_say_it(said: str) -> None:
    h = parse_hierarchy(TURTLE + f":gone a skos:Concept ; skos:broader :stars ; {said} .", "rdf")
    assert "http://example.org/gone" not in h.nodes
    assert h.notes == ("2 obsolete terms are left out",)
    kept = parse_hierarchy(TURTLE + ":kept a skos:Concept ; <http://example.org/deprecated> false .", "rdf")
    assert "http://example.org/kept" in kept.nodes


_HEAD = (
    '<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#" '
    'xmlns:s="http://www.w3.org/2004/02/skos/core#">'
)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (f'<!DOCTYPE r [<!ENTITY a SYSTEM "file:///etc/passwd">]>{_HEAD}&a;</rdf:RDF>', "plain text"),
        (f'<!DOCTYPE r [<!ENTITY % a "x">%a;]>{_HEAD}</rdf:RDF>', "plain text"),
        (f'<!DOCTYPE r [<!ENTITY a "ha"><!ENTITY b "&a;&a;">]>{_HEAD}&b;</rdf:RDF>', "plain text"),
        (f'<!DOCTYPE r [<!ENTITY a "{"a" * 10**5}">]>{_HEAD}{"&a;" * 10**4}</rdf:RDF>', "memory"),
        (
            "@prefix s: <http://www.w3.org/2004/02/skos/core#> . <a> s:narrower " + "[ s:narrower " * 10**5,
            "not Turtle",
        ),
        ("@prefix s: <http://www.w3.org/2004/02/skos/core#> . <a> s:narrower " + "( " * 10**5, "not Turtle"),
        ("Prefix(:=<http://x#>)\nOntology(" + "A(" * 10**5, "must have SKOS concepts or classes"),
        (TURTLE + ":stars skos:broader :dwarfs .", "Cycle"),
        (FUNCTIONAL.replace("# a comment", "SubClassOf(:CL_0000000 :CL_0000084)"), "Cycle"),
    ],
    ids=["elsewhere", "parameter", "nested", "often", "deep", "lists", "brackets", "cycle", "classes"],
)
def test_hostile_documents_end_in_a_message(text: str, problem: str) -> None:
    with pytest.raises((FormatError, HierarchyError), match=problem):
        parse_hierarchy(text, "rdf")


@pytest.mark.parametrize("text", [TURTLE, RDF, FUNCTIONAL])
@pytest.mark.parametrize("cut", [0.3, 0.6, 0.95])
def test_a_document_that_ends_early_is_no_crash(text: str, cut: float) -> None:
    try:
        assert parse_hierarchy(text[: int(len(text) * cut)], "rdf").num_nodes
    except FormatError:
        pass


def test_a_document_too_large_for_its_graph_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HACE_MAX_MEMORY", "20K")
    with pytest.raises(FormatError, match="must take at most"):
        parse_hierarchy(TURTLE + "# padding\n" * 100, "rdf")


def test_the_first_table_of_a_workbook(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    book.active.append(["read me"])
    sheet = book.create_sheet("codes")
    for row in (
        ["Classification of occupations"],
        ["Level", "Code", "Title"],
        [1, 2, "Professionals"],
        [2, 21, "Science"],
        [2, 22.0, "Health"],
    ):
        sheet.append(row)
    path = tmp_path / "occupations.xlsx"
    book.save(path)
    h = read_hierarchy(path)
    assert edges(h) == {("Professionals", "Science"), ("Professionals", "Health")}
    (tmp_path / "broken.xlsx").write_bytes(path.read_bytes()[:2000])
    with pytest.raises(FormatError, match="an Excel workbook"):
        read_hierarchy(tmp_path / "broken.xlsx")
    with pytest.raises(ConfigError, match="the suffix must be one of"):
        write_hierarchy(h, tmp_path / "out.xlsx")


def test_a_thesaurus_with_classes_of_its_own_and_labels_that_are_nodes() -> None:
    """Concepts count, their classes do not; SKOS-XL names and ISO 25964's kinds of broader are read."""
    text = TURTLE + (
        "@prefix xl: <http://www.w3.org/2008/05/skos-xl#> .\n@prefix iso: <http://purl.org/iso25964/skos-thes#> .\n"
        ":Kind a owl:Class .\n"
        ":novae a skos:Concept ; xl:prefLabel :l1 ; xl:altLabel :l2 ; iso:broaderGeneric :stars .\n"
        ':l1 xl:literalForm "novae"@en .\n:l2 xl:literalForm "new stars"@en .\n'
        ":unnamed skos:broader :stars .\n"
    )
    h = parse_hierarchy(text, "rdf")
    assert ("stars", "novae") in edges(h)
    assert h.synonyms["new stars"] == "http://example.org/novae"
    assert {"http://example.org/Kind", "http://example.org/unnamed"}.isdisjoint(h.nodes)
    assert "1 classes beside the concepts are left out" in h.notes


def test_parents_elsewhere_are_named_by_their_namespace() -> None:
    h = parse_hierarchy(TURTLE + ":far a skos:Concept ; skos:broader <https://other.org/terms#x> .\n", "rdf")
    assert any("('https://other.org/terms#')" in note for note in h.notes)


def test_json_ld_with_its_context_inside(tmp_path: Path) -> None:
    context = '{"skos": "http://www.w3.org/2004/02/skos/core#", "ex": "http://example.org/"}'
    graph = (
        '[{"@id": "ex:a", "@type": "skos:Concept", "skos:prefLabel": {"@value": "stars", "@language": "en"}}, '
        '{"@id": "ex:b", "@type": "skos:Concept", "skos:prefLabel": "giants", "skos:broader": {"@id": "ex:a"}}]'
    )
    path = tmp_path / "vocabulary.jsonld"
    path.write_text(f'{{"@context": {context}, "@graph": {graph}}}')
    assert edges(read_hierarchy(path)) == {("stars", "giants")}
    for outside in (
        '"http://127.0.0.1:9/context.jsonld"',
        f'[{context}, "http://127.0.0.1:9/context.jsonld"]',
    ):
        path.write_text(f'{{"@context": {outside}, "@graph": {graph}}}')
        with pytest.raises(FormatError):  # and nothing was asked for
            read_hierarchy(path)
