"""The driver fails where a fuzzed reader does anything but succeed or raise a HaceError."""

from __future__ import annotations

import time
from random import Random

import pytest

from hace.errors import FormatError
from tests.fuzz import driver
from tests.fuzz.driver import fuzz, make_input, mutate_bytes, mutate_text, mutate_tree


def number(random: Random) -> int:
    return random.randrange(10)


def raising(error: BaseException):
    def read(made: int) -> None:
        if made == 3:
            raise error

    return read


def test_success_and_hace_errors_pass_and_anything_else_fails_with_its_seed() -> None:
    seen: list[int] = []
    fuzz(number, 30, seen.append)
    assert len(seen) == 30
    assert 3 in seen
    assert make_input(number, 7) == seen[7]
    fuzz(number, 30, raising(FormatError("no")))
    fuzz(number, 30, raising(KeyError("no")), allowed=(KeyError,))
    with pytest.raises(AssertionError, match=rf"seed {seen.index(3)}: 3\n(?s:.*)KeyError"):
        fuzz(number, 30, raising(KeyError("no")))


@pytest.mark.slow
def test_long_messages_hangs_and_memory_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    class WordyError(FormatError):
        def __str__(self) -> str:
            return "x" * 5000

    with pytest.raises(AssertionError, match="a message of 5,000 characters"):
        fuzz(number, 30, raising(WordyError()))
    monkeypatch.setattr(driver, "SECONDS", 0.01)
    with pytest.raises(AssertionError, match="took more than"):
        fuzz(number, 1, lambda made: time.sleep(60))
    monkeypatch.setattr(driver, "BYTES", 50 << 20)
    monkeypatch.setattr(driver, "SECONDS", 20)
    with pytest.raises(AssertionError, match="the process grew by"):
        fuzz(number, 1, lambda made: bytes([1]) * (400 << 20))  # far more: mapped files may leave meanwhile


def test_the_count_follows_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HACE_FUZZ", "2.5")
    monkeypatch.setenv("HACE_FUZZ_SEED", "100")
    assert list(driver.seeds(4)) == list(range(100, 110))


def test_mutations_are_seeded_and_leave_the_original_alone() -> None:
    tree = {"a": [1, {"b": "text"}], "c": None}
    for mutate, value in [(mutate_bytes, b"some bytes"), (mutate_text, "a,b\n1,2\n"), (mutate_tree, tree)]:
        made = [repr(mutate(Random(seed), value)) for seed in range(50)]
        assert made == [repr(mutate(Random(seed), value)) for seed in range(50)]
        assert len(set(made)) > 30
    assert tree == {"a": [1, {"b": "text"}], "c": None}
