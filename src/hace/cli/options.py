"""Options that several commands share: datasets, devices, files of scores and labels, guarantees. Commands import nothing from
each other; what two of them need is here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import numpy as np
from cyclopts import Parameter

from hace.checks import require
from hace.cli.engine import With, Without, more
from hace.errors import ConfigError, DataError, nearest
from hace.settings import Config, from_dict, merged, unused

if TYPE_CHECKING:
    from hace.data import Dataset
    from hace.hierarchy import Hierarchy
    from hace.metrics.scored_file import ScoredFile

C = TypeVar("C", bound=Config)

_LISTS = ("columns", "leaves", "level_names")  # options of readers that are lists

# Options of several commands; what is said about them is said here.
Option = Annotated[tuple[str, ...], Parameter(name=("--option", "-o"))]
DataOption = Annotated[Option, Parameter(help="Option of the dataset, NAME=VALUE; may repeat.")]
Groups = Annotated[
    str | None,
    Parameter(help="Column that names each sample's group, such as its site; splits keep groups whole."),
]
RootNode = Annotated[bool | None, Parameter(negative="--no-root-node")]
Checkpoint = Annotated[
    Path | None,
    Parameter(
        help="Weights of the model behind a probe's features (default: those that `hace features` used)."
    ),
]
MovedData = Annotated[
    Path | None,
    Parameter(name="--data-root", help="Current place of the run's data or features, if they have moved."),
]
Names = Annotated[
    Path | None, Parameter(help='Names of nodes, one line "id name" each, for a hierarchy with only ids.')
]


# ---------------------------------------------------------------------- options of readers


def reader_options(words: Iterable[str]) -> dict[str, Any]:
    """The options of a reader, from NAME=VALUE words."""
    options: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name.isidentifier() or name in ("path", "format", "root"):
            raise ConfigError(f"--option must be NAME=VALUE with the name of an option. Got {word!r}.")
        options[name] = "\t" if (name, value) == ("delimiter", "\\t") else plain(value)
        if name in _LISTS and isinstance(options[name], str):
            options[name] = [word.strip() for word in value.split(",")]
    return options


def plain(text: str) -> Any:
    """A list, an object, true or false if it parses as JSON; any other text stays text, numbers too: ids are text."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, bool | list | dict) else text


def data_options(words: Iterable[str], groups: str | None) -> dict[str, Any]:
    """The options of a dataset, with numbers in place of words that parse as such: none of them is an id."""
    options = {name: as_number(value) for name, value in reader_options(words).items()}
    return options if groups is None else {**options, "groups": groups}


def as_number(value: Any) -> Any:
    """A number in place of text that is one."""
    for kind in (int, float):
        with suppress(ValueError):
            return kind(value) if isinstance(value, str) else value
    return value


# ---------------------------------------------------------------------- datasets and devices


@Parameter(name="*")
@dataclass(frozen=True)
class DataOptions:
    """Where a dataset is, and how it is read.

    Attributes:
        data_root: Folder of the dataset; for manifest and features, the file.
        download: Download the dataset into --data-root if it is missing.
        hierarchy: Hierarchy to use in place of the dataset's own, in any form that `hace hierarchy` reads.
        root_node: With or without a root (default: as in the paper, or as the hierarchy has it).
    """

    data_root: Path | None = None
    download: Annotated[bool, With("--data-root")] = False
    hierarchy: str | None = None
    root_node: RootNode = None
    option: DataOption = ()
    groups: Groups = None

    def load(self, name: str, data_root: Path | None = None, **options: Any) -> Dataset[Any]:
        """The dataset of a name."""
        from hace.data import load_dataset

        options |= data_options(self.option, self.groups)
        given: dict[str, Any] = {"hierarchy": self.hierarchy, "root_node": self.root_node}
        return load_dataset(name, data_root or self.data_root, download=self.download, **given, **options)


