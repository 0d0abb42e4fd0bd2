"""Receive spans and logs over OTLP: `POST /v1/traces` and `POST /v1/logs`.

A request is answered once its spans are stored, so acknowledged data is not lost. Few requests are
processed at a time, and the queue is bounded. If it is full, clients are asked to retry.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from threading import Lock

from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect

from magistrate.datasets.spans.span import spans_of_request
from magistrate.server.judging import CLIENT_GONE
from magistrate.server.monitoring import Metrics
from magistrate.server.state import StorePool
from magistrate.watch import events, otlp
from magistrate.watch.otlp import Answer, Body, Encoding, Limits, OtlpError, Signal
from magistrate.watch.results import SERVICE

AT_ONCE = 2  # requests that are processed concurrently
MOST_WAITING = 64  # unanswered requests
MOST_BYTES = 256 * 2**20  # of all unanswered requests, unpacked


SHOWN = 3  # number of error messages about invalid spans in a response
_BUSY = "more data arrives than can be stored; try again in a few seconds"

router = APIRouter()


class Ingest:
    """Stores data received over OTLP, by HTTP or gRPC. All methods are thread-safe."""

    def __init__(
        self,
        stores: StorePool,
        metrics: Metrics,
        limits: Limits,
        *,
        most_waiting: int = MOST_WAITING,
        most_bytes: int = MOST_BYTES,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._stores, self._metrics, self._limits, self._clock = stores, metrics, limits, clock
        self._most_waiting, self._most_bytes = most_waiting, most_bytes
        self._waiting = self._bytes = 0
        self._lock = Lock()

    @contextmanager
    def admitted(self, content_encoding: str = "") -> Iterator[CountedBody]:
        """Yield the body of a request, to be filled, and count it until the block ends.

        Raises `OtlpError` 503 if too many requests are waiting.
        """
        body = CountedBody(self, content_encoding, self._limits)
        with self._lock:
            if self._waiting >= self._most_waiting:
                raise OtlpError(503, _BUSY)
            self._waiting += 1
        try:
            yield body
        finally:
            self.hold(-len(body))
            with self._lock:
                self._waiting -= 1

    def hold(self, n_bytes: int) -> None:
        """Count bytes that were received, or released. Raises `OtlpError` 503 if there are too many."""
        with self._lock:
            self._bytes += n_bytes
            self._metrics.in_flight(self._bytes)
            if n_bytes > 0 and self._bytes > self._most_bytes:
                raise OtlpError(503, _BUSY)

    async def take(
        self, signal: Signal, encoding: Encoding, content_encoding: str, chunks: AsyncIterator[bytes]
    ) -> Answer:
        """Store the spans of a request that arrives in chunks, and return the answer to it.

        Raises `OtlpError` if the request as a whole is refused, and `StoreError`.
        """
        with self.admitted(content_encoding) as body:
            async for chunk in chunks:
                body.add(chunk)
            async with self._turns:
                return await run_in_threadpool(self.store, signal, encoding, body.whole())

    def store(self, signal: Signal, encoding: Encoding, body: bytes) -> Answer:
        """Store the spans of a complete request, and return the answer to it.

        Raises `OtlpError` if it cannot be parsed, and `StoreError`.
        """
        request = otlp.read(signal, encoding, body, self._limits)
        value, ignored = (request.value, 0) if signal == "traces" else events.as_spans(request.value)
        spans, unread = spans_of_request(value)
        kept = [span for span in spans if span.resource.get("service.name") != SERVICE]
        if kept:
            with self._stores.one() as store:
                store.traces.put(kept, self._clock())
        ours = len(spans) - len(kept)
        rejected = request.rejected + len(unread) + ours
        for became, n in (("stored", len(kept)), ("ignored", ignored), ("rejected", rejected)):
            self._metrics.received(signal, became, n)
        told = list(dict.fromkeys(unread))[:SHOWN]
        if request.rejected:
            told.append(f"a request must have at most {self._limits.records:,} records")
        if ours:
            told.append(f"data from the service {SERVICE!r} is Magistrate's own and is not judged")
        if request.cut:
            told.append(f"cut at the limits: {', '.join(f'{n:,} {what}' for what, n in request.cut.items())}")
        return otlp.answer(signal, encoding, rejected, "; ".join(told))


class CountedBody(Body):
    """The body of a request, whose bytes count towards the total."""

    def __init__(self, ingest: Ingest, content_encoding: str, limits: Limits) -> None:
        super().__init__(content_encoding, limits)
        self._ingest = ingest

    def add(self, chunk: bytes) -> None:
        """Append the next bytes of the body."""
        before = len(self)
        try:
            super().add(chunk)
        finally:
            self._ingest.hold(len(self) - before)


@router.post("/v1/traces")
async def traces(request: Request) -> Response:
    """Store spans."""
    return await _take("traces", request)


@router.post("/v1/logs")
async def logs(request: Request) -> Response:
    """Store log records with the contents of spans."""
    return await _take("logs", request)


async def _take(signal: Signal, request: Request) -> Response:
    ingest: Ingest = request.app.state.ingest
    encoding = otlp.encoding_of(request.headers.get("content-type", ""))
    packing = request.headers.get("content-encoding", "")
    try:
        said = await ingest.take(signal, encoding, packing, request.stream())
    except ClientDisconnect:
        return Response(status_code=CLIENT_GONE)
    return Response(said.body, said.status, dict(said.headers))
