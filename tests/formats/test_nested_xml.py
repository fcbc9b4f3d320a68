"""XML whose elements hold each other: small documents in the layouts of real ones, and hostile ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from hace.errors import FormatError, HierarchyError
from hace.formats import read_hierarchy

ICD_10_CM = """<?xml version="1.0" encoding="utf-8"?>
<ICD10CM.tabular><version>2025</version><chapter><name>1</name><desc>Infections (A00-B99)</desc>
<includes><note>diseases that spread</note></includes>
<sectionIndex><sectionRef first="A00" last="A09" id="A00-A09">Gut infections</sectionRef></sectionIndex>
<section id="A00-A09"><desc>Gut infections (A00-A09)</desc>
<diag><name>A00</name><desc>Cholera</desc><diag><name>A00.0</name><desc>Classical
  cholera</desc><inclusionTerm><note>True cholera</note></inclusionTerm></diag></diag></section></chapter></ICD10CM.tabular>
"""
GS1 = (
    '<message><schema name="GPC" date="1"><segment code="10" text="Pets" definition=""><family code="1010" text="Food">'
    '<brick code="101001" text="Beds"/><brick code="101002" text="Bowls"/></family></segment></schema></message>'
)
JEL = (
    "<data><classification><code>A</code><description>General</description><classification><code>A1</code>"
    "<description>Teaching</description></classification></classification></data>"
)


@pytest.mark.parametrize(
    ("text", "edges", "id", "name"),
    [
        (ICD_10_CM, {("1", "A00-A09"), ("A00-A09", "A00"), ("A00", "A00.0")}, "A00.0", "Classical cholera"),
        (GS1, {("10", "1010"), ("1010", "101001"), ("1010", "101002")}, "101002", "Bowls"),
        (JEL, {("A", "A1")}, "A1", "Teaching"),
    ],
    ids=["ICD-10-CM", "GS1", "JEL"],
)
def test_layouts_of_publishers(
    text: str, edges: set[tuple[str, str]], id: str, name: str, tmp_path: Path
) -> None:
    path = tmp_path / "codes.xml"
    path.write_text(text, encoding="utf-8")
    h = read_hierarchy(path)
    assert {(h.nodes[parent], h.nodes[child]) for parent, child in h.edges.tolist()} == edges
    assert h.name(id) == name


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('<!DOCTYPE a [<!ENTITY b "c">]>' + JEL, "must not define anything"),
        (
            '<!DOCTYPE a SYSTEM "file:///etc/passwd" [<!ENTITY % b SYSTEM "http://x.example/b">%b;]>' + JEL,
            "must not define",
        ),
        (
            '<!DOCTYPE a SYSTEM "http://x.example/a.dtd">' + JEL.replace("General", "&b;"),
            "some node must be below",
        ),
        (JEL.replace("General", "&b;"), "must be XML"),
        (JEL[:-10] + "x>", "must be XML"),
        ("<data><a>1</a></data>", "must have elements with a code and a title"),
        ('<data><a id="1" name="x"/><a id="2" name="y"/></data>', "some node must be below another"),
        (JEL.replace("A1", "A"), "the id 'A' is there twice"),
        ("<a>" * 200_000 + "</a>" * 200_000, "must have elements with a code and a title"),
    ],
)
def test_hostile_documents_end_in_a_message(text: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "codes.xml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises((FormatError, HierarchyError), match=problem):
        read_hierarchy(path)


def test_a_deep_document_is_read(tmp_path: Path) -> None:
    path = tmp_path / "deep.xml"
    path.write_text("".join(f'<a id="{n}" name="n">' for n in range(5000)) + "</a>" * 5000, encoding="utf-8")
    assert read_hierarchy(path).max_depth >= 4999


def _code_list(*codes: tuple[str, str, str], version: str = "2.1") -> str:
    """A code list of SDMX: codes with their names and parents, one after another."""
    if version == "2.0":
        each = (
            f'<s:Code value="{id}" parentCode="{parent}"><s:Description xml:lang="en">{name}</s:Description></s:Code>'
            for id, name, parent in codes
        )
    else:
        each = (
            f'<s:Code id="{id}"><c:Annotations><c:Annotation id="n"><c:AnnotationText>long</c:AnnotationText></c:Annotation>'
            f'</c:Annotations><c:Name xml:lang="fr">{name} (fr)</c:Name><c:Name xml:lang="en">{name}</c:Name>'
            f"<c:Description>What {name} are.</c:Description>"
            + (f'<s:Parent><Ref id="{parent}"/></s:Parent>' if parent else "")
            + "</s:Code>"
            for id, name, parent in codes
        )
    return (
        '<?xml version="1.0"?><m:Structure xmlns:m="m" xmlns:s="s" xmlns:c="c"><m:Header><m:ID>x</m:ID></m:Header>'
        f'<s:Codelist id="CL_JOB"><c:Name xml:lang="en">Jobs</c:Name>{"".join(each)}</s:Codelist></m:Structure>'
    )


JOBS = (("11", "Chiefs", "1"), ("1", "Managers", ""), ("111", "Legislators", "11"), ("2", "Nurses", "2"))


@pytest.mark.parametrize("version", ["2.0", "2.1"])
def test_codes_that_name_their_parents(version: str, tmp_path: Path) -> None:
    path = tmp_path / "CL_JOB.xml"
    path.write_text(_code_list(*JOBS, version=version), encoding="utf-8")
    h = read_hierarchy(path)
    edges = {(h.nodes[parent], h.nodes[child]) for parent, child in h.edges.tolist()}
    assert edges == {("CL_JOB", "1"), ("1", "11"), ("11", "111"), ("CL_JOB", "2")}
    assert h.name("111") == "Legislators"


def test_a_code_list_with_parents_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "CL_JOB.xml"
    path.write_text(_code_list(*JOBS, ("31", "Clerks", "3")), encoding="utf-8")
    h = read_hierarchy(path)
    assert h.path("31") == ("31", "CL_JOB")
    assert "the parent of '31' is not in the file" in h.notes[0]


def test_codes_above_themselves(tmp_path: Path) -> None:
    path = tmp_path / "CL_JOB.xml"
    path.write_text(_code_list(("1", "a", "2"), ("2", "b", "3"), ("3", "c", "1")), encoding="utf-8")
    with pytest.raises(FormatError, match="cycle '1' -> '2' -> '3' -> '1'"):
        read_hierarchy(path)


def test_a_code_that_is_there_twice(tmp_path: Path) -> None:
    path = tmp_path / "CL_JOB.xml"
    path.write_text(_code_list(("1", "a", ""), ("2", "b", "1"), ("2", "c", "")), encoding="utf-8")
    with pytest.raises((FormatError, HierarchyError), match="the id '2' is there twice"):
        read_hierarchy(path)