@Parameter(name="*")
@dataclass(frozen=True)
class Device:
    """Where a model runs.

    Attributes:
        device: cpu, cuda, cuda:1 or mps; auto takes an accelerator if there is one.
        workers: Processes that read images (default: 0 on cpu, else one per processor, up to 8).
    """

    device: str = "auto"
    workers: Annotated[int | None, more] = None

    def pick(self, local_rank: int = 0) -> tuple[str, int]:
        """The device, and how many processes read images, chosen as in training."""
        from hace.lab.runs.process import choose_device, choose_workers

        require("--workers", self.workers, "0 or more", self.workers is None or self.workers >= 0)
        device = choose_device(self.device, local_rank)
        return str(device), choose_workers(self.workers, device)


# ---------------------------------------------------------------------- configurations


def print_yaml(config: Config) -> None:
    """Print a whole configuration as YAML, which --config reads back."""
    import yaml

    print(yaml.safe_dump(config.to_dict(), sort_keys=False, allow_unicode=True), end="")


def resolved(
    config: type[C],
    layers: Iterable[Mapping[str, Any]],
    given: Mapping[str, Any],
    options: Mapping[str, Any],
    loss: str | None = None,
) -> C:
    """A configuration from layers of plain values and the options of a command line, each over the one before.

    Args:
        config: The configuration.
        layers: Values such as those of a preset and of a file.
        given: The settings on the command line; those that the configuration does not use are refused.
        options: Options of the dataset, of -o and --groups.
        loss: A loss as --loss spells it, with all its parameters: it replaces the one of the layers.
    """
    document: Mapping[str, Any] = {}
    for layer in layers:
        document = merged(document, layer)
    if options:
        given = merged(given, {"data": {"options": options}})
    if loss is not None:
        from hace.lab.runs.config import LossConfig

        document = {**document, "loss": LossConfig.parse(loss).to_dict()}
    made = from_dict(config, merged(document, given))
    problems = [f"--{n.replace('_', '-')} {rule}." for n, rule in unused(made).items() if n in given]
    if problems:
        raise ConfigError(problems)
    return made


# ---------------------------------------------------------------------- classes and their weights


@Parameter(name="*")
@dataclass(frozen=True)
class Restrictions:
    """Which classes are possible, and how likely.

    Attributes:
        subset: Restrict to these classes: a file with one per line, or a,b,c; inner nodes mean all below.
        prior: Weights of classes that are more or less common here than in training: lines node,weight, or JSON.
    """

    subset: Annotated[str | None, With("RUN", "--scores"), more] = None
    prior: Annotated[Path | None, With("RUN", "--scores"), more] = None

    def on(self, h: Hierarchy) -> dict[str, Any]:
        """The classes and the weights, as `hace.evaluate` and a calibration take them."""
        subset = None if self.subset is None else _subset(self.subset, h)
        return {"subset": subset, "prior": None if self.prior is None else _prior(str(self.prior), h)}


def _subset(text: str, h: Hierarchy) -> list[str]:
    """The classes of --subset: the lines of a file, or words with commas; an inner node means all classes below it."""
    from hace.decisions.scores import subset_leaves
    from hace.files.reading import is_file
    from hace.formats.score_files import read_list
    from hace.hierarchy.names import known_names

    words = read_list(text)
    known = known_names(h)
    unknown = [word for word in words if word not in known]
    if unknown and not is_file(text):
        raise DataError(
            f"--subset must name a file or classes. There is no file {text!r}, and the hierarchy has no class "
            f"{unknown[0]!r}.{nearest(unknown[0], known)}"
        )
    return subset_leaves(h, [h.nodes[known[w]] if w in known else w for w in words])


def _prior(path: str, h: Hierarchy) -> dict[str, float]:
    """The weights of --prior by the ids of nodes, which the file may call by their names."""
    from hace.files.documents import csv_rows, read_mapping
    from hace.files.reading import read_text
    from hace.hierarchy.names import known_names

    if path.lower().endswith(".json"):
        rows = list(read_mapping(path).items())
    else:
        lines = [cells for _, cells in csv_rows(read_text(path), path, ",") if len(cells) == 2]
        rows = [(name.strip(), value.strip()) for name, value in lines]
        if rows and rows[0][1].lower() in ("weight", "prior"):
            rows = rows[1:]
    known = known_names(h)
    weights = {}
    for name, value in rows:
        try:
            weights[h.nodes[known[name]] if name in known else name] = float(value)
        except (TypeError, ValueError):
            raise DataError(f"{path}: every line must be node,weight. Got {value!r} for {name!r}.") from None
    if not weights:
        raise DataError(f"{path}: must hold weights, one line node,weight each. Got none.")
    return weights


