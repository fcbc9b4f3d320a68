"""Images from outside: of known formats, measured before they are decoded."""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING

from hace.errors import DataError, FormatError
from hace.files.limits import check_memory
from hace.files.optional import optional
from hace.files.reading import open_regular

if TYPE_CHECKING:
    from PIL.Image import Image

# What decoders may open, whatever a file's name says. Pillow would hand PostScript to an interpreter.
IMAGE_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
BYTES_PER_PIXEL = 12  # the decoder's buffers, the image as stored and as RGB


def read_image(path: str | os.PathLike[str]) -> Image:
    """A whole image file as RGB.

    Raises:
        DataError: It is missing, truncated, too large for the memory limit, or not an image; with its path.
    """
    pillow = optional("PIL.Image", "Reading images")
    name = os.fsdecode(path)
    if not os.path.lexists(path):
        raise DataError(f"{name}: the image does not exist. Is the data set complete?")
    try:
        with open_regular(path) as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about odd metadata, and sizes that are checked here
            with pillow.open(file, formats=IMAGE_FORMATS) as opened:
                width, height = opened.size
                check_memory(
                    name, width * height * BYTES_PER_PIXEL, f"an image of {width:,} x {height:,} pixels"
                )
                return opened.convert("RGB")  # decodes all of it, so that a truncated file shows here
    except FormatError as error:
        raise DataError(str(error)) from error
    except Exception as error:  # decoders raise whatever they like about broken bytes
        unknown = type(error).__name__ == "UnidentifiedImageError"
        words = "not an image of a known format" if unknown else str(error)[:200]
        raise DataError(
            f"{name}: the image cannot be read ({words}). If it is truncated, fetch it again, or remove it."
        ) from error
