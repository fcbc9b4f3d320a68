"""Tables of codes as their publishers write them: small ones in the layouts of real files."""

from __future__ import annotations

from pathlib import Path

import pytest

from hace.errors import FormatError, HierarchyError
from hace.formats import parse_hierarchy, read_hierarchy
from hace.formats.code_tables import prefix_parents
from hace.hierarchy import Hierarchy


def paths(h: Hierarchy) -> dict[str, tuple[str, ...]]:
    return {h.name(leaf): tuple(map(h.name, h.path(leaf)[1:])) for leaf in h.leaves}


BANNER = (
    "Relational ID System\t\t\tContent Taxonomy Tiered Categories\t\t\tExtension\n"
    "Unique ID\tParent\tName\tTier 1\tTier 2\tTier 3\t\n"
    "1\t\tVehicles\tVehicles\t\t\t\n"
    "2\t1\tBody Styles\tVehicles\tBody Styles\t\t\n"
    "7\t2\tCoupe\tVehicles\tBody Styles\tCoupe\t\n"
    "9\t9\tAttractions\tAttractions\t\t\t\n"
)


def test_a_banner_tiers_and_a_self_parent() -> None:
    h = parse_hierarchy(BANNER, "tsv")
    assert paths(h) == {"Coupe": ("Body Styles", "Vehicles"), "Attractions": ()}
    assert h.notes == ("line 1 is above the header and left out",)


def test_parents_that_are_missing_make_tops_and_are_said() -> None:
    text = 'section,hscode,description,parent,level\nI,01,"Animals; live",TOTAL,2\nI,0101,Horses,01,4\n'
    h = parse_hierarchy(text, "csv")
    assert paths(h) == {"Horses": ("Animals; live",)}
    assert "the parent of '01' is not in the file" in h.notes[0]


@pytest.mark.parametrize(
    ("codes", "parents"),
    [
        ("1 11 111 1111 112 2 21 211", ["", "1", "11", "111", "11", "", "2", "21"]),  # ISCO
        ("01 01.1 01.11 01.2 02 02.1", ["", "01", "01.1", "01", "", "02"]),  # NACE
        ("A00 A00.0 A00.01 B99 B99.0", ["", "A00", "A00.0", "", "B99"]),  # ICD-10
        ("A00-B99 A00-A09 A00 A00.0 B20", ["", "A00-B99", "A00-A09", "A00", "A00-B99"]),  # with blocks
        (
            "IAB1 " + " ".join(f"IAB1-{i}" for i in range(1, 13)) + " IAB2 IAB3 IAB4 IAB5 IAB6 IAB7 IAB8 IAB9 IAB10 IAB10-1",
            ["", *["IAB1"] * 12, *[""] * 9, "IAB10"],
        ),
    ],
)  # fmt: skip
def test_prefixes_tell_digits_that_are_levels_from_numbers_that_count(codes: str, parents: list[str]) -> None:
    assert prefix_parents(codes.split(), made=False) == dict(zip(codes.split(), parents, strict=True))


@pytest.mark.parametrize(
    "codes", ["1 2 3 4 5 6 7 8 9 10 11 12", "5 12 51", "cat-1 dog-2", "n01440764 n01443537"]
)
def test_a_flat_list_of_codes_is_no_tree(codes: str) -> None:
    assert prefix_parents(codes.split(), made=False) is None
    rows = "".join(f"{code},class {code}\n" for code in codes.split())
    with pytest.raises(FormatError, match="the columns must be id and parent"):
        parse_hierarchy("id,name\n" + rows, "csv")


def test_prefixes_on_request_make_what_is_missing() -> None:
    text = "code,title\n1.2.1,a\n1.2.2,b\n1.3,c\n"
    h = parse_hierarchy(text, "csv", parents="prefix")
    assert paths(h) == {"a": ("1.2", "1"), "b": ("1.2", "1"), "c": ("1",)}
    assert any("prefixes of the codes" in note for note in h.notes)
    with pytest.raises(FormatError, match="needs a column of codes"):
        parse_hierarchy("colour,shape\nred,round\n", "csv", parents="prefix")


def test_a_code_that_is_there_twice_is_named_with_its_lines() -> None:
    text = BANNER + "7\t1\tBikes\tVehicles\tBikes\t\t\n"
    with pytest.raises(HierarchyError, match="line 7: the code '7' is on line 5 already"):
        parse_hierarchy(text, "tsv")


LEVELS = "level 1,level 2,level 3\nProcesses,,\nProcesses,Magnetism,Fields\nObjects,Stars,Fields\nObjects,Stars,Giants\n"


def test_concepts_that_paths_share_make_a_dag(tmp_path: Path) -> None:
    path = tmp_path / "thesaurus.csv"
    path.write_text(LEVELS)
    with pytest.raises(HierarchyError, match=r"ids=\"shared\" makes one node of them.*-o ids=shared"):
        read_hierarchy(path)
    h = read_hierarchy(path, ids="shared")
    assert sorted(h.parents("Fields")) == ["Magnetism", "Stars"]
    assert Hierarchy.from_paths([("a", "x"), ("b", "x"), ("b", "y")], ids="shared").parents("x") == ("a", "b")


def test_a_thesaurus_in_json_nested_and_as_a_list(tmp_path: Path) -> None:
    star = '{"name": "Stars", "uri": "u:3", "children": null}'
    nested = tmp_path / "nested.json"
    nested.write_text(
        f'{{"children": [{{"name": "A", "uri": "u:1", "children": [{star}]}}, '
        f'{{"name": "B", "uri": "u:2", "children": [{star}]}}]}}'
    )
    with pytest.raises(HierarchyError, match="ids='shared'"):
        read_hierarchy(nested)
    listed = tmp_path / "list.json"
    listed.write_text(
        '[{"uri": "u:1", "name": "A", "broader": null, "notes": [{"title": "t", "comment": "c"}]},'
        ' {"uri": "u:2", "name": "B", "broader": null},'
        ' {"uri": "u:3", "name": "Stars", "altNames": ["Suns"],'
        '  "broader": [{"name": "A", "uri": "u:1"}, {"name": "B", "uri": "u:2"}]}]'
    )
    h = read_hierarchy(nested, ids="shared")
    assert h.parents("u:3") == ("u:1", "u:2")
    other = read_hierarchy(listed)
    assert (other.nodes, other.names, other.edges.tolist()) == (h.nodes, h.names, h.edges.tolist())
    assert other.synonyms == {"Suns": "u:3"}


@pytest.mark.parametrize(
    "text",
    [
        "id,parent,name\n",
        "Unique ID\tParent\tName\n\t\t\n",
        "code,parent\na,b\nb,a\n",
        "code,name\n" + "".join(f"{'9' * i},x\n" for i in range(1, 400)),  # longer than any code
        "code,parent,name\n" + '"\n',
    ],
)  # fmt: skip
def test_hostile_tables_end_in_a_message(text: str) -> None:
    with pytest.raises((FormatError, HierarchyError), match=r"\w"):
        parse_hierarchy(text, "tsv" if "\t" in text else "csv")
