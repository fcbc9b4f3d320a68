"""A page where people try a model, and the same model as an API: what `hace serve` runs.

    uvicorn.run(make_app(Predictor.from_run("runs/4cd033b43672ca23")))

Requests are read and decoded in threads, then wait in one bounded queue. A worker takes what waits, up to a batch, runs the
model once and answers each request by its own question. The page gets scores and decides in the browser.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Any, Literal

import numpy as np
import torch
from fastapi import Depends, FastAPI, HTTPException, Query, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.datastructures import Headers, MutableHeaders, UploadFile
from torch import Tensor

from hace import __version__
from hace.data.batches import Attempts
from hace.draw import templates
from hace.errors import DataError, HaceError
from hace.files.reading import read_image
from hace.lab.runs.process import processors
from hace.lab.runs.result import ScoreView
from hace.lab.serve.page import Sample, hierarchy_document, model_document
from hace.lab.serve.predictor import Predictions, Predictor, Question

LOG = logging.getLogger("hace.serve")
PACKAGE, LONGEST = "hace.lab.serve", 20_000  # letters of a text
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self' blob:; "
    "img-src 'self' blob: data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True)
class Limits:
    """What a server takes on at most."""

    megabytes: float = 32  # of the body of a request
    samples: int = 64  # per request
    seconds: float = 30  # per request, from its first byte to its answer
    waiting: int = 128  # requests; one more is answered with 503
    batch: int = 64  # samples after which a batch takes no further request
    batches: int | None = None  # at once; None: what the processors allow


class Options(BaseModel):
    """The question, in the query of the address: the options of `hace predict`."""

    model_config = ConfigDict(extra="forbid")
    top_k: int = Field(5, ge=1, le=100, description="How many classes to give.")
    threshold: float | None = Field(None, ge=0, le=1, description="Answer the deepest node so probable.")
    level: str | None = Field(None, max_length=200, description="Answer the best node of a level.")
    subset: list[str] | None = Field(None, max_length=5000, description="Restrict to these classes.")
    accuracy: float | None = Field(None, gt=0, lt=1, description="Keep a guarantee that was calibrated.")
    of: Literal["samples", "answers"] = Field("samples", description="What the guarantee is about.")
    scores: bool = Field(False, description="Add the model's scores, before any temperature.")

    def question(self) -> Question:
        """What it asks of every sample; can be compared, so that equal questions share a batch."""
        level: Any = int(self.level) if self.level is not None and self.level.isdecimal() else self.level
        subset = None if self.subset is None else tuple(self.subset)
        return Question(self.top_k, self.threshold, level, subset, self.accuracy, self.of)


class Body(BaseModel):
    """Samples as JSON: features, or images in base64. A further kind of input is a field here and an entry of `READERS`."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)
    features: list[list[float]] | None = Field(None, min_length=1, description="Rows of numbers.")
    images: list[str] | None = Field(None, min_length=1, description="Image files in base64.")
    texts: list[str] | None = Field(None, min_length=1, description="Texts.")


