"""Tables whose levels are places, depths or paths: small ones in the layouts of real files."""

from __future__ import annotations

from pathlib import Path

import pytest

from hace.errors import FormatError, HierarchyError
from hace.formats import parse_hierarchy, read_hierarchy
from hace.hierarchy import Hierarchy

LAYOUTS: dict[str, tuple[str, dict[str, str]]] = {  # layout: (table, the node above each node below a top)
    "ICD-11": (
        "Foundation URI,Code,BlockId,Title,ClassKind,DepthInKind,ChapterNo\n"
        "u:1,,,Infections,chapter,1,01\n"
        "u:2,,B1,- Gut infections,block,1,01\n"
        "u:3,1A00,,- - Cholera,category,1,01\n"
        "u:4,1A0Z,,- - Other,category,1,01\n"
        "u:5,,,Neoplasms,chapter,1,02\n"
        "u:6,2A00,,- Other,category,1,02\n",
        {"Gut infections": "Infections", "1A00": "Gut infections", "1A0Z": "Gut infections", "2A00": "Neoplasms"},
    ),
    "the tariff of the United States": (
        "HTS Number,Indent,Description,Unit\n"
        '0101,0,"Live horses",\n,1,Horses:,\n0101.21.00,2,Purebred,No.\n0101.29.00,2,Other,No.\n0102,0,Cattle,\n,1,Other:,\n',
        {"Horses:": "Live horses", "Purebred": "Horses:", "Other": "Horses:", "Other:": "Cattle"},
    ),
    "levels by number": (
        "Level,Name\n1,Animals\n2,Dogs\n3,Husky\n2,Cats\n1,Plants\n2,Oak\n",
        {"Dogs": "Animals", "Husky": "Dogs", "Cats": "Animals", "Oak": "Plants"},
    ),
    "IPTC": (
        "NewsCode-URI,Level1/NewsCode,Level2/NewsCode,Level3/NewsCode,Name (en-GB),Definition (en-GB)\n"
        "u:1,m:1,,,arts,All\nu:2,,m:2,,theatre,All\nu:3,,,m:3,opera,All\nu:4,m:4,,,crime,All\n",
        {"m:2": "m:1", "m:3": "m:2"},
    ),
    "GICS": (
        "SectorId,Sector,IndustryGroupId,IndustryGroup,IndustryId,Industry,Description\n"
        "10,Energy,1010,Energy,101010,Equipment,x\n10,Energy,1010,Energy,101020,Oil,y\n15,Materials,,,,,\n",
        {"1010": "10", "101010": "1010", "101020": "1010"},
    ),
    "Facebook": (
        "id,category\n1,Pets\n2,Pets > Live\n3,Pets > Supplies > Bird\n",
        {"2": "1", "Pets > Supplies": "1", "3": "Pets > Supplies"},
    ),
    "Amazon": ("Node ID,Node Path\n7,Home\n8,Home/Hobs\n9,Home/Hobs/Gas\n", {"8": "7", "9": "8"}),
    "MSC": (
        "code\ttext\tdescription\n00-XX\tGeneral\t\n00-01\tTeaching\t\n00Axx\tTopics\t\n00A05\tMathematics\t\n"
        "76-XX\tFluids\t\n76Xxx\tIonised\t\n76X05\tGas\t\n",
        {"00-01": "00-XX", "00Axx": "00-XX", "00A05": "00Axx", "76Xxx": "76-XX", "76X05": "76Xxx"},
    ),
    "chapters in Roman numbers": (
        "kind,chapter,code,title\nc,I,I,Infections\nb,I,A00-A09,Gut\nc,I,A00,Cholera\nc,I,A00.0,Classical\n"
        "c,II,II,Neoplasms\nb,II,C00-C97,Malignant\n",
        {"A00-A09": "I", "A00": "A00-A09", "A00.0": "A00", "C00-C97": "II"},
    ),
    "CPV, one column per language": (
        "CODE,DE,EN,FR\n03000000-1,Land,Farm,Ferme\n03100000-2,Acker,Crops,Champ\n03110000-5,Korn,Grain,Grain\n"
        "03111000-2,Saat,Seeds,Graines\n03112000-9,Stroh,Straw,Paille\n",
        {"03100000-2": "03000000-1", "03110000-5": "03100000-2", "03111000-2": "03110000-5", "03112000-9": "03110000-5"},
    ),
    "a header in another language": (
        "Schlüssel;Bezeichnung\n01;Pflanzen\n01.1;Getreide\n01.11;Weizen\n",
        {"01.1": "01", "01.11": "01.1"},
    ),
    "Combined Nomenclature": (
        "CNKEY,LEVEL,CN_CODE,NAME_EN,PARENT\n0100,1,I,Animals,\n0110,2,01,Live,0100\n0111,3,0101,Horses,0110\n",
        {"0110": "0100", "0111": "0110"},
    ),
    "ESCO's relations": (
        "conceptType,conceptUri,broaderType,broaderUri\nISCOGroup,u:C01,ISCOGroup,u:C0\nOccupation,u:o,ISCOGroup,u:C01\n",
        {"u:C01": "u:C0", "u:o": "u:C01"},
    ),
    "edges with names": ("child id,child name,parent id,parent name\n1,Dogs,2,Animals\n", {"1": "2"}),
    "Open Tree of Life": (
        "uid\t|\tparent_uid\t|\tname\t|\trank\t|\tflags\t|\t\n1\t|\t\t|\tlife\t|\tno rank\t|\t\t|\t\n"
        "2\t|\t1\t|\tBacteria\t|\tdomain\t|\t\t|\t\n",
        {"2": "1"},
    ),
}  # fmt: skip


