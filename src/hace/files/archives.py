"""Published archives: fetched whole or not at all, known by their checksum, and unpacked whole or not at all."""

from __future__ import annotations

import gzip
import importlib.util
import logging
import os
import re
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple

from hace.errors import DataError, FormatError
from hace.files.reading import check_memory, damaged, max_memory, open_regular, optional
from hace.files.writing import TEMPORARY

_KIND = "a .tar or .tar.gz archive"
_ZIP_KIND = "a .zip archive"
_AGAIN = "Fetch it again."
EXPANSION = 20  # an archive of images unpacks to little more than its size
ALWAYS_ALLOWED = 1 << 26
MAX_LEVELS = 100  # of a path: each level of each member is looked up from the top
_MAX_HEADER = 1 << 20
_CHUNK = 1 << 20
_MAY_HOLD_A_TAXONOMY = re.compile(r"(?i)(^(nodes|names|merged)\.dmp|\.(csv|tsv|obo|json|ya?ml|nwk|tree))$")


class Archive(NamedTuple):
    """A published archive: where it is, and the checksum by which a whole copy is known."""

    url: str
    checksum: str  # "md5:..." or "sha256:..."

    @property
    def name(self) -> str:
        """The file's name."""
        return self.url.rsplit("/", 1)[-1]


def fetch(archive: Archive, folder: Path) -> Path:
    """The archive in a folder, downloaded unless a whole copy is there already.

    A download goes to a temporary file, and takes its place only if the checksum is right.
    """
    if os.path.lexists(place := folder / archive.name) and not place.is_file():
        raise DataError(f"{place}: must be a file. Move away what is there.")
    pooch = optional("pooch", "Downloading datasets")
    pooch.get_logger().setLevel(logging.WARNING)
    _make_folder(folder)
    shown = sys.stderr.isatty() and importlib.util.find_spec("tqdm") is not None
    try:
        web = pooch.HTTPDownloader(progressbar=shown, timeout=60)
        return Path(pooch.retrieve(archive.url, archive.checksum, archive.name, folder, downloader=web))
    except ValueError as error:
        raise DataError(
            f"{archive.url}: the download is damaged, its checksum is not {archive.checksum}. Nothing was stored: try again."
        ) from error
    except OSError as error:  # all errors of requests are OSErrors, as are those of the disk
        raise DataError(
            f"{archive.url}: cannot be fetched into {folder} ({error}). Nothing was stored. Fetch the file by other means, "
            f"put it into {folder} under its name {archive.name}, and try again."
        ) from error


def unpack(archive: Path, folder: Path) -> list[Path]:
    """Unpack a .tar or .tar.gz into a folder, whole or not at all, with tarfile's filter for data."""
    _make_folder(folder)
    with tempfile.TemporaryDirectory(prefix=TEMPORARY, dir=folder) as temporary:
        with open_regular(archive) as file, damaged(archive, _KIND, _AGAIN):
            try:
                with _opened(file) as packed:
                    packed.extractall(temporary, filter=_safe_member)
            except OSError as error:
                if error.errno is None:  # of gzip, about the archive
                    raise
                raise DataError(f"{folder}: cannot unpack {archive.name}: {error.strerror}.") from error
        tops = sorted(Path(temporary).iterdir())
        for top in tops:
            if (folder / top.name).exists():
                raise DataError(f"{folder / top.name} exists already. Move it away to unpack {archive.name}.")
        for top in tops:
            os.replace(top, folder / top.name)
    return [folder / top.name for top in tops]


def read_members(archive: Path, wanted: Collection[str] | re.Pattern[str], limit: int) -> dict[str, bytes]:
    """The contents of some files of a .tar or .tar.gz, by their names without folders."""
    contents: dict[str, bytes] = {}
    with open_regular(archive) as file, damaged(archive, _KIND, _AGAIN), _opened(file) as packed:
        allowed = EXPANSION * os.fstat(file.fileno()).st_size + ALWAYS_ALLOWED
        for member in packed:
            packed.members = []  # it would keep them all  # pyright: ignore[reportAttributeAccessIssue]
            allowed -= member.size + tarfile.BLOCKSIZE
            if allowed < 0:
                raise FormatError(
                    f"{archive}: an archive must unpack to at most {EXPANSION} times its size. Got more. {_AGAIN}"
                )
            name = PurePosixPath(member.name).name
            is_wanted = wanted.search(name) if isinstance(wanted, re.Pattern) else name in wanted
            if not is_wanted or not member.isreg():
                continue
            if member.size > limit:
                raise FormatError(f"{member.name} must have at most {limit:,} bytes. Got {member.size:,}.")
            content = packed.extractfile(member)
            assert content is not None
            contents[name] = content.read()
    return contents


