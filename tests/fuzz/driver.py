"""A small fuzzing driver: seeded mutations of valid inputs, run in this process, within bounds.

A fuzz test is one call: `fuzz(case, count, read)`. `case(random)` makes an input; `read(input)` is what is tried. Whatever
`read` raises except a `HaceError` (or what `allowed` names) fails the test, and so does an input that takes longer than
SECONDS or makes the process grow by more than a GiB. The failure names the seed, so that
`make_input(case, seed)` gives the same input again.

`count` is for `make test`; the environment variable HACE_FUZZ multiplies it (`make fuzz` sets it to 50, and another
HACE_FUZZ_SEED gives other inputs).
"""

from __future__ import annotations

import os
import resource
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from hace.errors import SHOWN_LENGTH, HaceError

Input = TypeVar("Input")

SECONDS = 20.0  # of processor time for one input: far above what any needs, so a busy machine fails nothing
BYTES = 1 << 30

# Numbers at the edges of types, and text that some parser treats as special.
NUMBERS = (
    0,
    1,
    -1,
    127,
    255,
    65535,
    2**31 - 1,
    2**31,
    2**32,
    2**53 + 1,
    2**63 - 1,
    2**63,
    2**64,
    -(2**63),
    10**30,
)
WORDS = (
    *(
        "",
        " ",
        "0",
        "-1",
        "nan",
        "inf",
        "1e999",
        "9" * 400,
        "True",
        "null",
        "None",
        "..",
        "/",
        "~",
        "%s%n",
        "${HOME}",
    ),
    *(
        "\0",
        "\x1b[2J",
        "\u2028",
        "\ufeff",
        "\ud800",
        "a" * 5000,
        "=1+1",
        "'",
        '"',
        "\\",
        "[",
        "]",
        "{",
        "}",
        "(",
        ")",
    ),
)
CHUNKS = (
    *(
        b"\0",
        b"\xff",
        b"\xff\xfe",
        b"\xef\xbb\xbf",
        b"\r",
        b"\n",
        b"\t",
        b",",
        b'"',
        b"'",
        b"\\",
        b"(" * 300,
        b"[" * 300,
    ),
    *(
        b"{" * 300,
        b"\x80",
        b"\xc3\x28",
        b"PK\x03\x04",
        b"\x93NUMPY",
        b"PAR1",
        b"9" * 5000,
        b"-",
        b"1e999",
        b"nan",
    ),
)


class SlowError(BaseException):
    """An input took too long. Not an Exception, so that no reader mistakes it for its own."""


def fuzz(
    case: Callable[[Random], Input],
    count: int,
    read: Callable[[Input], Any],
    *,
    allowed: tuple[type[BaseException], ...] = (),
) -> None:
    """Make inputs, read each, and fail with the first few that do anything but succeed or raise a HaceError.

    Args:
        case: From a random generator to an input.
        count: How many inputs to try in `make test`.
        read: What is tried; its result is dropped.
        allowed: Exceptions that are right besides HaceError.
    """
    failures = []
    for seed in seeds(count):
        made = make_input(case, seed)
        before = resident_bytes()
        try:
            with time_limit(SECONDS):
                read(made)
        except HaceError as error:
            # A message holds up to SHOWN_LENGTH characters, and some errors put a short place before another's message.
            problem = (
                "" if len(str(error)) <= SHOWN_LENGTH else f"a message of {len(str(error)):,} characters"
            )
        except allowed:
            problem = ""
        except (Exception, SlowError):
            problem = traceback.format_exc()
        else:
            problem = ""
        grown = peak_bytes(before)
        if grown > BYTES:
            problem += f"\nthe process grew by {grown:,} bytes"
        if problem:
            failures.append(f"seed {seed}: {shown(made)}\n{problem}")
            if len(failures) == 3:
                break
    assert not failures, "\n\n".join(failures)


def seeds(count: int) -> Iterator[int]:
    """The seeds of a test: as many as `count` times HACE_FUZZ, from HACE_FUZZ_SEED on."""
    first = int(os.environ.get("HACE_FUZZ_SEED", "0"))
    return iter(range(first, first + int(count * float(os.environ.get("HACE_FUZZ", "1")))))


def make_input(case: Callable[[Random], Input], seed: int) -> Input:
    """The input of a seed."""
    return case(Random(seed))


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Stop after so much processor time of this process, or ten times as much by the clock (a wait takes no processor)."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: Any) -> None:
        raise SlowError(f"took more than {seconds:g} seconds")

    limits = (
        (signal.ITIMER_PROF, signal.SIGPROF, seconds),
        (signal.ITIMER_REAL, signal.SIGALRM, 10 * seconds),
    )
    held = [signal.getitimer(timer) for timer, _, _ in limits]
    before = [signal.signal(number, stop) for _, number, _ in limits]
    for timer, _, limit in limits:
        signal.setitimer(timer, limit)
    try:
        yield
    finally:
        for (timer, number, _), old, handler in zip(limits, held, before, strict=True):
            signal.setitimer(timer, *old)
            signal.signal(number, handler)


