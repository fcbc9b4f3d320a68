"""Scores and labels as other programs write them: other dialects are read, other layouts refused by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hace.errors import ConfigError, DataError, FormatError
from hace.formats import score_files
from hace.formats.score_files import open_scores, read_list, read_values
from hace.hierarchy import Hierarchy

H = Hierarchy.from_edges([("pet", "cat"), ("pet", "dog"), ("pet", "emu")], leaves=["cat", "dog", "emu"])
Z = np.array([[1.5, -2.0, 0.25], [0.0, 3.0, 1e-3]])
CSV = "dog,cat,emu\n-2.0,1.5,0.25\n3.0,0.0,0.001\n"


def scores(path: Path, content: str | bytes | None = None, **options) -> np.ndarray:
    if content is not None:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    opened = open_scores(path, H, **options)
    result = np.concatenate(list(opened.chunks()))
    assert result.shape == (opened.rows, 3)
    assert result.dtype.isnative
    return result


@pytest.mark.parametrize("dtype", [">f4", ">f8", "<f2", "longdouble"])
def test_arrays_of_other_machines(dtype: str, tmp_path: Path) -> None:
    np.save(tmp_path / "z.npy", Z.astype(dtype))
    assert np.allclose(scores(tmp_path / "z.npy"), Z, atol=1e-3)
    np.savez(tmp_path / "z.npz", logits=Z.astype(dtype))
    assert np.allclose(scores(tmp_path / "z.npz", key="logits"), Z, atol=1e-3)


def test_chunks_of_a_mapped_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writing to a chunk, as torch may, leaves the file alone; rows stored column by column come out the same."""
    monkeypatch.setattr(score_files, "CHUNK", 6)
    z = np.arange(15.0, dtype=np.float32).reshape(5, 3)
    for stored in (z, np.asfortranarray(z)):
        np.save(tmp_path / "z.npy", stored)
        for _ in range(2):
            parts = list(open_scores(tmp_path / "z.npy", H).chunks())
            assert [len(part) for part in parts] == [2, 2, 1]
            assert np.array_equal(np.concatenate(parts), z)
            for part in parts:
                part[:] = 0.0


def test_a_file_that_shrinks_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(score_files, "CHUNK", 6)
    np.save(tmp_path / "z.npy", np.zeros((5000, 3), dtype=np.float32))
    chunks = open_scores(tmp_path / "z.npy", H).chunks()
    next(chunks)
    np.save(tmp_path / "shorter.npy", np.zeros((1, 3), dtype=np.float32))
    (tmp_path / "z.npy").write_bytes((tmp_path / "shorter.npy").read_bytes())
    with pytest.raises(FormatError, match=r"z\.npy: must stay as it is while it is read"):
        list(chunks)


def test_a_file_that_is_replaced_before_it_is_read(tmp_path: Path) -> None:
    np.save(tmp_path / "z.npy", np.zeros((4, 3), dtype=np.float32))
    scores = open_scores(tmp_path / "z.npy", H)
    np.save(tmp_path / "new.npy", np.ones((4, 3), dtype=np.float64))
    (tmp_path / "new.npy").replace(tmp_path / "z.npy")
    with pytest.raises(FormatError, match=r"z\.npy: must stay as it is while it is read\. It has changed"):
        list(scores.chunks())


def test_rows_that_begin_at_any_byte_are_copied(tmp_path: Path) -> None:
    """As within an .npz: the kernels take numbers only where the processor expects them."""
    z = np.arange(12.0, dtype=np.float32).reshape(4, 3)
    path = tmp_path / "z.bin"
    path.write_bytes(b"abc" + z.tobytes())
    mapped = np.memmap(path, np.float32, "r", 3, (4, 3))
    with path.open("rb") as file:
        rows = score_files._own_rows(mapped, path, file, slice(1, 3))
    assert rows.flags.aligned
    assert np.array_equal(rows, z[1:3])


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_tables_of_other_programs(encoding: str, end: str, tmp_path: Path) -> None:
    path = tmp_path / "z.csv"
    assert np.array_equal(scores(path, CSV.replace("\n", end).encode(encoding)), Z)
    quoted = CSV.replace("dog,cat", '"dog","cat"').replace("1.5", '"1.5"')
    assert np.array_equal(scores(path, quoted.encode(encoding)), Z)
    text = 'cat,"a\nnote",dog,emu\n1.5,"x,\n""y""",-2,.25\n\n0,plain,3,1e-3\n'.replace("\n", end)
    assert np.array_equal(scores(path, text.encode(encoding), ignore_columns=["a note"]), Z)


