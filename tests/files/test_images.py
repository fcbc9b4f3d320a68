"""Photos as cameras write them: turned by EXIF, 16 bits, CMYK, palettes, transparency, animation, HEIC, broken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from hace.data.batches import Preprocessing
from hace.errors import ConfigError, DataError
from hace.files import reading
from hace.files.reading import ORIENTATION, as_rgb, read_image

UPRIGHT = np.zeros((24, 40, 3), np.uint8)
UPRIGHT[:12, :20] = (250, 20, 20)
UPRIGHT[12:, 20:] = (20, 20, 250)
# How a camera stores an upright scene under each tag: the inverse of what the tag asks a viewer to do.
STORED = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.transpose(1, 0, 2),
    6: lambda a: np.rot90(a, 1),
    7: lambda a: np.rot90(a, 2).transpose(1, 0, 2),
    8: lambda a: np.rot90(a, -1),
}


def turned(path: Path, tag: int, **options: Any) -> Path:
    exif = Image.Exif()
    exif[ORIENTATION] = tag
    Image.fromarray(np.ascontiguousarray(STORED[tag](UPRIGHT))).save(path, exif=exif, **options)
    return path


@pytest.mark.parametrize("tag", STORED)
@pytest.mark.parametrize("suffix", ["png", "tif", "webp"])
def test_every_orientation_is_upright(tmp_path: Path, tag: int, suffix: str) -> None:
    lossless = {"lossless": True} if suffix == "webp" else {}
    image = read_image(turned(tmp_path / f"a.{suffix}", tag, **lossless))
    np.testing.assert_array_equal(np.asarray(image), UPRIGHT)
    np.testing.assert_array_equal(np.asarray(as_rgb(image)), UPRIGHT)  # twice changes nothing


def test_transforms_turn_images_that_the_caller_opened(tmp_path: Path) -> None:
    see = Preprocessing(24, 24).transform()
    with Image.open(turned(tmp_path / "a.png", 6)) as opened:
        turned_view = see(opened)
    np.testing.assert_array_equal(turned_view.numpy(), see(Image.fromarray(UPRIGHT)).numpy())


def test_damaged_exif_data_do_not_make_an_image_broken(tmp_path: Path) -> None:
    Image.fromarray(UPRIGHT).save(tmp_path / "a.png", exif=b"Exif\0\0II*\0\xff\xff\xff\x7f\x01")
    np.testing.assert_array_equal(np.asarray(read_image(tmp_path / "a.png")), UPRIGHT)


GREY = np.linspace(0, 255, 24 * 40).reshape(24, 40).round().astype(np.uint8)


@pytest.mark.parametrize(
    ("stored", "said"),
    [
        (Image.fromarray(GREY.astype(np.uint16) * 257), "more than 8 bits"),
        (Image.fromarray(GREY.astype(np.int32) * 257), "more than 8 bits"),
        (Image.fromarray(GREY.astype(np.float32) / 255), "more than 8 bits"),
        (Image.fromarray(GREY.astype(np.float32)), "more than 8 bits"),
        (Image.fromarray(GREY), None),
        (Image.fromarray(GREY).convert("P"), None),
        (Image.fromarray(GREY).convert("CMYK"), "stored as CMYK"),
        (Image.fromarray(GREY).convert("LA"), "stored as LA"),
    ],
    ids=["16 bits", "32 bits", "floats to 1", "floats to 255", "grey", "palette", "CMYK", "grey with alpha"],
)
def test_unusual_modes_keep_their_brightness(tmp_path: Path, stored: Image.Image, said: str | None) -> None:
    stored.save(tmp_path / "a.tif")
    oddities: list[str] = []
    result = np.asarray(read_image(tmp_path / "a.tif", oddities)).astype(int)
    assert np.abs(result - GREY[..., None]).max() <= 1
    assert [word for word in oddities if word.startswith(said or "-")] == oddities


def test_transparent_parts_are_white(tmp_path: Path) -> None:
    pixels = np.dstack([UPRIGHT, np.where(np.arange(40) < 20, 255, 0) * np.ones((24, 1))]).astype(np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    result = np.asarray(read_image(tmp_path / "a.png"))
    np.testing.assert_array_equal(result[:, :20], UPRIGHT[:, :20])
    assert (result[:, 20:] == 255).all()
    palette = Image.fromarray(GREY).convert("P")
    palette.save(tmp_path / "b.png", transparency=0)
    assert (np.asarray(read_image(tmp_path / "b.png"))[GREY == 0] == 255).all()


def test_of_an_animation_the_first_frame_is_used_and_reported(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    oddities: list[str] = []
    assert read_image(tmp_path / "a.gif", oddities).getpixel((0, 0)) == (255, 0, 0)
    assert oddities == ["animated, or of several pages: the first is used"]


def test_colour_profiles_are_named(tmp_path: Path) -> None:
    from PIL import ImageCms

    for kind, said in (("sRGB", []), ("LAB", ["colour profile 'Lab identity built-in', not applied"])):
        profile = ImageCms.ImageCmsProfile(ImageCms.createProfile(kind)).tobytes()  # type: ignore[arg-type]
        Image.fromarray(UPRIGHT).save(tmp_path / "a.png", icc_profile=profile)
        oddities: list[str] = []
        read_image(tmp_path / "a.png", oddities)
        assert oddities == said
    Image.fromarray(UPRIGHT).save(tmp_path / "a.png", icc_profile=b"not a profile")
    read_image(tmp_path / "a.png", oddities := [])
    assert oddities == ["colour profile 'unknown', not applied"]


def test_heic_needs_its_extra_and_is_read_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heif = pytest.importorskip("pillow_heif")
    heif.register_heif_opener()
    Image.fromarray(UPRIGHT).save(
        tmp_path / "a.heic", quality=100
    )  # phones store the turn in the format itself
    result = np.asarray(read_image(tmp_path / "a.heic")).astype(int)
    assert np.abs(result - UPRIGHT).mean() < 5
    real = reading.importlib.import_module

    def without(name: str, *rest: Any) -> Any:
        if name.startswith("pillow_heif"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(reading.importlib, "import_module", without)
    with pytest.raises((ConfigError, DataError), match=r"needs the package pillow-heif.*\[heic\]"):
        read_image(tmp_path / "a.heic")
