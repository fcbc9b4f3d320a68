"""Around every request: host names, other sites, bytes, time, and the headers of every reply."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import HTTPException
from fastapi.responses import JSONResponse
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from uvicorn.protocols.http.h11_impl import H11Protocol

from hace.lab.serve.batching import Limits

LOG = logging.getLogger("hace.serve")
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
_HOST = re.compile(r"(\[[^\]]*\]|[^:]*)(?::\d*)?")
_RETRY = {"Retry-After": "1"}


def host_name(header: str) -> str:
    """The name in a Host header, in lower case and without the port; of an IPv6 address with its brackets."""
    match = _HOST.fullmatch(header.strip().lower())
    return match[1] if match else ""


class Guard:
    """Passes requests on within the limits, and answers the others itself.

    ``hosts``: names the server answers to; None: any.
    """

    def __init__(self, app: Callable[..., Awaitable[None]], limits: Limits, hosts: set[str] | None) -> None:
        self.app = app
        self.limits = limits
        self.hosts = None if hosts is None else {host.lower() for host in hosts}
        self.bytes_in_flight = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        request = _Request(self, scope, receive, send)
        refusal = self.refusal(Headers(scope=scope), scope["path"])
        if refusal is not None:
            return await request.refuse(*refusal)
        try:
            answered = await request.answered(self.app(scope, request.receive, request.send))
            if answered or request.gone.done():
                return
            if request.arrived:
                await request.refuse(503, "The answer took too long.", _RETRY)
            else:
                await request.refuse(408, "The body did not arrive in time.")
        except ClientDisconnect:
            pass  # nobody is left to answer
        except HTTPException as error:  # raised while the body was read
            await request.refuse(error.status_code, str(error.detail), error.headers)
        except Exception:
            LOG.exception("Unexpected error")
            await request.refuse(500, "Unexpected error in the server; its log has more.")
        finally:
            request.release()
            request.stop_watching()

    def refusal(self, headers: Headers, path: str) -> tuple[int, str] | None:
        """Status and reason if the headers alone rule a request out."""
        if self.hosts is not None and host_name(headers.get("host", "")) not in self.hosts:
            return 403, "The host name is not one that this server answers to."
        if headers.get("sec-fetch-site") == "cross-site" and path != "/":
            return 403, "Pages of other sites must not use this server."
        declared = headers.get("content-length", "0")
        if declared.isdecimal() and int(declared) > self.limits.megabytes * 1e6:
            return 413, self.too_large
        return None

    @property
    def too_large(self) -> str:
        """The message about a body beyond the limit."""
        return f"The body must have at most {self.limits.megabytes:g} MB."

    def admit(self, count: int) -> None:
        """Count bytes that arrived, within what all requests together may hold."""
        if self.bytes_in_flight + count > self.limits.megabytes_in_flight * 1e6:
            raise HTTPException(503, "Too many uploads are under way. Try again.", _RETRY)
        self.bytes_in_flight += count


class _Request:
    """One request: what arrived of its body, and whether its reply has started."""

    def __init__(self, guard: Guard, scope: Any, receive: Any, send: Any) -> None:
        self._guard = guard
        self._scope = scope
        self._receive = receive
        self._send = send
        self.taken = 0  # bytes of the body
        self.arrived = False  # all of it
        self.started = False  # the reply
        self.gone: asyncio.Future[Any] = asyncio.get_running_loop().create_future()  # the client
        self._watch: asyncio.Task[None] | None = None

    async def answered(self, answering: Awaitable[None]) -> bool:
        """Whether the answer was sent; what makes it is stopped where it takes too long, or nobody waits for it."""
        task = asyncio.ensure_future(answering)
        limit = self._guard.limits.seconds
        try:
            await asyncio.wait({task, self.gone}, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        finally:
            done = task.done()
            task.cancel()
            await asyncio.wait({task})
        if done:
            task.result()  # an error is the caller's
        return done

    async def _wait_until_gone(self) -> None:
        """Notice that the client went away."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if not self.gone.done():
            self.gone.set_result(None)

    def release(self) -> None:
        """Free what the body took: at once where it is refused, so that one refusal makes room for the others."""
        self._guard.bytes_in_flight -= self.taken
        self.taken = 0

    def stop_watching(self) -> None:
        """Stop looking whether the client is still there."""
        if self._watch is not None:
            self._watch.cancel()

    async def receive(self) -> Any:
        """The next part of the body, counted."""
        if self._watch is not None:  # all of it arrived
            await asyncio.shield(self.gone)
            return {"type": "http.disconnect"}
        message = await self._receive()
        count = len(message.get("body", b""))
        try:
            self._guard.admit(count)
        except HTTPException:
            self.release()
            raise
        self.taken += count
        self.arrived = self.arrived or not message.get("more_body", False)
        if self.taken > self._guard.limits.megabytes * 1e6:
            raise HTTPException(413, self._guard.too_large)
        if self.arrived and message["type"] == "http.request":
            self._watch = asyncio.create_task(self._wait_until_gone())
        return message

    async def send(self, message: Any) -> None:
        """A part of the reply, with the headers that every reply has."""
        if message["type"] == "http.response.start":
            self.started = True
            MutableHeaders(scope=message).update(HEADERS)
        await self._send(message)

    async def refuse(self, code: int, why: str, headers: Any = None) -> None:
        """Reply with a reason and close the connection; a reply that has started is cut off instead."""
        if self.started:
            raise ConnectionAbortedError(why)
        reply = JSONResponse({"detail": why}, code, {"Connection": "close", **(headers or {})})
        await reply(self._scope, self._receive, self.send)


def timed_protocol(seconds: float, most_waiting: int = 64) -> type[H11Protocol]:
    """uvicorn's HTTP protocol, but a connection must complete the headers of a request in time.

    uvicorn waits for them for ever: half-sent requests would hold connections until nobody else gets one. At most
    ``most_waiting`` connections may be without a request; one more closes the oldest.
    """
    without_request: dict[Any, None] = {}

    class TimedProtocol(H11Protocol):
        _timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._wait_for_request()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.cycle is not None and not self.cycle.response_complete:
                self._stop_waiting()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._wait_for_request()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_waiting()
            super().connection_lost(exc)

        def _wait_for_request(self) -> None:
            self._stop_waiting()
            if self.transport.is_closing():
                return
            self._timer = self.loop.call_later(seconds, self.transport.close)
            without_request[self] = None
            if len(without_request) > most_waiting:
                oldest = next(iter(without_request))
                oldest._stop_waiting()
                oldest.transport.close()

        def _stop_waiting(self) -> None:
            without_request.pop(self, None)
            if self._timer is not None:
                self._timer.cancel()

    return TimedProtocol
