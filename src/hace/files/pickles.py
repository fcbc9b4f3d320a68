"""Read pickles as data: a small machine that builds plain values and calls nothing but what its reader names.

A pickle is a program that may call anything, nest without limit and size the interpreter's tables. `pickle` is never
imported here. The machine runs the opcodes that published files use, and bounds their number, the depth of what they build
and the memo, and takes only text and numbers for keys, so that no hash recurses.
"""

from __future__ import annotations

import pickletools
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO, NamedTuple

from hace.errors import FormatError

MAX_OPCODES = 4_000_000  # CIFAR-100 has 0.3 million, a checkpoint with optimiser state about 50 per tensor
MAX_DEPTH = 64

_CONSTANTS = frozenset(
    "INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT STRING BINSTRING SHORT_BINSTRING BINBYTES "
    "SHORT_BINBYTES BINBYTES8 UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8".split()
)
_SINGLES: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY: dict[str, Callable[[], Any]] = {"EMPTY_LIST": list, "EMPTY_TUPLE": tuple, "EMPTY_DICT": dict}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_KEYS = (str, bytes, int, float, bool, type(None))
_MARK = object()


class Name(NamedTuple):
    """A name that a pickle may mention but not call."""

    value: Any


class Buildable:
    """The result of a call that may take a state (opcode BUILD) afterwards."""

    state: Any = None


# What a pickle may name: (module, name) to a function, whose result is the object, or to a `Name`.
Vocabulary = Mapping[tuple[str, str], "Callable[..., Any] | Name"]


def read_pickle(
    data: bytes | BinaryIO, vocabulary: Vocabulary, persistent: Callable[[Any], Any] | None = None
) -> Any:
    r"""The value that a pickle describes.

    Args:
        data: The pickle, or a file positioned at its start, which is left at its end. What follows is ignored.
        vocabulary: What it may name. Everything else is refused before anything is built from it.
        persistent: Turns a persistent id into a value. Without it, such ids are refused.

    Returns:
        Numbers, text, bytes, lists, tuples, dictionaries, and what the vocabulary makes.

    Raises:
        FormatError: A damaged pickle, or one that names something else, refers to itself or exceeds the limits. The text
            is the end of a sentence, without the file's name.

    Example:
        >>> read_pickle(b"\x80\x02}U\x01aK\x07s.", {})
        {'a': 7}
        >>> read_pickle(b"cos\nsystem\n(U\x04truetR.", {})
        Traceback (most recent call last):
        hace.errors.FormatError: it wants to call os.system
    """
    machine = _Machine(vocabulary, persistent)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about escapes in text that is not to be trusted anyway
            for opcode, argument in _opcodes(data):
                if opcode == "STOP":
                    return machine.pop()
                machine.step(opcode, argument)
    except FormatError:
        raise
    except (IndexError, KeyError, TypeError, ValueError, OverflowError) as error:
        words = str(error)[:200] if isinstance(error, ValueError) else "its opcodes do not fit together"
        raise FormatError(words or "it is damaged") from error
    raise FormatError("it has no end")


def _opcodes(data: bytes | BinaryIO) -> Iterator[tuple[str, Any]]:
    for count, (opcode, argument, _) in enumerate(pickletools.genops(data)):
        if count >= MAX_OPCODES:
            raise FormatError(f"it has more than {MAX_OPCODES:,} opcodes")
        yield opcode.name, argument