def test_rows_of_another_length_are_an_error_and_rs_layout_has_a_name(tmp_path: Path) -> None:
    path = tmp_path / "z.csv"
    with pytest.raises(
        FormatError, match=r"z.csv, line 3: every row must have 3 cells, as the header has. Got 2"
    ):
        scores(path, "cat,dog,emu\n1,2,3\n1,2\n1,2,3,4\n")
    written_by_r = '"cat","dog","emu"\n"1",1,2,3\n"2",4,5,6\n'
    with pytest.raises(FormatError, match=r"line 2.* Got 4. Files of R's write.table.*row.names = FALSE"):
        scores(path, written_by_r)
    with pytest.raises(FormatError, match=r"line 3: every row must have 3 cells"):
        scores(path, "1,2,3\n1,2,3\n1,2,3,4\n")
    labels = tmp_path / "y.csv"
    labels.write_text('"label"\n"1","cat"\n"2","dog"\n')
    with pytest.raises(FormatError, match=r"line 2: every row must have 1 cells.*R's write.table"):
        read_values(labels)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"cat,dog,emu\n1,2,H\xe4her\n", "the text must be UTF-8. Got byte 0xe4"),
        (b"cat,dog,emu\n1,2,\0\n", "Got a binary file"),
        (b'cat,dog,emu\n1,2,"' + b"3" * 140_000 + b'"', "field larger than field limit"),
        (b'cat,dog,emu\n1,2,"3\n', "unexpected end of data"),
        (b'cat,dog,emu\n1,2,"3"x\n', "every row must be valid CSV"),
        (b"cat,dog,emu\n1,2,three\n", "every cell must be a number. Got an error: .*three"),
        (b"\n\n", "the file is empty"),
    ],
)
def test_damaged_tables(content: bytes, words: str, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=words):
        scores(tmp_path / "z.csv", content)


def test_parquet_of_text_or_damaged(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "z.parquet"
    pq.write_table(pa.table({"dog": Z[:, 1], "cat": Z[:, 0], "emu": Z[:, 2]}), path)
    assert np.array_equal(scores(path), Z)
    whole = path.read_bytes()
    for place in (30, 60, len(whole) // 2, len(whole) - 20):
        path.write_bytes(whole[:place] + bytes(8) + whole[place + 8 :])
        try:
            scores(path)
        except (FormatError, DataError):
            continue
    pq.write_table(pa.table({"dog": ["a", "b"], "cat": Z[:, 0], "emu": Z[:, 2]}), path)
    with pytest.raises(DataError, match=r"scores must be numbers. Got another type in the columns 'dog'"):
        scores(path)


def test_options_that_a_kind_of_file_has_no_use_for_are_errors(tmp_path: Path) -> None:
    np.save(tmp_path / "z.npy", Z)
    np.save(tmp_path / "y.npy", np.array([0, 1]))
    (tmp_path / "z.csv").write_text(CSV)
    (tmp_path / "y.txt").write_text("0\n1\n")
    for read in (
        lambda: open_scores(tmp_path / "z.npy", H, key="scores"),
        lambda: open_scores(tmp_path / "z.csv", H, key="scores"),
        lambda: open_scores(tmp_path / "z.npy", H, ignore_columns=["image"]),
        lambda: read_values(tmp_path / "y.npy", key="y"),
        lambda: read_values(tmp_path / "y.txt", key="y"),
        lambda: read_values(tmp_path / "y.npy", column="y"),
    ):
        with pytest.raises(ConfigError, match=r"--[a-z-]+ is for \."):
            read()


def test_labels_of_any_dialect(tmp_path: Path) -> None:
    np.save(tmp_path / "y.npy", np.array([0, 2, 1], dtype=">i8"))
    (tmp_path / "y.csv").write_bytes("image,label\na,Häher\nb,dog\n".encode("utf-16"))
    (tmp_path / "y.txt").write_text("12345678901234567890123\n1\n")  # an id: no integer that fits
    assert read_values(tmp_path / "y.npy")[0].tolist() == [0, 2, 1]
    assert read_values(tmp_path / "y.npy")[0].dtype.isnative
    assert read_values(tmp_path / "y.csv")[0].tolist() == ["Häher", "dog"]
    assert read_values(tmp_path / "y.txt")[0].tolist() == ["12345678901234567890123", "1"]
    np.save(tmp_path / "y.npy", np.array([2**63 + 5], dtype=np.uint64))
    with pytest.raises(DataError, match=r"below 2\*\*63. Got 9223372036854775813"):
        read_values(tmp_path / "y.npy")
    assert read_list("cat, dog,") == ["cat", "dog"]
    assert read_list("x" * 5000) == ["x" * 5000]
    assert read_list(str(tmp_path / "y.txt")) == ["12345678901234567890123", "1"]


def test_labels_in_every_file_treat_spaces_alike(tmp_path: Path) -> None:
    words = ["husky ", " beagle", "cat"]
    np.save(tmp_path / "a.npy", np.array(words))
    np.savez(tmp_path / "a.npz", y=np.array(words))
    (tmp_path / "a.txt").write_text("\n".join(words))
    (tmp_path / "a.csv").write_text("label\n" + "\n".join(words))
    for name in ("a.npy", "a.npz", "a.txt", "a.csv"):
        assert read_values(tmp_path / name)[0].tolist() == ["husky", "beagle", "cat"], name
