"""Arrays of other dialects are read, damaged and hostile ones refused, within the memory that files may claim."""

from __future__ import annotations

import io
import struct
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest

from hace.errors import FormatError
from hace.files.arrays import Arrays, native, read_array


def npy(header: str, data: bytes = b"") -> bytes:
    text = header.encode("latin-1") + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


def zipped(path: Path, content: bytes, compression: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as file:
        file.writestr("a.npy", content)
    return path


@pytest.mark.parametrize("dtype", ["<f4", ">f4", ">f8", "<i8", ">i2", "|u1", "<U5", ">U5", "longdouble"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_valid_files_of_any_dialect(dtype: str, order: str, tmp_path: Path) -> None:
    wanted = np.asarray(np.arange(6).reshape(2, 3).astype(dtype), order=order)  # type: ignore[call-overload]
    np.save(tmp_path / "a.npy", wanted)
    np.savez(tmp_path / "b.npz", x=wanted, y=wanted[:0])
    np.savez_compressed(tmp_path / "c.npz", x=wanted)
    (tmp_path / "a.npy").rename(tmp_path / "misnamed.npz")
    single, stored, packed = (Arrays(tmp_path / f) for f in ("misnamed.npz", "b.npz", "c.npz"))
    assert single.single
    assert not packed.single
    assert list(stored) == ["x", "y"]
    for result in (native(single[""]), stored["x"], packed["x"]):
        assert result.dtype.isnative
        assert np.array_equal(result, wanted)
    assert stored["y"].shape == (0, 3)


def test_the_array_of_an_npy_is_mapped(tmp_path: Path) -> None:
    wanted = np.arange(1000.0).reshape(100, 10)
    np.save(tmp_path / "a.npy", wanted)
    mapped = read_array(tmp_path / "a.npy")
    assert isinstance(mapped, np.memmap)
    assert not mapped.flags.writeable
    assert np.array_equal(mapped, wanted)


def test_an_archive_of_many_arrays_is_opened_once(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **{f"x{i}": np.array([i]) for i in range(3000)})
    began = time.process_time()
    many = Arrays(tmp_path / "a.npz")
    assert sum(int(many[name][0]) for name in many) == 2999 * 1500
    assert time.process_time() - began < 10


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "Got other content"),
        (b"id,parent\n", "Got other content"),
        (b"PK\x03\x04", "Got a damaged one: File is not a zip file"),
        (npy("{'descr': '<f8', 'fortran_order': False, 'shape': (2,)}", bytes(15)), "Got a damaged one"),
        (npy("{'descr': '<f8', 'fortran_order': False, 'shape': (2,)"), "Got a damaged one"),
        (
            npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", bytes(8)),
            "would have to be unpickled",
        ),
        (
            npy("{'descr': [('a', '<f8')], 'fortran_order': False, 'shape': (1,)}", bytes(8)),
            "plain numbers or text",
        ),
        (npy("{'descr': '<f8', 'fortran_order': False, 'shape': (-1,)}", bytes(8)), "Got a damaged one"),
        (npy("(" * 5000), "Got a damaged one"),
        (
            npy("-" * 9000 + "1"),
            "Got a damaged one",
        ),  # too deep for Python's parser, which calls it a lack of memory
        (
            npy("{'descr': '<f8', 'fortran_order': False, 'shape': (1,)}", bytes(8)).replace(
                b"\x01\x00", b"\x09\x09", 1
            ),
            "Got a damaged one: its format has the version 9.9",
        ),
        (b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**32 - 1), "Got a damaged one: EOF"),
    ],
)
def test_other_files_are_refused(content: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "a.npy").write_bytes(content)
    with pytest.raises(FormatError, match=words):
        Arrays(tmp_path / "a.npy")[""]
    if content.startswith(b"\x93"):
        with pytest.raises(FormatError, match=words):
            Arrays(zipped(tmp_path / "a.npz", content))["a"]


def test_memory_is_bounded_by_what_an_array_declares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    huge = npy("{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000, 1000000000000)}")
    with pytest.raises(FormatError, match="Got a damaged one"):
        Arrays(zipped(tmp_path / "a.npz", huge))["a"]
    bomb = npy("{'descr': '|u1', 'fortran_order': False, 'shape': (20000000,)}", bytes(20_000_000))
    assert Arrays(zipped(tmp_path / "a.npz", bomb))["a"].sum() == 0
    monkeypatch.setenv("HACE_MAX_MEMORY", "16M")
    with pytest.raises(FormatError, match="the array 'a' must take at most"):
        Arrays(zipped(tmp_path / "a.npz", bomb))["a"]
    stored = zipped(tmp_path / "a.npz", bomb, zipfile.ZIP_STORED)
    assert Arrays(stored)["a"].size == 20_000_000  # as large as the file
    with pytest.raises(FormatError, match="must be stored or deflated"):
        Arrays(zipped(tmp_path / "a.npz", bomb, zipfile.ZIP_LZMA))["a"]


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_arrays_of_one_name_are_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as file:
        for value in (1.0, 2.0):
            buffer = io.BytesIO()
            np.save(buffer, np.array([value]))
            file.writestr("x.npy", buffer.getvalue())
    with pytest.raises(FormatError, match=r"every array must have its own name\. Got 'x' twice"):
        Arrays(tmp_path / "a.npz")


def test_damaged_and_encrypted_members(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, a=np.arange(100.0))
    whole = buffer.getvalue()
    for place in (whole.index(b"a.npy") + 40, len(whole) // 2):
        (tmp_path / "a.npz").write_bytes(whole[:place] + bytes([whole[place] ^ 255]) + whole[place + 1 :])
        with pytest.raises(FormatError, match="Got a damaged one"):
            Arrays(tmp_path / "a.npz")["a"]
    locked = bytearray(whole)
    for signature, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        locked[locked.index(signature) + flags] |= 1
    (tmp_path / "a.npz").write_bytes(locked)
    with pytest.raises(FormatError, match=r"Got a damaged one: .*encrypted"):
        Arrays(tmp_path / "a.npz")["a"]
    stored = bytearray(
        zipped(
            tmp_path / "s.npz", npy("{'descr': '|u1', 'fortran_order': False, 'shape': (4,)}", b"1234"), 0
        ).read_bytes()
    )
    stored[stored.index(b"1234")] ^= 1
    (tmp_path / "s.npz").write_bytes(stored)
    with pytest.raises(FormatError, match="Bad CRC"):
        Arrays(tmp_path / "s.npz")["a"]
