"""The exceptions of hace: one family, so that one `except` catches what a caller can put right.

A message names the argument, the rule, the value and the remedy. The command line prints it without a
traceback. Anything that is *not* a `HaceError` is a bug in hace.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from itertools import islice

# A longer list of problems helps no one; `HaceError.problems` holds all of them.
SHOWN_PROBLEMS = 12

# `nearest` compares a name with every known one. Above this count it looks at the first ones only, so that an error
# about a hierarchy of a million nodes does not take minutes to word.
COMPARED_NAMES = 20_000
COMPARED_LENGTH = 200  # characters; the comparison takes the square of it
_NUMBERED = re.compile(r"([A-Za-z]+[:_])?\d+")  # 536, CL:0000236

BROKEN = (
    "THE GUARANTEE IS BROKEN"  # what every message about one begins with, and the command line shows in red
)

# Longest name that `listed` quotes whole, in characters.
LISTED_LENGTH = 60

# A message may quote what it found, and what it found may be megabytes.
SHOWN_LENGTH = 4000

# Control characters, line separators, marks that turn the direction of text, and code points that are not text.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")


def install(extra: str) -> str:
    """How to get an extra. Nothing is published yet, so it comes from a checkout."""
    return f'Install it in a checkout of hace: pip install ".[{extra}]".'


def shorten(text: str, length: int = SHOWN_LENGTH) -> str:
    """The text, or its beginning and its end: the remedy comes last in a message.

    Example:
        >>> shorten("The header must be short. Got " + "x" * 1000 + ". Cut it.", 70)
        'The header must be short. Got xxxxxxxxxxx ... 987 more ... xx. Cut it.'
    """
    if len(text) <= length:
        return text
    cut = f" ... {len(text) - length:,} more ... "
    cut = f" ... {len(text) - length + len(cut):,} more ... "
    head = max(0, (length - len(cut)) * 4 // 5)
    return text[:head] + cut + text[len(text) - (length - len(cut) - head) :]


class HaceError(ValueError):
    """Something the caller gave does not fit. The base of all exceptions that hace raises on purpose.

    Args:
        problems: One problem, or all that were found: the argument, the rule, the value and the remedy of each. The message
            shows the first twelve, and loses its middle where it has more than 4,000 characters.
        count: How many were found, where `problems` holds only the first ones.

    Attributes:
        problems: Every problem, whole.

    Example:
        >>> error = HierarchyError(["'dog' is its own parent.", "'cat' has an unknown parent 'felid'."])
        >>> print(error)
        2 problems:
          - 'dog' is its own parent.
          - 'cat' has an unknown parent 'felid'.
        >>> len(error.problems)
        2
    """

    problems: tuple[str, ...]

    def __init__(self, problems: str | Sequence[str] = "", count: int | None = None) -> None:
        self.problems = tuple(problems) if isinstance(problems, list | tuple) else (str(problems),)
        self._count = len(self.problems) if count is None else count
        super().__init__(shorten(_joined(self.problems, self._count)))

    def __reduce__(self) -> tuple[type[HaceError], tuple[tuple[str, ...], int]]:
        # The default would rebuild from the joined message and lose the single problems.
        return type(self), (self.problems, self._count)


class HierarchyError(HaceError):
    """A hierarchy that breaks the rules."""


class FormatError(HaceError):
    """A file or text that cannot be read: where (path, line or position), what was expected, and what to do."""


class DataError(HaceError):
    """Arrays, labels or scores that do not fit the hierarchy or each other."""


class DataWarning(UserWarning):
    """Something about data that is accepted, and perhaps not what was meant."""


class GroupWarning(DataWarning):
    """A column looks like groups of samples and is not used."""


class ScoreWarning(DataWarning):
    """Scores look like another kind than they are read as."""


class ConfigError(HaceError):
    """A setting, an option or a combination of them that is not allowed."""


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: the known names that look like it; numbers that do mean something else.

    Example:
        >>> nearest("huskey", ["husky", "dusky", "tabby"])
        " Did you mean 'husky' or 'dusky'?"
        >>> nearest("zebra", ["husky", "tabby"]) + nearest("CL:0000235", ["CL:0000236"])
        ''
    """
    if len(name) > COMPARED_LENGTH or _NUMBERED.fullmatch(name):
        return ""
    candidates = [k for k in dict.fromkeys(islice(known, COMPARED_NAMES)) if len(k) <= COMPARED_LENGTH]
    folded = {candidate.casefold(): candidate for candidate in reversed(candidates)}
    close = get_close_matches(name.casefold(), folded, n=3, cutoff=0.6)
    if not close:
        return ""
    quoted = [repr(folded[key]) for key in close]
    return f" Did you mean {' or '.join(quoted)}?"


def amount(count: int, noun: str) -> str:
    """A count with its noun.

    Example:
        >>> amount(1, "image"), amount(2000, "image"), amount(2, "class")
        ('1 image', '2,000 images', '2 classes')
    """
    plural = f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{count:,} {noun if count == 1 else plural}"


def listed(names: Iterable[str], most: int = 5) -> str:
    """Names for a message: quoted, each bounded, and not too many.

    Example:
        >>> listed("abcdefg")
        "'a', 'b', 'c', 'd', 'e' and 2 more"
    """
    names = list(names)
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(repr(shorten(name, LISTED_LENGTH)) for name in names[:most]) + more


def printable(text: str) -> str:
    r"""Text with control characters as escapes: they could move a terminal's cursor, break a line or turn text around.

    Example:
        >>> printable("a\x1b[2Jb")
        'a\\x1b[2Jb'
    """
    return _CONTROL.sub(lambda c: c[0].encode("unicode_escape", "backslashreplace").decode("ascii"), text)


def _joined(problems: tuple[str, ...], count: int) -> str:
    if count == 1:
        return problems[0]
    lines = [f"{count} problems:", *(f"  - {problem}" for problem in problems[:SHOWN_PROBLEMS])]
    if count > SHOWN_PROBLEMS:
        lines.append(f"  ... and {count - SHOWN_PROBLEMS} more.")
    return "\n".join(lines)
