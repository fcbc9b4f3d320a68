"""Archives from outside: fetched whole or not at all, unpacked whole or not at all, and never outside their folder."""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple

from hace.errors import DataError, FormatError, HaceError
from hace.files.optional import optional
from hace.files.reading import open_regular
from hace.files.writing import TEMPORARY

EXPANSION = 20  # an archive of images unpacks to little more than its size
ALWAYS_ALLOWED = 1 << 26
_MAX_HEADER = 1 << 20
_BLOCK = 1 << 20


@dataclass(frozen=True)
class Archive:
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

    Args:
        archive: What to fetch.
        folder: Where to; made if it does not exist.

    Returns:
        The path of the file.

    Raises:
        DataError: If it cannot be reached or is damaged.
    """
    place = folder / archive.name
    if os.path.lexists(place) and not place.is_file():
        raise DataError(f"{place}: must be a file. Move away what is there.")
    pooch = optional("pooch", "Downloading data sets")
    pooch.get_logger().setLevel(logging.WARNING)
    make_folder(folder)
    shown = sys.stderr.isatty() and importlib.util.find_spec("tqdm") is not None
    try:
        downloader = pooch.HTTPDownloader(progressbar=shown, timeout=60)
        return Path(
            pooch.retrieve(archive.url, archive.checksum, archive.name, folder, downloader=downloader)
        )
    except ValueError as error:
        raise DataError(
            f"{archive.url}: the download is damaged, its checksum is not {archive.checksum}. Nothing was kept: try again."
        ) from error
    except OSError as error:  # all errors of requests are OSErrors, as are those of the disk
        raise DataError(
            f"{archive.url}: cannot be fetched into {folder} ({error}). Nothing was kept. Fetch the file by other means, "
            f"put it into {folder} under its name {archive.name}, and try again."
        ) from error


def unpack(archive: Path, folder: Path) -> list[Path]:
    """Unpack a .tar, .tar.gz or .zip into a folder, whole or not at all.

    Names that lead out of the folder, links and devices are refused. The archive is unpacked to a temporary folder beside
    the target and moved only when all of it, checksums included, was read.

    Args:
        archive: The file.
        folder: Where its content goes; made if it does not exist.

    Returns:
        The paths of what is at the archive's top.

    Raises:
        FormatError: It is not an archive, is damaged, or unpacks to far more than its size.
        DataError: It holds what it must not, or would replace something.
    """
    make_folder(folder)
    with tempfile.TemporaryDirectory(prefix=TEMPORARY, dir=folder) as temporary, understood(archive):
        for member in members(archive):
            target = Path(temporary, *safe_parts(member.name, archive))
            if target.exists():
                raise DataError(
                    f"{archive}: the file {member.name!r} is in it twice. Is this the official archive?"
                )
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                with target.open("xb") as file:
                    shutil.copyfileobj(member.content, file, _BLOCK)
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


class Member(NamedTuple):
    """A file in an archive."""

    name: str
    size: int  # as declared; reading `content` never gives more
    content: IO[bytes]

    def read(self, limit: int) -> bytes:
        """Its bytes.

        Raises:
            FormatError: It declares more than `limit`.
        """
        if self.size > limit:
            raise FormatError(f"{self.name} must have at most {limit:,} bytes. Got {self.size:,}.")
        return self.content.read()


def members(archive: Path) -> Iterator[Member]:
    """Every file of an archive, in its order; the whole archive is read, checksums included.

    Use it within `understood`: a damaged archive shows while its contents are read.

    Raises:
        DataError: It holds links or devices.
        FormatError: It declares more than `EXPANSION` times its size.
    """
    with open_regular(archive) as file:
        allowed = EXPANSION * os.fstat(file.fileno()).st_size + ALWAYS_ALLOWED
        zipped = zipfile.is_zipfile(file)
        file.seek(0)
        yield from _budgeted(
            _zip_members(file, archive) if zipped else _tar_members(file, archive), allowed, archive
        )


def _budgeted(found: Iterator[Member | int], allowed: int, archive: Path) -> Iterator[Member]:
    """The members, as long as what they and the gaps between them unpack to is not out of proportion."""
    for member in found:
        allowed -= member if isinstance(member, int) else member.size + tarfile.BLOCKSIZE
        if allowed < 0:
            raise FormatError(
                f"{archive}: an archive must unpack to at most {EXPANSION} times its size. Got more. "
                "Is this the official archive?"
            )
        if not isinstance(member, int):
            yield member


def _zip_members(file: IO[bytes], archive: Path) -> Iterator[Member]:
    with zipfile.ZipFile(file) as packed:
        for info in packed.infolist():
            mode = info.external_attr >> 28  # of Unix: 0 not given, 4 folder, 8 file, 10 link
            if mode not in (0, 4, 8):
                raise DataError(f"{archive}: {info.filename!r} is a link or device, which is not unpacked.")
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise FormatError(f"{archive}: {info.filename!r} is compressed in a way that is not read.")
            if info.flag_bits & 1:
                raise FormatError(
                    f"{archive}: {info.filename!r} is encrypted. Give an archive without a password."
                )
            if not info.is_dir():
                with packed.open(info) as content:
                    yield Member(info.filename, info.file_size, content)


def _tar_members(file: IO[bytes], archive: Path) -> Iterator[Member | int]:
    """The files of a tar, and the sizes of blocks behind its end."""
    gzipped = file.read(2) == b"\x1f\x8b"
    file.seek(0)
    with tarfile.open(fileobj=file, mode="r:gz" if gzipped else "r:", tarinfo=_BoundedInfo) as packed:
        for member in packed:
            packed.members = []  # it would keep them all  # pyright: ignore[reportAttributeAccessIssue]
            if member.isdir():
                safe_parts(member.name, archive)
                yield tarfile.BLOCKSIZE
                continue
            content = packed.extractfile(member) if member.isreg() else None
            if content is None:
                raise DataError(f"{archive}: {member.name!r} is a link or device, which is not unpacked.")
            yield Member(member.name, member.size, content)
        while packed.fileobj is not None and (block := packed.fileobj.read(_BLOCK)):
            yield len(block)  # only at its very end does gzip compare the checksum


class _BoundedInfo(tarfile.TarInfo):
    """A header of a tar whose extended part, which tarfile reads into memory, is bounded."""

    def _proc_member(self, tarfile_: tarfile.TarFile) -> Any:
        extended = (
            tarfile.XHDTYPE,
            tarfile.XGLTYPE,
            tarfile.SOLARIS_XHDTYPE,
            tarfile.GNUTYPE_LONGNAME,
            tarfile.GNUTYPE_LONGLINK,
        )
        if self.type in extended and self.size > _MAX_HEADER:
            raise FormatError(f"a header must have at most {_MAX_HEADER:,} bytes. Got {self.size:,}")
        return super()._proc_member(tarfile_)  # type: ignore[misc]


def safe_parts(name: str, archive: Path) -> tuple[str, ...]:
    """The parts of a member's name, if they stay within the folder.

    Example:
        >>> safe_parts("./cifar-100-python/train", Path("a.tar"))
        ('cifar-100-python', 'train')
        >>> safe_parts("../train", Path("a.tar"))
        Traceback (most recent call last):
        hace.errors.DataError: a.tar: the name '../train' leads out of the folder. Nothing was unpacked.
    """
    path = PurePosixPath(name)
    if (
        path.is_absolute()
        or ".." in path.parts
        or "\\" in name
        or ":" in name
        or "\0" in name
        or not path.parts
    ):
        raise DataError(f"{archive}: the name {name!r} leads out of the folder. Nothing was unpacked.")
    return path.parts


def make_folder(folder: Path) -> None:
    """Make a folder and those above it.

    Raises:
        DataError: If that is not possible.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{folder}: the folder cannot be made: {error.strerror}.") from error


@contextmanager
def understood(archive: Path) -> Iterator[None]:
    """Turns what reading a damaged archive raises into a FormatError."""
    try:
        yield
    except HaceError:
        raise
    except OSError as error:
        words = error.strerror or str(error)  # gzip words its checksum errors as OSErrors without a number
        raise FormatError(f"{archive}: cannot be read: {words}. Fetch it again.") from error
    except Exception as error:  # the libraries raise many kinds about damaged headers
        words = str(error).partition("\n")[0].rstrip(":")[:200]
        raise FormatError(
            f"{archive}: damaged or cut off, or not an archive ({words}). Fetch it again."
        ) from error
