"""What cannot be read ends in hace's own error, which says where and what to do; and it ends soon."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hace.errors import ConfigError, FormatError, HaceError, HierarchyError
from hace.formats import FORMATS, fgvc_hierarchy, nabirds_hierarchy, parse_hierarchy, read_hierarchy

READERS = [name for name, kind in FORMATS.items() if kind.parse]

# ---------------------------------------------------------------- not a text at all


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "tree: the file must hold a hierarchy. Got an empty file"),
        (b"\xef\xbb\xbf \r\n\t \n", "Got an empty file"),
        (b"\x89PNG", "tree, line 1: the text must be UTF-8. Got byte 0x89"),
        (b"\x93NUMPY\x01\0", "Got a binary file, with a zero at character 7"),
        (b"a\0b", "Got a binary file, with a zero at character 1"),
        (
            "Vögel\nEulen".encode("latin-1"),
            "Got byte 0xf6. If it is Latin-1, say so",
        ),
    ],
)
def test_not_text(data: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "tree"
    path.write_bytes(data)
    for name in READERS:
        with pytest.raises(FormatError, match=words):
            read_hierarchy(path, name)


@pytest.mark.parametrize("given", [None, 1, {"a": ["b"]}, [("a", "b")], b"tree.csv"])
def test_what_is_no_path(given: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"path must be the path of a file or folder\. Got .* Hierarchy\.from_edges"
    ):
        read_hierarchy(given)


def test_not_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").mkdir()
    for path, words in [
        (tmp_path / "tree.json", r"tree.json: cannot be read: No such file or directory"),
        ("a\0b", r"cannot be read: .*embedded null"),
        (tmp_path / "pipe", r"pipe: must be a file. Got a pipe"),  # opening it would wait for ever
        (tmp_path / "empty", r"empty must hold folders named after classes\. Got none"),
    ]:
        with pytest.raises(FormatError, match=words):
            read_hierarchy(path)


# ---------------------------------------------------------------- broken text: FormatError with the place

BROKEN = [
    ("edges", "a b\na b c\nd", {}, r"line 2: expected two ids \(parent child\), got 3.*line 3: .* got 1"),
    ("edges", "a b\n\n\na\t\n", {}, r"line 4: expected two ids"),
    ("edges", "a\tb\tc", {}, r"line 1: expected two ids .*got 3: 'a\\tb\\tc'"),
    ("csv", "x,y\n1,2\n", {},
     r"line 1: the columns must be id and parent, or parent and child. Got 'x', 'y'.*-o columns=x,y.*-o header=false"),
    ("csv", "Class Name (str),Group\na,b\n", {}, r"on the command line: -o 'columns=Class Name \(str\),Group'\)"),
    ("csv", "id,up\n1,\n", {"columns": {"parent": "upp"}}, r"or the names you gave: 'upp'. Got 'id', 'up'"),
    ("csv", "id,parent\n1,\n", {"columns": {"name": "nom"}}, r"line 1: no column 'nom'. Columns found: 'id', 'parent'"),
    ("csv", "kind,breed\na,b\n", {"columns": ["kind", "bred"]},
     r"no column 'bred'. Columns found: 'kind', 'breed'. Did you mean 'breed'"),
    ("csv", "kind,breed\na,b\n", {"columns": ["kind"], "label": "nr"}, r"no column 'nr'"),
    ("csv", "id,id,parent\n1,1,\n", {}, r"line 1: columns that are there twice: 'id'"),
    ("csv", "id,parent\n1\n2,1,3\n", {}, r"line 2: expected 2 columns .*got 1.*line 3: expected 2 columns .*got 3"),
    ("csv", 'id,parent\n"1,\n', {}, r"line 2: every row must be valid CSV. Got an error: unexpected end of data"),
    ("csv", 'id,parent\n1,"x"y\n', {}, r"line 2: every row must be valid CSV"),
    ("csv", "id,parent\n,x\n", {}, r"line 2: the id is empty"),
    ("csv", "parent,child\na,\n", {}, r"line 2: expected a parent and a child, got 'a' and ''"),
    ("csv", 'id,parent,label\n"a\nb",,0\nc,,x\n', {}, r"line 4: the label must be a number from 0. Got 'x'"),
    ("csv", "a,b,c\n1,2,3\n1,,4\n", {"columns": ["a", "b", "c"]},
     r"line 3: a gap: the column 'b' is empty, and '4' is below it"),
    ("csv", "a,b,c\n1,2,3\n,,4\n", {"columns": ["a", "b"]}, r"line 3: the row has no names"),
    ("tsv", "id,parent\n1,\n", {}, r"Got 'id,parent'"),
    ("json", '{"name": "a",}', {}, r"is not valid JSON: .*line 1 column 1[34]"),
    ("json", '{"name": "a", "name": "b"}', {}, r"the key 'name' must occur once in an object"),
    ("json", '{"name": NaN}', {}, r"numbers must be finite. Got NaN"),
    ("json", '{"name": ' + "1" * 5000 + "}", {}, r"not valid JSON: "),
    ("json", "[]", {}, r"the JSON holds no node"),
    ("json", "3", {}, r"expected a node .*got 3 at the top"),
    ("json", '{"nodes": [], "links": []}', {},
     r"a node at the top needs a name or an id .*keys found: 'nodes', 'links'"),
    ("json", '{"name": "a", "children": [{"name": ""}]}', {}, r"a node below 'a' needs a name"),
    ("json", '{"name": "a", "children": {"name": "b"}}', {}, r"children of 'a' must be a list"),
    ("json", '{"format": "hace-hierarchy/2"}', {}, r"expected format 'hace-hierarchy/1', got 'hace-hierarchy/2'"),
    ("json", '{"format": "hace-hierarchy/1"}', {}, r"leaves must be a list of strings, got None"),
    ("json", '{"format": "hace-hierarchy/1", "leaves": [], "rooted": 1}', {}, r"rooted must be true or false, got 1"),
    ("json", '{"format": "hace-hierarchy/1", "leaves": [], "rooted": true}', {}, r"nodes must be a list, got None"),
    ("json", '{"format": "hace-hierarchy/1", "leaves": [], "rooted": true, "nodes": [{"id": 3}]}', {},
     r"nodes\[0\] must have an id and a name"),
    ("indented", "a\n  b\n\tc\n", {}, r"line 3: indents with tabs, and line 2 with spaces"),
    ("indented", "a\n    b\n  c\n", {}, r"line 3: an indentation of 2 matches none of the lines above it \(0, 4\)"),
    ("indented", "  a\nb\n", {}, r"line 2: an indentation of 0 matches none of the lines above it \(2\)"),
    ("indented", "a\n-- b\n---\n", {}, r"line 3: a line of dashes without a name"),
    ("newick", "(a,b", {}, r"line 1, column 1: the text ends, and this '\(' was never closed by '\)'"),
    ("newick", "(a,\n(b)", {}, r"line 1, column 1: the text ends, and this '\('"),
    ("newick", "(a,b)c:", {}, r"line 1, column 8: the text ends, and a branch length after ':' must follow"),
    ("newick", "[only a comment]", {}, r"the text ends, and a tree must follow"),
    ("newick", "(a,\n b))c;", {}, r"line 2, column 4: expected ';', got '\)'"),
    ("newick", "a,b;", {}, r"line 1, column 2: expected ';', got ','"),
    ("newick", "((a,b);", {}, r"line 1, column 7: expected '\)', got ';'"),
    ("newick", "(a,,b);", {}, r"column 4: expected '\(' or the label of a leaf, got ','"),
    ("newick", "(a,'')b;", {}, r"column 4: expected '\(' or the label of a leaf"),
    ("newick", ";", {}, r"column 1: expected '\(' or the label of a leaf, got ';'"),
    ("newick", "(a b);", {}, r"column 4: expected ',', '\)' or ';' \(put a label with blanks .* single quotes\), got 'b'"),
    ("newick", "(a)(b);", {}, r"column 4: expected .*got '\('"),
    ("newick", "(a:x,b);", {}, r"column 4: expected a branch length after ':', got 'x'"),
    ("newick", "(a:1:2,b);", {}, r"column 5: expected ',', '\)' or ';', got ':'"),
    ("newick", "(a,'b);", {}, r"column 4: a quoted label that never ends"),
    ("newick", "(a,b)[c;", {}, r"column 6: a comment '\[' that never ends"),
    ("newick", "(a,b)];", {}, r"column 6: a '\]' outside of any comment"),
    ("obo", "[Term]\nid: a\n[Term\nid: b\n", {}, r"line 3: expected a stanza such as \[Term\], got '\[Term'"),
    ("obo", "[Term]\nid: a\nrubbish\n", {}, r"line 3: expected 'tag: value', got 'rubbish'"),
    ("obo", "[Term]\nname: a\n", {}, r"line 1: this \[Term\] has no id"),
    ("obo", "[Term]\nid: a\nid: b\n", {}, r"line 3: a second id in one \[Term\], after 'a'"),
    ("obo", "[Term]\nid: a\nname: b\nname: c\n", {}, r"line 4: a second name in one \[Term\], after 'b'"),
    ("obo", "[Term]\nid: a\nis_a: b c\n", {}, r"line 3: expected one id after is_a:, got 'b c'"),
    ("obo", "[Term]\nid:\n", {}, r"line 2: expected one id after id:, got ''"),
    ("obo", "[Term]\nid: a\nis_obsolete: perhaps\n", {}, r"line 3: is_obsolete must be true or false, got 'perhaps'"),
    ("obo", "format-version: 1.2\n", {}, r"no \[Term\] stanza; expected an OBO ontology"),
    ("obo", "[Term]\nid: a\n", {"prefix": "CL:"}, r"none of the 1 terms is left with prefix='CL:'; ids look like 'a'"),
    ("obo", "[Term]\nid: a\n", {"isolated": "drop"}, r"isolated='drop' would drop every term"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "options", "words"), BROKEN)
def test_broken_text(name: str, text: str, options: dict, words: str, tmp_path: Path) -> None:
    (tmp_path / "tree").write_text(text)
    with pytest.raises(FormatError, match=f"(?s)tree.*{words}"):
        read_hierarchy(tmp_path / "tree", name, **options)


# ---------------------------------------------------------------- well formed, and no hierarchy: HierarchyError

OWN = '{"format": "hace-hierarchy/1", "leaves": ["a"], "rooted": false, "nodes": '

UNFIT = [
    ("edges", "a b\nb c\na b\n", {}, r"line 3: the edge 'a' -> 'b' is on line 1 already"),
    ("edges", "a b\nb c\nc a\n", {}, r"Cycle: \w -> \w -> \w -> \w"),
    ("edges", "a b\nb b\n", {}, r"own parent: 'b'"),
    ("edges", "a b\n", {"leaves": ["a"]}, r"have children: 'a'"),
    ("edges", "a b\n", {"leaves": ["a"]}, r"not in leaves: 'b'"),
    ("edges", "a b\na c\n", {"leaves": ["b", "c", "b"]}, r"leaves repeats 'b'"),
    ("edges", "a b\n", {"names": {"x": "y"}}, r"names has entries .*'x'"),
    ("csv", "parent,child\na,b\na,b\n", {}, r"line 3: the edge 'a' -> 'b' is on line 2 already"),
    ("csv", "id,parent\na,\nb,aa\n", {}, r"line 3: the parent 'aa' of 'b' is unknown: no row has it.*Did you mean 'a'"),
    ("csv", "id,parent\na,\nb,a\nb,a\n", {}, r"line 4: the id 'b' is below 'a' on line 3 already"),
    ("csv", "id,parent\na,\na,\n", {}, r"line 3: the id 'a' is on line 2 already"),
    ("csv", "id,parent\na,\nb,\nb,a\n", {}, r"line 4: the id 'b' is there with and without a parent \(line 3\)"),
    ("csv", "id,parent,name\na,,x\nb,,y\nc,a,z\nc,b,w\n", {},
     r"line 5: the id 'c' has another name or label on line 4"),
    ("csv", "id,parent,label\na,,0\nb,,0\n", {}, r"line 3: the label 0 of 'b' belongs to 'a' already \(line 2\)"),
    ("csv", "id,parent,label\na,,0\nb,,2\n", {}, r"line 3: labels must run from 0 without a gap, and 1 is missing"),
    ("csv", "id,parent,label\na,,0\nb,a,1\n", {}, r"have children: 'a'"),
    ("csv", "id,parent,label\na,,0\nb,,\n", {}, r"not in leaves: 'b'"),
    ("csv", "a,b\nx,y\ny,z\n", {"columns": ["a", "b"]}, r"'y' is at two places: x / y and y.* -o ids=level"),
    ("csv", "n,a\n0,x\n1,x\n", {"columns": ["a"], "label": "n"}, r"line 3: 'x' has the label 1 here and 0 above"),
    ("csv", "n,a\n0,x\n0,y\n", {"columns": ["a"], "label": "n"}, r"line 3: the label 0 of 'y' belongs to 'x' already"),
    ("json", '{"name": "a", "children": [{"name": "a"}]}', {},
     r"the name 'a' is there twice: a leaf below 'a' here, and an internal node at the top. .* ids='path'"),
    ("json", '{"id": 1, "children": [{"id": "1"}]}', {}, r"the id '1' is there twice"),
    ("json", OWN + '[{"id": "a"}, {"id": "a"}]}', {}, r"the id 'a' is at nodes\[0\] and nodes\[1\]"),
    (
        "csv",
        "id,parent\na,p\nb,p\nc,q\nd,r\ne,s\nf,t\n",
        {},
        r"line 2: the parent 'p' of 'a' (?s:.)*line 5: the parent 'r'(?s:.)*2 more parents are unknown: 's', 't'",
    ),
    ("json", OWN + '[{"id": "a", "parents": ["b"]}]}', {}, r"the parent 'b' of 'a' is unknown"),
    ("indented", "fish\n  ray\nbird\n  owl\n    fish\n", {},
     r"line 5: the name 'fish' is there twice: a leaf below 'owl' here, and an internal node at the top \(line 1\). "
     r"Give each its own name, or pass ids='path'"),
    ("indented", "a\n  b\n  b\n", {"ids": "path"}, r"line 3: the name 'a/b' is there twice.*Give each its own name\."),
    ("newick", "((a,b)c,\n(a)d)e;", {}, r"line 2, column 2: the name 'a' is there twice: .*\(line 1, column 3\)"),
    ("obo", "[Term]\nid: a\n\n[Term]\nid: a\n", {}, r"line 4: the id 'a' has a \[Term\] on line 1 already"),
    ("obo", "[Term]\nid: a\nis_a: b\n[Term]\nid: b\nis_obsolete: true\n", {},
     r"line 3: the parent 'b' of 'a' is obsolete"),
    ("obo", "[Term]\nid: a\nis_a: b\nis_a: b\n[Term]\nid: b\n", {}, r"line 4: is_a 'b' is on line 3 already"),
    ("obo", "[Term]\nid: a\nis_a: a\n", {}, r"own parent: 'a'"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "options", "words"), UNFIT)
def test_no_hierarchy(name: str, text: str, options: dict, words: str, tmp_path: Path) -> None:
    (tmp_path / "tree").write_text(text)
    with pytest.raises(HierarchyError, match=f"tree.*{words}") as caught:
        read_hierarchy(tmp_path / "tree", name, **options)
    assert all(problem.startswith(str(tmp_path / "tree")) for problem in caught.value.problems)


def test_all_problems_come_together() -> None:
    with pytest.raises(HierarchyError) as caught:
        parse_hierarchy("a b\na b\nc d\nd c\ne e", "edges")
    words = " ".join(caught.value.problems)
    assert len(caught.value.problems) == 3
    assert "line 2: the edge 'a' -> 'b'" in words
    assert "Cycle: c -> d -> c" in words or "Cycle: d -> c -> d" in words
    assert "own parent: 'e'" in words


def test_many_problems_are_counted_and_a_few_shown() -> None:
    with pytest.raises(FormatError) as caught:
        parse_hierarchy("x\n" * 5000, "edges")
    lines = str(caught.value).split("\n")
    assert lines[0] == "5000 problems:"
    assert len(lines) == 14
    assert lines[-1] == "  ... and 4988 more."


def test_values_are_cut_to_a_readable_length() -> None:
    with pytest.raises(FormatError) as caught:
        parse_hierarchy("x" * 100_000, "edges")
    assert len(str(caught.value)) < 300


# ---------------------------------------------------------------- files of datasets


def write_all(folder: Path, files: dict[str, str]) -> Path:
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


NABIRDS = {
    "hierarchy.txt": "1 0\n2 0\n3 1\n",
    "classes.txt": "0 Birds\n1 Ducks, Geese\n2 Owl\n3 Teal (Male)\n",
}
FGVC = {
    "variants.txt": "737-400\nA320\n",
    "families.txt": "737\nA320\n",
    "images_variant_test.txt": "01 737-400\n02 A320\n03 A320\n",
    "images_family_test.txt": "01 737\n02 A320\n",
    "images_manufacturer_test.txt": "01 Boeing\n02 Airbus Industries\n",
}


def test_small_nabirds(tmp_path: Path) -> None:
    h = read_hierarchy(write_all(tmp_path / "birds", NABIRDS))
    assert h.leaves == ("2", "3")
    assert h.names == ("Birds", "Owl", "Ducks, Geese", "Teal (Male)")


def test_small_fgvc(tmp_path: Path) -> None:
    h = fgvc_hierarchy(write_all(tmp_path / "planes", FGVC))
    assert h.path("A320") == ("A320", "family:A320", "manufacturer:Airbus Industries", "root")
    assert h.leaves == ("737-400", "A320")
    write_all(tmp_path / "unpacked", {})
    write_all(tmp_path / "unpacked" / "data", FGVC)
    assert read_hierarchy(tmp_path / "unpacked") == h
    one = {name: text.split("\n")[0] for name, text in FGVC.items()}
    single = fgvc_hierarchy(write_all(tmp_path / "one", one), root=False)
    assert (single.num_nodes, single.rooted) == (3, False)  # one manufacturer is not a root


@pytest.mark.parametrize(
    ("read", "files", "error", "words"),
    [
        (nabirds_hierarchy, {"hierarchy.txt": None}, FormatError, r"hierarchy.txt: cannot be read: No such file"),
        (nabirds_hierarchy, {"classes.txt": None}, FormatError, r"classes.txt: cannot be read: No such file"),
        (nabirds_hierarchy, {"hierarchy.txt": "1 0\n1"}, FormatError, r"hierarchy.txt, line 2: expected two ids"),
        (nabirds_hierarchy, {"hierarchy.txt": "1 0\n1 0"}, HierarchyError,
         r"hierarchy.txt, line 2: .* on line 1 already"),
        (nabirds_hierarchy, {"classes.txt": "0 a\n0 b"}, HierarchyError, r"classes.txt, line 2: the id '0' has a name"),
        (nabirds_hierarchy, {"classes.txt": "9 a"}, HierarchyError, r"names has entries .*'9'"),
        (fgvc_hierarchy, {"variants.txt": None}, FormatError, r"variants.txt: cannot be read: No such file"),
        (fgvc_hierarchy, {"variants.txt": "737-400\nA320\nA320"}, HierarchyError,
         r"variants.txt, line 3: 'A320' is on"),
        (fgvc_hierarchy, {"images_family_test.txt": None}, FormatError, r"no file images_family_\*.txt"),
        (fgvc_hierarchy, {"images_family_test.txt": "01"}, FormatError,
         r"images_family_test.txt, line 1: expected an image and its label, got '01'"),
        (fgvc_hierarchy, {"families.txt": "737"}, HierarchyError, r"the family 'A320' is not in families.txt"),
        (fgvc_hierarchy, {"variants.txt": "737-400\nA320\nTu-154"}, HierarchyError, r"variant 'Tu-154' has no image"),
        (fgvc_hierarchy, {"images_variant_val.txt": "01 A320"}, HierarchyError,
         r"images_variant_val.txt, line 1: image '01' has the variant 'A320' here and '737-400' before"),
        (fgvc_hierarchy, {"images_family_val.txt": "03 737"}, HierarchyError,
         r"image 03: the variant 'A320' has the family '737' here and 'A320' before"),
        (fgvc_hierarchy, {"images_manufacturer_test.txt": "01 Boeing"}, HierarchyError,
         r"no image of the family 'A320' has a manufacturer"),
    ],
)  # fmt: skip
def test_broken_data_sets(
    read: Callable, files: dict[str, str | None], error: type[HaceError], words: str, tmp_path: Path
) -> None:
    good = NABIRDS if read is nabirds_hierarchy else FGVC
    changed = {name: text for name, text in {**good, **files}.items() if text is not None}
    with pytest.raises(error, match=f"(?s){words}"):
        read(write_all(tmp_path / "data", changed))


# ---------------------------------------------------------------- hostile input


def refusal(read: Callable, *arguments: object, **options: object) -> str | None:
    """The words of our own error, or None. Any other exception is a failure of the test."""
    try:
        read(*arguments, **options)
    except HaceError as error:
        return str(error)
    return None


HUGE = 100_000
HOSTILE = {
    "open brackets": ("newick", "(" * HUGE, False),
    "a chain in newick": ("newick", "(" * HUGE + "a" + ")" * HUGE + ";", True),
    "a flat tree": ("newick", "(" + ",".join(f"a{i}" for i in range(HUGE)) + ");", True),
    "open comments": ("newick", "[" * HUGE, False),
    "quotes": ("newick", "'" * (2 * HUGE + 1), False),
    "a chain of edges": ("edges", "".join(f"{i} {i + 1}\n" for i in range(HUGE)), True),
    "one long cycle": ("edges", "".join(f"{i} {(i + 1) % HUGE}\n" for i in range(HUGE)), False),
    "one edge many times": ("edges", "a b\n" * HUGE, False),
    "deep indentation": ("indented", "".join(" " * i + f"x{i}\n" for i in range(3000)), True),
    "many names that repeat": ("indented", "a\n" * HUGE, False),
    "deep json": ("json", "[" * HUGE, False),
    "deep nested json": ("json", '{"name": "a", "children": [' * HUGE, False),
    "a wide table": ("csv", "id,parent" + ",x" * HUGE + "\n1,", False),
    "a long cell": ("csv", "id,parent\n" + "x" * 200_000 + ",", False),
    "unknown parents": ("csv", "id,parent\n" + "".join(f"{i},a{i}\n" for i in range(HUGE // 4)), False),
    "terms without end": ("obo", "[Term]\n" * HUGE, False),
    "a name of blanks": ("obo", "[Term]\nid: a\nname: x" + " " * HUGE + "y\n", True),
    "long continuation": ("obo", "[Term]\nid: a\ncomment: x" + "\\\n" * HUGE, True),
    "modifiers": ("obo", "[Term]\nid: a\nis_a: a " + "{}" * HUGE, False),
}


@pytest.mark.slow
@pytest.mark.timeout(60)  # each takes about a second; without a bound they would take hours
@pytest.mark.parametrize(("name", "text", "parses"), HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_sizes(name: str, text: str, parses: bool) -> None:
    assert (refusal(parse_hierarchy, text, name, flat=True) is None) == parses


def test_paths_as_ids_do_not_fill_the_memory() -> None:
    text = "(" * HUGE + "a" + ")" * HUGE + ";"
    with pytest.raises(FormatError, match=r"too deep for ids='path', which would take [\d,]+ characters"):
        parse_hierarchy(text, "newick", ids="path")


NOT_HIERARCHIES = {
    "settings.yml": "model:\n  name: resnet\n  size: 50\n",
    "tree.owl": "<rdf:RDF>\n  <owl:Class/>\n</rdf:RDF>\n",
    "tree.xml": "<a>\n  <b/>\n</a>\n",
    "code.py": "def f(x):\n    return x\n",
    "notes.md": "# Title\n\n- one\n  - two\n",
    "run.log": "start\n  step 1\n  step 2\n",
    "setup.ini": "[a]\n  b = 1\n",
    "setup.toml": "[a]\n  b = 1\n",
    "page.html": "<html>\n  <body/>\n</html>\n",
    "code.js": "function f() {\n  return 1\n}\n",
    "run.sh": "if true\nthen\n  echo yes\nfi\n",
    "outline": "dog\n  husky\n  beagle\n",
    "Makefile": "help:\n\t@echo help\n",
    "hosts": "127.0.0.1 localhost\n10.0.0.1 localhost\n",
    "trace.txt": 'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    f(x)\nValueError: no\n',
    "code.txt": "for x in y:\n    print(x)\n",
    "yaml.txt": "model:\n  size: 50\n",
    "log.txt": "2026-01-01 12:00:00 start\n  step\n",
    "prose.txt": "This is a long line of prose that somebody wrote about dogs, cats and other animals.\n  And more.\n",
    "list.txt": "Shopping = yes\n  milk\n",
    "hosts.txt": "127.0.0.1 localhost\n127.0.0.1 here\n10.0.0.1 there\n",
    "indented hosts.txt": "127.0.0.1\n  localhost\n  here\n",
    "bullets.txt": "- animal\n  - dog\n  - cat\n",
    "rights.txt": "total 20\n  drwxr-xr-x 3 root\n  -rw-r--r-- 1 root\n",
    "story.txt": "  It was night, and the dog\nran down to the river.\n  Nobody saw it go\n",
    "sentences.txt": "  Nobody wanted the morning.\nDogs ran\n",
    "verse.txt": "Roses by the river,\n  dogs by the sea\n",
    "worker.txt": "INFO start\n  worker 3\n  worker 4\n",
    "pairs.txt": "INFO started\nINFO stopped\nWARNING late\n",
}


@pytest.mark.parametrize("name", NOT_HIERARCHIES)
def test_what_is_indented_is_not_a_hierarchy_unless_asked_for(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(NOT_HIERARCHIES[name])
    with pytest.raises(
        FormatError,
        match=r"--hierarchy-format indented|a node at the top needs a name|must have elements with a code|must not be OWL/XML"
        r"|not RDF/XML",
    ):
        read_hierarchy(tmp_path / name)


def test_an_outline_of_names(tmp_path: Path) -> None:
    text = "Ardeidae\n  Great Blue Heron (White form)\n  Ross's Goose, domestic\n  Häher & Co. 2\nCorvidae\n  Corvus sp.\n"
    (tmp_path / "a.txt").write_text(text)
    assert read_hierarchy(tmp_path / "a.txt").num_leaves == 4
    (tmp_path / "b.txt").write_text("-- dog\n---- husky\n---- beagle\n")
    assert read_hierarchy(tmp_path / "b.txt").leaves == ("beagle", "husky")
    (tmp_path / "notes.md").write_text("dog\n  husky\n  beagle\n")
    assert read_hierarchy(tmp_path / "notes.md", "indented").leaves == ("beagle", "husky")


@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
def test_swapped_columns_have_an_implausible_shape(name: str, tmp_path: Path) -> None:
    rows = [
        ("parent", "child"),
        ("husky", "dog"),
        ("beagle", "dog"),
        ("tabby", "cat"),
        ("dog", "pet"),
        ("cat", "pet"),
    ]
    (tmp_path / name).write_text("".join("\t,"[name == "a.csv"].join(row) + "\n" for row in rows))
    words = r"columns look swapped: no node has two children, and 'dog' has 2 parents.*-o 'columns=\{\"parent\": \"child\""
    with pytest.raises(FormatError, match=words):
        read_hierarchy(tmp_path / name)
    h = read_hierarchy(tmp_path / name, columns={"parent": "child", "child": "parent"})
    assert h.leaves == ("beagle", "husky", "tabby")
    with (tmp_path / name).open("a") as file:  # one edge more: a husky is a cat, too
        file.write("\t,"[name == "a.csv"].join(("husky", "cat")) + "\n")
    with pytest.raises(FormatError, match="columns look swapped: 3 tops, 1 leaves, and 'dog' has 2 parents"):
        read_hierarchy(tmp_path / name)
    h = read_hierarchy(tmp_path / name, columns={"parent": "parent", "child": "child"})  # said on purpose
    assert h.leaves == ("pet",)


@pytest.mark.parametrize(
    "pair",
    [
        ("husky", "husky "),
        ("husky", "Husky"),
        ("h\u00e4her", "ha\u0308her"),
        ("husky", "hus\u043ay"),
        ("a b", "a\u00a0b"),
        ("husky", "hus\u200bky"),
    ],
    ids=["space", "case", "form", "letter", "blank", "invisible"],
)
def test_ids_that_look_alike_are_reported(pair: tuple[str, str]) -> None:
    h = parse_hierarchy(f"parent,child\ndog,{pair[0]}\ncat,{pair[1]}\ncat,tabby\n", "csv")
    one, other = sorted(pair, key=h.index)
    assert f"ids that look alike: {one!a} and {other!a}" in h.summary()
    assert (
        "ids that look alike" not in parse_hierarchy("parent,child\ndog,husky\ncat,tabby\n", "csv").summary()
    )
