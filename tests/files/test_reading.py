"""One gate for bytes from outside: only regular files, only so many bytes, one error."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hace.errors import ConfigError, FormatError
from hace.files import reading
from hace.files.reading import (
    check_memory,
    decode,
    max_memory,
    open_regular,
    read_bytes,
    read_text,
    text_lines,
)


def test_only_regular_files_are_opened_and_a_pipe_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, words in [
        (tmp_path / "pipe", "Got a pipe or a device"),
        (Path(os.devnull), "Got a pipe or a device"),
        (tmp_path, "Got a folder"),
        (tmp_path / "none", "No such file"),
        (tmp_path / ("x" * 300), "File name too long"),
        ("zero\0byte", "cannot be read"),
    ]:
        with pytest.raises(FormatError, match=words):
            open_regular(path)


def test_the_size_is_bounded_before_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"12345")
    assert read_bytes(path, 5) == b"12345"
    with pytest.raises(FormatError, match=r"at most 4 bytes. Got 5"):
        read_bytes(path, 4)
    with path.open("r+b") as file:
        file.truncate(1 << 40)  # a sparse file: nothing is read
    with pytest.raises(FormatError, match="set HACE_MAX_MEMORY=1024G"):
        read_bytes(path)
    monkeypatch.setenv("HACE_MAX_MEMORY", "4 k")
    assert max_memory() == 4096
    check_memory("a", 4096)
    check_memory("a", 5000, stored=5000)
    with pytest.raises(FormatError, match="a: the table must take"):
        check_memory("a", 4097, "the table", stored=4096)
    monkeypatch.setenv("HACE_MAX_MEMORY", "lots")
    with pytest.raises(ConfigError, match=r"HACE_MAX_MEMORY must be a number of bytes.*Got 'lots'"):
        max_memory()


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_marks_tell_the_encoding(encoding: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes("Häher\r\n😀".encode(encoding))
    assert read_text(tmp_path / "a") == "Häher\r\n😀"
    big_endian = b"\xfe\xff" + "Häher".encode("utf-16-be")
    assert decode(big_endian, "a") == "Häher"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (
            b"a\nH\xe4her",
            r"t.csv, line 2: the text must be UTF-8. Got byte 0xe4\..*iconv -f LATIN1 -t UTF-8 t.csv > utf8-t.csv",
        ),
        (b"\xff\xfea\0b", r"t.csv, line 1: the text must be UTF-16. Got byte 0x62\.$"),
        (b"PK\0", "must be text. Got a binary file, with a zero at character 2"),
    ],
)
def test_other_bytes_are_refused_with_the_place_and_the_remedy(data: bytes, words: str) -> None:
    with pytest.raises(FormatError, match=words):
        decode(data, "t.csv")


def test_an_encoding_by_name() -> None:
    assert decode(b"H\xe4her", "a", "latin-1") == "Häher"
    for name in ("martian", "base64", "undefined"):
        with pytest.raises(ConfigError, match="encoding must be the name of a text encoding"):
            decode(b"abcd", "a", name)
    with pytest.raises(FormatError, match=r"must be ASCII. Got byte 0xe4"):
        decode(b"H\xe4her", "a", "ascii")


def test_lines_of_a_large_file_are_those_of_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "Häher,😀\r\n\r\neins\rzwei\nlast"
    for encoding in ("utf-8-sig", "utf-16", "utf-8"):
        (tmp_path / "a").write_bytes(text.encode(encoding))
        assert list(text_lines(tmp_path / "a")) == ["Häher,😀", "", "eins", "zwei", "last"]
    for lines in (2, 20_000):
        (tmp_path / "a").write_bytes(b"bc\n" * lines + b"d\xe4e")
        with pytest.raises(
            FormatError, match=rf"a, line {lines + 1}: the text must be UTF-8. Got byte 0xe4\."
        ):
            list(text_lines(tmp_path / "a"))
    monkeypatch.setattr(reading, "_MAX_LINE", 10)
    (tmp_path / "a").write_bytes(b"short\n" + b"x" * 2000)
    with pytest.raises(FormatError, match="line 2: a line must have at most 10 characters"):
        list(text_lines(tmp_path / "a"))
    with pytest.raises(ConfigError, match="encoding must be"):
        list(text_lines(tmp_path / "a", "base64"))


def test_a_torchvision_for_cuda_beside_a_torch_without_it_is_named_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    module = tmp_path / "needs_operators.py"
    module.write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    monkeypatch.setattr(reading, "version", {"torchvision": "0.28.0"}.__getitem__)
    with pytest.raises(
        ConfigError, match=r"from one index\. Got .*: pip install .* torchvision==0\.28\.0 --index"
    ):
        reading.optional("needs_operators", "A model of photos")
    module.write_text("raise RuntimeError('another reason')")
    with pytest.raises(RuntimeError, match="another reason"):
        reading.optional("needs_operators", "A model of photos")
