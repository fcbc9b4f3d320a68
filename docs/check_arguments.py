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
            result = resolve(package, name)
            if not result.is_module:
                yield page.name, name, result
                continue
            hidden = [pattern[1:] for pattern in options.get("filters", ()) if pattern.startswith("!")]
            names = options.get("members")
            if names is None:
                names = [n for n in result.members if public(result, n)]
            for member in names or []:
                if not any(re.search(pattern, member) for pattern in hidden):
                    anchor = f"{name}.{member}"
                    yield page.name, anchor, resolve(package, anchor)


def rendered(package: Any) -> Iterator[Any]:
    """The classes and functions on the API pages."""
    return (result for _, _, result in shown(package))


def public(module: Any, name: str) -> bool:
    member = module.members[name]
    return not name.startswith("_") and not member.is_alias and (member.is_class or member.is_function)


def resolve(package: Any, name: str) -> Any:
    result = package if name == "hace" else package[name.removeprefix("hace.")]
    return result.final_target if result.is_alias else result


def with_methods(result: Any) -> Iterator[Any]:
    yield result
    if result.is_class:
        for name, member in result.members.items():
            if not name.startswith("_") and not member.is_alias and member.is_function:
                yield member


def parameters(result: Any) -> list[str]:
    """The names in the signature, without self and cls; a class has those of its `__init__`, or, where it documents
    arguments, of the one it inherits.
    """
    if result.is_class:
        classes = (result, *result.mro()) if documented(result) else (result,)
        result = next((c.members["__init__"] for c in classes if "__init__" in c.members), None)
        if result is None:
            return []
    names = [p.name for p in result.parameters]
    return [name for name in names if name not in ("self", "cls") and not name.startswith("_")]


def documented(result: Any) -> list[str] | None:
    """The entries of the docstring's `Args:`; None without that section."""
    if result.docstring is None:
        return None
    sections = result.docstring.parse("google", warn_unknown_params=False, warn_missing_types=False)
    entries = [s.value for s in sections if s.kind is griffe.DocstringSectionKind.parameters]
    if not entries:
        return None
    # "a, b:" describes two at once.
    return [name.lstrip("*") for section in entries for entry in section for name in entry.name.split(", ")]


def is_record(result: Any) -> bool:
    """Whether a class is a dataclass or a named tuple: its fields are its arguments and document themselves."""
    bases = [str(base) for base in result.bases] if result.is_class else []
    return result.is_class and ("dataclass" in result.labels or any("NamedTuple" in base for base in bases))


def problems(package: Any) -> Iterator[str]:
    seen = set()
    for top in rendered(package):
        for result in with_methods(top):
            if result.path in seen or is_record(result) or not (result.is_class or result.is_function):
                continue
            seen.add(result.path)
            wanted, written = parameters(result), documented(result)
            if "forms" in wanted:  # a metric: what all of them take is on the page of ScoreForms
                wanted = [name for name in wanted if name not in SHARED or name in (written or ())]
            if written is None:
                if (
                    result is top and len(wanted) > 1
                ):  # one argument, or a short method, may do with its summary
                    yield f"{result.path} documents none of its arguments: {', '.join(wanted)}"
                continue
            yield from (f"{result.path} does not document {name!r}" for name in wanted if name not in written)
            yield from (f"{result.path} has no argument {name!r}" for name in written if name not in wanted)


def main() -> int:
    logging.disable(logging.WARNING)
    package = griffe.load("hace", search_paths=[ROOT / "src"])
    result = sorted(problems(package))
    print(
        "\n".join(result) or "Every argument on the API pages is documented.",
        file=sys.stderr if result else sys.stdout,
    )
    return 1 if result else 0


if __name__ == "__main__":
    sys.exit(main())
