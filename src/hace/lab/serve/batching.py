"""Many requests, one run of the model: what waits is answered together, up to a batch."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hace.lab.runs.process import processors
from hace.lab.runs.result import ScoreView
from hace.lab.serve.predictor import Predictions, Predictor, Question

LOG = logging.getLogger("hace.serve")
_OVERFLOW = "The model's outputs overflow for this sample: scale its values down."


class OverloadedError(Exception):
    """The server has as much to do as it takes on: the client should come back."""


@dataclass(frozen=True)
class Limits:
    """What a server takes on at most."""

    megabytes: float = 32  # of the body of a request
    megabytes_in_flight: float = 256  # of the bodies of all requests that are not answered yet
    megapixels: float = 256  # of all images of a request
    samples: int = 64  # per request
    seconds: float = 30  # per request, from its first byte to its answer
    header_seconds: float = 10  # from opening a connection to the end of a request's headers
    waiting: int = 128  # requests; one more is answered with 503
    samples_waiting: int = 2048  # of all requests, decoded for the model; more are answered with 503
    batch: int = 64  # samples after which a batch takes no further request
    batches: int | None = None  # at once; None: what the processors allow


@dataclass(eq=False)
class Job:
    """A request that waits: its samples, what it asks, and where its answer goes."""

    kind: str
    names: list[str]
    rows: list[Any]
    question: Question
    scores: bool
    taken: bool = False  # by a worker
    answer: asyncio.Future[list[dict[str, Any]]] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    def finish(self, answer: list[dict[str, Any]] | Exception) -> None:
        """Hand over the documents or the error, unless the request was given up meanwhile."""
        if self.answer.done():
            return
        if isinstance(answer, Exception):
            self.answer.set_exception(answer)
        else:
            self.answer.set_result(answer)


class Batcher:
    """Runs the model for many requests at once: whatever waits, up to `limits.batch` samples, is one batch.

    ``prior``: weights of nodes for every question, those of the model's calibration.
    """

    def __init__(
        self, predictor: Predictor, limits: Limits, prior: Mapping[str, float] | None = None
    ) -> None:
        self.predictor = predictor
        self.prior = prior
        self.limits = limits
        self.view = ScoreView(predictor.loss, predictor.hierarchy, restricted=True)
        self.queue: asyncio.Queue[Job] = asyncio.Queue(limits.waiting)
        several = predictor.device.type == "cpu" and not predictor.reads_text  # tokenizers take one at a time
        free = max(1, processors() // torch.get_num_threads()) if several else 1
        self.size = limits.batches or free
        self.threads = ThreadPoolExecutor(self.size, "hace-model")
        self.workers: list[asyncio.Task[None]] = []
        self.samples = 0  # of all requests that are not answered yet
        self.running_since: dict[int, float] = {}  # worker: when its batch started
        self.check = lru_cache(256)(
            lambda question: predictor.decide(predictor.nothing(), self._weighted(question))
        )

    def start(self) -> None:
        """Start the workers in the running event loop."""
        self.workers = [asyncio.create_task(self._work(number)) for number in range(self.size)]

    def stop(self) -> None:
        """Stop the workers."""
        for worker in self.workers:
            worker.cancel()
        self.threads.shutdown()

    def trouble(self) -> str | None:
        """Why a request would not be answered now; None if it would."""
        if not any(not worker.done() for worker in self.workers):
            return "no worker is running"
        if self.queue.full():
            return "too many requests wait"
        if self.samples >= self.limits.samples_waiting:
            return "too many samples wait"
        longest_allowed = time.monotonic() - self.limits.seconds
        if len(self.running_since) == self.size and max(self.running_since.values()) < longest_allowed:
            return f"every batch takes longer than {self.limits.seconds:g} seconds"
        return None

    @contextmanager
    def room_for(self, count: int) -> Iterator[None]:
        """Count samples while they are decoded and wait: small files can hold far more than their bytes."""
        if self.samples + count > self.limits.samples_waiting:
            raise OverloadedError("Too many samples wait. Try again.")
        self.samples += count
        try:
            yield
        finally:
            self.samples -= count

    async def ask(self, job: Job) -> list[dict[str, Any]]:
        """The documents of a request's samples."""
        try:
            self.queue.put_nowait(job)
        except asyncio.QueueFull:
            raise OverloadedError("Too many requests wait. Try again.") from None
        try:
            return await job.answer
        except asyncio.CancelledError:  # given up: what it holds is free, though it still waits for its turn
            if not job.taken:
                job.rows = []
            raise

    async def _work(self, number: int) -> None:
        """Answer requests for ever; whatever goes wrong is the answer of the batch it happened in."""
        while True:
            jobs = [await self.queue.get()]
            try:
                while sum(len(job.names) for job in jobs) < self.limits.batch and not self.queue.empty():
                    jobs.append(self.queue.get_nowait())
                waiting = [job for job in jobs if not job.answer.done()]
                for job in waiting:
                    job.taken = True
                self.running_since[number] = time.monotonic()
                answers = await asyncio.get_running_loop().run_in_executor(
                    self.threads, self.answers, waiting
                )
                for job, answer in zip(waiting, answers, strict=True):
                    job.finish(answer)
            except Exception as error:
                LOG.exception("A batch failed")
                for job in jobs:
                    job.finish(error)
            finally:
                self.running_since.pop(number, None)

    def answers(self, jobs: Sequence[Job]) -> list[Any]:
        """The documents of each job, or the error it caused."""
        groups: dict[Any, list[Job]] = {}
        for job in jobs:
            groups.setdefault((job.kind, job.question), []).append(job)
        results: dict[Job, Any] = {}
        for group in groups.values():
            try:
                results |= self._together(group)
            except Exception as error:
                if len(group) == 1:
                    results[group[0]] = error
                else:  # one of them may be to blame: run each on its own
                    results |= {job: self.answers([job])[0] for job in group}
        return [results[job] for job in jobs]

    def _together(self, jobs: Sequence[Job]) -> dict[Job, list[dict[str, Any]]]:
        """The documents of jobs that ask the same."""
        kind = jobs[0].kind
        question = jobs[0].question
        z = self._outputs(kind, [row for job in jobs for row in job.rows])
        names = [name for job in jobs for name in job.names]
        documents = iter(self._documents(names, z, question, scores=any(job.scores for job in jobs)))
        results = {}
        for job in jobs:
            own = [next(documents) for _ in job.names]
            if not job.scores:
                own = [{key: value for key, value in d.items() if key != "scores"} for d in own]
            results[job] = own
        return results

    def _outputs(self, kind: str, rows: list[Any]) -> Tensor:
        """(samples, outputs) of the model."""
        if kind == "texts":
            return self.predictor.vision.outputs(rows)
        x = torch.stack(rows)
        if kind == "images":
            return self.predictor.vision.outputs(x)
        with np.errstate(over="ignore", invalid="ignore"):  # a sample that overflows gets an error of its own
            return self.predictor.feature_outputs(x.numpy())

    def _weighted(self, question: Question) -> Question:
        return replace(question, prior=self.prior)

    def _documents(
        self, names: list[str], z: Tensor, question: Question, scores: bool
    ) -> list[dict[str, Any]]:
        """A document per sample. One whose outputs overflow gets an error and leaves the others alone."""
        finite = torch.isfinite(z).all(dim=1)
        usable = finite.nonzero().flatten().tolist()
        answered: Iterator[dict[str, Any]] = iter(())
        if usable:
            asked = self._weighted(question)
            answers = self.predictor.decide(z[finite], asked)
            guarantee = self.predictor.threshold_for(asked)
            made = Predictions([names[i] for i in usable], *answers, guarantee=guarantee)
            answered = made.documents()
        values = self.view(z[finite].cpu()).tolist() if scores and usable else [None] * len(usable)
        rows = iter(values)
        documents = []
        for name, fine in zip(names, finite.tolist(), strict=True):
            if fine:
                document = next(answered)
                documents.append(document | {"scores": next(rows)} if scores else document)
            else:
                documents.append({"sample": name, "error": _OVERFLOW})
        return documents
