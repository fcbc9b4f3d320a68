"""Bytes, text and images from outside: only regular files, only so much memory, one error for whatever goes wrong.

A few kilobytes can declare terabytes: a compressed array, a manifest that counts 10**12 rows, an image of 10**6 by 10**6
pixels. Readers add up what a file declares and call `check_memory` before they allocate anything. The limit is 1 GiB; set
the environment variable HACE_MAX_MEMORY to raise it, in bytes or as 4G (K, M, G and T are powers of 1024).
"""

from __future__ import annotations

import codecs
import importlib
import io
import os
import re
import shlex
import stat
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from hace.errors import ConfigError, DataError, FormatError, HaceError, install, shorten

if TYPE_CHECKING:
    from PIL.Image import Image

VARIABLE = "HACE_MAX_MEMORY"
DEFAULT = 1 << 30
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_NO_OPERATORS = "operator torchvision::"  # what torchvision's import says where its library could not load
_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
_OUT_OF_MEMORY = re.compile("(?i)out of memory|can(?:'|no)t allocate memory|not enough memory|bad_alloc")
# Byte order marks and their encodings; the mark of UTF-16-LE begins that of UTF-32-LE, so the longer ones come first.
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_MAX_LINE = 1 << 26  # characters
_OLD_WORKBOOK = b"\xd0\xcf\x11\xe0"  # how an .xls begins
# Where the package has another name than its module.
_PACKAGES = {"PIL": "pillow", "pillow_heif": "pillow-heif", "yaml": "PyYAML"}
# What decoders may open, whatever a file's name says. Pillow would hand PostScript to an interpreter.
IMAGE_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
HEIC_SUFFIXES = (".heic", ".heif", ".hif")
# Tags of EXIF.
ORIENTATION = 0x0112  # 1: as stored
_EXIF_IFD = 0x8769
_DATE_TIME_ORIGINAL = 0x9003
_DATE_TIME = 0x0132
BYTES_PER_PIXEL = 12  # the decoder's buffers, the image as stored and as RGB


def max_memory() -> int:
    """The limit in bytes: HACE_MAX_MEMORY, or 1 GiB."""
    text = os.environ.get(VARIABLE, "").strip()
    if not text:
        return DEFAULT
    size = re.fullmatch(r"(\d{1,18})\s*([KMGT]?)(i?B)?", text, re.IGNORECASE)
    if not size:
        raise ConfigError(f"{VARIABLE} must be a number of bytes such as 4294967296 or 4G. Got {text[:9]!r}.")
    return int(size[1]) * _UNITS[size[2].upper()]


def check_memory(path: object, claimed: int, what: str = "its content", *, stored: int = 0) -> None:
    """Refuse a file that declares more memory than it may take."""
    if claimed > max(max_memory(), stored):
        gib = 1 << 30
        raise FormatError(
            f"{path}: {what} must take at most {max_memory() / gib:.1f} GiB of memory. Got {claimed / gib:,.1f} GiB. "
            f"If the file is what you think it is, set {VARIABLE}={-(-claimed // gib)}G."
        )


def out_of_memory(error: BaseException | None) -> bool:
    """Whether an error, or one that led to it, says that memory ran out: Python's, numpy's, torch's, on any device."""
    while error is not None:
        out_of_memory = isinstance(error, RuntimeError | OSError) and _OUT_OF_MEMORY.search(str(error))
        if out_of_memory or isinstance(error, MemoryError):
            return True
        error = error.__cause__ or error.__context__
    return False


def optional(module: str, purpose: str, extra: str = "data") -> Any:
    """A module that not every installation has."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        top = module.split(".")[0]
        raise ConfigError(
            f"{purpose} needs the package {_PACKAGES.get(top, top)}. {install(extra)}"
        ) from error
    except RuntimeError as error:
        if _NO_OPERATORS not in str(error):
            raise
        raise ConfigError(
            "torch and torchvision must come from one index. Got torchvision for CUDA beside a torch without it: "
            f"pip install --force-reinstall --no-deps torchvision=={version('torchvision')} --index-url {_CPU_INDEX}"
        ) from error


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file for reading bytes. A folder, a pipe or a device is an error at once, never a wait."""
    # Not blocking: opening a pipe would wait for its writer.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        descriptor = os.open(path, flags)
    except (OSError, ValueError) as error:  # ValueError: a path with a zero character
        if isinstance(error, IsADirectoryError) or os.path.isdir(path):
            raise _not_regular(path, "a folder") from error
        raise FormatError(f"{os.fsdecode(path)}: cannot be read: {reason(error)}.") from error
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            raise _not_regular(path, "a folder" if stat.S_ISDIR(mode) else "a pipe or a device")
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_bytes(path: str | os.PathLike[str], limit: int | None = None) -> bytes:
    """The content of a regular file."""
    name = os.fsdecode(path)
    with open_regular(path) as file:
        try:
            size = os.fstat(file.fileno()).st_size
            if limit is None:
                check_memory(name, size)
            elif size > limit:
                raise FormatError(
                    f"{name}: must have at most {limit:,} bytes. Got {size:,}. Is it the right one?"
                )
            return file.read(size)  # a file that grows meanwhile is read as it was
        except OSError as error:
            raise FormatError(f"{name}: cannot be read: {reason(error)}.") from error


