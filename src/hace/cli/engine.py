"""How commands are declared. A command is a typed function: cyclopts reads its options and writes its help from the docstring.

What hace adds is here: options that belong together (:class:`With`, :class:`Without`), lists with commas, the settings of a
configuration as options, options that only --help-all shows, and the words for what a user got wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from functools import partial
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TextIO, TypedDict, Union, get_args, get_origin, get_type_hints

import docstring_parser
from cyclopts import UNSET, App, Group, Parameter
from cyclopts import exceptions as mistakes
from cyclopts.help import DefaultFormatter, InlineText

from hace.errors import BROKEN, ConfigError, HaceError, nearest
from hace.settings import Config, fits, from_text, in_words

# What people type for an option that has another name here.
SYNONYMS = {
    "batch": "batch-size",
    "learning-rate": "lr",
    "output": "out",
    "rate": "lr",
    "weights": "checkpoint",
}

ARGUMENTS = Group("Arguments", sort_key=0)
OPTIONS = Group("Options", sort_key=1)
MORE = Group("More options", sort_key=2)
more = Parameter(group=MORE)  # shown by --help-all alone


class With:
    """An option that is used only together with one of these: `With("--scores", "--outputs paths")`.

    Conditions on options that a command does not have are left out, so that commands can share options.

    Args:
        conditions: Options, each alone or with a value.
        example: What to add to the command, where the conditions do not say it.
    """

    def __init__(self, *conditions: str, example: str = "") -> None:
        self.conditions = conditions
        self.remedy = f" Add one, such as {example}." if example else ""


class Without:
    """An option that is not used together with any of these: `Without("RUN", "--metrics leaves")`."""

    def __init__(self, *conditions: str) -> None:
        self.conditions = conditions


# ---------------------------------------------------------------------- values


_COMMA = re.compile(r",(?![^[]*])")  # not within [1, 2]


def _split(type_: Any, tokens: Any) -> tuple[Any, ...]:
    """The values of a list with commas."""
    hint = get_args(type_)[0]
    words = [word.strip() for token in tokens for word in _COMMA.split(token.value)]
    values = tuple(from_text(word, hint) for word in words)
    wrong = [value for value in values if not fits(value, hint)]
    if wrong:
        raise ConfigError(
            f"{tokens[0].keyword} must be {in_words(hint)}, or several with commas. Got {wrong[0]!r}."
        )
    return values


def pairs_of(words: Iterable[str], option: str) -> dict[str, str]:
    """NAME=VALUE words as a mapping."""
    values: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name or not value:
            raise ConfigError(f"{option} must be NAME=VALUE. Got {word!r}.")
        if name in values:
            raise ConfigError(f"{option} must name {name!r} once. Got {values[name]!r} and {value!r}.")
        values[name] = value
    return values


comma = Parameter(converter=_split, n_tokens=1)  # a list, written with commas
Words = Annotated[tuple[str, ...], comma]
Numbers = Annotated[tuple[float, ...], comma]


# ---------------------------------------------------------------------- settings of a configuration


def settings(
    config: type[Config],
    *,
    shown: Iterable[str] = (),
    skip: Iterable[str] = (),
    names: Mapping[str, str] | None = None,
    rules: Mapping[str, Any] | None = None,
    repeated: Iterable[str] = (),
) -> Any:
    """The type of the settings of a configuration that a command line gives: a dictionary of those given, nested as they are.
    A mapping is given as NAME=VALUE words, for :func:`pairs_of`.

    Args:
        config: The configuration; the docstring is the help of its options.
        shown: Settings that --help shows; --help-all shows the others too. A nested one is "data.name".
        skip: Settings without an option.
        names: Options whose name is not that of the setting; "*" puts the settings of a part beside the others.
        rules: :class:`With` or :class:`Without` by setting.
        repeated: Lists whose option repeats, because their values may hold commas.
    """
    about = _Options(set(shown), set(skip), names or {}, rules or {}, set(repeated))
    return Annotated[about.of(config, "", None), Parameter(name="*")]


@dataclass(frozen=True)
class _Options:
    """Which options a configuration has; the arguments of :func:`settings`."""

    shown: set[str]
    skip: set[str]
    names: Mapping[str, str]
    rules: Mapping[str, Any]
    repeated: set[str]

    def of(self, config: type[Config], prefix: str, defaults: Config | None) -> Any:
        """The type of a configuration, or of the part of it that `prefix` names."""
        hints = get_type_hints(config)
        docs = _field_docs(config)
        types = {}
        for field in fields(config):
            place = f"{prefix}{field.name}"
            if place in self.skip:
                continue
            hint = hints[field.name]
            default = _default(field, defaults)
            if isinstance(hint, type) and issubclass(hint, Config):
                name = Parameter(name=self.names[place]) if place in self.names else Parameter()
                types[field.name] = Annotated[self.of(hint, f"{place}.", default), name]
            else:
                types[field.name] = self._option(place, hint, docs.get(field.name, ""), default)
        return TypedDict(config.__name__, types, total=False)  # type: ignore[operator]

    def _option(self, place: str, hint: Any, text: str, default: Any) -> Any:
        """The type of one setting."""
        choices = (hint, *get_args(hint))
        lists = [choice for choice in choices if get_origin(choice) is tuple]
        mapping = get_origin(hint) in (Mapping, dict)
        if mapping:
            text += " (NAME=VALUE; may repeat)"
        elif lists:
            text += " (may repeat)" if place in self.repeated else " (A,B,...)"
        says_default = "(default" in text
        if not says_default and not isinstance(default, bool) and default not in (None, "", (), {}):
            text += f" [default: {default}]"
        about: dict[str, Any] = {"help": text, "group": OPTIONS if place in self.shown else MORE}
        if place in self.names:
            about["name"] = self.names[place]
        if lists and place not in self.repeated:
            hint = lists[0]
            about |= {"converter": _split, "n_tokens": 1}
        elif mapping:
            hint = tuple[str, ...]
        elif bool in choices:
            about["negative"] = f"--no-{place.split('.')[-1].replace('_', '-')}"
        elif not lists:
            about["converter"] = partial(_one, hint)
        rule = (self.rules[place],) if place in self.rules else ()
        return Annotated[(hint, Parameter(**about), *rule)]  # type: ignore[return-value]


def _default(field: Any, defaults: Config | None) -> Any:
    """The default of a field, which the part that it belongs to may have changed."""
    if defaults is not None:
        return getattr(defaults, field.name)
    if field.default_factory is not MISSING:
        return field.default_factory()
    return field.default


def _one(hint: Any, type_: Any, tokens: Any) -> Any:
    """A setting; numbers are read as strictly as the configuration takes them."""
    return from_text(tokens[0].value, hint)


def _field_docs(config: type) -> dict[str, str]:
    """The help of each field, from the docstrings of a configuration and its bases."""
    docs = {}
    for base in reversed(config.__mro__[:-1]):
        parsed = docstring_parser.parse(base.__doc__ or "")
        docs |= {p.arg_name: " ".join((p.description or "").split()) for p in parsed.params}
    return docs


# ---------------------------------------------------------------------- checks


def check_options(app: App, command: tuple[str, ...], arguments: Any) -> None:
    """Refuse numbers that are none, and options that do not go together; before anything is converted."""
    problems = [*_wrong_values(arguments), *_unused_options(arguments)]
    if problems:
        raise ConfigError(problems)


def _wrong_values(arguments: Any) -> Iterator[str]:
    """Values that are not of their type: cyclopts would round 2.5 to 2, and take an empty path for the working directory."""
    for argument in arguments:
        hint = argument.field_info.annotation
        hint = get_args(hint)[0] if get_origin(hint) is Annotated else hint
        types = [
            t
            for t in (get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,))
            if t is not NoneType
        ]
        rule = " or ".join(map(in_words, types))
        for token in argument.tokens:
            text = token.value
            typed = token.implicit_value is UNSET and all(map(_is_scalar, types))
            if Path in types and not text:
                yield f"{_typed(argument)} must be a path. Got ''."
            elif typed and not fits(from_text(text, hint), hint):
                likely = nearest(text, map(str, argument.get_choices() or ()))
                yield f"{_typed(argument)} must be {rule}. Got {text!r}.{likely}"


def _is_scalar(hint: Any) -> bool:
    """Whether text becomes a value of this type by :func:`from_text`."""
    return get_origin(hint) is Literal or hint in (int, float, str)


def _unused_options(arguments: Any) -> Iterator[str]:
    """Options that the others make meaningless."""
    known = {name: argument for argument in arguments for name in argument.names}
    for argument in arguments:
        if not argument.tokens:
            continue
        for rule in get_args(argument.field_info.annotation)[1:]:
            conditions = [c for c in getattr(rule, "conditions", ()) if c.split()[0] in known]
            true = [condition for condition in conditions if _holds(known, condition)]
            if isinstance(rule, With) and not true:
                yield f"{_typed(argument)} must come with {' or '.join(conditions)}.{rule.remedy}"
            if isinstance(rule, Without) and true:
                yield f"{_typed(argument)} must come without {true[0]}. Leave one of them out."


def _holds(known: Mapping[str, Any], condition: str) -> bool:
    """Whether an option is given; with a value, "--outputs paths", whether it has it."""
    name, _, value = condition.partition(" ")
    argument = known[name]
    if not value:
        return bool(argument.tokens)
    if argument.tokens:
        return any(token.value == value for token in argument.tokens)
    return str(argument.field_info.default) == value


def _typed(argument: Any) -> str:
    """An option as the user typed it."""
    return argument.tokens[0].keyword or argument.name


# ---------------------------------------------------------------------- messages


def alarmed(text: str, stream: TextIO) -> str:
    """Text whose lines about a broken guarantee are red where the stream is a terminal."""
    if not stream.isatty():
        return text
    return "\n".join(f"\x1b[1;31m{line}\x1b[0m" if BROKEN in line else line for line in text.split("\n"))


def in_one_line(error: mistakes.CycloptsError, command: str) -> str:
    """What a user got wrong: the option, the rule, the value, and the nearest option."""
    argument = error.argument
    lists = f"{command} --help-all lists them."
    if isinstance(error.__cause__, HaceError):
        return str(error.__cause__)
    if isinstance(error, mistakes.UnknownOptionError):
        word = error.token.keyword or error.token.value
        return f"{word!r} is not an option of {command}.{_likely(word, error.argument_collection)} {lists}"
    if isinstance(error, mistakes.UnusedCliTokensError):
        (word, *_) = error.unused_tokens or [""]
        name, equals, value = word.partition("=")
        remedy = f" Options are written as --{name} {value}." if equals else " Lists are written with commas."
        return f"{word!r} is one argument too many for {command}.{remedy}"
    if isinstance(error, mistakes.RepeatArgumentError):
        return f"{error.token.keyword} must be given once. Got it twice."
    if isinstance(error, mistakes.MissingArgumentError) and argument is not None:
        if argument.tokens or error.keyword or error.tokens_so_far:
            return f"{error.keyword or _typed(argument)} must have a value."
        return f"{command} must have {argument.name}. {command} --help describes it."
    return str(error)


def _likely(word: str, arguments: Any) -> str:
    """The option that a word may have been meant for."""
    name = word.lstrip("-").replace("_", "-")
    known = {option[2:] for argument in arguments for option in argument.names if option.startswith("--")}
    if SYNONYMS.get(name) in known:
        return f" Did you mean '--{SYNONYMS[name]}'?"
    return nearest(name, known).replace(" '", " '--")  # compared without dashes, which all of them share


# ---------------------------------------------------------------------- help


class Help(DefaultFormatter):
    """The help of a command: paragraphs as wide as the terminal, examples as they are, and the options that most people need.

    Args:
        everything: Whether to show all options.
        command: The command, as a user types it.
    """

    def __init__(self, everything: bool, command: str) -> None:
        super().__init__()
        self.everything = everything
        self.command = command

    def __call__(self, console: Any, options: Any, panel: Any) -> None:
        """Print a group of options or commands."""
        panel.entries = [self._entry(entry) for entry in panel.entries]
        if panel.title == MORE.name and not self.everything:
            console.print(f"{len(panel.entries)} more options: {self.command} --help-all\n", highlight=False)
        else:
            super().__call__(console, options, panel)

    def _entry(self, entry: Any) -> Any:
        """An option, its help in one line, without a default that goes without saying."""
        text = " ".join(str(entry.description.primary_renderable).split())
        default = None if entry.default in ("False", "()") else entry.default
        return entry.copy(description=InlineText.from_format(text, "plaintext"), default=default)

    def render_description(self, console: Any, options: Any, description: Any) -> None:
        """Print the docstring."""
        print_plain = partial(console.print, highlight=False, markup=False)
        for block in str(description.primary_renderable).split("\n\n"):
            if "\n  " in f"\n{block}":
                print_plain(block.rstrip(), soft_wrap=True)
            else:
                print_plain(" ".join(block.split()))
            print_plain()


def build_app(name: str, help: str, argv: list[str], **about: Any) -> App:
    """The application, without commands."""
    word = argv[0] if argv else ""
    command = name if not word or word.startswith("-") else f"{name} {word}"
    return App(
        name,
        help=help,
        help_format="plaintext",
        help_flags=("--help", "-h", "--help-all"),
        help_formatter=Help("--help-all" in argv, command),
        group_arguments=ARGUMENTS,
        group_parameters=OPTIONS,
        group_commands=Group("Help", sort_key=9),
        default_parameter=Parameter(negative=()),
        config=check_options,
        **about,
    )
