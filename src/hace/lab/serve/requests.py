"""Samples out of requests: uploaded files, one image as the body, or JSON with features, images or texts."""

from __future__ import annotations

import asyncio
import base64
import binascii
import io
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from fastapi import HTTPException, Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.datastructures import UploadFile
from torch import Tensor

from hace.errors import DataError
from hace.files.reading import read_image
from hace.lab.serve.batching import Limits
from hace.lab.serve.predictor import Predictor

LONGEST_TEXT = 20_000  # letters


class Body(BaseModel):
    """Samples as JSON: features, or images in base64. A further kind of input is a field here and an entry of `READERS`."""

    model_config = ConfigDict(extra="forbid")
    features: list[list[float]] | None = Field(None, min_length=1, description="Rows of numbers.")
    images: list[str] | None = Field(None, min_length=1, description="Image files in base64.")
    texts: list[str] | None = Field(None, min_length=1, description="Texts.")


def read_photo(predictor: Predictor, name: str, content: bytes) -> Tensor:
    """An uploaded image as the model sees it, decoded within the limits of :func:`hace.files.reading.read_image`."""
    try:
        image = read_image(name, content=content)
    except DataError as error:
        raise DataError(str(error).removeprefix(f"{name}: ")) from error
    if max(image.size) > 1000 * min(image.size):
        raise DataError("the image is too narrow for its length.")
    return predictor.vision.transform(image)


def read_row(predictor: Predictor, name: str, values: Sequence[float]) -> Tensor:
    """A row of features."""
    width = predictor.width
    with np.errstate(over="ignore"):
        row = np.asarray(values, dtype=np.float32)
    if row.shape != (width,) or not np.isfinite(row).all():
        raise DataError(f"Features must be rows of {width} finite numbers. Got {len(values)}.")
    return torch.from_numpy(row)


def read_text(predictor: Predictor, name: str, text: str) -> str:
    """A text."""
    if not text.strip() or len(text) > LONGEST_TEXT:
        raise DataError(f"A text must have 1 to {LONGEST_TEXT:,} letters. Got {len(text):,}.")
    return predictor.vision.transform(text)


READERS: dict[str, Callable[..., Any]] = {"images": read_photo, "features": read_row, "texts": read_text}


async def samples_of(request: Request, limits: Limits, values: int) -> tuple[str, list[tuple[str, Any]]]:
    """The kind of the samples of a request, and the samples as they came, each with a name."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        return "images", await _uploaded(request, limits)
    content = await request.body()
    if kind.startswith("image/") or kind == "application/octet-stream":
        return "images", [("photo", content)]
    if kind != "application/json":
        raise HTTPException(415, "The body must be multipart/form-data, image/* or application/json.")
    check_values(content, values)
    return await _from_json(content)


async def _uploaded(request: Request, limits: Limits) -> list[tuple[str, bytes]]:
    async with request.form(max_files=limits.samples, max_fields=8) as form:
        files = [value for _, value in form.multi_items() if isinstance(value, UploadFile)]
        return [(file.filename or "photo", await file.read()) for file in files]


async def _from_json(content: bytes) -> tuple[str, list[tuple[str, Any]]]:
    """The kind and the samples of a JSON body, with their names."""
    try:
        body = await asyncio.to_thread(Body.model_validate_json, content)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_input=False, include_context=False)[:5]
        raise HTTPException(422, [{"loc": p["loc"], "msg": p["msg"]} for p in problems]) from None
    given = {name: value for name, value in body if value is not None}
    if len(given) != 1:
        known = ", ".join(Body.model_fields)
        raise HTTPException(422, f"The body must have one of {known}. Got {len(given)}.")
    ((kind, rows),) = given.items()
    if kind == "images":
        try:
            rows = [base64.b64decode(text, validate=True) for text in rows]
        except (binascii.Error, ValueError):
            raise HTTPException(422, "images must be files in base64.") from None
    return kind, [(f"{i:06d}", value) for i, value in enumerate(rows)]


def most_values(predictor: Predictor, kinds: Sequence[str], limits: Limits) -> int:
    """How many values the JSON of a request may have."""
    of_a_sample = {
        "texts": LONGEST_TEXT,
        "images": 100,
    }  # commas in a text; room to say how many images there are
    if "features" in kinds:
        of_a_sample["features"] = predictor.width
    return limits.samples * max(of_a_sample[kind] for kind in kinds)


def check_values(content: bytes, most: int) -> None:
    """Refuse JSON of more values than samples have, before it is parsed: two bytes of it become 40 in memory."""
    values = content.count(b",") + 1
    if values > most:
        raise HTTPException(
            413, f"A request must have at most {most:,} values. Got {values:,}. Send fewer at a time."
        )


def check_pixels(given: Sequence[tuple[str, bytes]], limits: Limits) -> None:
    """Refuse images that are too large together, by their headers alone: small files can hold very many pixels."""
    from PIL import Image

    pixels = 0
    for _, content in given:
        try:
            with Image.open(io.BytesIO(content)) as image:
                pixels += image.width * image.height
        except Exception:  # a broken image is the answer of its sample
            continue
    if pixels > limits.megapixels * 1e6:
        rule = f"The images of a request must have at most {limits.megapixels:g} million pixels together"
        raise HTTPException(413, f"{rule}. Got {pixels / 1e6:,.0f} million. Send fewer at a time.")


async def decode(
    predictor: Predictor,
    kind: str,
    given: Sequence[tuple[str, Any]],
    limits: Limits,
    decoders: asyncio.Semaphore,
) -> list[Any]:
    """Each sample as the model takes it, or the DataError that says why not.

    Requests take turns after every image, so that a small one need not wait for large ones. One that is given up stops there:
    a thread cannot be interrupted.
    """
    if kind == "images":
        async with decoders:
            await asyncio.to_thread(check_pixels, given, limits)
    turn = 1 if kind == "images" else len(given)
    rows: list[Any] = []
    for first in range(0, len(given), turn):
        async with decoders:
            rows += await asyncio.to_thread(_read, predictor, kind, given[first : first + turn])
    return rows


def _read(predictor: Predictor, kind: str, given: Sequence[tuple[str, Any]]) -> list[Any]:
    """Some samples of a request."""
    rows: list[Any] = []
    for name, value in given:
        try:
            rows.append(READERS[kind](predictor, name, value))
        except DataError as error:
            rows.append(error)
    return rows