def decode(data: bytes, name: str, encoding: str | None = None) -> str:
    """Text in UTF-8, or in UTF-16 or UTF-32 where the file begins with their mark. The mark is dropped."""
    if data.startswith(_OLD_WORKBOOK):
        raise FormatError(f"{name}: must be text. Got an old Excel workbook. Save it as .xlsx or .csv.")
    used = _encoding_of(data, encoding)
    try:
        text = data.decode(used)
    except UnicodeDecodeError as error:
        if "16" not in used and "32" not in used:
            _refuse_zeros(data.decode("latin-1"), name)  # an image or an array, whatever its first byte
        raise _undecodable(name, 1, error, used) from error
    except (LookupError, ValueError) as error:  # ValueError: a zero character in the name
        raise _unknown_encoding(encoding) from error
    _refuse_zeros(text, name)
    return text.removeprefix("\ufeff")


def text_lines(path: str | os.PathLike[str], encoding: str | None = None) -> Iterator[str]:
    """The lines of a text file of any size, without their ends, read as `decode` reads; one line is in memory at a time."""
    name = os.fsdecode(path)
    number = 1
    with open_regular(path) as file:
        used = _encoding_of(file.read(4), encoding)
        file.seek(0)
        try:
            text = io.TextIOWrapper(file, used)
        except (LookupError, ValueError) as error:
            raise _unknown_encoding(encoding) from error
        try:
            while line := text.readline(_MAX_LINE + 1):
                if len(line) > _MAX_LINE:
                    raise FormatError(
                        f"{name}, line {number}: a line must have at most {_MAX_LINE:,} characters."
                    )
                _refuse_zeros(line, name)
                yield line.removesuffix("\n").removeprefix("\ufeff")
                number += 1
        except UnicodeDecodeError as error:
            raise _undecodable(name, number, error, used) from error


def read_text(path: str | os.PathLike[str], encoding: str | None = None) -> str:
    """The text of a regular file, as `decode` reads it."""
    return decode(read_bytes(path), os.fsdecode(path), encoding)


def read_image(
    path: str | os.PathLike[str], oddities: list[str] | None = None, content: bytes | None = None
) -> Image:
    """A whole image file, or its `content`, as people see it, see :func:`as_rgb`, measured before it is decoded.

    What is unusual about it is added to `oddities`: turned, more than 8 bits, frames that are left out, a colour profile.
    """
    pillow = optional("PIL.Image", "Reading images")
    name = os.fsdecode(path)
    formats = IMAGE_FORMATS
    if name.lower().endswith(HEIC_SUFFIXES):
        optional("pillow_heif", "Reading HEIC images", "heic").register_heif_opener()
        formats = ("HEIF",)
    if content is None and not os.path.lexists(path):
        raise DataError(f"{name}: the image does not exist. Is the dataset complete?")
    try:
        source = open_regular(path) if content is None else io.BytesIO(content)
        with source as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about odd metadata, and sizes that are checked here
            with pillow.open(file, formats=formats) as opened:
                width, height = opened.size
                what = f"an image of {width:,} x {height:,} pixels"
                check_memory(name, width * height * BYTES_PER_PIXEL, what)
                if oddities is not None:
                    oddities += _oddities(opened)
                return as_rgb(opened)  # decodes all of it, so that a truncated file shows here
    except FormatError as error:
        raise DataError(str(error)) from error
    except Exception as error:  # decoders raise whatever they like about broken bytes
        unknown = type(error).__name__ == "UnidentifiedImageError"
        words = "not an image of a known format" if unknown else str(error)[:200]
        raise DataError(
            f"{name}: the image cannot be read ({words}). If it is truncated, fetch it again, or remove it."
        ) from error


def as_rgb(image: Image) -> Image:
    """An image as people see it: turned as its EXIF data say, 8 bits per channel, transparent parts white, RGB.

    Of an animated file it is the first frame. Applied twice, it changes nothing.
    """
    from PIL import Image, ImageOps

    if _orientation(image) != 1:
        image = ImageOps.exif_transpose(image)
    if image.mode[0] in "IF":
        image = _eight_bits(image)
    if image.mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("RGB")


def _orientation(image: Image) -> int:
    """The EXIF orientation, from 1 to 8; 1 where there is none, or EXIF data that cannot be read."""
    try:
        orientation = image.getexif().get(ORIENTATION, 1)
    except Exception:  # damaged EXIF data are no reason to refuse an image
        return 1
    return orientation if orientation in range(1, 9) else 1


