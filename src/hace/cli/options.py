"""Options that several commands share: datasets, devices, files of scores and labels, guarantees; and options made from a
configuration. Commands import nothing from each other; what two of them need is here.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, get_args

import numpy as np

from hace.checks import check_number
from hace.errors import ConfigError, DataError, nearest
from hace.files.documents import read_mapping
from hace.files.reading import optional
from hace.settings import Config, from_dict, in_words, merged

if TYPE_CHECKING:
    from hace.data import Dataset
    from hace.formats.score_files import ScoreFile
    from hace.hierarchy import Hierarchy

C = TypeVar("C", bound=Config)

# Short names of nested settings of a run.
SHORT = {part: f"{part}.name" for part in ("loss", "head", "data")}
SHORT |= {
    name: f"data.{name}" for name in ("root", "hierarchy", "root_node", "shuffle", "induce", "skip_broken")
}
_ODD = re.compile(r"(?i)[-+]?(0[\d_]+|0[box][\da-f_]+|[\d_]*_[\d_.]*|\d+(:\d+)+(\.\d*)?)")  # as a number
_LISTS = ("columns", "leaves", "level_names")  # options of readers that are lists


def add_option(parser: Any, of: str = "the dataset") -> None:
    """Declare -o, for commands that read a dataset or a hierarchy."""
    about = f'an option of {of} ("-o" may repeat)'
    parser.add_argument("-o", "--option", metavar="NAME=VALUE", action="append", default=[], help=about)
    if of == "the dataset":
        about = "the column that names each sample's group, such as its site: splits keep groups whole (-o groups=COLUMN)"
        parser.add_argument("--groups", metavar="COLUMN", help=about)


def add_dataset(parser: Parser) -> None:
    """Declare what :func:`dataset_of` reads."""
    parser.option("--root", "R", "folder of the dataset; for manifest and features, the file")
    parser.flag("--download", "fetch it into R first if it is missing")
    about = "a hierarchy in place of the dataset's own: what `hace hierarchy` reads"
    parser.option("--hierarchy", "H", about)
    about = "with or without a root (default: as in the paper, or as the hierarchy has it)"
    parser.flag("--root-node", about, either=True)
    add_option(parser)


def dataset_of(name: str, args: argparse.Namespace) -> Dataset[Any]:
    """The dataset that the options of :func:`add_dataset` describe."""
    from hace.data import load_dataset

    options = _data_options(args)
    given = {"hierarchy": args.hierarchy, "root_node": args.root_node, "download": args.download}
    return load_dataset(name, args.root, **given, **options)


def add_checkpoint(parser: Parser) -> None:
    """Declare --checkpoint, for commands that use a finished run."""
    about = "for a probe: weights of the model behind its features (default: the ones `hace features` used)"
    parser.option("--checkpoint", "FILE", about)


def add_device(parser: Parser) -> None:
    """Declare --workers and --device, for commands that run a model over images."""
    about = "processes that read images (default: 0 on cpu, else one per processor, up to 8)"
    parser.option("--workers", "N", about, type=int)
    parser.option("--device", "DEVICE", "cpu, cuda, cuda:1, mps (default: auto)", default="auto")


def reader_options(pairs: list[str], option: str = "--option") -> dict[str, Any]:
    """The options of a reader."""
    options: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.isidentifier() or name in ("path", "format", "root"):
            raise ConfigError(f"{option} must be NAME=VALUE with the name of an option. Got {pair!r}.")
        options[name] = "\t" if (name, value) == ("delimiter", "\\t") else _value(value)
        if name in _LISTS and isinstance(options[name], str):
            options[name] = [word.strip() for word in value.split(",")]
    return options


def _value(text: str) -> Any:
    """A list, an object, true or false if it parses as JSON; any other text stays text, numbers too: ids are text."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, bool | list | dict) else text


def numbers(options: dict[str, Any]) -> dict[str, Any]:
    """Options with numbers in place of words that parse as such: no option of a dataset is an id."""

    def number(value: Any) -> Any:
        for kind in (int, float):
            try:
                return kind(value) if isinstance(value, str) else value
            except ValueError:
                pass
        return value

    return {name: number(value) for name, value in options.items()}


def pick_device(args: argparse.Namespace, local_rank: int = 0) -> tuple[str, int]:
    """The device of --device, and how many processes read images, chosen as in training."""
    from hace.lab.runs.process import choose_device, choose_workers

    check_number("--workers", args.workers, "0 or more", args.workers is None or args.workers >= 0)
    device = choose_device(args.device, local_rank)
    return str(device), choose_workers(args.workers, device)


