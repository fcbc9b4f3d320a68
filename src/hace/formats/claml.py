"""ClaML, the XML in which WHO and national offices publish ICD-10, ICF and procedures: classes with their superclasses."""

from __future__ import annotations

from collections.abc import Mapping

from hace.errors import FormatError
from hace.formats.draft import Draft, SourceText, quoted
from hace.formats.taxonomies import absent
from hace.formats.xml_tags import parse_xml

_PREFERRED = "preferred"  # the kind of the rubric that is the name


def parse_claml(source: SourceText, *, language: str = "en") -> Draft:
    """Classes below their superclasses, named by the preferred rubric: in a language, where it is there in several."""
    reading = _Reading(source)
    parse_xml(source, reading.open, reading.close, reading.text)
    if not reading.parents:
        raise FormatError(f"{source.name}: must have Class tags with a code. Got none.")
    source.problems.raise_any()
    draft = Draft(nodes=list(reading.parents), flat=True)
    for code, names in reading.names.items():
        texts = [" ".join(name.split()) for name in (names.get(language), *names.values()) if name]
        draft.names[code] = next(filter(None, texts), code)
    missing = []
    for code, above in reading.parents.items():
        known = [parent for parent in above if parent in reading.parents and parent != code]
        draft.edges += [(parent, code) for parent in known]
        if not known and above.keys() - {code}:
            missing.append(code)
    if missing:
        draft.notes.append(absent(missing))
    return draft


class _Reading:
    """What a pass over the tags has seen."""

    def __init__(self, source: SourceText) -> None:
        self.source = source
        self.parents: dict[str, dict[str, None]] = {}
        self.names: dict[str, dict[str, str]] = {}  # by language
        self._code = ""
        self._is_name = False
        self._language: str | None = None  # of the label that is open

    def open(self, line: int, tag: str, attributes: Mapping[str, str]) -> None:
        """Take the start of a tag: codes of classes and of those above them, and which label is a name."""
        if tag == "Class":
            self._code = attributes.get("code", "").strip()
            if not self._code or self._code in self.parents:
                what = "none" if not self._code else f"{quoted(self._code)} again"
                self.source.problems.broken(line, f"a Class must have a code of its own. Got {what}.")
            self.parents.setdefault(self._code, {})
            self.names.setdefault(self._code, {})
        elif tag == "SuperClass" and self._code:
            self.parents[self._code][attributes.get("code", "").strip()] = None
        elif tag == "Rubric":
            self._is_name = attributes.get("kind") == _PREFERRED and bool(self._code)
        elif tag == "Label" and self._is_name:
            self._language = attributes.get("xml:lang", "")

    def close(self, tag: str) -> None:
        """Take the end of a tag."""
        if tag == "Class":
            self._code = ""
        elif tag == "Rubric":
            self._is_name = False
        elif tag == "Label":
            self._language = None

    def text(self, characters: str) -> None:
        """Take a piece of text: names alone."""
        if self._language is not None:
            names = self.names[self._code]
            names[self._language] = names.get(self._language, "") + characters
