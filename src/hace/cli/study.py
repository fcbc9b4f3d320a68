"""Run a study: every experiment of the paper, its fair counterpart, the controls, or the same on your own data. Finished runs
are never repeated: if it is stopped or killed, the same command resumes where it stopped.

Examples:
  hace study --list
  hace study paper-probe fair-probe --features cifar100=F --out S    F: a folder of `hace features`
  hace study fair-probe --features birds=birds.npz --hierarchy birds=taxonomy.csv --methods sce,hace:dilution=0.3 --out S
  hace study mixed-labels --features birds=birds.npz --hierarchy birds=taxonomy.csv --shares 0,80 --out S
  hace study fair-end-to-end --data-root birds=photos -o test=0.2 --models resnet50 --out S --dry-run
  hace study fair-end-to-end --data-root aircraft=data --executor slurm --partition gpu --gpus 1 --hours 8 --out S
  hace study controls --features nabirds=F --executor ray --address 10.0.0.1:6379 --out S

Then: hace report S. Studies with the same --runs share their runs. On a cluster, the study and the data must be visible to
all machines, at the same path. Exit code 1: some runs failed; the others are done, and the same command tries again.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, get_type_hints

from hace.cli.options import Parser, numbers
from hace.errors import ConfigError

# argparse reads the options, not jsonargparse: a study takes NAME=PATH for each dataset and several presets without a flag,
# which jsonargparse has no form for.
_FLAGS = {"options": ("-o", "--option"), "settings": ("--set",)}  # other options have the name of their field
_METAVARS = {"only": "KEY=V", "options": "[NAME.]O=V", "setup": "LINE"}


def add_arguments(parser: Parser) -> None:
    """Declare the command's arguments."""
    from hace.study import Cluster, Study

    add = parser.option
    about = "the column that names each sample's group, such as its site (-o groups=COLUMN)"
    add("--groups", "COLUMN", about)
    add("preset", "PRESET", "one or more studies; see --list", nargs="*")
    parser.flag("--list", "show the studies and what they assume")
    parser.flag("--dry-run", "show what would run, and about how long it takes")
    parser.flag("--update", "continue even if the study has changed")
    add("--executor", "E", "local, ray or slurm (default: local)", default="local")
    add("--workers", "N", "processes (local, ray), or jobs in SLURM's queue", type=int)
    about = "threads per run; with 1, runs repeat bit for bit (default: 1)"
    add("--threads", "N", about, type=int, default=1)
    add("--retries", "N", "retries of a failed run (default: 1)", type=int, default=1)
    _add_fields(parser.add_argument_group("what"), Study)
    _add_fields(parser.add_argument_group("on a cluster"), Cluster)


def _add_fields(group: Any, config: type) -> None:
    """Declare an option for each field of a configuration, with the help of its docstring."""
    docs = "\n\n".join(part.__doc__ or "" for part in config.__mro__[:-1])
    for name, hint in get_type_hints(config).items():
        if name == "preset":
            continue
        found = re.search(rf"\n        {name}: (.*?)(?=\n        \w+: |\n\n|\n    \w|$)", docs, re.DOTALL)
        text = " ".join(found[1].split()).replace("%", "%%").rstrip(".") if found else ""
        text = text if text[1:2].isupper() or text.startswith("Ray") else text[:1].lower() + text[1:]
        kind = _kind(hint)
        options: dict[str, Any] = {"metavar": _METAVARS.get(name, "A,B" if kind is tuple else "X")}
        if kind is bool:
            options = {"action": "store_true"}
        elif kind is dict:
            options = {"action": "extend", "nargs": "+", "metavar": _METAVARS.get(name, "NAME=V")}
        elif kind in (int, float) or name == "setup":
            options |= {"action": "append"} if name == "setup" else {"type": kind}
        flags = _FLAGS.get(name, (f"--{name.replace('_', '-')}",))
        group.add_argument(*flags, dest=name, help=text, **options)


def _kind(hint: Any) -> type:
    """What a field takes: dict, tuple, bool, int, float or str."""
    shapes = (kind for word, kind in (("Mapping", dict), ("tuple", tuple)) if word in str(hint))
    return next(shapes, next((kind for kind in (bool, int, float) if hint in (kind, kind | None)), str))


def _given(args: argparse.Namespace, config: type) -> dict[str, Any]:
    """The values that the user gave for the fields of a configuration."""
    if args.groups is not None:
        args.options, args.groups = [*(args.options or ()), f"groups={args.groups}"], None
    values = {}
    for name, hint in get_type_hints(config).items():
        value = getattr(args, name, None)
        if value is None or value is False:
            continue
        if _kind(hint) is dict and name != "preset":
            value = _pairs(value, name)
        elif _kind(hint) is tuple and isinstance(value, str):
            value = value.split(",")
            with suppress(ValueError):  # the configuration says what it must be
                value = [*map({"float": float, "int": int}.get(str(hint)[6:].split(",")[0], str), value)]
        values[name] = tuple(value) if isinstance(value, list) else value
    return values


def _pairs(words: Iterable[str], option: str) -> dict[str, Any]:
    """NAME=VALUE words as a mapping; options of data and settings are numbers, true or false where they look so."""
    found: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name or not value:
            raise ConfigError(f"{option} must be NAME=VALUE. Got {word!r}.")
        if name in found:
            raise ConfigError(f"{option} must name {name!r} once. Got {found[name]!r} and {value!r}.")
        found[name] = value
        if option in ("options", "settings"):
            with suppress(ValueError):
                found[name] = json.loads(value)
    return numbers(found) if option in ("options", "settings") else found


def run(args: argparse.Namespace) -> None:
    """Plan, check what is done, run the rest, and print the summary."""
    from hace.paper import ASSUMPTIONS
    from hace.study import Cluster, Study, known_presets

    if args.list:
        for name, preset in known_presets().items():
            print(f"{name:<18} {preset.title}")
            methods = ", ".join(preset.methods)
            print(f"{'':<18} {', '.join(preset.datasets)}; methods {methods}; seeds {preset.seeds}")
        print("\nAssumptions where the paper says nothing:", *(f"- {text}" for text in ASSUMPTIONS), sep="\n")
        return
    study, cluster = Study(**_given(args, Study)), Cluster(**_given(args, Cluster))
    if args.dry_run:
        return study.price()
    how = {name: getattr(args, name) for name in ("workers", "threads", "retries", "update")}
    results = study.run(args.executor, cluster=cluster, **how)
    first, *rest = results.summary
    print(first)
    page = f"Its page: hace report {shlex.quote(str(results.study.folder))}"
    print(*rest, page, sep="\n", file=sys.stderr)
    if results.failed:
        sys.exit(1)
