"""What `hace study` and `hace demo` share: options made from the study's own fields, and the call.

argparse reads them, not jsonargparse: `hace demo` needs nothing but the base install, and a study takes NAME=PATH for each data
set and several presets without a flag, which jsonargparse has no form for.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable
from dataclasses import fields
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from hace.cli.options import numbers, reader_options
from hace.errors import ConfigError

if TYPE_CHECKING:
    from hace.study import Study, StudyResults

_FLAGS = {"options": ("-o", "--option"), "settings": ("--set",)}  # other options have the name of their field
_METAVARS = {"only": "KEY=V", "settings": "NAME=V", "options": "[NAME.]O=V", "setup": "LINE"}


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare where a study goes and how it runs, for `hace study` and `hace demo`."""
    from hace.study import Cluster, Study

    how = parser.add_argument_group("how")
    add_fields(how, Study, only=("out", "runs"))
    for flag, text in (
        ("--dry-run", "show what would run, and about how long it takes"),
        ("--update", "continue even if the study has changed"),
    ):
        how.add_argument(flag, action="store_true", help=text)
    how.add_argument("--executor", metavar="E", default="local", help="local, ray or slurm (default: local)")
    for flag, default, text in (
        ("--workers", None, "processes (local, ray), or jobs in SLURM's queue"),
        ("--threads", 1, "threads per run; with 1, runs repeat bit for bit (default: 1)"),
        ("--retries", 1, "retries of a failed run (default: 1)"),
    ):
        how.add_argument(flag, metavar="N", type=int, default=default, help=text)
    add_fields(parser.add_argument_group("on a cluster"), Cluster)


def add_fields(group: Any, config: type, *, only: Iterable[str] = (), skip: Iterable[str] = ()) -> None:
    """Declare an option for each field of a configuration, with the help of its docstring."""
    docs = "\n\n".join(part.__doc__ or "" for part in config.__mro__[:-1])
    for name, kind in _kinds(config).items():
        if (only and name not in only) or name in skip:
            continue
        found = re.search(rf"\n        {name}: (.*?)(?=\n        \w+: |\n\n|\n    \w|$)", docs, re.DOTALL)
        text = " ".join(found[1].split()).replace("%", "%%").rstrip(".") if found else ""
        text = text if text[1:2].isupper() or text.startswith("Ray") else text[:1].lower() + text[1:]
        options: dict[str, Any] = {"dest": name, "help": text}
        if kind is bool:
            options["action"] = "store_true"
        else:
            options["metavar"] = _METAVARS.get(name, {"mapping": "NAME=V", tuple: "A,B"}.get(kind, "X"))
            options |= {"type": kind} if kind in (int, float) else {}
            options |= {"action": "extend", "nargs": "+"} if kind == "mapping" else {}
            options |= {"action": "append"} if name == "setup" else {}
        group.add_argument(*_FLAGS.get(name, (f"--{name.replace('_', '-')}",)), **options)


def _kinds(config: type) -> dict[str, Any]:
    """What each field of a configuration takes: "mapping", tuple, bool, int, float or str."""
    found: dict[str, Any] = {}
    hints = get_type_hints(config)
    for field in fields(config):
        hint = hints[field.name]
        parts = [part for part in (get_args(hint) or (hint,)) if part is not type(None)]
        if "Mapping" in str(hint):
            found[field.name] = "mapping"
        elif "tuple" in str(hint):
            found[field.name] = tuple
        else:
            found[field.name] = parts[0] if len(parts) == 1 else str
    return found


def given(args: argparse.Namespace, config: type) -> dict[str, Any]:
    """The values that the user gave for the fields of a configuration."""
    hints = get_type_hints(config)
    values = {}
    for name, kind in _kinds(config).items():
        value = getattr(args, name, None)
        if value is None or value is False:
            continue
        if kind == "mapping" and name != "preset":
            value = data_options(value) if name in ("options", "settings") else pairs(value, name)
        elif kind is tuple and isinstance(value, str):
            number = next((k for k in (float, int) if k.__name__ in str(hints[name])), None)
            value = [_number(part, number) for part in value.split(",")]
        values[name] = tuple(value) if isinstance(value, list) else value
    return values


def run_study(study: Study, args: argparse.Namespace) -> StudyResults | None:
    """Run a study and print its summary; a dry run shows what would run, and returns None."""
    from hace.lab.runs.process import Stopped
    from hace.study import Cluster

    cluster = Cluster(**given(args, Cluster))
    if args.dry_run:
        return study.price()
    try:
        results = study.run(
            args.executor,
            workers=args.workers,
            cluster=cluster,
            threads=args.threads,
            retries=args.retries,
            update=args.update,
        )
    except Stopped as stopped:
        raise SystemExit(128 + stopped.number) from None
    first, *rest = results.summary
    print(first)
    for line in rest:
        print(line, file=sys.stderr)
    return results


def pairs(words: Iterable[str], option: str) -> dict[str, str]:
    """NAME=VALUE words as a mapping.

    Example:
        >>> pairs(["birds=/data/birds.npz"], "features")
        {'birds': '/data/birds.npz'}
    """
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name or not value:
            raise ConfigError(f"{option} must be NAME=VALUE. Got {word!r}.")
        if name in found:
            raise ConfigError(f"{option} must name {name!r} once. Got {found[name]!r} and {value!r}.")
        found[name] = value
    return found


def data_options(words: Iterable[str]) -> dict[str, Any]:
    """Options with their values: of all data sets, or of one that is named before a dot.

    Example:
        >>> data_options(["test=0.2", "birds.allow_empty=true"])
        {'test': 0.2, 'birds.allow_empty': True}
    """
    found: dict[str, Any] = {}
    for word in words:
        owner = "".join(word.partition("=")[0].rpartition(".")[:2])
        options = numbers(reader_options([word.removeprefix(owner)], "-o"))
        found |= {f"{owner}{name}": value for name, value in options.items()}
    return found


def _number(text: str, kind: Any) -> Any:
    """A number if it is one; what is not is left to the configuration, which says what it must be."""
    try:
        return text if kind is None else kind(text)
    except ValueError:
        return text
