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
        (
            "11-0000 11-1000 11-1010 11-1011 15-0000 15-1200 15-1210 15-1211",  # SOC: filled up with zeros
            ["", "11-0000", "11-1000", "11-1010", "", "15-0000", "15-1200", "15-1210"],
        ),
        (
            "03000000-1 03100000-2 03110000-5 03111000-2 30000000-9 31000000-6 31100000-7",  # CPV: a check digit
            ["", "03000000-1", "03100000-2", "03110000-5", "", "", "31000000-6"],
        ),
        ("11 111 1111 31-33 311 321 3211 332", ["", "11", "111", "", "31-33", "31-33", "321", "31-33"]),  # NAICS
        ("A 01 01.1 01.11 02 B 05 05.1", ["", "A", "01", "01.1", "A", "", "B", "05"]),  # ISIC, NACE: sections by order
        ("A00-B99 A00-A09 A00 A00.0 B20", ["", "A00-B99", "A00-A09", "A00", "A00-B99"]),  # with blocks
        (
            "IAB1 " + " ".join(f"IAB1-{i}" for i in range(1, 13)) + " IAB2 IAB3 IAB4 IAB5 IAB6 IAB7 IAB8 IAB9 IAB10 IAB10-1",
            ["", *["IAB1"] * 12, *[""] * 9, "IAB10"],
        ),
    ],
)  # fmt: skip
def test_prefixes_tell_digits_that_are_levels_from_numbers_that_count(codes: str, parents: list[str]) -> None:
    assert prefix_parents(codes.split(), made=False) == dict(zip(codes.split(), parents, strict=True))


def test_a_part_of_a_code_is_no_range() -> None:
    codes = ["12-34", "12-35", "13-01"]
    parents = prefix_parents(codes, made=True)
    assert parents == {"12-34": "12", "12-35": "12", "13-01": "13", "12": "", "13": ""}


