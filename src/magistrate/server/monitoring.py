"""Health checks, metrics for Prometheus, and a log line for each request.

Labels of metrics have few values, whatever visitors send: a route is its template in the code, never a
path.
"""

from __future__ import annotations

import asyncio
import os
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from magistrate import _logging
from magistrate.errors import MagistrateError, StoreError
from magistrate.server.roles import OTHER, route_of
from magistrate.server.state import StorePool
from magistrate.store.connection import exists, place_of
from magistrate.types import Outcome

REMEMBERED = 1.0  # seconds for which a check's result is reused, to spare the store
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
MOST_JUDGES = 100
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)

STREAM = b"text/event-stream"

# Our files that are in the traceback of every error.
_AROUND = ("monitoring.py", "security.py", "limits.py")

router = APIRouter()
_log = _logging.get("server")


class Readiness:
    """The last result of `check`, which raises `MagistrateError` if the store cannot be read.

    One check runs at a time. `clock` counts seconds.
    """

    def __init__(self, check: Callable[[], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._check = check
        self._clock = clock
        self._lock = asyncio.Lock()
        self._checked = float("-inf")
        self._reason: str | None = None

    async def reason(self) -> str | None:
        """Return why the server is not ready; None if it is."""
        async with self._lock:
            if self._clock() - self._checked >= REMEMBERED:
                self._reason = await run_in_threadpool(self._run)
                self._checked = self._clock()
            return self._reason

    def _run(self) -> str | None:
        try:
            self._check()
        except MagistrateError as error:
            # Our message names the store without a password, but a driver may have quoted it.
            return str(_logging.cleaned(str(error), _logging.secrets_of(os.environ)))
        return None


def store_check(stores: StorePool, place: str) -> Callable[[], None]:
    """Return a check that the store at `place` exists and can be read."""

    def check() -> None:
        if not exists(place):  # opening it would create a new one
            raise StoreError(f"store {place_of(place).shown}: the file is gone")
        with stores.one() as store:
            store.runs(limit=1)

    return check


# --- counts ---------------------------------------------------------------------------------------


class Metrics:
    """The counters of one server, in their own registry. All methods are thread-safe."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._judges: set[str] = set()
        self._lock = Lock()
        asked = ("method", "route", "status")
        self._requests = self._made(Counter, "http_requests", "Answered requests.", asked)
        self._seconds = self._made(
            Histogram,
            "http_request_seconds",
            "Time from a request to the end of its answer, or to its beginning for a stream of events.",
            ("method", "route"),
            buckets=SECONDS,
        )
        self._judgements = self._made(
            Counter, "judgements", "Samples judged for visitors.", ("judge", "outcome")
        )
        self._in_flight = self._made(Gauge, "judgements_in_flight", "Samples being judged.", ())
        self._records = self._made(
            Counter,
            "otlp_records",
            "Spans and log records received over OTLP, by result.",
            ("signal", "became"),
        )
        self._waiting = self._made(
            Gauge, "otlp_bytes_in_flight", "Bytes of OTLP requests that are not answered yet.", ()
        )
        ProcessCollector(registry=self.registry)

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a response. `route` is a template, `seconds` its duration."""
        known = method if method in METHODS else OTHER
        self._requests.labels(known, route, str(status)).inc()
        self._seconds.labels(known, route).observe(seconds)

    @contextmanager
    def judging(self) -> Iterator[None]:
        """Count a judgement as in progress for the duration of the block."""
        with self._in_flight.track_inprogress():
            yield

    def judged(self, judge: str, outcome: Outcome) -> None:
        """Count an outcome of the judge of that name.

        The first `MOST_JUDGES` names have their own counters; the others are counted together.
        """
        with self._lock:
            if len(self._judges) < MOST_JUDGES:
                self._judges.add(judge)
            known = judge if judge in self._judges else OTHER
        self._judgements.labels(known, type(outcome).__name__.lower()).inc()

    def received(self, signal: str, became: str, n: int) -> None:
        """Count records of a signal that were `stored`, `ignored` or `rejected`."""
        self._records.labels(signal, became).inc(n)

    def in_flight(self, n_bytes: int) -> None:
        """Set the number of bytes of unanswered OTLP requests."""
        self._waiting.set(n_bytes)

    def text(self) -> bytes:
        """Return all numbers in Prometheus' text format."""
        return generate_latest(self.registry)

    def _made(self, kind: Any, name: str, text: str, labels: tuple[str, ...], **more: Any) -> Any:
        return kind(f"magistrate_{name}", text, labels, registry=self.registry, **more)


class RequestMonitor:
    """Wraps the application: logs and counts each request, and answers and logs its errors.

    The log leaves out the values of a query, which may contain private text. `clock` counts seconds.
    """

    def __init__(
        self, app: ASGIApp, metrics: Metrics, *, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._app = app
        self._metrics = metrics
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = self._clock()
        status: int | None = None
        streaming: float | None = None  # start time of a stream of events

        async def watched(message: Message) -> None:
            nonlocal status, streaming
            if message["type"] == "http.response.start":
                status = message["status"]
                if is_event_stream(message):
                    streaming = self._clock()
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except Exception as error:
            _log.error("server.error", method=scope["method"], route=route_of(scope), **_where(error))
            if status is None:
                status = 500
                await send_text(send, 500, b"Something went wrong in the server; its log says what.\n")
        finally:
            now = self._clock()
            counted = (now if streaming is None else streaming) - began
            self._metrics.answered(scope["method"], route_of(scope), status or 500, counted)
            _log.info(
                "server.request",
                method=scope["method"],
                path=scope["path"] + _field_names(scope["query_string"]),
                status=status,
                seconds=round(now - began, 4),
                client=scope["client"][0] if scope.get("client") else None,
            )


def is_event_stream(message: Message) -> bool:
    """Return whether a response that starts with this message is a stream of events."""
    return any(name == b"content-type" and value.startswith(STREAM) for name, value in message["headers"])


async def send_text(send: Send, status: int, text: bytes) -> None:
    """Send a whole response in plain text."""
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", b"%d" % len(text))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text})


def _field_names(query: bytes) -> str:
    """Return a query without its values."""
    names = [part.partition("=")[0] if "=" in part else "…" for part in query.decode("latin-1").split("&")]
    return f"?{'&'.join(names)}" if query else ""


def _where(error: Exception) -> dict[str, str]:
    """Return the type of an error and our line that raised it, or else where it was raised.

    The message is left out, since it may quote a judged text.
    """
    frames = [(Path(each.filename), each.lineno) for each in traceback.extract_tb(error.__traceback__)]
    ours = [each for each in frames if "magistrate" in each[0].parts and each[0].name not in _AROUND]
    file, line = (ours or frames)[-1]
    return {"error": type(error).__name__, "at": f"{file.name}:{line}"}


# --- routes ---------------------------------------------------------------------------------------


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Serve the server's numbers, for Prometheus."""
    found: Metrics = request.app.state.metrics
    text = await run_in_threadpool(found.text)  # metrics of watching are read from the store
    return Response(text, headers={"content-type": CONTENT_TYPE_LATEST})


def health_router(check: Callable[[], None]) -> APIRouter:
    """Return the routes `/healthz` and `/readyz`. `check` raises `MagistrateError` if the server is not
    ready.
    """
    made = APIRouter()
    readiness = Readiness(check)

    @made.get("/healthz")
    async def healthz() -> JSONResponse:
        """Report that the process is alive."""
        return JSONResponse({"status": "ok"})

    @made.get("/readyz")
    async def readyz() -> JSONResponse:
        """Report whether the store can be read; if not, 503 with the reason."""
        reason = await readiness.reason()
        if reason is None:
            return JSONResponse({"status": "ready"})
        return JSONResponse({"status": "not ready", "reason": reason}, 503)

    return made