class Parser(argparse.ArgumentParser):
    """A parser whose error about an unknown option names the nearest one; descriptions and examples stay as written."""

    def __init__(self, **about: Any) -> None:
        super().__init__(**{"formatter_class": argparse.RawDescriptionHelpFormatter, **about})

    def option(self, names: str, value: Any, help: str, **how: Any) -> None:
        """Declare an option by its names, the word for its value or the tuple of its choices, and its help."""
        if value is not None:
            how["choices" if isinstance(value, tuple) else "metavar"] = value
        self.add_argument(*names.split(), help=help, **how)

    def flag(self, name: str, help: str, *, either: bool = False) -> None:
        """Declare an option without a value; with `either` also its opposite, --no-NAME, and None if neither is given."""
        action = argparse.BooleanOptionalAction if either else "store_true"
        self.add_argument(name, action=action, help=help)

    def error(self, message: str) -> NoReturn:
        """Print the usage and the message, and exit with 2."""
        found = re.match(r"unrecognized arguments: (\S+)", message)
        if found:
            message = _unknown(found[1], self, self.prog)
        super().error(message)


class _Help(argparse.RawDescriptionHelpFormatter):
    """Descriptions and examples as they are written; short names of settings before the long ones."""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        return ", ".join([*getattr(action, "short", ()), super()._format_action_invocation(action)])


class ConfigParser:
    """Options made from a configuration: `--epochs 2`, `--loss.options.alpha 0.2`, with the help of its docstring.

    jsonargparse makes the options and reads their values. What it cannot read goes on as text, so that the configuration
    refuses it in the words it has for every wrong value, together with all its other problems. Files come through
    `files.documents`, which bounds them and refuses a key given twice.

    Args:
        about: As of `argparse.ArgumentParser`.
    """

    def __init__(self, **about: Any) -> None:
        jsonargparse = optional("jsonargparse", "This command", "train")

        about |= {"usage": f"{about['prog']} [--OPTION VALUE ...]", "formatter_class": _Help}
        self.parser: Any = jsonargparse.ArgumentParser(allow_abbrev=False, exit_on_error=False, **about)
        self.add_argument, self.add_argument_group = self.parser.add_argument, self.parser.add_argument_group
        self._settings: set[str] = set()

    def add_config(self, config: type[Config], *, skip: Iterable[str] = (), also: Mapping[str, str]) -> None:
        """Declare an option for every setting of a configuration; options of the command itself come first."""
        own = set(map(id, self.parser._actions))
        self.parser.add_class_arguments(config, None, skip=set(skip))
        names = self.parser._option_string_actions
        for action in [action for action in self.parser._actions if id(action) not in own]:
            names.pop(f"--{action.dest}")
            if any(other.dest.startswith(f"{action.dest}.") for other in self.parser._actions):
                action.help = argparse.SUPPRESS  # a part as a whole, such as --loss
                continue
            hint = getattr(action, "_typehint", action.type)
            action.metavar = action.metavar or action.dest.split(".")[-1].upper()
            if bool in (hint, *get_args(hint)):
                action.nargs, action.const = "?", True
            action.option_strings = [f"--{action.dest}".replace("_", "-")]
            # jsonargparse takes the options of an action for prefixes of nested ones: it must not see --loss.
            same = [name.replace("_", "-") for name, place in also.items() if place == action.dest]
            action.short = [f"--{name}" for name in same]
            names |= dict.fromkeys([*action.short, *action.option_strings, f"--{action.dest}"], action)
            if action.default not in (None, {}):
                action.help = f"{action.help} (default: {str(action.default).replace('%', '%%')})"
            self._settings.add(action.dest)

    def parse_args(self, words: Sequence[str]) -> argparse.Namespace:
        """The options of the command, and those of the configuration as a document `given`, for :func:`resolved`."""
        words = [self._no(word) for word in words]
        problems: list[str] = []
        try:
            found = self._read(words)
        except argparse.ArgumentError:  # the first problem: look at the options one by one
            found = {}
            for option in _options(words):
                found = merged(found, self._read_one(option, problems))
        parts = {name.split(".")[0] for name in self._settings}
        own = {action.dest: action.default for action in self.parser._actions if action.dest not in parts}
        own |= {name: value for name, value in found.items() if name not in parts}
        given = {name: value for name, value in found.items() if name in parts}
        return argparse.Namespace(**own, given=given, problems=problems)

    def format_help(self) -> str:
        """The text of --help."""
        return self.parser.format_help()

    def _read(self, words: Sequence[str]) -> dict[str, Any]:
        for option in _options(words):
            name, _, value = option[0].partition("=")
            action = self.parser._option_string_actions.get(name)
            hint = getattr(action, "_typehint", None)
            # YAML 1.1, which jsonargparse speaks, takes 1:30 for 90, 010 for 8 and 1_000 for 1000.
            if {int, float} & {hint, *get_args(hint)} and any(map(_ODD.fullmatch, [value, *option[1:]])):
                raise argparse.ArgumentError(None, f"{name} must be a plain number")
        return self.parser.parse_args(words, defaults=False).as_dict()

    def _read_one(self, words: Sequence[str], problems: list[str]) -> dict[str, Any]:
        """One option and its values; what it is not is added to the problems."""
        try:
            return self._read(words)
        except argparse.ArgumentError as error:
            name, equals, value = words[0].partition("=")
            action = self.parser._option_string_actions.get(name)
            stray = re.match(r"unrecognized arguments: (.*)", str(error), re.IGNORECASE)
            if stray:
                unknown = stray[1].split()
                options = [word for word in unknown if word.startswith("-")]  # the others are their values
                problems += [_unknown(word, self.parser, self.parser.prog) for word in options or unknown]
                rest = [word for word in words if word not in unknown]
                return self._read_one(rest, problems) if action is not None and len(rest) > 1 else {}
            if not (equals or words[1:]):
                problems.append(f"{name} must have a value.")
                return {}
            found: Any = value if equals else words[1]
            if action.dest not in self._settings:
                hint = getattr(action, "_typehint", action.type)
                rule = f"{name} must be {in_words(hint)}. Got {found!r}." if hint else f"{error}."
                problems.append(rule)
                return {}
            for part in reversed(action.dest.split(".")):
                found = {part: found}
            return found

    def _no(self, word: str) -> str:
        """--no-bias as --bias=false."""
        yes = f"--{word[5:]}"
        known = self.parser._option_string_actions
        return f"{yes}=false" if word.startswith("--no-") and word not in known and yes in known else word


