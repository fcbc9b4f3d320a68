"""XML, tag by tag: definitions that a document brings along are refused, and what is no XML ends in a message."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from xml.parsers import expat

from hace.errors import FormatError
from hace.formats.draft import SourceText

_DECLARATION = re.compile(r"\A\s*<\?xml[^>]*\?>")


def parse_xml(
    source: SourceText,
    opening: Callable[[int, str, Mapping[str, str]], None],
    closing: Callable[[str], None],
    text: Callable[[str], None] | None = None,
) -> None:
    """Goes through a document.

    Args:
        source: the document; without <?xml ...?>, whose encoding is that of the bytes it was decoded from.
        opening: takes the line, the name and the attributes of a tag.
        closing: takes the name of a tag at its end.
        text: takes the text between tags, in pieces.
    """
    parser = expat.ParserCreate()

    def check_doctype(name: str, system: str | None, public: str | None, has_definitions: int) -> None:
        if has_definitions:
            raise FormatError(
                f"{source.name}: the DOCTYPE must not define anything. Got definitions: leave them out."
            )

    parser.StartDoctypeDeclHandler = check_doctype
    parser.StartElementHandler = lambda tag, attributes: opening(parser.CurrentLineNumber, tag, attributes)
    parser.EndElementHandler = closing
    parser.CharacterDataHandler = text
    try:
        parser.Parse(_DECLARATION.sub("", source.text), True)
    except UnicodeEncodeError as error:
        raise FormatError(f"{source.name}: must be text. Got half a character at {error.start}.") from error
    except expat.ExpatError as error:
        raise FormatError(
            f"{source.name}, line {error.lineno}: must be XML. Got an error: {expat.errors.messages[error.code]}."
        ) from error
