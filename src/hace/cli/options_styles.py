"""Options in either style, in every command: `--epochs 2` and `epochs=2` mean the same.

Commands declare their options once, as flags; `hace train` has its settings as NAME=VALUE. Words of the other style are
rewritten before argparse reads them.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterator, Sequence

from hace.errors import ConfigError, nearest

_WORD = re.compile(r"([A-Za-z][\w-]*(?:\.[\w-]+)*)=(.*)", re.DOTALL)
_NUMBER = re.compile(r"-\.?\d")
_ON, _OFF = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
# What flags call a part of a configuration, and its name there.
_PARTS = {
    "loss": "loss.name",
    "data": "data.name",
    "features": "data.root",
    "hierarchy": "data.hierarchy",
    "root_node": "data.root_node",
    "shuffle": "data.shuffle",
    "induce": "data.induce",
    "dilution": "loss.options.dilution",
    "label_smoothing": "loss.options.label_smoothing",
    "soft_label_beta": "loss.options.soft_label_beta",
    "beta": "loss.options.beta",
    "alpha": "loss.options.alpha",
    "head": "head.name",
}
_FLAGS = {name: flag for flag, name in _PARTS.items()}
_OTHERS = {"loss.options.": "--loss-option", "data.options.": "--option"}


class Parser(argparse.ArgumentParser):
    """A parser whose complaint about an unknown option names the nearest one and both styles.

    Attributes:
        commands: The parsers of the subcommands in use, by name.
        names: The names of all subcommands.
    """

    commands: dict[str, argparse.ArgumentParser]
    names: tuple[str, ...] = ()

    def error(self, message: str) -> None:  # type: ignore[override]
        """Print the usage and the message, and exit with 2.

        Args:
            message: What argparse found.
        """
        found = re.match(r"unrecognized arguments: (\S+)", message)
        if found:
            options = {o for p in (self, *getattr(self, "commands", {}).values()) for o in options_of(p)}
            name = found[1].split("=")[0]
            likely = nearest(f"--{name.lstrip('-').replace('_', '-')}", options)
            message += f".{likely} Options are written as --name value or name=value; --help lists them"
        wrong = re.match(r"argument COMMAND: invalid choice: '(.*?)'", message)
        if wrong:
            message += f".{nearest(wrong[1], self.names) or ' hace --help describes them.'}"
        super().error(message)


def options_of(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """The options of a parser, by their spellings."""
    return {option: action for action in parser._actions for option in action.option_strings}


def both_styles(words: Sequence[str], parser: argparse.ArgumentParser) -> list[str]:
    """The words of a command line in the style that a command declares.

    Args:
        words: Those after the name of the command.
        parser: The command's.

    Example:
        >>> parser = argparse.ArgumentParser()
        >>> _ = parser.add_argument("--lr", nargs="+"), parser.add_argument("--batch-size")
        >>> both_styles(["lr=4,8", "batch_size=64"], parser)
        ['--lr', '4', '8', '--batch-size=64']
        >>> parser = argparse.ArgumentParser()
        >>> _ = parser.add_argument("settings", nargs="*")
        >>> both_styles(["--epochs", "2", "--loss", "hace", "lr=0.1", "--tensorboard"], parser)
        ['epochs=2', 'loss.name=hace', 'lr=0.1', 'tensorboard=true']
    """
    options = options_of(parser)
    settings = any(action.dest == "settings" for action in parser._actions)
    found: list[str] = []
    first: list[str] = []  # what argparse would take for one more value of the option before it
    left = list(words)
    while left:
        word = left.pop(0)
        if word == "--":
            return [*first, *found, word, *left]
        if word.startswith("-") and not _NUMBER.match(word):
            option = word.split("=")[0]
            if word.startswith("--") and (dashed := option.replace("_", "-")) in options:
                word, option = dashed + word[len(option) :], dashed
            if settings and word.startswith("--") and not any(o.startswith(option) for o in options):
                found.append(_setting(word, left))
                continue
            found.append(word)
            action = options.get(word)
            if left and action is not None and action.nargs in (None, "+") and not left[0].startswith("-"):
                found.append(left.pop(0))  # its value, whatever it looks like
                while action.nargs == "+" and left and not left[0].startswith("-"):
                    more = _alike(found[-1], left[0], action)
                    if not more and _WORD.fullmatch(left[0]):
                        break  # NAME=VALUE: an option of its own
                    (found if more else first).append(left.pop(0))
            continue
        written = _WORD.fullmatch(word)
        found += [word] if written is None else _option(written[1], written[2], word, options, settings)
    return [*first, *found]


def _alike(value: str, word: str, action: argparse.Action) -> bool:
    """Whether a word after a value of an option can be one more: in `--only method=hace seed=0 demo` the last cannot."""
    if action.choices is not None:
        return word in action.choices
    if action.type is float:
        try:
            float(word)
        except ValueError:
            return False
        return True
    return (_WORD.fullmatch(value) is None) == (_WORD.fullmatch(word) is None)


def _setting(word: str, left: list[str]) -> str:
    """A flag as NAME=VALUE; takes its value from the words that are left."""
    name, equals, value = word[2:].partition("=")
    name = name.replace("-", "_")
    if not equals:
        if left and (not left[0].startswith("-") or _NUMBER.match(left[0])) and not _WORD.fullmatch(left[0]):
            value = left.pop(0)
        elif name.startswith("no_"):
            name, value = name[3:], "false"
        else:
            value = "true"
    return f"{_PARTS.get(name, name)}={value}"


def _option(
    name: str, value: str, word: str, options: dict[str, argparse.Action], settings: bool
) -> Iterator[str]:
    """NAME=VALUE as a flag where the command has that; else as it is, or as a setting of `--set`."""
    plain = name.replace("-", "_")
    flag = f"--{_FLAGS.get(plain, plain).replace('_', '-')}"
    action = options.get(flag)
    prefix = next((p for p, option in _OTHERS.items() if name.startswith(p) and option in options), None)
    if action is not None and not os.path.exists(word):
        if action.nargs == 0:  # --json, --bias
            if value.lower() not in (*_ON, *_OFF):
                raise ConfigError(f"{name} must be true or false. Got {value!r}.")
            no = f"--no-{flag[2:]}"
            yield from [flag] if value.lower() in _ON else [no] if no in options else []
        else:
            values = _values(value, action.nargs)
            yield from (flag, *values) if len(values) > 1 else (f"{flag}={values[0]}",)
    elif settings:
        yield f"{_PARTS.get(plain, name)}={value}" if plain in _PARTS else word
    elif prefix is not None:
        yield from (_OTHERS[prefix], f"{name.removeprefix(prefix)}={value}")
    elif "--set" in options and not os.path.exists(word):
        yield f"--set={word}"
    else:
        yield word


def _values(value: str, nargs: int | str | None) -> list[str]:
    """The values in NAME=VALUE, for an option that takes several: commas or spaces separate them."""
    if isinstance(nargs, int):  # to=json,tree.json; the last value may hold commas and spaces
        return re.split(r"[,\s]+", value.strip(), maxsplit=nargs - 1) if nargs > 1 else [value]
    if nargs == "+" and not _WORD.fullmatch(value):  # only=method=sce,hace is one value
        return re.findall(r"[^,\s]+", value.strip("[] ")) or [""]
    return [value]