def resolved(config: type[C], args: argparse.Namespace, *layers: Mapping[str, Any]) -> C:
    """A configuration from layers of plain values and the command line, each over the one before."""
    document: Mapping[str, Any] = {}
    for layer in (*layers, args.given):
        document = merged(document, layer)
    try:
        made = from_dict(config, document)
    except ConfigError as error:
        raise ConfigError([*args.problems, *error.problems]) from None
    if args.problems:
        raise ConfigError(args.problems)
    return made


def _data_options(args: argparse.Namespace) -> dict[str, Any]:
    """The options of -o and --groups."""
    groups = {} if args.groups is None else {"groups": args.groups}
    return numbers(reader_options(args.option)) | groups


def config_layers(args: argparse.Namespace) -> list[Mapping[str, Any]]:
    """The file of --config and the data options of -o, as layers of :func:`resolved`."""
    layers: list[Mapping[str, Any]] = [] if args.config is None else [read_mapping(args.config)]
    options = _data_options(args)
    if options:
        args.given = merged(args.given, {"data": {"options": options}})
    return layers


def print_config(config: Config) -> None:
    """Print a whole configuration as YAML, which --config reads back."""
    import yaml

    print(yaml.safe_dump(config.to_dict(), sort_keys=False, allow_unicode=True), end="")


def _options(words: Sequence[str]) -> list[list[str]]:
    """Each option with its values."""
    found: list[list[str]] = []
    for word in words:
        if not found or re.match(r"-(?!\.?\d)", word):
            found.append([])
        found[-1].append(word)
    return found


def _unknown(word: str, parser: argparse.ArgumentParser, command: str) -> str:
    """What to say about a word that is not an option."""
    name, equals, value = word.partition("=")
    known = [option for option in parser._option_string_actions if "_" not in option]
    likely = nearest(f"--{name.lstrip('-').replace('_', '-')}", known)
    if equals and not word.startswith("-") and not likely:
        likely = f" Options are written as --{name} {value}."
    return f"{word!r} is not an option of {command}.{likely} {command} --help lists them."


# ---------------------------------------------------------------------- files of scores and labels


def add_run_data(parser: Parser) -> None:
    """Declare where a run's data are, and where its model computes."""
    about = "where the run's data or features are now, if they were moved"
    parser.option("--data-root --features", "PATH", about, dest="data_root")
    parser.option("--device", "DEVICE", "device for a run of `hace train` (default: auto)", default="auto")


