"""The exceptions carry everything they were given, and survive a trip between processes."""

from __future__ import annotations

import pickle

import pytest

from hace import errors


@pytest.mark.parametrize(
    "kind", [errors.HierarchyError, errors.FormatError, errors.DataError, errors.ConfigError]
)
def test_one_except_catches_all(kind: type[errors.HaceError]) -> None:
    with pytest.raises(errors.HaceError, match="the rule"):
        raise kind("the rule")
    assert issubclass(errors.HaceError, ValueError)


def test_one_problem_is_the_message() -> None:
    error = errors.HierarchyError("'a' is its own parent.")
    assert str(error) == "'a' is its own parent."
    assert error.problems == ("'a' is its own parent.",)


def test_many_problems_are_counted_and_the_first_twelve_shown() -> None:
    problems = [f"problem {i}." for i in range(30)]
    error = errors.HierarchyError(problems)
    lines = str(error).splitlines()
    assert lines[0] == "30 problems:"
    assert lines[1:13] == [f"  - problem {i}." for i in range(12)]
    assert lines[13:] == ["  ... and 18 more."]
    assert error.problems == tuple(problems)


def test_exactly_twelve_problems_leave_nothing_out() -> None:
    assert "more" not in str(errors.HierarchyError(["x."] * 12))


def test_pickling_keeps_the_single_problems() -> None:
    error = pickle.loads(pickle.dumps(errors.HierarchyError(["a.", "b."])))
    assert type(error) is errors.HierarchyError
    assert error.problems == ("a.", "b.")
    assert str(error) == "2 problems:\n  - a.\n  - b."


def test_nearest_ignores_case_and_gives_the_name_as_it_is_known() -> None:
    assert errors.nearest("HUSKY", ["Husky"]) == " Did you mean 'Husky'?"


def test_nearest_is_empty_without_a_close_name() -> None:
    assert errors.nearest("husky", []) == ""
    assert errors.nearest("husky", ["zebra"]) == ""


def test_nearest_looks_at_a_bounded_number_of_names() -> None:
    def endless():
        i = 0
        while True:
            yield f"node{i}"
            i += 1

    assert "'node77'" in errors.nearest("nod77", endless())


def test_a_message_is_bounded_and_keeps_its_remedy() -> None:
    error = pickle.loads(pickle.dumps(errors.FormatError("a.csv: " + "x" * 41_000 + ". Shorten it.")))
    assert len(str(error)) == errors.SHOWN_LENGTH
    assert str(error).startswith("a.csv: x")
    assert str(error).endswith("Shorten it.")