# ---------------------------------------------------------------------- files of scores and labels


_SCORES = With("--scores")
_LABELS = With("--scores", "--answers")
_COLUMNS = With("--scores", "--compare")  # a second model may be a file of scores where the first is a run


@Parameter(name="*")
@dataclass(frozen=True)
class ScoreFiles:
    """Scores and labels in files, and how they are read.

    Attributes:
        hierarchy: Hierarchy, in any form that `hace hierarchy` reads.
        scores: Scores: .npy, .npz, .csv or .parquet.
        labels: The truth, one per sample: .npy, .npz, .csv or .txt.
        kind: What the scores are.
        outputs: Meaning of the columns (default: by their number); paths: outputs of a shared-ancestor head (path sums).
        groups: Column or array of --labels that names each sample's group, such as its site; --answers are also shown by group.
        hierarchy_format: Format of --hierarchy, if its name does not tell.
        option: Option for reading --hierarchy, NAME=VALUE; may repeat.
        root_node: Add a root above the tops, or remove it (default: as in the file).
        sharing: Sharing that the loss was trained with, for --outputs paths (default: 1).
        key: Array to read from an .npz of scores.
        ignore_column: Column, or class of a list, to leave out; may repeat.
        rest: For scores given as lists of (class, score) pairs: spread the rest of the probability over the other classes, or
            leave it unknown, at the root.
        label_kind: Labels as positions 0, 1, ... (index) or ids.
        label_key: Array to read from an .npz of labels.
        label_column: Column to read from a .csv of labels.
        taxonomy: Larger hierarchy, through which labels that --hierarchy lacks become their closest ancestor in it.
    """

    hierarchy: Annotated[str | None, _LABELS] = None
    scores: Annotated[Path | None, With("--hierarchy"), With("--labels"), Without("RUN")] = None
    labels: Annotated[Path | None, _LABELS] = None
    kind: Annotated[Literal["logits", "probs", "sigmoid"], _COLUMNS] = "logits"
    outputs: Annotated[Literal["auto", "leaves", "nodes", "paths"], _COLUMNS, more] = "auto"
    groups: Annotated[str | None, _LABELS] = None
    hierarchy_format: Annotated[str | None, With("--hierarchy"), more] = None
    option: Annotated[Option, With("--hierarchy"), more] = ()
    root_node: Annotated[RootNode, With("--hierarchy"), more] = None
    sharing: Annotated[float | None, With("--outputs paths"), With("--kind logits"), more] = None
    key: Annotated[str | None, _COLUMNS, more] = None
    ignore_column: Annotated[tuple[str, ...], _COLUMNS, more] = ()
    rest: Annotated[Literal["spread", "unknown"] | None, _COLUMNS, more] = None
    label_kind: Annotated[Literal["auto", "index", "id"], _SCORES, more] = "auto"
    label_key: Annotated[str | None, _SCORES, more] = None
    label_column: Annotated[str | None, _LABELS, more] = None
    taxonomy: Annotated[str | None, _SCORES, more] = None

    def read_hierarchy(self, names: Path | None = None) -> Hierarchy:
        """The hierarchy; a file of names may give its nodes others."""
        from hace.formats import read_hierarchy

        options: dict[str, Any] = reader_options(self.option)
        if names is not None:
            options["names"] = str(names)
        return read_hierarchy(self._given("hierarchy"), self.hierarchy_format, root=self.root_node, **options)

    def read_truth(self, h: Hierarchy) -> np.ndarray:
        """The nodes of --labels."""
        from hace.formats import read_hierarchy
        from hace.formats.score_files import read_values
        from hace.hierarchy.names import label_nodes, listed_ids

        labels = self._given("labels")
        values, lines = read_values(labels, self.label_key, self.label_column)
        if self.taxonomy is None:
            return label_nodes(values, h, self.label_kind, labels, lines=lines)
        values = listed_ids(values, h, read_hierarchy(self.taxonomy), labels)
        return label_nodes(values, h, "id", labels, lines=lines)

    def read_groups(self, samples: int) -> np.ndarray | None:
        """The groups of the samples: the column --groups of the file --labels."""
        if self.groups is None or self.labels is None:
            return None
        from hace.formats.score_files import read_values

        labels = str(self.labels)
        table = labels.lower().endswith(".csv")
        groups, _ = read_values(labels, None if table else self.groups, self.groups if table else None)
        if len(groups) != samples:
            raise DataError(
                f"--groups must name a group for each of {samples:,} samples. Got {len(groups):,} in {labels}."
            )
        return groups

    def open(self, path: Path, h: Hierarchy, truth: np.ndarray, labels: str) -> ScoredFile:
        """A file of scores, opened, with the truth."""
        from hace.formats.score_files import label_order, open_scores, open_top_k
        from hace.metrics.scored_file import ScoredFile

        kind = self.kind
        sharing = self.path_sharing
        if self.rest is not None:
            kind = "probs"
            scores = open_top_k(path, h, self.rest, self.ignore_column)
        else:
            absent = float("-inf") if kind == "logits" else 0.0
            columns = "nodes" if self.outputs == "paths" else self.outputs
            about = {"key": self.key, "outputs": columns, "ignore_columns": self.ignore_column}
            scores = open_scores(path, h, absent=absent, **about)
        order = None if self.labels is None else label_order(scores, self.labels)
        return ScoredFile(scores, truth, h, kind, sharing, self.read_groups(len(truth)), labels, order)

    @property
    def path_sharing(self) -> float | None:
        """The sharing of path sums; None where columns are what they are."""
        if self.outputs != "paths":
            return None
        if self.kind != "logits":
            raise ConfigError(f"--kind must be logits with --outputs paths. Got {self.kind}.")
        return 1.0 if self.sharing is None else self.sharing

    def _given(self, name: str) -> str:
        """The value of an option that must be given."""
        value = getattr(self, name)
        if value is None:
            raise ConfigError(f"--{name} must be given.")
        return str(value)


