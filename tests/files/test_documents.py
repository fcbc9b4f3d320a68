"""JSON and YAML from outside: plain values, or one error that says what is wrong."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hace.errors import FormatError, HaceError
from hace.files.documents import parse_json, parse_yaml, read_json, read_mapping
from hace.files.writing import json_bytes

LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 9)
)


def test_plain_values(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("base: &b {lr: 0.1, since: 2024-13-45}\nnext: {<<: *b, lr: 1e-3}\nlist: [1, ~, yes]\n")
    assert read_mapping(path) == {
        "base": {"lr": 0.1, "since": "2024-13-45"},
        "next": {"lr": 0.001, "since": "2024-13-45"},
        "list": [1, None, True],
    }
    path.write_bytes('{"name": "größe"}'.encode("utf-16"))
    assert read_mapping(path) == {"name": "größe"}
    path.write_text("")
    assert read_mapping(path) == {}


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("c.yaml", "- 1\n- 2\n", "must hold names and values. Got a list."),
        ("c.yaml", "1: 2\n", "must hold names and values. Got a dict."),
        ("c.yaml", "a: 1\na: 2\n", "the key 'a' must occur once in a mapping. Got it twice."),
        ("c.yaml", "a: !!int x\n", "invalid literal for int()"),
        ("c.yaml", f"a: {'9' * 5000}\n", "4300"),
        ("c.yaml", "a: !!timestamp 2024-13-45\n", "could not determine a constructor for the tag"),
        (
            "c.yaml",
            "a: !!python/object/apply:os.system [x]\n",
            "could not determine a constructor for the tag",
        ),
        ("c.yaml", "a: !!binary x\n", "could not determine a constructor for the tag"),
        ("c.yaml", "? [a]\n: 1\n", "found unhashable key"),
        ("c.yaml", "a: &x [*x]\n", "an alias must not refer to what holds it"),
        ("c.yaml", LAUGHS, "it must have at most 100,000 values"),
        ("c.yaml", "[" * 5000, "it nests too deep"),
        ("c.yaml", "a: [1\n", "expected ',' or ']'"),
        ("c.yaml", "a" * (1 << 20) + ": 1", "must have at most 1,048,576 bytes"),
        ("c.json", "{'a': 1}", "c.json is not valid JSON: Expecting property name"),
        ("c.json", '{"a": {"b": 1, "b": 2}}', "the key 'b' must occur once in an object. Got it twice."),
        ("c.json", "[" * 100_000, "it nests too deep"),
        ("c.json", '{"a": NaN}', "numbers must be finite. Got NaN."),
        ("c.json", f'{{"a": {"9" * 5000}}}', "4300"),
        ("c.json", "[1]", "must hold names and values. Got a list."),
        ("c.json", '{"a": ["\\ud800"]}', "text must be whole characters. Got half a surrogate pair."),
        ("c.json", '{"\\udfff": 1}', "text must be whole characters. Got half a surrogate pair."),
        ("c.yaml", 'a: "\\ud800"', "text must be whole characters. Got half a surrogate pair."),
    ],
)
def test_other_documents_are_refused(tmp_path: Path, name: str, text: str, words: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(FormatError) as caught:
        read_mapping(tmp_path / name)
    assert words in str(caught.value)
    assert len(str(caught.value)) < 500


def test_numbers_are_what_they_look_like() -> None:
    """YAML 1.1 reads 010 as 8, 1:30 as 90 and 1_000 as 1000, and 1e-3 as text; what is not a plain number is text here."""
    text = "[7, -12, 0, 010, 1:30, 1:30.5, 1_000, 0x1f, 0b1, 1e-3, 2.5, -.5, 1., +1.5e+3, .inf, 1.2.3]"
    assert parse_yaml(text, "a.yaml") == [
        *(
            7,
            -12,
            0,
            "010",
            "1:30",
            "1:30.5",
            "1_000",
            "0x1f",
            "0b1",
            0.001,
            2.5,
            -0.5,
            1.0,
            1500.0,
            float("inf"),
            "1.2.3",
        )
    ]
    assert parse_json('{"a": "\\ud83d\\ude00"}', "a.json") == {"a": "😀"}


@pytest.mark.parametrize("document", [{"a": float("inf")}, {"a": [float("nan")]}, {"a": "\ud800"}])
def test_what_json_cannot_hold_is_an_error_of_ours(document: dict) -> None:
    with pytest.raises(
        HaceError, match=r"A JSON document must hold finite numbers and whole characters\. Got"
    ):
        json_bytes(document)


def test_memory_is_bounded_before_it_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HACE_MAX_MEMORY", "1M")
    (tmp_path / "a.json").write_text("[" + "[]," * 10_000 + "[]]")
    with pytest.raises(FormatError, match="its content must take at most"):
        read_json(tmp_path / "a.json")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no pipes in the file system")
def test_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "c.yaml")
    with pytest.raises(FormatError, match=r"must be a file\. Got a pipe or a device"):
        read_mapping(tmp_path / "c.yaml")


def test_values_of_the_command_line() -> None:
    assert parse_yaml("{a: [1, 2.5]}", "x") == {"a": [1, 2.5]}