def read_taken(path: str | os.PathLike[str]) -> str:
    """When a photo was taken, as its EXIF data say."""
    pillow = optional("PIL.Image", "Reading images")
    try:
        with open_regular(path) as file, pillow.open(file, formats=IMAGE_FORMATS) as opened:
            exif = opened.getexif()
            taken = exif.get_ifd(_EXIF_IFD).get(_DATE_TIME_ORIGINAL) or exif.get(_DATE_TIME)
    except Exception as error:  # decoders raise whatever they like about broken bytes
        raise DataError(f"{os.fsdecode(path)}: its EXIF data cannot be read ({str(error)[:200]}).") from error
    if not taken:
        raise DataError(
            f"{os.fsdecode(path)}: must have a time in its EXIF data, or in the table. Got neither."
        )
    return str(taken)


def _eight_bits(image: Image) -> Image:
    """One channel of 16 or 32 bits in 8: 65535 becomes 255, and what goes beyond is scaled by its range."""
    import numpy as np
    from PIL import Image

    values = np.asarray(image).astype(np.float64)
    values = np.where(np.isfinite(values), values, 0)
    low = float(values.min())
    high = float(values.max())
    if low < 0 or high > 65535 or (image.mode == "F" and high <= 1):
        values = (values - low) / max(high - low, 1e-30) * 65535
        high = 65535.0
    has_16_bits = image.mode.startswith("I;16") or high > 255
    if has_16_bits:
        values = values / 257
    return Image.fromarray(np.clip(np.rint(values), 0, 255).astype(np.uint8))


def _oddities(image: Image) -> list[str]:
    """What is unusual about an image that was opened and not decoded, in words for a list."""
    deep = image.mode[0] in "IF"
    unusual = {
        "turned by EXIF orientation": _orientation(image) != 1,
        "more than 8 bits per channel, reduced to 8": deep,
        f"stored as {image.mode}": not deep and image.mode not in ("RGB", "L", "P", "1"),
        "animated, or of several pages: the first is used": getattr(image, "n_frames", 1) > 1
        and image.format != "MPO",
    }
    oddities = [what for what, holds in unusual.items() if holds]
    if profile := image.info.get("icc_profile"):
        try:
            cms = optional("PIL.ImageCms", "Reading colour profiles")
            title = cms.getProfileDescription(cms.ImageCmsProfile(io.BytesIO(profile))).strip()
        except Exception:  # a damaged profile changes nothing: colours are taken as stored
            title = "unknown"
        if "srgb" not in title.lower():
            oddities.append(f"colour profile {title!r}, not applied")
    return oddities


@contextmanager
def damaged(path: str | os.PathLike[str], kind: str, remedy: str = "Copy it again.") -> Iterator[None]:
    """Libraries raise whatever damaged bytes run into: one error for all of it."""
    try:
        yield
    except (HaceError, MemoryError):
        raise
    except Exception as error:
        words = shorten(str(error).strip().partition("\n")[0].rstrip(".: ") or type(error).__name__, 200)
        raise FormatError(
            f"{os.fsdecode(path)}: must be {kind}. Got a damaged one: {words}. {remedy}"
        ) from error


def is_file(text: str) -> bool:
    """Whether a text that may be anything is the path of a file."""
    try:
        return os.path.isfile(text)
    except (OSError, ValueError):  # longer than a path may be, or with a zero character
        return False


def reason(error: Exception) -> str:
    """The words of an operating system error, without its number and path."""
    return getattr(error, "strerror", None) or str(error)


def _encoding_of(data: bytes, encoding: str | None) -> str:
    marked = next((kind for mark, kind in _MARKS if data.startswith(mark)), None)
    return marked or encoding or "utf-8"


def _undecodable(name: str, line: int, error: UnicodeDecodeError, used: str) -> FormatError:
    line += error.object.count(b"\n", 0, error.start)
    rule = f"{name}, line {line}: the text must be {used.removesuffix('-sig').upper()}."
    new = shlex.quote(f"utf8-{Path(name).name}")  # keeps its ending: readers go by it
    remedy = (
        " If it is Latin-1, say so where it is a taxonomy: encoding='latin-1' (on the command line: -o encoding=latin-1); or "
        f"convert it: iconv -f LATIN1 -t UTF-8 {shlex.quote(name)} > {new}"
    )
    return FormatError(f"{rule} Got byte 0x{error.object[error.start]:02x}.{remedy if '8' in used else ''}")


def _unknown_encoding(encoding: str | None) -> ConfigError:
    return ConfigError(f"encoding must be the name of a text encoding such as 'utf-8'. Got {encoding!r}.")


def _refuse_zeros(text: str, name: str) -> None:
    if (place := text.find("\0")) >= 0:
        raise FormatError(f"{name}: must be text. Got a binary file, with a zero at character {place}.")


def _not_regular(path: str | os.PathLike[str], kind: str) -> FormatError:
    return FormatError(f"{os.fsdecode(path)}: must be a file. Got {kind}. Give the path of a file.")