def add_restrictions(parser: Parser) -> None:
    """Declare --subset and --prior, for :func:`restrictions`."""
    about = "restrict to these classes: a file with one per line, or a,b,c; inner nodes mean all below"
    parser.option("--subset", "CLASSES", about)
    about = "how much likelier classes are here than in training: lines node,weight (0.1: a tenth as likely), or JSON"
    parser.option("--prior", "FILE", about)


def restrictions(args: argparse.Namespace, h: Hierarchy) -> dict[str, Any]:
    """The classes of --subset and the weights of --prior, as `hace.evaluate` and a calibration take them."""
    subset = None if args.subset is None else _subset(args.subset, h)
    return {"subset": subset, "prior": None if args.prior is None else _prior(args.prior, h)}


def _subset(text: str, h: Hierarchy) -> list[str]:
    """The classes of --subset: the lines of a file, or words with commas; an inner node means all classes below it."""
    from hace.decisions.scores import subset_leaves
    from hace.files.reading import is_file
    from hace.formats.score_files import read_list
    from hace.hierarchy.names import known_names

    words, known = read_list(text), known_names(h)
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
    known, found = known_names(h), {}
    for name, value in rows:
        try:
            found[h.nodes[known[name]] if name in known else name] = float(value)
        except (TypeError, ValueError):
            raise DataError(f"{path}: every line must be node,weight. Got {value!r} for {name!r}.") from None
    if not found:
        raise DataError(f"{path}: must hold weights, one line node,weight each. Got none.")
    return found


def groups_of(args: argparse.Namespace, samples: int) -> np.ndarray | None:
    """The groups of the samples: the column --groups of the file --labels."""
    if args.groups is None:
        return None
    from hace.formats.score_files import read_values

    table = args.labels.lower().endswith(".csv")
    found, _ = read_values(args.labels, None if table else args.groups, args.groups if table else None)
    if len(found) != samples:
        raise DataError(
            f"--groups must name a group for each of {samples:,} samples. Got {len(found):,} in {args.labels}."
        )
    return found


def add_score_files(parser: Parser) -> None:
    """Declare the files of scores, labels and hierarchy, and how they are read."""
    add = parser.option
    add("--hierarchy", "FILE", "what `hace hierarchy` reads")
    add("--format", "FORMAT", "its format, if its name does not say")
    add_option(parser, "its reader")
    parser.flag("--root", "add a root above the tops, or remove it", either=True)
    add("--scores", "FILE", "scores: .npy, .npz, .csv or .parquet")
    add("--kind", ("logits", "probs"), "what the scores are (default: logits)", default="logits")
    about = (
        "what the columns are (default: by their number); paths: outputs of nodes that add up along each path"
    )
    add("--outputs", ("auto", "leaves", "nodes", "paths"), about, default="auto")
    add("--sharing", "S", "sharing of the loss, with --outputs paths (default: 1)", type=float)
    add("--key", "NAME", "the array to take from an .npz of scores")
    about = "a column, or a class of a list, that is left out (may repeat)"
    add("--ignore-column --ignore-columns", "NAME", about, action="append", default=[], dest="ignore_column")
    about = (
        "--scores holds a list of (class, score) pairs per sample; the rest of the probability is spread over the other "
        "classes, or stays at the root, unknown"
    )
    add("--rest", ("spread", "unknown"), about)
    add("--labels", "FILE", "the truth, one per sample: .npy, .npz, .csv or .txt")
    about = "the column or array of --labels that names each sample's group, such as its site; with --answers each is shown"
    add("--groups", "COLUMN", about)
    add("--label-kind", ("auto", "index", "id"), "labels are 0, 1, ... or ids", default="auto")
    about = "a larger hierarchy: a label that --hierarchy lacks counts as its closest ancestor there"
    add("--taxonomy", "FILE", about)
    add("--label-key", "NAME", "the array to take from an .npz of labels")
    add("--label-column", "NAME", "the column to take from a .csv of labels")


def read_truth(args: argparse.Namespace) -> tuple[Hierarchy, np.ndarray]:
    """The hierarchy of --hierarchy, and the nodes of --labels."""
    from hace.formats import read_hierarchy
    from hace.formats.score_files import read_values
    from hace.hierarchy.names import label_nodes, listed_ids

    h = read_hierarchy(args.hierarchy, args.format, root=args.root, **reader_options(args.option))
    values, lines = read_values(args.labels, args.label_key, args.label_column)
    if args.taxonomy is not None:
        values = listed_ids(values, h, read_hierarchy(args.taxonomy), args.labels)
        return h, label_nodes(values, h, "id", args.labels, lines=lines)
    return h, label_nodes(values, h, args.label_kind, args.labels, lines=lines)


