"""Configurations as frozen dataclasses: checked as a whole, plain values in and out, all problems in one error.

:func:`setting` declares a field, with the rule for its value and whether it decides the result. What does not decide (paths,
workers, devices) is not part of a run's id, so a run is the same run wherever it is made.
"""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from hace.errors import ConfigError, nearest

C = TypeVar("C", bound="Config")


class Rule(NamedTuple):
    """A rule for values: in words, and as a test."""

    text: str
    holds: Callable[[Any], bool]


AT_LEAST_ZERO = Rule("at least 0", lambda v: v >= 0)
AT_LEAST_ONE = Rule("at least 1", lambda v: v >= 1)
POSITIVE = Rule("more than 0", lambda v: v > 0)
RATE = Rule("more than 0 and below 1e30", lambda v: 0 < v < 1e30)  # beyond, float32 has no room for a step
SHARE = Rule("at least 0 and less than 1", lambda v: 0 <= v < 1)
_TYPES = {
    int: "an integer",
    float: "a number",
    str: "text",
    bool: "true or false",
    type(None): "nothing",
    Path: "a path",
}


def setting(
    default: Any = dataclasses.MISSING,
    rule: Rule | None = None,
    *,
    decides: bool = True,
    only: tuple[str, Any] | None = None,
    unless: tuple[str, Any] | None = None,
) -> Any:
    """A field of a configuration.

    Args:
        default: Its default; without one it must be given.
        rule: What its values must be.
        decides: Whether it decides the result.
        only: The setting and the value with which alone it is used.
        unless: The setting and the value with which it is not used.
    """
    metadata = {"rule": rule, "decides": decides, "only": only, "unless": unless}
    if isinstance(default, dict | type):
        make = default.copy if isinstance(default, dict) else default
        return dataclasses.field(default_factory=make, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(frozen=True)
class Config:
    """Base of all configurations; a subclass adds fields, and :meth:`conflicts` for rules about several of them."""

    def __post_init__(self) -> None:
        problems = []
        for field, hint in _typed_fields(type(self)).values():
            value = _tidy(getattr(self, field.name), hint)
            object.__setattr__(self, field.name, value)
            rule: Rule | None = field.metadata.get("rule")
            if not fits(value, hint):
                problems.append(f"{field.name} must be {in_words(hint)}. Got {value!r}.")
                continue
            values = value if isinstance(value, tuple) else () if value is None else (value,)
            if rule is not None and not all(map(rule.holds, values)):
                problems.append(f"{field.name} must be {rule.text}. Got {value!r}.")
        if problems or (problems := self.conflicts()):
            raise ConfigError(problems)

    def conflicts(self) -> list[str]:
        """Problems of fields that are fine one by one."""
        return []

    def to_dict(self) -> dict[str, Any]:
        """Plain values, nested, for JSON or YAML; :func:`from_dict` reads them back."""
        return {f.name: _json_value(getattr(self, f.name)) for f in dataclasses.fields(self)}

    def deciding(self) -> dict[str, Any]:
        """The same without what does not decide the result."""
        names = [f.name for f in dataclasses.fields(self) if f.metadata.get("decides", True)]
        values = {name: getattr(self, name) for name in names}
        return {k: v.deciding() if isinstance(v, Config) else _json_value(v) for k, v in values.items()}


def unused(config: Config) -> dict[str, str]:
    """The settings that the others make meaningless, with the rule that says so."""
    rules = {}
    for field in dataclasses.fields(config):
        only = field.metadata.get("only")
        unless = field.metadata.get("unless")
        if only is not None and getattr(config, only[0]) != only[1]:
            rules[field.name] = f"must come with --{only[0]} {only[1]}"
        if unless is not None and getattr(config, unless[0], None) == unless[1]:
            rules[field.name] = f"must come without --{unless[0]} {unless[1]}"
    return rules


def from_dict(cls: type[C], document: Any, where: str = "") -> C:
    """A configuration from plain values, such as those of a file; missing ones get their defaults."""
    if not isinstance(document, Mapping):
        raise ConfigError(f"{where.rstrip('.') or 'the configuration'} must be a mapping. Got {document!r}.")
    known = _typed_fields(cls)
    problems = []
    values = {}
    for key, value in document.items():
        if key not in known:
            likely = nearest(str(key), known)
            problems.append(f"{where}{key} is not a setting. Known: {', '.join(known)}.{likely}")
            continue
        hint = known[key][1]
        try:
            part = isinstance(hint, type) and issubclass(hint, Config)
            values[key] = from_dict(hint, value, f"{where}{key}.") if part else value
        except ConfigError as error:  # the part has its default, so that the problems of this level show too
            problems += error.problems
    missing = [n for n, (f, _) in known.items() if f.default is f.default_factory and n not in document]
    problems += [f"{where}{name} is missing." for name in missing]
    if missing:
        raise ConfigError(problems)
    try:
        config = cls(**values)
    except ConfigError as error:
        raise ConfigError([*problems, *(where + p for p in error.problems)]) from None
    if problems:
        raise ConfigError(problems)
    return config


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """A document overridden by a second one. A part with a new name, such as another loss, drops the old one's options."""
    out = dict(base)
    for key, value in over.items():
        old = out.get(key)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            another = "name" in value and "name" in old and value["name"] != old["name"]
            out[key] = dict(value) if another else merged(old, value)
        else:
            out[key] = value
    return out


@cache  # a study has thousands of configurations, and evaluating annotations is most of the work
def _typed_fields(cls: type[Config]) -> dict[str, tuple[dataclasses.Field[Any], Any]]:
    hints = get_type_hints(cls)
    return {field.name: (field, hints[field.name]) for field in dataclasses.fields(cls)}


@cache
def _choices(hint: Any) -> tuple[tuple[Any, Any, tuple[Any, ...]], ...]:
    """The types that a value may have: each with its origin and arguments."""
    union = get_origin(hint) in (Union, types.UnionType)
    return tuple((h, get_origin(h), get_args(h)) for h in (get_args(hint) if union else (hint,)))


def _json_value(value: Any) -> Any:
    if isinstance(value, Config):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {str(k): _json_value(v) for k, v in value.items()}
    return [_json_value(v) for v in value] if isinstance(value, tuple | list) else value


def _tidy(value: Any, hint: Any) -> Any:
    """The value converted to its type where that is lossless: 1 for 1.0, lists as tuples, YAML's "1e-3" as a number."""
    choices = [choice for choice, _, _ in _choices(hint)]
    if isinstance(value, list) and any(origin is tuple for _, origin, _ in _choices(hint)):
        return tuple(value)
    number = isinstance(value, int) and not isinstance(value, bool)
    if float in choices and (number or (isinstance(value, str) and str not in choices and "_" not in value)):
        try:
            return float(value)  # pyright: ignore[reportArgumentType]
        except (ValueError, OverflowError):
            return value
    return value


def from_text(text: str, hint: Any) -> Any:
    """Text from a command line as a value of a type; as it is where it is none.

    Example:
        >>> from_text("3", int | None), from_text("none", int | None), from_text("3", str), from_text("x", float)
        (3, None, '3', 'x')
    """
    for choice, origin, arguments in _choices(hint):
        value: Any = text
        if origin is Literal:
            value = next((argument for argument in arguments if str(argument) == text), text)
        elif choice is bool:
            value = {"true": True, "false": False}.get(text.lower(), text)
        elif choice is type(None):
            value = None if text.lower() in ("none", "null") else text
        elif choice in (int, float):
            try:
                value = choice(text)
            except ValueError:
                continue
        if _fits(value, choice, origin, arguments):
            return value
    return text


def fits(value: Any, hint: Any) -> bool:
    """Whether a plain value is of a type, as the fields of a configuration declare it; numbers are finite."""
    return any(_fits(value, *choice) for choice in _choices(hint))


def _fits(value: Any, hint: Any, origin: Any, arguments: tuple[Any, ...]) -> bool:
    if origin is Literal:
        return any(value == choice and type(value) is type(choice) for choice in arguments)
    if origin is tuple:
        return isinstance(value, tuple) and all(fits(v, arguments[0]) for v in value)
    if origin is not None:
        return isinstance(value, Mapping) and all(isinstance(k, str) for k in value)
    if hint in (int, float):
        whole = isinstance(value, int) and not isinstance(value, bool)
        return whole or (hint is float and isinstance(value, float) and math.isfinite(value))
    return hint is Any or isinstance(value, type(None) if hint is None else hint)


def in_words(hint: Any) -> str:
    """A type as messages say it: "an integer or nothing"."""
    return " or ".join(_word(*choice) for choice in _choices(hint))


def _word(hint: Any, origin: Any, arguments: tuple[Any, ...]) -> str:
    if origin is Literal:
        return f"one of {', '.join(map(repr, arguments))}"
    if origin is not None:
        return f"a list of {in_words(arguments[0])}s" if origin is tuple else "a mapping"
    return _TYPES.get(hint, getattr(hint, "__name__", str(hint)))
