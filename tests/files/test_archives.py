"""Archives: fetched whole or not at all, unpacked whole or not at all, never outside their folder."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import io
import os
import tarfile
import threading
import time
import tracemalloc
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import hace
from hace.data import published
from hace.errors import DataError, FormatError
from hace.files import archives
from hace.files.archives import Archive, fetch, read_members, read_packed, unpack
from tests.data_layouts import cifar_python, small_cifar


def tar_with(path: Path, *members: tuple[tarfile.TarInfo, bytes], mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        for info, content in members:
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def test_unpacks_a_tar(tmp_path: Path) -> None:
    tar = tar_with(
        tmp_path / "a.tar.gz", (member("top", tarfile.DIRTYPE), b""), (member("./top/x/file"), b"hello")
    )
    assert unpack(tar, tmp_path / "out") == [tmp_path / "out" / "top"]
    assert names(tmp_path / "out") == ["top", "top/x", "top/x/file"]
    assert (tmp_path / "out" / "top/x/file").read_bytes() == b"hello"


@pytest.mark.parametrize(
    "info",
    [
        member("../evil"),
        member("top/../../evil"),
        member("../evil", tarfile.DIRTYPE),
        member("evil", tarfile.SYMTYPE, "/etc"),
        member("evil", tarfile.SYMTYPE, "../../outside"),
        member("evil", tarfile.LNKTYPE, "../outside"),
        member("evil", tarfile.FIFOTYPE),
        member("evil", tarfile.CHRTYPE),
    ],
    ids=lambda info: info.name + info.linkname,
)
def test_hostile_members_unpack_nothing(info: tarfile.TarInfo, tmp_path: Path) -> None:
    tar = tar_with(tmp_path / "a.tar", (member("top/good"), b"good"), (info, b""), mode="w")
    with pytest.raises(
        FormatError, match=r"a.tar: must be a .tar or .tar.gz archive\. Got a damaged one: .*evil"
    ):
        unpack(tar, tmp_path / "deep" / "out")
    assert names(tmp_path) == ["a.tar", "deep", "deep/out"]


def test_damaged_archives_unpack_nothing(tmp_path: Path) -> None:
    tar = tar_with(tmp_path / "a.tar.gz", (member("top/file"), os.urandom(50_000)))
    whole = tar.read_bytes()
    for data in (whole[: len(whole) // 2], b"", b"no archive at all"):
        tar.write_bytes(data)
        with pytest.raises(FormatError, match=r"a.tar.gz: .*Got a damaged one.*Fetch it again"):
            unpack(tar, tmp_path / "out")
        assert names(tmp_path / "out") == []
    with pytest.raises(FormatError, match="No such file"):
        unpack(tmp_path / "nowhere.tar", tmp_path / "out")


def test_nothing_is_replaced(tmp_path: Path) -> None:
    tar = tar_with(tmp_path / "a.tar", (member("top/file"), b"new"), mode="w")
    (tmp_path / "top").mkdir()
    (tmp_path / "top" / "file").write_text("precious")
    with pytest.raises(DataError, match=r"top exists already\. Move it away"):
        unpack(tar, tmp_path)
    assert (tmp_path / "top" / "file").read_text() == "precious"


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    tar = tar_with(tmp_path / "a.tar", (member("top/file"), b"new"), mode="w")
    monkeypatch.setattr(tarfile, "copyfileobj", full)
    with pytest.raises(DataError, match=r"out: cannot unpack a.tar: No space left on device"):
        unpack(tar, tmp_path / "out")
    assert names(tmp_path / "out") == []


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="the folder cannot be made"):
        unpack(tmp_path / "a.tar", tmp_path / "file" / "out")


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Path, list[str]]]:
    """A web server on this machine: its address, its folder, and what it was asked for. It cuts off files named cut*."""
    folder, asked = tmp_path / "www", []
    folder.mkdir()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.strip("/")
            asked.append(name)
            content = (folder / name).read_bytes()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[: len(content) // 2] if name.startswith("cut") else content)

        def log_message(self, *_: object) -> None:
            pass

    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=httpd.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{httpd.server_port}", folder, asked
    httpd.shutdown()
    thread.join()
    httpd.server_close()


def md5(content: bytes) -> str:
    return "md5:" + hashlib.md5(content).hexdigest()


def test_fetches_once(server: tuple[str, Path, list[str]], tmp_path: Path) -> None:
    address, folder, asked = server
    (folder / "a.bin").write_bytes(b"content")
    archive = Archive(f"{address}/a.bin", md5(b"content"))
    for _ in range(2):
        assert fetch(archive, tmp_path / "in").read_bytes() == b"content"
    assert asked == ["a.bin"]
    (tmp_path / "in" / "a.bin").write_bytes(b"cont")  # half a download of somebody else's
    assert fetch(archive, tmp_path / "in").read_bytes() == b"content"
    assert asked == ["a.bin", "a.bin"]


def test_half_a_download_is_none(server: tuple[str, Path, list[str]], tmp_path: Path) -> None:
    address, folder, _ = server
    (folder / "cut.bin").write_bytes(b"content" * 1000)
    (folder / "other.bin").write_bytes(b"something else")
    for name in ("cut.bin", "other.bin"):
        with pytest.raises(DataError, match=rf"{name}: .*Nothing was stored"):
            fetch(Archive(f"{address}/{name}", md5(b"content" * 1000)), tmp_path / "in")
        assert names(tmp_path / "in") == []


def test_no_way_to_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    archive = Archive("http://127.0.0.1:9/a.bin", md5(b""))
    with pytest.raises(
        DataError,
        match=r"a.bin: cannot be fetched into .*Fetch the file by other means.*under its name a.bin",
    ):
        fetch(archive, tmp_path)
    assert names(tmp_path) == []


def test_download_of_a_data_set(
    server: tuple[str, Path, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, folder, asked = server
    cifar_python(tmp_path / "made", small_cifar())
    path = folder / "cifar-100-python.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        tar.add(tmp_path / "made" / "cifar-100-python", "cifar-100-python")
    monkeypatch.setattr(published, "COUNTS", {"train": 300, "test": 100})
    monkeypatch.setattr(
        published, "CIFAR100_ARCHIVE", Archive(f"{address}/{path.name}", md5(path.read_bytes()))
    )
    fetched = hace.load_dataset("cifar100", tmp_path / "data", download=True)
    again = hace.load_dataset("cifar100", tmp_path / "data", download=True)
    made = hace.load_dataset("cifar100", tmp_path / "made")
    assert fetched.fingerprint == again.fingerprint == made.fingerprint
    assert asked == [path.name]
    assert (tmp_path / "data" / "cifar-100-python" / "train").is_file()


def test_the_published_archives_are_the_ones_of_torchvision() -> None:
    import inspect

    from torchvision import datasets

    assert published.CIFAR100_ARCHIVE.url == datasets.CIFAR100.url
    assert published.CIFAR100_ARCHIVE.checksum == f"md5:{datasets.CIFAR100.tgz_md5}"
    assert published.AIRCRAFT_ARCHIVE.url in inspect.getsource(datasets.FGVCAircraft)


def test_gzip_alone_is_no_archive(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(b"text"))
    with pytest.raises(FormatError, match="Got a damaged one"):
        unpack(path, tmp_path / "out")


def test_an_archive_that_unpacks_to_far_more_than_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "ALWAYS_ALLOWED", 1 << 16)
    tar = tar_with(tmp_path / "a.tar.gz", (member("other"), b"\0" * (1 << 22)), (member("train"), b"x"))
    with pytest.raises(FormatError, match=r"an archive must unpack to at most 20 times its size"):
        read_members(tar, ["train"], 1000)


def test_a_member_is_measured_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published, "MAX_FILE", 1000)
    tar = tar_with(tmp_path / "a.tar.gz", (member("top/train"), b"\0" * 1001))
    with pytest.raises(FormatError, match=r"top/train must have at most 1,000 bytes\. Got 1,001"):
        hace.load_dataset("cifar100", tar)


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME])
def test_a_long_header_is_refused_before_it_is_read(tmp_path: Path, kind: bytes) -> None:
    info = member("header", kind)
    info.size = 1 << 32
    path = tmp_path / "a.tar.gz"
    path.write_bytes(gzip.compress(info.tobuf(tarfile.GNU_FORMAT) + b"\0" * 1024))
    with pytest.raises(FormatError, match=r"a header must have at most 1,048,576 bytes\. Got 4,294,967,296"):
        unpack(path, tmp_path / "out")


def test_a_pipe_in_place_of_an_archive(tmp_path: Path) -> None:
    if not hasattr(os, "mkfifo"):
        pytest.skip("the system has no pipes in the file system")
    os.mkfifo(tmp_path / "a.tar")
    with pytest.raises(FormatError, match=r"must be a file\. Got a pipe or a device"):
        unpack(tmp_path / "a.tar", tmp_path / "out")


def test_the_directory_of_a_zip_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """2,000 tables took 21 seconds, and 60,000 never ended: the directory was parsed anew for each."""
    path = tmp_path / "many.zip"
    with zipfile.ZipFile(path, "w") as packed:
        for i in range(20_000):
            packed.writestr(f"{i}.csv", "parent,child\nx,y\n")
    began = time.process_time()
    members = read_packed(path)
    assert members is not None
    assert len(members) == 20_000
    assert members["7.csv"](6) == b"parent"
    assert all(members[f"{i}.csv"]() == b"parent,child\nx,y\n" for i in range(0, 20_000, 100))
    assert time.process_time() - began < 10  # the directory alone takes a third of a second


def lying_zip(path: Path, declared: int, content: bytes, compression: int = zipfile.ZIP_DEFLATED) -> Path:
    """A zip whose member says that it unpacks to another number of bytes."""
    with zipfile.ZipFile(path, "w", compression) as packed:
        packed.writestr("a.csv", content)
    data = bytearray(path.read_bytes())
    for signature, place in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
        start = data.index(signature) + place
        data[start : start + 4] = declared.to_bytes(4, "little")
    path.write_bytes(data)
    return path


def test_a_member_of_a_zip_that_lies_about_its_size_stays_within_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = lying_zip(tmp_path / "lie.zip", 1000, bytes(200_000_000))
    monkeypatch.setenv("HACE_MAX_MEMORY", "8M")
    members = read_packed(path)
    assert members is not None
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match=r"lie.zip: must be a .zip archive\. Got a damaged one"):
            members["a.csv"]()
        assert tracemalloc.get_traced_memory()[1] < 30_000_000
    finally:
        tracemalloc.stop()
    path = lying_zip(tmp_path / "long.zip", 10**9, b"x" * 1000)
    with pytest.raises(FormatError, match=r"a.csv must take at most 0\.0 GiB of memory"):
        read_packed(path)["a.csv"]()  # type: ignore[index]


@pytest.mark.parametrize("compression", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_zip_is_stored_or_deflated(tmp_path: Path, compression: int) -> None:
    """Other methods unpack a kilobyte to gigabytes in one step, which nothing can count."""
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", compression) as packed:
        packed.writestr("a.csv", b"parent,child\nx,y\n")
    with pytest.raises(FormatError, match=r"a\.csv must be stored or deflated"):
        read_packed(path)["a.csv"]()  # type: ignore[index]


def test_paths_of_many_levels_are_refused_at_once(tmp_path: Path) -> None:
    """Each level of each member is looked up from the top: 900 levels of 10,000 members took minutes."""
    tar = tar_with(tmp_path / "a.tar", (member("d/" * 900 + "file"), b"x"), mode="w")
    with pytest.raises(FormatError, match=r"a path must have at most 100 levels\. Got 901"):
        unpack(tar, tmp_path / "out")
    assert names(tmp_path / "out") == []
    shallow = tar_with(tmp_path / "b.tar", (member("d/" * 99 + "file"), b"x"), mode="w")
    assert unpack(shallow, tmp_path / "out") == [tmp_path / "out" / "d"]