@pytest.mark.parametrize(
    "codes",
    [
        "1 2 3 4 5 6 7 8 9 10 11 12",
        "5 12 51",
        "cat-1 dog-2",
        "n01440764 n01443537",
        "1000 1001 1002 1003 1004 1010 1011",
        "1000 2000 3000 4000",
    ],
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
    with pytest.raises(
        HierarchyError,
        match=r"line 7: the code '7' stands for 'Bikes' here and for 'Coupe' on line 5\. A code must stand",
    ):
        parse_hierarchy(text, "tsv")
    text = text.partition("\n")[2]
    with pytest.raises(HierarchyError, match=r"-o 'columns=Tier 1,Tier 2,Tier 3' -o ids=path"):
        parse_hierarchy(text, "tsv")
    h = parse_hierarchy(text, "tsv", columns=["Tier 1", "Tier 2", "Tier 3"], ids="path")
    assert h.path("Vehicles/Bikes") == ("Vehicles/Bikes", "Vehicles")


@pytest.mark.parametrize(
    ("text", "delimiter"),
    [
        ("KIND,PARENTID,CHILDID\ngroup,k1,k2\ngroup,k2,k3\ngroup,k1,k4\n", "csv"),
        ("ID\tlabel\tsubClassOf [ID]\nk1\tA\t\nk2\tB\tk1\nk3\tC\tk2\nk4\tD\tk1|gone\n", "tsv"),
        ("ParentURI,ChildURI\nk1,k2\nk2,k3\nk1,k4\n", "csv"),
    ],
    ids=["ESCO by Tabiya", "ENVO", "edges"],
)
def test_columns_of_parents_under_other_names(text: str, delimiter: str) -> None:
    h = parse_hierarchy(text, delimiter)
    assert {(h.nodes[p], h.nodes[c]) for p, c in h.edges.tolist()} == {
        ("k1", "k2"),
        ("k2", "k3"),
        ("k1", "k4"),
    }


def test_codes_beside_ids_that_mean_nothing_keep_their_names() -> None:
    rows = "u:0,key_1,0,Forces,Jobs in the forces\nu:01,key_2,01,Officers,Leaders\nu:011,key_3,011,Majors,Majors\n"
    h = parse_hierarchy("ORIGINURI,ID,CODE,PREFERREDLABEL,DESCRIPTION\n" + rows, "csv")
    assert paths(h) == {"Majors": ("Officers", "Forces")}


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


# -- lists in which each entry names its parents

TOPICS = """parent: None  child: Root child-description: Root
parent: Root  child: CCAT child-description: CORPORATE/INDUSTRIAL
parent: CCAT  child: C15 child-description: PERFORMANCE
parent: C15  child: C151 child-description: ACCOUNTS/EARNINGS
parent: Root  child: ECAT child-description: ECONOMICS
"""
ENTRIES = """# comments and words that are no names
stopwords:en: and, of
synonyms:en: flavoured, flavored

en: Plant-based foods
fr: Aliments d'origine végétale

< en:Plant-based foods
en: Beans, Legumes
fr: Légumineuses
wikidata:en: Q1
gpc_category_name:en: Beans (Shelf Stable)

<en:Plant-based foods
<fr:légumineuses
en: Dried beans
de: Getrocknete Bohnen, Trockenbohnen

< en:Beans

< en:Somewhere else
fr: Crème brûlée
"""


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_topics_with_their_parents(tmp_path: Path, newline: str, encoding: str) -> None:
    path = tmp_path / "rcv1.topics.hier.orig"
    path.write_bytes(TOPICS.replace("\n", newline).encode(encoding))
    h = read_hierarchy(path)
    assert h.rooted
    assert paths(h) == {
        "ACCOUNTS/EARNINGS": ("PERFORMANCE", "CORPORATE/INDUSTRIAL", "Root"),
        "ECONOMICS": ("Root",),
    }
    with pytest.raises(FormatError, match=r"line 3: expected 'parent: A child: B'\. Got 'C15 STRATEGY'"):
        parse_hierarchy("\n".join([*TOPICS.splitlines()[:2], "C15 STRATEGY"]), "topics")
    with pytest.raises(HierarchyError, match="cycle"):
        parse_hierarchy("parent: A child: B\nparent: B child: A\n", "topics")
    lost = parse_hierarchy("parent: X child: A\nparent: A child: B\n", "topics")
    assert "the parent of 'A' is not in the file" in lost.notes[0]


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_entries_with_names_in_several_languages(tmp_path: Path, newline: str, encoding: str) -> None:
    path = tmp_path / "categories.txt"
    path.write_bytes(ENTRIES.replace("\n", newline).encode(encoding))
    h = read_hierarchy(path)
    assert sorted(h.parents("en:dried-beans")) == ["en:beans", "en:plant-based-foods"]
    assert (h.name("en:beans"), h.synonyms["Légumineuses"], h.synonyms["Trockenbohnen"]) == (
        "Beans",
        "en:beans",
        "en:dried-beans",
    )
    assert not any("Shelf Stable" in name for name in h.synonyms)  # a property
    assert not h.parents("fr:creme-brulee")
    assert any("the parent of 'fr:creme-brulee' is not in the file" in note for note in h.notes)
    assert any("blocks of parents without a name are left out: 'line 19'" in note for note in h.notes)
    with pytest.raises(FormatError, match=r"line 2: a parent must be '< en:Name'\. Got '< nowhere'"):
        parse_hierarchy("en: A\n< nowhere\nen: B\n", "entries")
    with pytest.raises(HierarchyError, match="cycle"):
        parse_hierarchy("< en:B\nen: A\n\n< en:A\nen: B\n", "entries")
    with pytest.raises(FormatError, match="must have blocks with names"):
        parse_hierarchy("# nothing\n< en:A\n", "entries")


def test_a_long_list_of_entries_reads_in_its_time_and_a_deep_one_too() -> None:
    deep = "en: n0\n\n" + "\n".join(f"< en:n{i}\nen: n{i + 1}\n" for i in range(5000))
    assert parse_hierarchy(deep, "entries").max_depth == 5000
    wide = "en: top\n\n" + "\n".join(f"< en:top\nen: n{i}, {'x' * 50}{i}\n" for i in range(20_000))
    assert parse_hierarchy(wide, "entries").num_leaves == 20_000


def test_json_lists_leave_out_what_is_deprecated_and_take_nodes_by_id(tmp_path: Path) -> None:
    path = tmp_path / "list.json"
    path.write_text(
        '[{"uri": "u:1", "name": "A"}, {"uri": "u:2", "name": "B", "broader": [{"uri": "u:1"}]},'
        ' {"uri": "u:9", "name": "Old", "status": "deprecated", "useInstead": ["u:2"]}]'
    )
    h = read_hierarchy(path)
    assert (h.nodes, h.synonyms) == (("u:1", "u:2"), {"Old": "u:2"})
    assert "1 obsolete terms are left out" in h.notes
    path.write_text(
        '{"en:a": {"name": {"fr": "Ah", "en": "A"}, "children": ["en:b"]}, "en:b": {"parents": ["en:a"], "x": {"y": 1}}}'
    )
    assert read_hierarchy(path).path("en:b") == ("en:b", "en:a")
    assert read_hierarchy(path).name("en:a") == "A"


def test_columns_of_products_are_no_ranks_of_life() -> None:
    text = "Section,Division,Class,Description\nA,01,01.1,Crops\nB,05,05.1,Coal\n"
    with pytest.raises(FormatError, match="columns="):
        parse_hierarchy(text, "csv")
    h = parse_hierarchy(text, "csv", columns=["Section", "Division", "Class"])
    assert paths(h)["01.1"] == ("01", "A")


def test_semicolons_and_titles_in_a_column_of_a_language() -> None:
    h = parse_hierarchy("code;EN\nA00;Cholera\nA00.0;Classical\nA00.1;El Tor\n", "csv")
    assert paths(h) == {"Classical": ("Cholera",), "El Tor": ("Cholera",)}


def test_a_workbook_with_formulas_and_a_bomb(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    pytest.importorskip("defusedxml")
    book = openpyxl.Workbook()
    for row in (
        ["ISCO 08 Code", "Title EN"],
        [1, "Managers"],
        [11, "Chiefs"],
        [12, '=HYPERLINK("http://x","y")'],
    ):
        book.active.append(row)
    path = tmp_path / "isco.xlsx"
    book.save(path)
    h = read_hierarchy(path)
    assert h.nodes == ("1", "11", "12")
    assert h.name("12") == "12"  # a formula without a value that was computed says nothing, and is not run
    import zipfile

    with zipfile.ZipFile(path) as packed:
        parts = {name: packed.read(name) for name in packed.namelist()}
    sheet = "xl/worksheets/sheet1.xml"
    parts[sheet] = b'<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]>' + parts[sheet].replace(
        b"Managers", b"&b;"
    )
    with zipfile.ZipFile(path, "w") as packed:
        for name, content in parts.items():
            packed.writestr(name, content)
    with pytest.raises(FormatError, match="Excel workbook"):
        read_hierarchy(path)


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("dup.csv", "code,code,title\nA,A,x\n", "columns"),
        ("cycle.tsv", "Unique ID\tParent\tName\n1\t2\ta\n2\t1\tb\n", "cycle"),
        ("deep.rcv", "parent: A child: A\n", "A"),
        ("wide.csv", "code,title\n" + "A" * 200_000 + ",x\n", "valid CSV"),
    ],
)
def test_hostile_lists_end_in_a_message(tmp_path: Path, name: str, text: str, problem: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises((FormatError, HierarchyError), match=problem):
        read_hierarchy(path)


def test_a_code_on_several_rows_of_one_name_is_one_node() -> None:
    """A row for each dose of a drug, as in ATC."""
    text = "atc_code,atc_name,ddd\nA,ALIMENTARY,\nA02,ACID,\nA02B,ULCER,\nA02BA01,cimetidine,0.8\nA02BA01,cimetidine,0.4\n"
    h = parse_hierarchy(text, "csv")
    assert paths(h) == {"cimetidine": ("ULCER", "ACID", "ALIMENTARY")}
    assert h.notes[0] == "rows that repeat a code and its name are taken as one: 1"


def test_parents_and_synonyms_in_one_cell() -> None:
    """As BioPortal writes every ontology, and ESCO and schema.org their classes."""
    text = (
        "Class ID,Preferred Label,Synonyms,Obsolete,CUI,Parents\n"
        "u:data,Data,,FALSE,,http://www.w3.org/2002/07/owl#Thing\n"
        "u:format,Format,,FALSE,,http://www.w3.org/2002/07/owl#Thing\n"
        "u:xml,XML,eXtensible markup|markup,FALSE,,u:data|u:format\n"
        "u:old,Old,,TRUE,,u:data\n"
    )
    for mark in ("|", ", ", " ; "):
        h = parse_hierarchy(
            text.replace("u:data|", f'"u:data{mark}').replace("u:format\nu:old", 'u:format"\nu:old'), "csv"
        )
        assert h.parents("u:xml") == ("u:data", "u:format")
        assert (h.names, h.synonyms) == (
            ("Data", "Format", "XML"),
            {"eXtensible markup": "u:xml", "markup": "u:xml"},
        )
        assert h.notes == ("obsolete rows are left out: 1",)
    camel = (
        "conceptUri,preferredLabel,description,broaderConceptUri\nu:1,Skills,all,\nu:2,Teach,is a skill,u:1\n"
    )
    assert paths(parse_hierarchy(camel, "csv")) == {"Teach": ("Skills",)}


@pytest.mark.parametrize(
    "rows", ['A00,"Cholera"\nA01,"Fever"\nA010,"Typhoid"\n', '"Cholera";A00\n"Fever";A01\n"Typhoid";A010\n']
)
@pytest.mark.parametrize("suffix", ["csv", "txt"])
def test_codes_and_names_without_a_header(rows: str, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"codes.{suffix}"
    path.write_text(rows)
    h = read_hierarchy(path)
    assert paths(h) == {"Cholera": (), "Typhoid": ("Fever",)}
    assert h.notes == ("parents are the prefixes of the codes: A010 is below A01",)


def test_a_code_and_a_title_for_each_level() -> None:
    header = "Level 0 URI,Level 0 preferred term,Level 1 URI,Level 1 preferred term,Description\n"
    text = header + "S,skills,,,\nS,skills,S1,teaching,x\n"
    assert paths(parse_hierarchy(text, "csv")) == {"teaching": ("skills",)}
    text = "Segment,Segment Title,Family,Family Title\n10,Plants,1010,Trees\n10,Plants,1020,Trees\n"
    assert parse_hierarchy(text, "csv").path("1020") == ("1020", "10")
    with pytest.raises(FormatError, match="the columns must be"):  # 1010 is below two others
        parse_hierarchy(text + "20,Pets,1010,Trees\n", "csv")


def test_codes_in_stairs() -> None:
    text = (
        "Occupations,,,\nMajor Group,Minor Group,Detailed,\n11-0000,,,Managers\n,11-1000,,Executives\n"
        ",,11-1011,Chiefs\n,11-2000,,Sales\n15-0000,,,Computers\n"
    )
    h = parse_hierarchy(text, "csv")
    assert paths(h) == {"Chiefs": ("Executives", "Managers"), "Sales": ("Managers",), "Computers": ()}


def test_a_table_of_codes_in_a_txt(tmp_path: Path) -> None:
    path = tmp_path / "industries.txt"
    path.write_text("Seq. No.\t2007 NAICS US Code\t2007 NAICS US Title\n\t\t\n1\t11\tFarms\n2\t111\tCrops\n")
    assert paths(read_hierarchy(path)) == {"Crops": ("Farms",)}
    for text in (
        "01;Infections\n02;Neoplasms\n",
        "A00;A09;01;Gut\nA15;A19;01;Lung\n",
        "3;N;X;;A00\n4;T;X;;A00.0\n",
    ):
        path.write_text(text)
        with pytest.raises(FormatError, match="must say the format"):  # not a list of paths
            read_hierarchy(path)
    path.with_suffix(".xls").write_bytes(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(100))
    with pytest.raises(FormatError, match=r"Got an old Excel workbook\. Save it as \.xlsx or \.csv"):
        read_hierarchy(path.with_suffix(".xls"))


CLAML = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE ClaML SYSTEM "ClaML.dtd">
<ClaML version="2.0.0"><Title name="ICD"/>
<Class code="I" kind="chapter"><SubClass code="A00-A09"/><Rubric kind="note"><Label>no name</Label></Rubric>
<Rubric kind="preferred"><Label xml:lang="en">Infections</Label><Label xml:lang="de">Infektionen</Label></Rubric></Class>
<Class code="A00-A09" kind="block"><SuperClass code="I"/><Rubric kind="preferred"><Label>Intestinal
  <Term>infections</Term></Label></Rubric></Class>
</ClaML>
"""


def test_claml(tmp_path: Path) -> None:
    path = tmp_path / "icd.xml"
    path.write_text(CLAML)
    assert paths(read_hierarchy(path)) == {"Intestinal infections": ("Infections",)}
    assert read_hierarchy(path, language="de").name("I") == "Infektionen"
    for text, words in (
        (CLAML.replace('"ClaML.dtd"', '"x" [<!ENTITY a "b">]'), "must not define anything"),
        (CLAML.replace("A00-A09", "I"), "a code of its own"),
        ("<ClaML/>", "must have Class tags"),
        (CLAML[:-20], "must be XML"),
    ):
        with pytest.raises(FormatError, match=words):
            parse_hierarchy(text, "claml")


def test_json_with_codes_and_titles(tmp_path: Path) -> None:
    path = tmp_path / "codes.json"
    path.write_text(
        '{"resourceType": "CodeSystem", "id": "x", "concept": [{"code": "1", "display": "Managers", "concept": '
        '[{"code": "11", "display": "Chiefs"}]}]}'
    )
    assert paths(read_hierarchy(path)) == {"Chiefs": ("Managers",)}
    path.write_text(
        '[{"alias": "food", "title": "Food", "parents": []}, {"alias": "bars", "title": "Bars", "parents": ["food"]}]'
    )
    assert paths(read_hierarchy(path)) == {"Bars": ("Food",)}


def test_json_of_codes_in_the_layouts_of_publishers() -> None:
    """Comtrade's list in an object, GS1's capital keys, and records of codes alone."""
    rows = '[{"id": "T", "text": "All", "parent": "#"}, {"id": "01", "text": "Animals", "parent": "T"}]'
    text = f'{{"more": false, "results": {rows}}}'
    h = parse_hierarchy(text, "json")
    assert (paths(h), h.notes) == ({"Animals": ("All",)}, ())
    brick = '{"Level": 2, "Code": 1010, "Title": "Pet Food", "Childs": []}'
    text = f'{{"LanguageCode": "EN", "Schema": [{{"Level": 1, "Code": 10, "Title": "Pets", "Childs": [{brick}]}}]}}'
    assert paths(parse_hierarchy(text, "json")) == {"Pet Food": ("Pets",)}
    text = '[{"code": "01", "title": "Animals", "n": 2}, {"code": "0101", "title": "Horses"}, {"code": "02", "title": "Meat"}]'
    assert paths(parse_hierarchy(text, "json")) == {"Horses": ("Animals",), "Meat": ()}


@pytest.mark.parametrize(
    "text",
    [
        '{"10": "Energy", "1010": "Equipment", "101010": "Drilling"}',
        '{"10": {"name": "Energy"}, "1010": {"title": "Equipment", "level": 2}, "101010": {"name": "Drilling"}}',
        '{"name": "Sectors", "year": 2012, "items": [{"code": 10, "title": "Energy"}, {"code": 1010, "title": "Equipment"}, '
        '{"code": 101010, "title": "Drilling"}]}',
        '{"id": "CL", "codes": [{"id": "10", "name": "Energy"}, {"id": "1010", "name": "Equipment", "parent": "10"}, '
        '{"id": "101010", "name": "Drilling", "parent": "1010"}]}',
    ],
    ids=["titles", "records", "a named list", "SDMX"],
)
def test_json_of_titles_by_code(text: str) -> None:
    assert paths(parse_hierarchy(text, "json")) == {"Drilling": ("Equipment", "Energy")}


def test_json_parents_that_are_missing_make_tops_and_are_said() -> None:
    text = '[{"id": "a", "parent": "gone"}, {"id": "b", "parent": "a"}, {"id": "c", "parent": "c"}]'
    h = parse_hierarchy(text, "json")
    assert h.edges.tolist() == [[h.index("a"), h.index("b")]]
    assert h.notes == ("the parent of 'a' is not in the file; it is a top",)


def test_names_that_hold_names() -> None:
    text = '{"animal": {"dog": ["husky", {"hound": ["beagle"]}], "cat": {}}, "plant": null}'
    wanted = {
        "husky": ("dog", "animal"),
        "beagle": ("hound", "dog", "animal"),
        "cat": ("animal",),
        "plant": (),
    }
    assert paths(parse_hierarchy(text, "json")) == wanted
    pytest.importorskip("yaml")
    text = "animal:\n  dog:\n    - husky\n    - hound: [beagle]\n  cat:\nplant:\n"
    assert paths(parse_hierarchy(text, "yaml")) == wanted


@pytest.mark.parametrize(
    "text",
    [
        '{"train": {"rate": 0.1}, "model": {"depth": 3}}',
        '{"0": "cat", "1": "dog"}',
        '{"a": ["x", ["y"]]}',
        '{"a": {"x": []}, "b": {"x": []}}',
        '{"a": [], "b": []}',
        '{"a": ' * 5000 + "{}" + "}" * 5000,
    ],
)
def test_json_that_is_no_names_ends_in_a_message(text: str) -> None:
    with pytest.raises((FormatError, HierarchyError), match=r"^text"):
        parse_hierarchy(text, "json")