class _Machine:
    """The stack, the marks and the memo of a pickle that is being read.

    A container is complete once another one holds it: changing it later would make a cycle or hide depth.
    """

    def __init__(self, vocabulary: Vocabulary, persistent: Callable[[Any], Any] | None) -> None:
        self.vocabulary, self.persistent = vocabulary, persistent
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.depth: dict[int, int] = {}  # by id, of containers
        self.complete: set[int] = set()
        self.alive: list[Any] = []  # so that no id is used twice

    def pop(self) -> Any:
        value = self.stack.pop()
        if value is _MARK:
            raise FormatError("its opcodes do not fit together")
        return value

    def pop_marked(self) -> list[Any]:
        items = []
        while (value := self.stack.pop()) is not _MARK:
            items.append(value)
        return items[::-1]

    def step(self, opcode: str, argument: Any) -> None:
        if opcode in _CONSTANTS:
            self.stack.append(argument)
        elif opcode in _SINGLES:
            self.stack.append(_SINGLES[opcode])
        elif opcode in _EMPTY:
            self.push(_EMPTY[opcode](), ())
        elif opcode in _TUPLES:
            items = [self.pop() for _ in range(_TUPLES[opcode])][::-1]
            self.push(tuple(items), items)
        elif opcode == "MARK":
            self.stack.append(_MARK)
        elif opcode == "TUPLE":
            items = self.pop_marked()
            self.push(tuple(items), items)
        elif opcode == "LIST":
            items = self.pop_marked()
            self.push(items, items)
        elif opcode == "DICT":
            items = self.pop_marked()
            self.push({}, ())
            self.set_items(items)
        elif opcode in ("APPEND", "APPENDS"):
            self.extend([self.pop()] if opcode == "APPEND" else self.pop_marked())
        elif opcode in ("SETITEM", "SETITEMS"):
            self.set_items([self.pop(), self.pop()][::-1] if opcode == "SETITEM" else self.pop_marked())
        elif opcode in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
            index = len(self.memo) if argument is None else argument
            self.memo[index] = self.top()
        elif opcode in ("GET", "BINGET", "LONG_BINGET"):
            self.stack.append(self.memo[argument])
        elif opcode in ("GLOBAL", "STACK_GLOBAL"):
            self.name(argument)
        elif opcode == "REDUCE":
            self.call()
        elif opcode == "BUILD":
            self.build()
        elif opcode == "BINPERSID" and self.persistent is not None:
            self.push(self.persistent(self.pop()), ())
        elif opcode not in ("PROTO", "FRAME"):
            raise FormatError(f"it uses the opcode {opcode}")

    def top(self) -> Any:
        if self.stack[-1] is _MARK:
            raise FormatError("its opcodes do not fit together")
        return self.stack[-1]

    def push(self, value: Any, items: Any) -> None:
        self.alive.append(value)
        self.depth[id(value)] = 1
        self.stack.append(value)
        self.hold(value, items)

    def hold(self, container: Any, items: Any) -> None:
        """Note that a container holds items."""
        if id(container) in self.complete and items:
            raise FormatError("it refers to itself")
        deepest = max((self.depth.get(id(item), 0) for item in items), default=0) + 1
        if deepest > MAX_DEPTH:
            raise FormatError(f"it nests more than {MAX_DEPTH} levels deep")
        self.depth[id(container)] = max(self.depth[id(container)], deepest)
        for item in items:
            if item is container:
                raise FormatError("it refers to itself")
            if id(item) in self.depth:
                self.complete.add(id(item))

    def extend(self, items: list[Any]) -> None:
        target = self.top()
        if type(target) is not list:
            raise FormatError(f"it appends to a {_noun(target)}")
        self.hold(target, items)
        target.extend(items)

    def set_items(self, items: list[Any]) -> None:
        target = self.top()
        if type(target) is not dict or len(items) % 2:
            raise FormatError(f"it sets items of a {_noun(target)}")
        for key in items[::2]:
            if type(key) not in _KEYS:
                raise FormatError(f"a key must be text or a number, got a {_noun(key)}")
        self.hold(target, items)
        target.update(zip(items[::2], items[1::2], strict=True))

    def name(self, argument: str | None) -> None:
        if argument is None:
            name, module = self.pop(), self.pop()
        else:
            module, _, name = argument.partition(" ")
        if type(module) is not str or type(name) is not str or (module, name) not in self.vocabulary:
            raise FormatError(f"it wants to call {str(module)[:60]}.{str(name)[:60]}")
        self.stack.append(self.vocabulary[module, name])

    def call(self) -> None:
        arguments, function = self.pop(), self.pop()
        known = any(function is value for value in self.vocabulary.values())
        if type(arguments) is not tuple or not known or isinstance(function, Name):
            raise FormatError(f"it wants to call a {_noun(function)}")
        result = function(*arguments)
        if id(result) in self.depth:  # one of the arguments
            self.stack.append(result)
        else:
            self.push(result, arguments)

    def build(self) -> None:
        state, target = self.pop(), self.top()
        if isinstance(target, Buildable):
            self.hold(target, (state,))
            target.state = state
        elif type(target) is not dict:  # the attributes of an OrderedDict do not matter
            raise FormatError(f"it changes a {_noun(target)}")


def _noun(value: Any) -> str:
    return type(value).__name__.strip("_")
