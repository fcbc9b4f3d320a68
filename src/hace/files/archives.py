"""Archives from elsewhere: fetched whole or not at all, unpacked whole or not at all, and never outside their folder."""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from hace.errors import DataError, FormatError
from hace.files.optional import optional

_DAMAGED = (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError)
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


def extract(archive: Path, folder: Path) -> list[Path]:
    """Unpack a .tar, .tar.gz or .zip into a folder, whole or not at all.

    Names that lead out of the folder, links and devices are refused. The archive is unpacked to a temporary folder beside
    the target and moved only when all of it, checksums included, was read.

    Args:
        archive: The file.
        folder: Where its content goes; made if it does not exist.

    Returns:
        The paths of what stands at the archive's top.

    Raises:
        FormatError: If it is no archive or a damaged one.
        DataError: If it holds what it must not, or would replace something.
    """
    make_folder(folder)
    with tempfile.TemporaryDirectory(prefix=".hace-", dir=folder) as temporary, understood(archive):
        for name, content in members(archive):
            target = Path(temporary, *safe_parts(name, archive))
            if target.exists():
                raise DataError(
                    f"{archive}: the file {name!r} stands in it twice. Is this the official archive?"
                )
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                with target.open("xb") as file:
                    shutil.copyfileobj(content, file, _BLOCK)
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


def members(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """(name, content) of every file of an archive, in its order; the whole archive is read, checksums included.

    Use it within `understood`: a damaged archive shows while its contents are read.

    Raises:
        DataError: If it holds links or devices.
    """
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as packed:
            for info in packed.infolist():
                kind = info.external_attr >> 28  # of a Unix mode: 0 not given, 4 folder, 8 file, 10 link
                if kind not in (0, 4, 8):
                    raise DataError(
                        f"{archive}: {info.filename!r} is a link or device, which is not unpacked."
                    )
                if not info.is_dir():
                    with packed.open(info) as content:
                        yield info.filename, content
        return
    with tarfile.open(archive, "r:*") as packed:
        for member in packed:
            if member.isdir():
                safe_parts(member.name, archive)
                continue
            content = packed.extractfile(member) if member.isreg() else None
            if content is None:
                raise DataError(f"{archive}: {member.name!r} is a link or device, which is not unpacked.")
            yield member.name, content
        while packed.fileobj is not None and packed.fileobj.read(_BLOCK):
            pass  # only at its very end does gzip compare the checksum


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
    except _DAMAGED as error:
        words = str(error).partition("\n")[0].rstrip(":")
        raise FormatError(
            f"{archive}: damaged or cut off, or no archive ({words}). Fetch it again."
        ) from error
    except OSError as error:
        words = error.strerror or str(error)  # gzip words its checksum errors as OSErrors without a number
        raise FormatError(f"{archive}: cannot be read: {words}. Fetch it again.") from error