@dataclass(eq=False)
class Job:
    """A request that waits: its samples, what it asks, and where its answer goes."""

    kind: str
    names: list[str]
    rows: list[Any]
    question: Question
    scores: bool
    answer: asyncio.Future[list[dict[str, Any]]] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class Batcher:
    """Runs the model for many requests at once: whatever waits, up to `limits.batch` samples, is one batch."""

    def __init__(self, predictor: Predictor, limits: Limits) -> None:
        self.predictor, self.limits = predictor, limits
        self.view = ScoreView(predictor.loss, predictor.hierarchy, restricted=True)
        self.queue: asyncio.Queue[Job] = asyncio.Queue(limits.waiting)
        several = predictor.device.type == "cpu" and not predictor.reads_text  # tokenizers take one at a time
        free = max(1, processors() // torch.get_num_threads()) if several else 1
        self.workers = limits.batches or free
        self.model = ThreadPoolExecutor(self.workers, "hace-model")
        self.check = lru_cache(256)(lambda question: predictor.decide(predictor.nothing(), question))

    async def ask(self, job: Job) -> list[dict[str, Any]]:
        """The documents of a request's samples."""
        try:
            self.queue.put_nowait(job)
        except asyncio.QueueFull:
            raise HTTPException(503, "Too many requests wait. Try again.", {"Retry-After": "1"}) from None
        return await job.answer

    async def run(self) -> None:
        """Answer requests for ever."""
        loop = asyncio.get_running_loop()
        while True:
            jobs = [await self.queue.get()]
            while sum(len(job.names) for job in jobs) < self.limits.batch and not self.queue.empty():
                jobs.append(self.queue.get_nowait())
            jobs = [job for job in jobs if not job.answer.done()]  # given up meanwhile
            found = await loop.run_in_executor(self.model, self.answers, jobs)
            for job, answer in zip(jobs, found, strict=True):
                if not job.answer.done():
                    failed = isinstance(answer, Exception)
                    (job.answer.set_exception if failed else job.answer.set_result)(answer)

    def answers(self, jobs: Sequence[Job]) -> list[Any]:
        """The documents of each job, or the error that it met."""
        groups: dict[Any, list[Job]] = {}
        for job in jobs:
            groups.setdefault((job.kind, job.question), []).append(job)
        found: dict[Job, Any] = {}
        for same in groups.values():
            try:
                found |= self._together(same)
            except Exception as error:
                if len(same) == 1:
                    found[same[0]] = error
                else:  # one of them may be to blame: each for itself
                    found |= {job: self.answers([job])[0] for job in same}
        return [found[job] for job in jobs]

    def _together(self, jobs: Sequence[Job]) -> dict[Job, list[dict[str, Any]]]:
        """The documents of jobs that ask the same."""
        predictor, kind, question = self.predictor, jobs[0].kind, jobs[0].question
        rows: Any = [row for job in jobs for row in job.rows]
        rows = rows if kind == "texts" else torch.stack(rows)
        z = predictor.feature_outputs(rows.numpy()) if kind == "features" else predictor.vision.outputs(rows)
        names = [name for job in jobs for name in job.names]
        made = Predictions(names, *predictor.decide(z, question), guarantee=predictor.threshold_for(question))
        documents = made.documents()
        scores = iter(self.view(z.cpu()).tolist() if any(job.scores for job in jobs) else [None] * len(names))
        found = {}
        for job in jobs:
            own = [(next(documents), next(scores)) for _ in job.names]
            found[job] = [d | {"scores": z} if job.scores else d for d, z in own]
        return found


# --- reading requests


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


def read_words(predictor: Predictor, name: str, text: str) -> str:
    """A text."""
    if not text.strip() or len(text) > LONGEST:
        raise DataError(f"A text must have 1 to {LONGEST:,} letters. Got {len(text):,}.")
    return predictor.vision.transform(text)


READERS: dict[str, Callable[..., Any]] = {"images": read_photo, "features": read_row, "texts": read_words}


async def samples_of(request: Request, limits: Limits) -> tuple[str, list[tuple[str, Any]]]:
    """The samples of a request, as they came: multipart files, one image as the body, or JSON."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        async with request.form(max_files=limits.samples, max_fields=8) as form:
            files = [value for _, value in form.multi_items() if isinstance(value, UploadFile)]
            given = [(file.filename or "photo", await file.read()) for file in files]
        return "images", given
    content = await request.body()
    if kind.startswith("image/") or kind == "application/octet-stream":
        return "images", [("photo", content)]
    if kind != "application/json":
        raise HTTPException(415, "The body must be multipart/form-data, image/* or application/json.")
    try:
        body = await asyncio.to_thread(Body.model_validate_json, content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[:5]
        raise HTTPException(422, [{"loc": e["loc"], "msg": e["msg"]} for e in first]) from None
    values = {name: value for name, value in body if value is not None}
    if len(values) != 1:
        known = ", ".join(Body.model_fields)
        raise HTTPException(422, f"The body must have one of {known}. Got {len(values)}.")
    ((name, rows),) = values.items()
    if name == "images":
        try:
            rows = [base64.b64decode(text, validate=True) for text in rows]
        except (binascii.Error, ValueError):
            raise HTTPException(422, "images must be files in base64.") from None
    return name, [(f"{i:06d}", value) for i, value in enumerate(rows)]


# --- the application


def make_app(
    predictor: Predictor,
    *,
    title: str = "Try the model",
    token: str | None = None,
    samples: Sequence[Sample] = (),
    limits: Limits | None = None,
    hosts: Sequence[str] | None = None,
) -> FastAPI:
    """The page and the API of a model; ``hosts``: names it answers to, against sites that point a name of theirs at it."""
    limits = limits or Limits()
    about, tree = model_document(predictor), hierarchy_document(predictor.hierarchy)
    if about["kinds"] != ["features"]:
        _ = predictor.vision  # its model loads here, not with the first request
    batcher = Batcher(predictor, limits)
    decoders = asyncio.Semaphore(4)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        workers = [asyncio.create_task(batcher.run()) for _ in range(batcher.workers)]
        yield
        for worker in workers:
            worker.cancel()
        batcher.model.shutdown()

    def allowed(request: Request) -> None:
        given = request.headers.get("authorization", "").encode()
        if token is not None and not hmac.compare_digest(given, f"Bearer {token}".encode()):
            raise HTTPException(401, "The token is missing or wrong.", {"WWW-Authenticate": "Bearer"})

    assets, guarded = templates(PACKAGE), [Depends(allowed)]
    schema = json.loads(assets.globals["asset"]("api.json"))
    problem = {"application/json": {"schema": schema["Problem"]}}
    refused: Any = {code: {"description": why, "content": problem} for code, why in schema["Refused"].items()}
    answered: Any = {200: {"content": {"application/json": {"schema": schema["Answers"]}}}}
    bodies = {"application/json": {"schema": Body.model_json_schema()}}
    bodies |= schema["Files"] if "images" in about["kinds"] else {}
    app = FastAPI(
        title=title, version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None, responses=refused
    )
    app.add_middleware(Guard, limits=limits, hosts=None if hosts is None else {*hosts})

    @app.exception_handler(HaceError)
    def explain(request: Request, error: HaceError) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, 422)

    @app.get("/", include_in_schema=False)
    def page() -> HTMLResponse:
        return HTMLResponse(assets.get_template("try.html").render(title=title, scripts=()))

    @app.get("/try.{suffix}", include_in_schema=False)
    def asset(suffix: Literal["css", "js"]) -> Response:
        kind = {"css": "text/css", "js": "text/javascript"}[suffix]
        return Response(assets.globals["asset"](f"try.{suffix}"), media_type=kind)

    @app.get("/docs", include_in_schema=False)
    def documentation(request: Request) -> HTMLResponse:
        paths = app.openapi()["paths"]
        told = assets.get_template("api.html").render(title=title, paths=paths, address=str(request.base_url))
        return HTMLResponse(told)

    @app.get("/health", summary="Whether the server is up.")
    def health() -> dict[str, Any]:
        return {"status": "ok", "waiting": batcher.queue.qsize()}

    @app.get("/model", summary="What the model takes, its temperature, its guarantees.", dependencies=guarded)
    def model() -> dict[str, Any]:
        return about

    @app.get("/hierarchy", summary="Nodes in node order, leaves in label order.", dependencies=guarded)
    def hierarchy() -> dict[str, Any]:
        return tree

    @app.get("/samples", summary="The samples that the page offers.", dependencies=guarded)
    def sample_list() -> dict[str, Any]:
        return {"samples": [s.about for s in samples]}

    pictures: Any = {404: refused["422"], 200: {"content": {"image/png": {}, "application/json": {}}}}

    @app.get("/samples/{number}", summary="One of them.", dependencies=guarded, responses=pictures)
    def sample(number: int) -> Response:
        if not 0 <= number < len(samples):
            raise HTTPException(404, "There is no such sample.")
        content = samples[number].content
        if isinstance(content, bytes):
            return Response(content, media_type="image/png")
        return JSONResponse({"features": content})

    @app.post(
        "/predict",
        summary="Answers for photos, texts or features.",
        description="Files as multipart/form-data, one image as the body, or JSON.",
        dependencies=guarded,
        responses=answered,
        openapi_extra={"requestBody": {"required": True, "content": bodies}},
    )
    async def predict(request: Request, options: Annotated[Options, Query()]) -> Response:
        kind, given = await samples_of(request, limits)
        if kind not in about["kinds"]:
            raise HTTPException(422, f"The model takes {' or '.join(about['kinds'])}. Got {kind}.")
        if not 1 <= len(given) <= limits.samples:
            said = f"A request must have 1 to {limits.samples} samples. Got {len(given):,}."
            raise HTTPException(413 if given else 422, said)
        question = options.question()
        batcher.check(question)
        read = Attempts(lambda sample: READERS[kind](predictor, *sample))
        async with decoders:
            rows = await asyncio.to_thread(lambda: [read[sample] for sample in given])
        good = [i for i, row in enumerate(rows) if not isinstance(row, DataError)]
        names = [given[i][0] for i in good]
        job = Job(kind, names, [rows[i] for i in good], question, options.scores)
        found = iter(await batcher.ask(job) if good else ())
        documents = [
            {"sample": name, "error": str(row)} if isinstance(row, DataError) else next(found)
            for (name, _), row in zip(given, rows, strict=True)
        ]
        return Response(json.dumps({"predictions": documents}), media_type="application/json")

    return app


class Guard:
    """Around every request: host names, other sites, bytes, time, and the headers of every reply."""

    def __init__(self, app: Callable[..., Awaitable[None]], limits: Limits, hosts: set[str] | None) -> None:
        self.app, self.limits, self.hosts = app, limits, hosts

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass a request on, within the limits."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        headers, most = Headers(scope=scope), int(self.limits.megabytes * 1e6)
        started, arrived, taken = False, False, 0

        async def counted() -> Any:
            nonlocal arrived, taken
            message = await receive()
            taken += len(message.get("body", b""))
            arrived = arrived or not message.get("more_body", False)
            if taken > most:
                raise HTTPException(413, f"The body must have at most {self.limits.megabytes:g} MB.")
            return message

        async def marked(message: Any) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        async def refuse(code: int, why: str) -> None:
            await JSONResponse({"detail": why}, code, {"Connection": "close"})(scope, receive, marked)

        host = headers.get("host", "").rsplit(":", 1)[0] if self.hosts is not None else ""
        if self.hosts is not None and host not in self.hosts:
            return await refuse(403, "The host name is not one that this server answers to.")
        if headers.get("sec-fetch-site") == "cross-site" and scope["path"] != "/":
            return await refuse(403, "Pages of other sites must not use this server.")
        declared = headers.get("content-length", "0")
        if declared.isdecimal() and int(declared) > most:
            return await refuse(413, f"The body must have at most {self.limits.megabytes:g} MB.")
        try:
            await asyncio.wait_for(self.app(scope, counted, marked), self.limits.seconds)
        except Exception as error:
            said = (
                (503, "The answer took too long.") if arrived else (408, "The body did not arrive in time.")
            )
            if not isinstance(error, asyncio.TimeoutError):
                LOG.exception("Unexpected error")
                said = (500, "Unexpected error in the server; its log has more.")
            if started:
                raise
            await refuse(*said)
