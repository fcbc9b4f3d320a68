"""Check that the API pages document every argument: `make docs` runs this and fails on the first gap.

For each object that a page in docs/api renders, its docstring's `Args:` must list exactly the parameters of its
signature, one entry each. An entry swallowed by the paragraph of another one shows here as a missing argument.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import griffe
import yaml

from hace.losses.registry import CLASSES

ROOT = Path(__file__).parents[1]
SHARED = ("preds", "target", "hierarchy", "forms")  # by all metrics, documented with hace.metrics.ScoreForms
DIRECTIVE = re.compile(r"^::: (\S+)\n((?:    .*\n?)*)", re.MULTILINE)


def with_losses(page: str) -> str:
    """A page with a directive for each class of losses, in the order of their registry, where it asks for every loss."""
    directives = [f"::: hace.{name}\n    options:\n      members: false\n" for name in CLASSES]
    return page.replace("::: every loss\n", "\n".join(directives))


def shown(package: Any) -> Iterator[tuple[str, str, Any]]:
    """Each class and function on the API pages: the page, its anchor there, and the object."""
    for page in sorted((ROOT / "docs" / "api").glob("*.md")):
        for name, block in DIRECTIVE.findall(with_losses(page.read_text(encoding="utf-8"))):
            options = (yaml.safe_load(block) or {}).get("options", {}) if block.strip() else {}
            found = resolve(package, name)
            if not found.is_module:
                yield page.name, name, found
                continue
            hidden = [pattern[1:] for pattern in options.get("filters", ()) if pattern.startswith("!")]
            names = options.get("members")
            if names is None:
                names = [n for n in found.members if public(found, n)]
            for member in names or []:
                if not any(re.search(pattern, member) for pattern in hidden):
                    anchor = f"{name}.{member}"
                    yield page.name, anchor, resolve(package, anchor)


def rendered(package: Any) -> Iterator[Any]:
    """The classes and functions on the API pages."""
    return (found for _, _, found in shown(package))


def public(module: Any, name: str) -> bool:
    member = module.members[name]
    return not name.startswith("_") and not member.is_alias and (member.is_class or member.is_function)


def resolve(package: Any, name: str) -> Any:
    found = package if name == "hace" else package[name.removeprefix("hace.")]
    return found.final_target if found.is_alias else found


def with_methods(found: Any) -> Iterator[Any]:
    yield found
    if found.is_class:
        for name, member in found.members.items():
            if not name.startswith("_") and not member.is_alias and member.is_function:
                yield member


def parameters(found: Any) -> list[str]:
    """The names in the signature, without self and cls; a class has those of its `__init__`, or, where it documents
    arguments, of the one it inherits.
    """
    if found.is_class:
        classes = (found, *found.mro()) if documented(found) else (found,)
        found = next((c.members["__init__"] for c in classes if "__init__" in c.members), None)
        if found is None:
            return []
    names = [p.name for p in found.parameters]
    return [name for name in names if name not in ("self", "cls") and not name.startswith("_")]


def documented(found: Any) -> list[str] | None:
    """The entries of the docstring's `Args:`; None without that section."""
    if found.docstring is None:
        return None
    sections = found.docstring.parse("google", warn_unknown_params=False, warn_missing_types=False)
    entries = [s.value for s in sections if s.kind is griffe.DocstringSectionKind.parameters]
    if not entries:
        return None
    # "a, b:" describes two at once.
    return [name.lstrip("*") for section in entries for entry in section for name in entry.name.split(", ")]


def is_record(found: Any) -> bool:
    """Whether a class is a dataclass or a named tuple: its fields are its arguments and document themselves."""
    bases = [str(base) for base in found.bases] if found.is_class else []
    return found.is_class and ("dataclass" in found.labels or any("NamedTuple" in base for base in bases))


def problems(package: Any) -> Iterator[str]:
    seen = set()
    for top in rendered(package):
        for found in with_methods(top):
            if found.path in seen or is_record(found) or not (found.is_class or found.is_function):
                continue
            seen.add(found.path)
            wanted, written = parameters(found), documented(found)
            if "forms" in wanted:  # a metric: what all of them take is on the page of ScoreForms
                wanted = [name for name in wanted if name not in SHARED or name in (written or ())]
            if written is None:
                if (
                    found is top and len(wanted) > 1
                ):  # one argument, or a short method, may do with its summary
                    yield f"{found.path} documents none of its arguments: {', '.join(wanted)}"
                continue
            yield from (f"{found.path} does not document {name!r}" for name in wanted if name not in written)
            yield from (f"{found.path} has no argument {name!r}" for name in written if name not in wanted)


def main() -> int:
    logging.disable(logging.WARNING)
    package = griffe.load("hace", search_paths=[ROOT / "src"])
    found = sorted(problems(package))
    print(
        "\n".join(found) or "Every argument on the API pages is documented.",
        file=sys.stderr if found else sys.stdout,
    )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