def path_sharing(args: argparse.Namespace) -> float | None:
    """The sharing of path sums; None where columns are what they are."""
    if args.outputs == "paths":
        if args.kind != "logits":
            raise ConfigError(f"--kind must be logits with --outputs paths. Got {args.kind}.")
        return 1.0 if args.sharing is None else args.sharing
    if args.sharing is not None:
        raise ConfigError(f"--sharing must come with --outputs paths. Got --outputs {args.outputs}.")
    return None


def scores_of(path: str, rows: int, labels: str, h: Hierarchy, args: argparse.Namespace) -> ScoreFile:
    """A file of scores, opened, with as many rows as there are labels."""
    from hace.formats.score_files import open_scores

    columns = "nodes" if args.outputs == "paths" else args.outputs
    if args.rest is not None:
        from hace.formats.score_files import open_top_k

        args.kind = "probs"
        scores = open_top_k(path, h, args.rest, args.ignore_column)
    else:
        absent = 0.0 if args.kind == "probs" else float("-inf")
        about = {"key": args.key, "outputs": columns, "ignore_columns": args.ignore_column, "absent": absent}
        scores = open_scores(path, h, **about)
    if scores.rows != rows:
        raise DataError(
            f"{path} has {scores.rows:,} rows and {labels} has {rows:,} labels. There must be one label per row."
        )
    return scores


def nan_report(scores: ScoreFile, error: DataError) -> str:
    """The message about bad rows; where they are NaN, counted over the whole file instead of one chunk."""
    bad = [np.isnan(chunk).any(axis=1) for chunk in scores.chunks()]
    rows = np.flatnonzero(np.concatenate(bad))
    if not len(rows):  # the error counts rows from 0
        return re.sub(r"\brow (\d+)", lambda row: scores.place(int(row[1])), str(error))
    return (
        f"scores must not hold NaN. {len(rows):,} of {scores.rows:,} rows break this rule; the first is "
        f"{scores.place(int(rows[0]))}. Check the model that made them."
    )


def like_probabilities(chunk: np.ndarray) -> bool:
    """Whether all rows are in [0, 1] and sum to 1 within rounding; a single column is inconclusive."""
    if chunk.shape[1] < 2 or chunk.min(initial=0) < 0 or chunk.max(initial=0) > 1:
        return False
    return bool(np.allclose(chunk.sum(axis=1, dtype=np.float64), 1, rtol=0, atol=1e-3))


def warn_of_probabilities(scores: ScoreFile) -> None:
    """Say that a file read as logits seems to hold probabilities."""
    print(
        f"hace: warning: {scores.path}: read as logits, but every row looks like probabilities (from 0 to 1, with sum 1). If "
        "that is what they are, say --kind probs.",
        file=sys.stderr,
    )


# ---------------------------------------------------------------------- answers


def threshold_of(text: str, h: Hierarchy) -> float | list[float]:
    """The value of --threshold: a probability, or one per level with commas."""
    from hace.decisions.threshold_rules import level_thresholds

    try:
        numbers = [float(word) for word in text.split(",")]
    except ValueError:
        raise ConfigError(
            f"--threshold must be a number, or one per level with commas. Got {text!r}."
        ) from None
    threshold = numbers[0] if len(numbers) == 1 else numbers
    level_thresholds(threshold, h)
    return threshold


def add_guarantee(parser: Parser) -> None:
    """Declare --accuracy and --of, for commands that answer with a calibrated model."""
    about = (
        "answer at the rank that keeps a guarantee on new samples, such as 0.95; needs `hace calibrate` first"
    )
    parser.option("--accuracy", "A", about, type=float)
    about = (
        "what the guarantee is about: at most 1 - A of all samples get a false answer (default), or of the answers that "
        "say something at least A are true"
    )
    parser.option("--of", ("samples", "answers"), about)


def guarantee_of(args: argparse.Namespace) -> tuple[float, str] | None:
    """The values of --accuracy and --of; None without --accuracy."""
    if args.accuracy is None:
        if args.of is not None:
            raise ConfigError(f"--of must come with --accuracy. Got --of {args.of} alone.")
        return None
    if not 0 < args.accuracy < 1:
        raise ConfigError(f"--accuracy must be above 0 and below 1. Got {args.accuracy:g}.")
    return args.accuracy, args.of or "samples"


def level_of(text: str) -> int | str:
    """A level as a depth where it is written as one, otherwise as a name."""
    return int(text) if text.isdecimal() else text


def level_index_of(text: str, h: Hierarchy) -> int:
    """The depth of --level, on a tree or forest."""
    from hace.decisions.scores import level_numbers

    level_numbers(h)
    return h.level_index(level_of(text))
