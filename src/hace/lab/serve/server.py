"""A page where people try a model, and the same model as an API: what `hace serve` runs.

    serve(make_app(Predictor.from_run("runs/latest")), listening("127.0.0.1", 8000))

A request passes the guard (limits), is read and decoded in threads, and waits in one bounded queue. A worker takes what waits,
up to a batch, runs the model once and answers each request by its own question. The page gets scores and decides in the
browser.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, Any, Literal

from fastapi import Depends, FastAPI, HTTPException, Query, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse
from jinja2 import Environment
from pydantic import BaseModel, ConfigDict, Field

from hace import __version__
from hace.draw import templates
from hace.errors import ConfigError, DataError, HaceError
from hace.lab.serve.batching import Batcher, Job, Limits, OverloadedError
from hace.lab.serve.guard import Guard, timed_protocol
from hace.lab.serve.page import Sample, hierarchy_document, model_document
from hace.lab.serve.predictor import Predictor, Question
from hace.lab.serve.requests import Body, decode, most_values, samples_of

PACKAGE = "hace.lab.serve"


class Options(BaseModel):
    """The question, in the query of the address: the options of `hace predict`."""

    model_config = ConfigDict(extra="forbid")
    top_k: int = Field(5, ge=1, le=100, description="How many classes to give.")
    threshold: float | None = Field(None, ge=0, le=1, description="Answer the deepest node so probable.")
    nodes: int | None = Field(None, ge=1, le=8, description="With a threshold: answer at most so many nodes.")
    level: str | None = Field(None, max_length=200, description="Answer the best node of a level.")
    subset: list[str] | None = Field(None, max_length=5000, description="Restrict to these classes.")
    accuracy: float | None = Field(None, gt=0, lt=1, description="Keep a guarantee that was calibrated.")
    of: Literal["samples", "answers"] = Field("samples", description="What the guarantee is about.")
    scores: bool = Field(False, description="Add the model's scores, before any temperature.")

    def question(self) -> Question:
        """What it asks of every sample; can be compared, so that equal questions share a batch."""
        level: Any = int(self.level) if self.level is not None and self.level.isdecimal() else self.level
        subset = None if self.subset is None else tuple(self.subset)
        return Question(self.top_k, self.threshold, level, subset, self.accuracy, self.of, nodes=self.nodes)


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
    about = model_document(predictor)
    if about["kinds"] != ["features"]:
        _ = predictor.vision  # its model loads here, not with the first request
    batcher = Batcher(predictor, limits, about["prior"])

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        batcher.start()
        yield
        batcher.stop()

    def allowed(request: Request) -> None:
        given = request.headers.get("authorization", "").encode()
        if token is not None and not hmac.compare_digest(given, f"Bearer {token}".encode()):
            raise HTTPException(401, "The token is missing or wrong.", {"WWW-Authenticate": "Bearer"})

    guarded = [Depends(allowed)]
    assets = templates(PACKAGE)
    schema = json.loads(assets.globals["asset"]("api.json"))
    problem = {"application/json": {"schema": schema["Problem"]}}
    refused: Any = {code: {"description": why, "content": problem} for code, why in schema["Refused"].items()}
    app = FastAPI(
        title=title, version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None, responses=refused
    )
    app.add_middleware(Guard, limits=limits, hosts=None if hosts is None else {*hosts})

    @app.exception_handler(HaceError)
    def explain(request: Request, error: HaceError) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, 422)

    @app.exception_handler(OverloadedError)
    def come_back(request: Request, error: OverloadedError) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, 503, {"Retry-After": "1"})

    unavailable: Any = {503: {"description": "A request would not be answered now.", "content": problem}}

    @app.get("/health", summary="Whether a request would be answered.", responses=unavailable)
    async def health() -> JSONResponse:
        trouble = batcher.trouble()
        waiting = batcher.queue.qsize()
        if trouble is not None:
            return JSONResponse({"detail": f"unavailable: {trouble}", "waiting": waiting}, 503)
        return JSONResponse({"status": "ok", "waiting": waiting})

    _add_pages(app, assets, title)
    _add_documents(app, guarded, about, hierarchy_document(predictor.hierarchy))
    _add_samples(app, guarded, samples, refused["422"])
    _add_predict(app, guarded, _Answering(predictor, batcher, limits, about["kinds"]), schema)
    return app


def _add_pages(app: FastAPI, assets: Environment, title: str) -> None:
    """Add the page to try the model, and the page that describes the API."""

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
        address = str(request.base_url)
        return HTMLResponse(assets.get_template("api.html").render(title=title, paths=paths, address=address))


def _add_documents(app: FastAPI, guarded: Any, about: dict[str, Any], tree: dict[str, Any]) -> None:
    """Add what clients may know of the model and its hierarchy."""

    @app.get("/model", summary="What the model takes, its temperature, its guarantees.", dependencies=guarded)
    def model() -> dict[str, Any]:
        return about

    @app.get("/hierarchy", summary="Nodes in node order, leaves in label order.", dependencies=guarded)
    def hierarchy() -> dict[str, Any]:
        return tree


def _add_samples(app: FastAPI, guarded: Any, samples: Sequence[Sample], missing: Any) -> None:
    """Add the samples that the page offers; ``missing`` describes the answer where there is no such sample."""

    @app.get("/samples", summary="The samples that the page offers.", dependencies=guarded)
    def sample_list() -> dict[str, Any]:
        return {"samples": [s.about for s in samples]}

    pictures: Any = {404: missing, 200: {"content": {"image/png": {}, "application/json": {}}}}

    @app.get("/samples/{number}", summary="One of them.", dependencies=guarded, responses=pictures)
    def sample(number: int) -> Response:
        if not 0 <= number < len(samples):
            raise HTTPException(404, "There is no such sample.")
        content = samples[number].content
        if isinstance(content, bytes):
            return Response(content, media_type="image/png")
        return JSONResponse({"features": content})


def _add_predict(app: FastAPI, guarded: Any, answering: _Answering, schema: dict[str, Any]) -> None:
    """Add the answers of the model."""
    answered: Any = {200: {"content": {"application/json": {"schema": schema["Answers"]}}}}
    bodies = {"application/json": {"schema": Body.model_json_schema()}}
    bodies |= schema["Files"] if "images" in answering.kinds else {}

    @app.post(
        "/predict",
        summary="Answers for photos, texts or features.",
        description="Files as multipart/form-data, one image as the body, or JSON.",
        dependencies=guarded,
        responses=answered,
        openapi_extra={"requestBody": {"required": True, "content": bodies}},
    )
    async def predict(request: Request, options: Annotated[Options, Query()]) -> Response:
        documents = await answering.documents(request, options)
        return Response(json.dumps({"predictions": documents}), media_type="application/json")


class _Answering:
    """From a request to the documents that answer it.

    Args:
        predictor: decodes samples.
        batcher: answers them.
        limits: of a request.
        kinds: of samples that the model takes.
    """

    def __init__(self, predictor: Predictor, batcher: Batcher, limits: Limits, kinds: Sequence[str]) -> None:
        self.kinds = kinds
        self._predictor = predictor
        self._batcher = batcher
        self._limits = limits
        self._values = most_values(predictor, kinds, limits)
        self._decoders = asyncio.Semaphore(4)

    async def documents(self, request: Request, options: Options) -> list[dict[str, Any]]:
        """One document per sample: an answer, or why it cannot be read."""
        kind, given = await samples_of(request, self._limits, self._values)
        if kind not in self.kinds:
            raise HTTPException(422, f"The model takes {' or '.join(self.kinds)}. Got {kind}.")
        if not 1 <= len(given) <= self._limits.samples:
            rule = f"A request must have 1 to {self._limits.samples} samples. Got {len(given):,}."
            raise HTTPException(413 if given else 422, rule)
        question = options.question()
        self._batcher.check(question)
        with self._batcher.room_for(len(given)):
            rows = await decode(self._predictor, kind, given, self._limits, self._decoders)
            readable = [i for i, row in enumerate(rows) if not isinstance(row, DataError)]
            names = [given[i][0] for i in readable]
            job = Job(kind, names, [rows[i] for i in readable], question, options.scores)
            answers = iter(await self._batcher.ask(job) if readable else ())
        return [
            {"sample": name, "error": str(row)} if isinstance(row, DataError) else next(answers)
            for (name, _), row in zip(given, rows, strict=True)
        ]


def is_local(host: str) -> bool:
    """Whether an address is of this machine alone."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens, before anything else says that it does."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=512)
    except OSError as error:
        raise ConfigError(
            f"--host and --port must be free to listen on. Got {host}:{port}: {error.strerror or error}. Try --port 0."
        ) from error


def make_server(app: FastAPI, limits: Limits | None = None, log_level: str = "warning") -> Any:
    """The uvicorn server of an application; ``.run(sockets=[listening(host, port)])`` answers until it is stopped."""
    import uvicorn

    limits = limits or Limits()
    config = uvicorn.Config(
        app,
        http=timed_protocol(limits.header_seconds),
        ws="none",
        log_level=log_level,
        server_header=False,
        limit_concurrency=256,
        timeout_keep_alive=10,
        timeout_graceful_shutdown=30,
    )
    return uvicorn.Server(config)
