"""What a file looks like: one function per format, which `hace.formats.readers` asks in order."""

from __future__ import annotations

import re
from itertools import islice

from hace.errors import FormatError
from hace.formats.code_tables import columns_of, parse_by_content
from hace.formats.csv_tables import OTHER_MARKS
from hace.formats.draft import SourceText
from hace.formats.entry_lists import TOPIC
from hace.formats.prefixes import is_code
from hace.formats.taxonomies import LINEAGE, NUMBERED, UUID, taxon_columns
from hace.formats.trees import DASHED
from hace.hierarchy.build import PATH_MARK

_GLIMPSE = 50  # lines
# Letters, digits and the marks that names have; a bracket only after a blank, unlike in a call of a function.
_NAME = re.compile(r"(?!-)(?:[\w .,'’&/+×?-]|(?:(?<=\s)|^)\([\w .,'’&/+×?-]*\))+")
_LONGEST_NAME = 80
_MOST_WORDS = 10
# What hosts files, logs and prose have and names do not: addresses, dates, verbs, the end of a sentence.
_NO_NAME = re.compile(
    r"\b(?:[89]|\d\d+)(?:\.\d+){3}\b|::|\d{4}-\d\d-\d\d|\b(?:TRACE|DEBUG|INFO|WARN|WARNING|ERROR|FATAL)\b|,$"
    r"|\b(?:is|was|were|are|has|have|had|been|that|they|she|he|which|would|could)\b|[a-z]{7,}\.(?:\s|$)"
)
_HEADED = re.compile(r"(^|[;_ ])(id|name|parent|child|label|rank|species|taxonid)(;|$)", re.IGNORECASE)
_LINKED_DATA = re.compile(
    r"<rdf:RDF|<!DOCTYPE rdf|Prefix\s*\(|Ontology\s*\(|@prefix |@base |<https?:[^>]*> <https?:"
)
_PARENT_LINE = re.compile(r"^<\s*[a-z]{2,3}(?:[_-]\w+)?\s*:\s*[^<>]+$", re.MULTILINE)


class FileStart:
    """What the functions below look at: the name, the text, and its lines without comments."""

    def __init__(self, source: SourceText) -> None:
        self.name = source.name
        self.text = source.text.strip()
        self.is_txt = source.name.lower().endswith(".txt")
        self._source = source
        self.lines = [
            line for _, line in islice(source.lines(), _GLIMPSE) if not line.lstrip().startswith("#")
        ]
        self.first = self.lines[0].strip() if self.lines else ""

    def all_lines(self) -> list[str]:
        """Every line that is not a comment."""
        return [line for _, line in self._source.lines() if not line.startswith("#")]


def refuse_other_documents(start: FileStart) -> None:
    """Refuse documents that are known, and are not read as a hierarchy."""
    if start.first[:1] in ("→", "⇒"):
        raise FormatError(f"{start.name}: must be a taxonomy. Got a mapping: hace.read_mapping reads it.")
    if start.first.startswith("<Ontology") or (
        start.first.startswith("<?xml") and "<Ontology" in start.text[:2000]
    ):
        raise FormatError(
            f"{start.name}: must not be OWL/XML. Convert it, for example: robot convert --input x.owx --output x.obo"
        )


def is_linked_data(start: FileStart) -> bool:
    """RDF/XML, Turtle, N-Triples, or OWL's functional syntax."""
    if start.first.startswith("<?xml"):
        return re.search(r"<rdf:RDF|<!DOCTYPE rdf", start.text[:5000]) is not None
    return _LINKED_DATA.match(start.first) is not None


def is_label_studio(start: FileStart) -> bool:
    """A labelling configuration: <View> with a <Taxonomy> inside."""
    return re.match(r"(<\?xml[^>]*>\s*)?<View\b", start.text) is not None and "<Taxonomy" in start.text


def is_claml(start: FileStart) -> bool:
    """A ClaML document, below its declarations."""
    return re.match(r"(?:\s*<[?!][^>]*>)*\s*<ClaML\b", start.text) is not None


def is_nested_xml(start: FileStart) -> bool:
    """Any other XML."""
    is_xml = start.text.startswith("<?xml") or (start.text[0] == "<" and start.name.lower().endswith(".xml"))
    return is_xml and not (is_linked_data(start) or is_label_studio(start) or is_claml(start))


