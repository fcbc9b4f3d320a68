"""Images from outside: measured before they are decoded, and never handed to an interpreter."""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hace.errors import DataError
from hace.files.reading import read_image


def png_of(width: int, height: int) -> bytes:
    """A PNG that declares a size and holds almost nothing."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(b"\0" * 99))
        + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize("suffix", ["png", "jpg", "webp", "bmp", "gif", "tif", "ppm"])
def test_images_come_back_as_rgb(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.{suffix}"
    Image.fromarray(np.full((4, 6), 200, np.uint8)).save(path)
    image = read_image(path)
    assert (image.mode, image.size) == ("RGB", (6, 4))
    np.testing.assert_allclose(np.asarray(image), 200, atol=2)


@pytest.mark.parametrize("side", [13_000, 60_000])
def test_a_large_image_is_refused_before_it_is_decoded(tmp_path: Path, side: int) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(png_of(side, side))
    with pytest.raises(DataError, match=r"an image of \d+,000 x \d+,000 pixels must take|decompression bomb"):
        read_image(path)


def test_postscript_is_not_an_image(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    path.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n")
    with pytest.raises(
        DataError, match=r"a\.jpg: the image cannot be read \(not an image of a known format\)"
    ):
        read_image(path)


def test_files_that_are_not_images(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a\.png: the image does not exist"):
        read_image(tmp_path / "a.png")
    (tmp_path / "b.png").write_bytes(png_of(40, 40))
    with pytest.raises(DataError, match=r"b\.png: the image cannot be read"):
        read_image(tmp_path / "b.png")
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "c.png")
        with pytest.raises(DataError, match=r"must be a file\. Got a pipe or a device"):
            read_image(tmp_path / "c.png")
