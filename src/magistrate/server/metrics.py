"""Numbers about the server for Prometheus, at `/metrics`.

Every label has few values, whoever asks for what: a route is the template that the code has, never a path.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

from fastapi import APIRouter, Request, Response
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from magistrate.types import Outcome

router = APIRouter()

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
OTHER = "other"
MOST_JUDGES = 100
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)

STREAM = b"text/event-stream"


class Metrics:
    """Counts of one server, in a registry of its own. All methods may be called from any thread."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._judges: set[str] = set()
        self._lock = Lock()
        asked = ("method", "route", "status")
        self._requests = self._made(Counter, "http_requests", "Requests that were answered.", asked)
        self._seconds = self._made(
            Histogram,
            "http_request_seconds",
            "From a request to the end of its answer; to the beginning where that is a stream of events.",
            ("method", "route"),
            buckets=SECONDS,
        )
        self._judgements = self._made(
            Counter, "judgements", "Samples judged for visitors.", ("judge", "outcome")
        )
        self._in_flight = self._made(Gauge, "judgements_in_flight", "Samples being judged.", ())
        ProcessCollector(registry=self.registry)

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """Note one answer: `route` is a template, `seconds` how long it took."""
        known = method if method in METHODS else OTHER
        self._requests.labels(known, route, str(status)).inc()
        self._seconds.labels(known, route).observe(seconds)

    @contextmanager
    def judging(self) -> Iterator[None]:
        """Counts a judgement as under way for as long as the block lasts."""
        with self._in_flight.track_inprogress():
            yield

    def judged(self, judge: str, outcome: Outcome) -> None:
        """Note what came out: a verdict, a failure or an abstention of the judge of that name.

        The judges named first have numbers of their own; those beyond `MOST_JUDGES` are counted together.
        """
        with self._lock:
            if len(self._judges) < MOST_JUDGES:
                self._judges.add(judge)
            known = judge if judge in self._judges else OTHER
        self._judgements.labels(known, type(outcome).__name__.lower()).inc()

    def text(self) -> bytes:
        """All numbers in Prometheus' text format."""
        return generate_latest(self.registry)

    def _made(self, kind: Any, name: str, told: str, labels: tuple[str, ...], **more: Any) -> Any:
        return kind(f"magistrate_{name}", told, labels, registry=self.registry, **more)


class Measured:
    """The application, with every answer counted; errors of the application are counted as 500."""

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
        status, ended = 500, None

        async def watched(message: Message) -> None:
            nonlocal status, ended
            if message["type"] == "http.response.start":
                status = message["status"]
                if any(
                    name == b"content-type" and value.startswith(STREAM) for name, value in message["headers"]
                ):
                    ended = self._clock()
            await send(message)

        try:
            await self._app(scope, receive, watched)
        finally:
            seconds = (self._clock() if ended is None else ended) - began
            self._metrics.answered(scope["method"], route_of(scope), status, seconds)


def route_of(scope: Scope) -> str:
    """The template that a request was matched with, such as `/runs/{run}`; `other` where there was none."""
    # FastAPI knows the whole template where a router was included with a prefix, the route only its end.
    context = scope.get("fastapi", {}).get("effective_route_context")
    for each in (context, scope.get("route")):
        if template := getattr(each, "path_format", None):
            return str(template)
    return OTHER


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """The server's numbers, for Prometheus."""
    found: Metrics = request.app.state.metrics
    return Response(found.text(), headers={"content-type": CONTENT_TYPE_LATEST})