def is_topics(start: FileStart) -> bool:
    """RCV1's topics: "parent: A  child: B"."""
    return TOPIC.fullmatch(start.first) is not None


def is_entries(start: FileStart) -> bool:
    """Open Food Facts: lines "< en:Parent" in front of lines "en: Name"."""
    begins = re.match(r"(?:<\s*)?[a-z][\w:-]*:\s*[^<>]+$", start.first)
    return begins is not None and _PARENT_LINE.search(start.text) is not None and not is_linked_data(start)


def is_ncbi(start: FileStart) -> bool:
    """NCBI's dump: "1<tab>|<tab>1<tab>|"."""
    return re.match(r"\d+\t\|\t", start.first) is not None


def is_speciesnet(start: FileStart) -> bool:
    """A UUID, then ranks."""
    return UUID.match(start.first) is not None


def is_lineages(start: FileStart) -> bool:
    """d__Bacteria;p__Bacillota on every line, but perhaps for a header."""
    rows = start.lines[1:] or start.lines
    return bool(rows) and start.first[0] not in "[{" and all(map(LINEAGE.search, rows))


def is_json(start: FileStart) -> bool:
    """An object, or a list of objects."""
    return start.text[0] == "{" or re.match(r"\[\s*\{", start.text) is not None


def is_taxon_table(start: FileStart, delimiter: str) -> bool:
    """The header of a table of taxa, with ids of parents."""
    return delimiter in start.first and taxon_columns(start.first.split(delimiter)) is not None


def is_code_table(start: FileStart) -> bool:
    """A .txt that begins with the names of columns, a code with its name or parent; or that lists codes and names alone."""
    if not start.name.lower().endswith((".txt", ".bin", ".dat")):
        return False
    mark = next((mark for mark in (*OTHER_MARKS, ",") if mark in start.first), None)
    if mark is None or PATH_MARK in start.first or is_speciesnet(start) or is_lineages(start):
        return False
    columns = columns_of([cell.strip('"') for cell in start.first.split(mark)])
    if columns.id >= 0 and columns.is_enough:
        return True
    rows = [(n, line.split(mark)) for n, line in enumerate(start.lines, 1)]
    return parse_by_content(SourceText(start.text, start.name), rows, prefixes=False) is not None


def is_newick(start: FileStart) -> bool:
    """From a bracket to a semicolon."""
    return start.text[0] == "(" and start.text[-1] == ";"


def is_obo(start: FileStart) -> bool:
    """The head of an OBO file, or one of its terms."""
    return start.text.startswith("format-version:") or bool(re.search(r"^\[Term\]", start.text, re.MULTILINE))


def is_paths(start: FileStart) -> bool:
    """A .txt most of whose lines are paths: A > B, 12 - A > B, A;B."""
    if not start.is_txt or is_newick(start):
        return False
    lines = start.all_lines()
    arrows = sum(" > " in line for line in lines)
    if arrows * 2 > len(lines):
        return True
    if arrows and all(map(NUMBERED.fullmatch, lines)):
        return True
    if len(lines) < 2 or not all(";" in line for line in lines) or _HEADED.search(start.first):
        return False
    if any(";;" in line for line in lines):  # cells of a table
        return False
    tops = [line.partition(";")[0] for line in lines]
    return len(set(tops)) < len(tops) or not all(any(map(str.isdigit, top)) and is_code(top) for top in tops)


def is_outline(start: FileStart) -> bool:
    """A .txt of names, some of them indented. Code, logs and settings are indented, too."""
    if not start.is_txt:
        return False
    lines = start.all_lines()
    return _is_indented(lines) and all(_is_plausible_name(DASHED.sub("", line).strip()) for line in lines)


def is_edges(start: FileStart) -> bool:
    """A .txt with two words on every line."""
    if not start.is_txt or is_paths(start):
        return False
    lines = start.all_lines()
    return not _is_indented(lines) and all(
        len(line.split()) == 2 and not _NO_NAME.search(line) for line in lines
    )


def _is_indented(lines: list[str]) -> bool:
    return any(line[0] in " \t" or DASHED.match(line) for line in lines)


def _is_plausible_name(text: str) -> bool:
    """Whether a line may be the name of a class, as far as code, logs and prose are not."""
    short = len(text) <= _LONGEST_NAME and len(text.split()) <= _MOST_WORDS
    return bool(short and _NAME.fullmatch(text) and not _NO_NAME.search(text))
