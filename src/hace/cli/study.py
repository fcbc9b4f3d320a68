"""`hace study`: a whole comparison."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from hace.cli.engine import With, Without, more, pairs_of, settings
from hace.cli.options import Groups, Option, as_number, plain
from hace.errors import ConfigError
from hace.study import Cluster, Study, known_presets

SHOWN = "out features data_root hierarchy methods rates seeds shares models only"
NAMES = {"settings": "--set"}
Choices = settings(Study, shown=SHOWN.split(), skip=("preset", "options"), names=NAMES)
ON_SLURM = With("--executor slurm")
Resources = settings(
    Cluster,
    repeated=("setup",),
    rules={
        "cpus": Without("--executor local"),
        "gpus": Without("--executor local"),
        "address": With("--executor ray"),
        **dict.fromkeys(
            ("partition", "account", "qos", "constraint", "memory", "nodes", "hours", "setup"), ON_SLURM
        ),
    },
)


def study(
    preset: tuple[str, ...] = (),
    /,
    *,
    choices: Choices = {},  # type: ignore[valid-type]  # noqa: B006
    option: Option = (),
    groups: Annotated[Groups, more] = None,
    only_list: Annotated[bool, Parameter(name="--list")] = False,
    dry_run: bool = False,
    update: Annotated[bool, more] = False,
    executor: Literal["local", "ray", "slurm"] = "local",
    workers: int | None = None,
    threads: Annotated[int, more] = 1,
    retries: Annotated[int, more] = 1,
    resources: Resources = {},  # type: ignore[valid-type]  # noqa: B006
) -> None:
    """Run a study: any experiment of the paper, its fair counterpart, the controls, or the same on your own data. Finished
    runs are never repeated: if it is stopped or killed, the same command resumes.

    Examples
      hace study --list
      hace study paper-probe fair-probe --features cifar100=F --out S    F: a folder of `hace features`
      hace study fair-probe --features birds.npz --hierarchy taxonomy.csv --methods cross_entropy,hace:dilution=0.3 --out S
      hace study mixed-labels --features birds.npz --hierarchy taxonomy.csv --shares 0,80 --out S
      hace study fair-end-to-end --data-root birds=photos -o test=0.2 --models resnet50 --out S --dry-run
      hace study fair-end-to-end --data-root aircraft=data --executor slurm --partition gpu --gpus 1 --hours 8 --out S
      hace study controls --features nabirds=F --executor ray --address 10.0.0.1:6379 --out S

    --features, --data-root and --hierarchy take NAME=PATH and repeat for several datasets; the name defaults to that of the
    file. Then: hace report S. Studies with the same --runs share their runs. On a cluster, the study and the data must be
    visible to all machines, at the same path. Exit code 1: some runs failed; the rest are finished, and the same command
    retries the failed ones.

    Args:
        preset: One or more studies; see --list.
        option: Option of the data: test=0.2 for every dataset that has it, birds.test=0.2 for one; may repeat.
        only_list: Show the studies and what they assume.
        dry_run: Show what would run and roughly how long it would take.
        update: Continue even if the study has changed.
        executor: Where to run.
        workers: Processes (local, ray), or jobs in SLURM's queue.
        threads: Threads per run; with 1, runs repeat bit for bit.
        retries: Retries of a failed run.
    """
    if only_list:
        return print_list()
    chosen = Study(**study_fields(preset, choices, option, groups))
    if dry_run:
        return chosen.price()
    how = {"workers": workers, "threads": threads, "retries": retries, "update": update}
    results = chosen.run(executor, cluster=Cluster(**resources), **how)
    first, *rest = results.summary
    print(first)
    page = f"Its page: hace report {shlex.quote(str(results.study.folder))}"
    print(*rest, page, sep="\n", file=sys.stderr)
    if results.failed:
        sys.exit(1)


def study_fields(
    preset: tuple[str, ...], choices: Mapping[str, Any], option: tuple[str, ...], groups: str | None
) -> dict[str, Any]:
    """The fields of a study: paths without a name get that of their file, and a hierarchy that of the only dataset."""
    values = dict(choices)
    for name in ("features", "data_root"):
        if name in values:
            values[name] = named_paths(values[name], f"--{name.replace('_', '-')}")
    if "hierarchy" in values:
        datasets = {dataset for name in ("features", "data_root") for dataset in values.get(name, {})}
        values["hierarchy"] = named_trees(values["hierarchy"], datasets)
    if "only" in values:
        values["only"] = pairs_of(values["only"], "--only")
    if "settings" in values:
        values["settings"] = as_values(pairs_of(values["settings"], "--set"))
    options = as_values(pairs_of(option, "--option"))
    if groups is not None:
        options["groups"] = groups
    return {"preset": preset, **values, **({"options": options} if options else {})}


def named_paths(words: tuple[str, ...], option: str) -> dict[str, str]:
    """Paths by dataset; one without a name is named after its file."""
    return pairs_of((word if "=" in word else f"{Path(word).stem}={word}" for word in words), option)


def named_trees(words: tuple[str, ...], datasets: set[str]) -> dict[str, str]:
    """Hierarchies by dataset; one without a name is that of the only dataset."""
    unnamed = [word for word in words if "=" not in word]
    if unnamed and len(datasets) != 1:
        raise ConfigError(f"--hierarchy must be NAME=PATH unless there is one dataset. Got {unnamed[0]!r}.")
    return pairs_of((word if "=" in word else f"{min(datasets)}={word}" for word in words), "--hierarchy")


def as_values(words: Mapping[str, str]) -> dict[str, Any]:
    """Options and settings: numbers, true, false and lists in place of text that is one."""
    return {name: as_number(plain(text)) for name, text in words.items()}


def print_list() -> None:
    """The studies, and what they assume."""
    from hace.paper import ASSUMPTIONS

    for name, preset in known_presets().items():
        print(f"{name:<18} {preset.title}")
        methods = ", ".join(preset.methods)
        print(f"{'':<18} {', '.join(preset.datasets)}; methods {methods}; seeds {preset.seeds}")
    print("\nAssumptions where the paper says nothing:", *(f"- {text}" for text in ASSUMPTIONS), sep="\n")