# ---------------------------------------------------------------------- answers


@Parameter(name="*")
@dataclass(frozen=True)
class Guarantee:
    """The guarantee that answers keep.

    Attributes:
        accuracy: Answer at the rank that keeps this guarantee on new samples, such as 0.95; run `hace calibrate` first.
        of: samples: at most 1 - A of all samples get a false answer. answers: at least A of the answers below the root are
            true (default: samples).
    """

    accuracy: Annotated[float | None, With("RUN", "--scores"), Without("--metrics leaves")] = None
    of: Annotated[Literal["samples", "answers"] | None, With("--accuracy")] = None

    @property
    def asked(self) -> tuple[float, str] | None:
        """The accuracy and what it is of; None without a guarantee."""
        if self.accuracy is None:
            return None
        require("--accuracy", self.accuracy, "above 0 and below 1", 0 < self.accuracy < 1)
        return self.accuracy, self.of or "samples"


def threshold_of(values: tuple[float, ...], h: Hierarchy) -> float | list[float]:
    """The value of --threshold: a probability, or one per level."""
    from hace.decisions.threshold_rules import level_thresholds

    threshold = values[0] if len(values) == 1 else list(values)
    level_thresholds(threshold, h)
    return threshold


def level_of(text: str) -> int | str:
    """A level as a depth where it is written as one, otherwise as a name."""
    return int(text) if text.isdecimal() else text


def level_index_of(text: str, h: Hierarchy) -> int:
    """The depth of --level, on a tree or forest."""
    from hace.decisions.scores import level_numbers

    level_numbers(h)
    return h.level_index(level_of(text))