def resident_bytes() -> int:
    """The memory of this process now; forgets the peak so far where the system allows it."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
        return _status("VmRSS")
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def peak_bytes(before: int) -> int:
    """By how much the peak of memory since `resident_bytes` is above it."""
    try:
        return _status("VmHWM") - before
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def shown(made: object) -> str:
    """An input for a message."""
    text = repr(made)
    return text if len(text) <= 600 else f"{text[:600]}... ({len(text):,} characters)"


def mutate_bytes(random: Random, data: bytes, most: int = 4, pieces: Sequence[bytes] = CHUNKS) -> bytes:
    """A few changes to bytes: bits flipped, pieces cut, doubled, moved, replaced or put in, the end cut off.

    Args:
        random: The source of chance.
        data: A valid file.
        most: The most changes.
        pieces: What is put in; add what is special to the format.
    """
    result = bytearray(data)
    for _ in range(random.randint(1, most)):
        size = len(result)
        a, b = sorted((random.randint(0, size), random.randint(0, size)))
        b = min(b, a + random.choice((1, 4, 40, 4000)))
        kind = random.randrange(7)
        if kind == 0 and size:
            result[random.randrange(size)] ^= 1 << random.randrange(8)
        elif kind == 1:
            del result[a:b]
        elif kind == 2:
            result[a:a] = result[a:b] * random.choice((1, 1, 2, 50))
        elif kind == 3:
            result[a:a] = random.choice(pieces)
        elif kind == 4:
            result[a:b] = random.choice(pieces)
        elif kind == 5:
            result[a:b] = random.randbytes(b - a)
        else:
            del result[random.randint(0, size) :]
    return bytes(result)


def mutate_text(random: Random, text: str, most: int = 4, words: Sequence[str] = WORDS) -> str:
    """A few changes to text, by lines and words: dropped, doubled, swapped, replaced by edge cases.

    Args:
        random: The source of chance.
        text: Valid text.
        most: The most changes.
        words: What is put in; add what is special to the format.
    """
    lines = text.split("\n")
    for _ in range(random.randint(1, most)):
        if not lines:
            break
        i, j = random.randrange(len(lines)), random.randrange(len(lines))
        kind = random.randrange(6)
        if kind == 0:
            lines[i], lines[j] = lines[j], lines[i]
        elif kind == 1:
            lines.insert(i, lines[j])
        elif kind == 2:
            del lines[i]
        else:
            line = lines[i]
            a = random.randint(0, len(line))
            b = random.choice((a, a, len(line), min(len(line), a + 3)))
            put = str(random.choice(NUMBERS)) if kind == 3 else random.choice(words)
            lines[i] = line[:a] + put + line[b:]
    return "\n".join(lines)


def mutate_tree(random: Random, value: Any, most: int = 3) -> Any:
    """A few changes to a document of dicts, lists and scalars (JSON, YAML, arguments): values of other types and edge
    cases, keys dropped, renamed, doubled in a list, levels put in or taken out.

    Args:
        random: The source of chance.
        value: A valid document; it stays as it is.
        most: The most changes.
    """
    for _ in range(random.randint(1, most)):
        value = _mutated(random, value)
    return value


def odd_value(random: Random) -> Any:
    """A scalar or a small container that is probably not what a reader expects."""
    nested: Any = []
    for _ in range(50):
        nested = [nested]
    odd = (
        None,
        True,
        False,
        0.5,
        -1.5,
        float("nan"),
        float("inf"),
        [],
        {},
        [1],
        {"a": 1},
        nested,
        ["x"] * 3,
        [[]],
    )
    return random.choice((random.choice(NUMBERS), random.choice(WORDS), random.choice(odd)))


def _mutated(random: Random, value: Any) -> Any:
    """The value with one change at a random place in it."""
    if isinstance(value, dict) and value and random.random() < 0.85:
        key = random.choice(list(value))
        kind = random.randrange(8)
        if kind == 0:
            return {k: v for k, v in value.items() if k != key}
        if kind == 1:
            return {odd_key(random) if k == key else k: v for k, v in value.items()}
        if kind == 2:
            return {**value, odd_key(random): odd_value(random)}
        return {k: _mutated(random, v) if k == key else v for k, v in value.items()}
    if isinstance(value, list) and value and random.random() < 0.85:
        i = random.randrange(len(value))
        kind = random.randrange(8)
        if kind == 0:
            return value[:i] + value[i + 1 :]
        if kind == 1:
            return [*value, value[i]]
        if kind == 2:
            return [*value[:i], odd_value(random), *value[i:]]
        return [_mutated(random, v) if j == i else v for j, v in enumerate(value)]
    return random.choice((odd_value(random), odd_value(random), [value], {"a": value}))


def odd_key(random: Random) -> str:
    """A key that is probably unknown."""
    return random.choice(("", "x", "__class__", "id", "name", "type", "a" * 3000, "=", "ключ"))
