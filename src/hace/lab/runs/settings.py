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


def setting(default: Any = dataclasses.MISSING, rule: Rule | None = None, *, decides: bool = True) -> Any:
    """A field of a configuration.

    Args:
        default: Its default; a dictionary is copied, a class (another configuration) called.
        rule: The rule for its value; None, where the type allows it, always passes.
        decides: Whether it decides the result of a run, and so its id.
    """
    metadata = {"rule": rule, "decides": decides}
    if isinstance(default, dict):
        return dataclasses.field(default_factory=default.copy, metadata=metadata)
    if isinstance(default, type):
        return dataclasses.field(default_factory=default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(frozen=True)
class Config:
    """Base of all configurations; a subclass adds fields, and :meth:`conflicts` for rules about several of them."""

    def __post_init__(self) -> None:
        hints = _hints(type(self))
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, _tidy(getattr(self, field.name), hints[field.name]))
        problems = [
            p for field in dataclasses.fields(self) if (p := _problem(self, field, hints[field.name]))
        ]
        if problems or (problems := self.conflicts()):
            raise ConfigError(problems)

    def conflicts(self) -> list[str]:
        """Problems of fields that are fine one by one."""
        return []

    def to_dict(self) -> dict[str, Any]:
        """Plain values, nested, for JSON or YAML; :func:`from_dict` reads them back."""
        return {f.name: _plain(getattr(self, f.name)) for f in dataclasses.fields(self)}

    def deciding(self) -> dict[str, Any]:
        """The same without what does not decide the result."""
        out = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not field.metadata.get("decides", True):
                continue
            out[field.name] = value.deciding() if isinstance(value, Config) else _plain(value)
        return out


def from_dict(cls: type[C], document: Any, where: str = "") -> C:
    """A configuration from plain values, such as those of a file; missing ones get their defaults.

    Args:
        cls: The configuration.
        document: A mapping.
        where: The prefix of keys in messages: "data." for a part.

    Raises:
        ConfigError: All problems at once: unknown keys with the nearest known ones, wrong types, broken rules.
    """
    if not isinstance(document, Mapping):
        raise ConfigError(f"{where.rstrip('.') or 'the configuration'} must be a mapping. Got {document!r}.")
    hints = _hints(cls)
    known = {f.name: f for f in dataclasses.fields(cls)}
    problems, values = [], {}
    for key, value in document.items():
        if key not in known:
            problems.append(
                f"{where}{key} is not a setting. Known: {', '.join(known)}.{nearest(str(key), known)}"
            )
            continue
        hint = hints[key]
        try:
            part = isinstance(hint, type) and issubclass(hint, Config)
            values[key] = from_dict(hint, value, f"{where}{key}.") if part else value
        except ConfigError as error:
            problems += error.problems
    problems += [
        f"{where}{name} is missing." for name, f in known.items() if _needed(f) and name not in document
    ]
    try:
        config = cls(
            **values
        )  # a part that failed has its default, so that the problems of this level show too
    except ConfigError as error:
        raise ConfigError([*problems, *(where + p for p in error.problems)]) from None
    except TypeError:
        config = None  # a setting without a default is missing
    if config is None or problems:
        raise ConfigError(problems)
    return config


@cache  # a study has thousands of configurations, and evaluating annotations is most of the work
def _hints(cls: type[Config]) -> dict[str, Any]:
    return get_type_hints(cls)


@cache
def _parts(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    return get_origin(hint), get_args(hint)


def _needed(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def differences(old: Mapping[str, Any], new: Mapping[str, Any], where: str = "") -> list[str]:
    """What differs between two documents: "loss.name: 'hace' -> 'hxe'"."""
    found = []
    for key in dict.fromkeys([*old, *new]):
        a, b = old.get(key), new.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            found += differences(a, b, f"{where}{key}.")
        elif a != b:
            found.append(f"{where}{key}: {a!r} -> {b!r}")
    return found


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """A document overridden by a second one.

    A part with a new name, such as another loss, drops the old one's options.

    Args:
        base: The document.
        over: What overrides it.

    Example:
        >>> base = {"lr": 0.1, "loss": {"name": "hace", "options": {"dilution": 0.2}}}
        >>> merged(base, {"loss": {"options": {"label_smoothing": 0.1}}})["loss"]["options"]
        {'dilution': 0.2, 'label_smoothing': 0.1}
        >>> merged(base, {"loss": {"name": "hxe"}})["loss"]
        {'name': 'hxe'}
        >>> merged({"data": {"labels": {"fine": 1}}}, {"data": {"name": "features"}})["data"]
        {'labels': {'fine': 1}, 'name': 'features'}
    """
    out = dict(base)
    for key, value in over.items():
        old = out.get(key)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            another = "name" in value and "name" in old and value["name"] != old["name"]
            out[key] = dict(value) if another else merged(old, value)
        else:
            out[key] = value
    return out


def _plain(value: Any) -> Any:
    if isinstance(value, Config):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(v) for v in value]
    return value


def _tidy(value: Any, hint: Any) -> Any:
    """The value converted to its type where that is lossless: 1 for 1.0, lists as tuples, YAML's "1e-3" as a number."""
    origin, arguments = _parts(hint)
    choices = arguments if origin in (Union, types.UnionType) else (hint,)
    if value is None and type(None) in choices:
        return None
    if isinstance(value, str) and str not in choices and float in choices:
        try:
            return float(value)
        except ValueError:
            return value
    if float in choices and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, list) and any(_parts(choice)[0] is tuple for choice in choices):
        return tuple(value)
    return value


def _problem(config: Config, field: dataclasses.Field[Any], hint: Any) -> str | None:
    value = getattr(config, field.name)
    if not fits(value, hint):
        return f"{field.name} must be {in_words(hint)}. Got {value!r}."
    rule = field.metadata.get("rule")
    if rule is not None and value is not None:
        values = value if isinstance(value, tuple) else (value,)
        if not all(rule.holds(v) for v in values):
            return f"{field.name} must be {rule.text}. Got {value!r}."
    return None


def fits(value: Any, hint: Any) -> bool:
    """Whether a plain value is of a type, as the fields of a configuration declare it; numbers are finite."""
    origin, arguments = _parts(hint)
    if origin in (Union, types.UnionType):
        return any(fits(value, choice) for choice in arguments)
    if origin is Literal:
        return any(value == choice and type(value) is type(choice) for choice in arguments)
    if origin is tuple:
        return isinstance(value, tuple) and all(fits(v, arguments[0]) for v in value)
    if origin is not None:
        return isinstance(value, Mapping) and all(isinstance(k, str) for k in value)
    if hint is Any:
        return True
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, type(None) if hint is None else hint)


def in_words(hint: Any) -> str:
    """A type as messages say it: "an integer or nothing"."""
    origin, arguments = _parts(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(in_words(choice) for choice in arguments)
    if origin is Literal:
        return f"one of {', '.join(map(repr, arguments))}"
    if origin is tuple:
        return f"a list of {in_words(arguments[0])}s"
    if origin is not None:
        return "a mapping"
    names = {int: "an integer", float: "a number", str: "text", bool: "true or false", type(None): "nothing"}
    return names.get(hint, getattr(hint, "__name__", str(hint)))