def above(h: Hierarchy) -> dict[str, str]:
    return {h.nodes[child]: h.nodes[parent] for parent, child in h.edges.tolist()}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_open_without_an_option(layout: str, tmp_path: Path) -> None:
    text, wanted = LAYOUTS[layout]
    path = tmp_path / ("table.tsv" if "\t" in text else "table.csv")
    path.write_text(text, encoding="utf-8")
    assert above(read_hierarchy(path)) == wanted


def test_names_and_other_ids() -> None:
    h = parse_hierarchy(LAYOUTS["ICD-11"][0], "csv")
    assert h.name("1A00") == "Cholera"
    assert h.synonyms["u:3"] == "1A00"
    assert parse_hierarchy(LAYOUTS["CPV, one column per language"][0], "csv").name("03110000-5") == "Grain"
    assert parse_hierarchy(LAYOUTS["IPTC"][0], "csv").name("m:3") == "opera"
    assert parse_hierarchy(LAYOUTS["Combined Nomenclature"][0], "csv").synonyms["0101"] == "0111"
    assert parse_hierarchy(LAYOUTS["Open Tree of Life"][0], "tsv").ranks == ("", "domain")


@pytest.mark.parametrize(
    "text",
    [
        "section,name\n"
        + "".join(f"{n},name {n}\n" for n in "I II III IV V VI".split()),  # numbers, not prefixes
        "code,name\n" + "".join(f"{n},name {n}\n" for n in "I II III IV V VI".split()),
        "Level,Name\n1,Animals\n3,Husky\n",  # a level is left out
        "Level,Name\n2,Dogs\n1,Animals\n",
        "Level,Name\n1,Dogs\n1,Cats\n",
        "key,topic\n7,A/B testing\n8,TCP/IP\n",  # slashes that are no path
        "site,key,count\nnorth,A0,1\nsouth,A01,2\n",  # two columns of codes
        "Country,Text\nUS,United States\nUSA,again\n",
    ],
)
def test_other_tables_are_refused(text: str) -> None:
    with pytest.raises(FormatError, match="the columns must be id and parent"):
        parse_hierarchy(text, "csv")


@pytest.mark.parametrize(
    "text",
    [
        "Level,Name\n1,a\n" + "9" * 5000 + ",b\n",
        "Code,Title\n,-\n,- -\n",
        "id,category\n1,a >  > b\n2,a > b\n",
        "uid\t|\tparent_uid\t|\tname\t|\t\n1\t|\t2\t|\ta\t|\t\n2\t|\t1\t|\tb\t|\t\n",
    ],
)
def test_hostile_tables_end_in_a_message(text: str) -> None:
    with pytest.raises((FormatError, HierarchyError)) as caught:
        parse_hierarchy(text, "tsv" if "\t" in text else "csv")
    assert len(str(caught.value)) < 2000


@pytest.mark.parametrize(
    "text",
    [
        "Code,Title\n" + "".join(f",{'- ' * n}x{n}\n" for n in range(1500)),
        "Level,Name\n" + "".join(f"{n % 99},same\n" for n in range(5000)),
    ],
)
def test_long_and_deep_outlines_are_read(text: str) -> None:
    assert parse_hierarchy(text, "csv").num_nodes == text.count("\n") - 1


def test_one_name_with_a_dash_makes_no_outline() -> None:
    h = parse_hierarchy("code,title\n1,Biology\n11,-omics\n12,Cells\n", "csv")
    assert above(h) == {"11": "1", "12": "1"}