# Reads a file of an archive, or so many bytes of its beginning.
ReadMember = Callable[..., bytes]


def read_packed(path: str | os.PathLike[str]) -> dict[str, ReadMember] | None:
    """How to read each file in a .gz, .zip, .tar or .tar.gz, by its name without folders; None for another file.

    Of a tar only files that may hold a taxonomy are read.
    """
    path = Path(path)
    with open_regular(path) as file:
        head = file.read(512)
        size = os.fstat(file.fileno()).st_size
    if head[:2] == b"\x1f\x8b":
        content = _gunzipped(path)
        if content is not None:
            return {path.name.removesuffix(".gz"): partial(_beginning, content)}
    elif head[:4] == b"PK\x03\x04":
        return _zip_members(path)
    elif not _is_tar(head):
        return None
    contents = read_members(path, _MAY_HOLD_A_TAXONOMY, max(max_memory(), size))
    return {name: partial(_beginning, content) for name, content in contents.items()}


def _beginning(content: bytes, size: int | None = None) -> bytes:
    return content[:size]


def _is_tar(head: bytes) -> bool:
    return head[257:262] == b"ustar"


def _gunzipped(path: Path) -> bytes | None:
    """What a .gz unpacks to; None where that is a tar."""
    with damaged(path, "a .gz file", _AGAIN), open_regular(path) as file, gzip.open(file) as unpacked:
        if _is_tar(unpacked.read(512)):
            return None
        unpacked.seek(0)
        return _read_counted(unpacked, path, "what it unpacks to")


def _zip_members(path: Path) -> dict[str, ReadMember]:
    """How to read each file of a zip. Its directory is parsed once, however many members are read."""
    with damaged(path, _ZIP_KIND, _AGAIN):
        packed = zipfile.ZipFile(path)
    # macOS adds a folder of its own.
    files = [info for info in packed.infolist() if not info.is_dir() and "__MACOSX" not in info.filename]
    return {PurePosixPath(info.filename).name: partial(_read_zipped, packed, info, path) for info in files}


def _read_zipped(
    packed: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path, size: int | None = None
) -> bytes:
    check_zip_method(info, path)
    with damaged(path, _ZIP_KIND, _AGAIN), packed.open(info) as member:
        if size is not None:
            return member.read(size)
        check_memory(path, info.file_size, info.filename)
        return _read_counted(member, path, info.filename)


def check_zip_method(info: zipfile.ZipInfo, path: Path) -> None:
    """Refuse members of a zip that cannot be unpacked piece by piece: a kilobyte of bzip2 or LZMA may hold gigabytes."""
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise FormatError(
            f"{path}: {info.filename} must be stored or deflated. Got compression method {info.compress_type}. Pack it again."
        )


def _read_counted(file: IO[bytes] | gzip.GzipFile, path: Path, what: str) -> bytes:
    """A compressed file, counted while it is unpacked: what it declares may be a lie."""
    chunks = []
    total = 0
    while chunk := file.read(_CHUNK):
        total += len(chunk)
        check_memory(path, total, what)
        chunks.append(chunk)
    return b"".join(chunks)


def _opened(file: IO[bytes]) -> tarfile.TarFile:
    gzipped = file.read(2) == b"\x1f\x8b"
    file.seek(0)
    return tarfile.open(fileobj=file, mode="r:gz" if gzipped else "r:", tarinfo=_BoundedInfo)


class _BoundedInfo(tarfile.TarInfo):
    """A header of a tar whose extended part, which tarfile reads into memory, is bounded."""

    def _proc_member(self, tarfile_: tarfile.TarFile) -> Any:
        if self.type in b"xgXLK" and self.size > _MAX_HEADER:
            raise FormatError(f"a header must have at most {_MAX_HEADER:,} bytes. Got {self.size:,}.")
        return super()._proc_member(tarfile_)  # type: ignore[misc]


def _safe_member(member: tarfile.TarInfo, folder: str) -> tarfile.TarInfo | None:
    """tarfile's filter for data, and a limit on levels."""
    levels = member.name.count("/") + 1
    if levels > MAX_LEVELS:
        raise FormatError(f"a path must have at most {MAX_LEVELS} levels. Got {levels:,}.")
    return tarfile.data_filter(member, folder)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{folder}: the folder cannot be made: {error.strerror}.") from error
