"""A guard in front of an ASGI application: judges its JSON responses before they are sent.

Works with Starlette, FastAPI, Litestar, Quart and any other ASGI application, and depends on none of them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping
from pathlib import Path
from typing import Any

from magistrate import _async, _logging
from magistrate.api.guard import DEADLINE, Guard, Guarded, Way, sample_of
from magistrate.engines.base import Engine
from magistrate.judges import registry
from magistrate.judges.base import Judge
from magistrate.types import HALLUCINATED, Failure, FailureCode, Outcome, Sample

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Read = Callable[[Mapping[str, Any], Any], Any]

HEADER = b"magistrate-guard"
MOST_BYTES = 2_000_000  # largest response that is judged
AT_ONCE = 64  # answers judged concurrently, including those that timed out but still run
HELD_BACK = 403
# With these extensions an application could send data that bypasses the guard.
PAST_US = ("http.response.pathsend", "http.response.zerocopysend", "http.response.trailers")
KEPT = (b"vary", b"set-cookie")
"""Headers of a response that is held back, beside those that begin with `access-control-`."""

_log = _logging.get("guard")


class GuardMiddleware:
    """Wraps an application and sends its JSON responses with status 2xx only if the guard allows them.

    `read(scope, body)` receives a request's ASGI scope and the JSON value of its response. It returns the
    input of `magistrate.guard` (`{"answer": …, "context": …}`, a pair of both, a `Sample`), or None if
    there is nothing to judge. The verdict must come within `budget_ms` milliseconds. `on_timeout` and
    `on_failure` decide whether an answer without a verdict is sent (`open`) or not (`closed`). A response
    that cannot be read (`read` failed, it is compressed, or longer than `most_bytes`) is a failure too.

    Every response has the header `Magistrate-Guard`: `allow` or `deny` with the cause, or `skipped` with
    the reason why it was not judged. A response that is held back has the `status`, and as its body the
    result of `fallback`, by default the decision without the answer. `watch` is called with every decision.

    Raises `SpecError` for a judge that is not known or cannot give one of the labels in `block`. A guard
    that cannot judge anything (no such model) fails the request, even with `open`.
    """

    def __init__(
        self,
        app: App,
        *,
        read: Read,
        judge: str | Judge = registry.DEFAULT_JUDGE,
        model: str | Path | Engine | None = None,
        budget_ms: float = 1000 * DEADLINE,
        on_timeout: Way = "closed",
        on_failure: Way = "closed",
        block: Collection[str] = (HALLUCINATED,),
        status: int = HELD_BACK,
        most_bytes: int = MOST_BYTES,
        fallback: Callable[[Guarded], Any] | None = None,
        watch: Callable[[Guarded], Any] | None = None,
    ) -> None:
        self._app, self._read, self._status, self._most_bytes = app, read, status, most_bytes
        self._fallback, self._watch = fallback, watch
        self._guard = Guard(
            judge=registry.judge(judge),
            model=model,
            deadline=budget_ms / 1000,
            on_timeout=on_timeout,
            on_failure=on_failure,
            block=block,
        )
        self._n_running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        extensions = {
            name: each for name, each in (scope.get("extensions") or {}).items() if name not in PAST_US
        }
        await self._app({**scope, "extensions": extensions}, receive, _Response(self, scope, send).send)

    # --- used by one response -------------------------------------------------------------------

    @property
    def most_bytes(self) -> int:
        """The largest response, in bytes, that is judged."""
        return self._most_bytes

    async def decide(self, scope: Scope, body: bytes) -> Guarded | None:
        """Return the decision on a response with this body; None if there is nothing to judge in it."""
        try:
            value = json.loads(body)
            given = self._read(scope, value)
            sample = None if given is None else sample_of(given)
        except Exception as error:  # `read` is the user's code, and the body may be anything
            return self.failed(
                "invalid_output", f"the response could not be read: {_logging.error_text(error)}"
            )
        if sample is None:
            return None
        return self._told(self._guard.decided(value, await self._judged(sample)))

    def failed(self, code: FailureCode, message: str) -> Guarded:
        """Return the decision on a response that cannot be judged."""
        outcome = Failure("answer", self._guard.judge.info.name, code, message)
        return self._told(self._guard.decided(None, outcome))

    def refusal(self, guarded: Guarded) -> tuple[int, Any]:
        """Return the status and the JSON value that replace a response that is held back."""
        if self._fallback is not None:
            return self._status, self._fallback(guarded)
        told = {"decision": "deny", "because": guarded.because, "fail": guarded.way, "reason": guarded.reason}
        return self._status, {"detail": "the answer was held back", "guard": told}

    def _told(self, guarded: Guarded) -> Guarded:
        if guarded.way is not None:
            _log.warning("guard.no_verdict", decision=guarded.header, reason=guarded.outcome)
        if self._watch is not None:
            self._watch(guarded)
        return guarded

    async def _judged(self, sample: Sample) -> Outcome:
        """Return the outcome within the deadline, even for a judge that computes without yielding."""
        if self._n_running >= AT_ONCE:
            told = f"{AT_ONCE} answers are already being judged"
            return Failure(sample.id, self._guard.judge.info.name, "rate_limited", told)
        self._n_running += 1
        # A separate event loop: a judge that computes without yielding must not block the others.
        work = _async.in_thread(lambda: asyncio.run(self._guard.judged(sample)))
        task = asyncio.ensure_future(work)
        task.add_done_callback(self._left)
        done, _ = await asyncio.wait({task}, timeout=self._guard.deadline)
        return task.result() if done else self._guard.late(sample)

    def _left(self, task: asyncio.Future[Outcome]) -> None:
        self._n_running -= 1
        if not task.cancelled():
            task.exception()  # retrieved, since there may be no waiter left


class _Response:
    """One outgoing response: buffered until the decision, or passed through as it is sent."""

    def __init__(self, guard: GuardMiddleware, scope: Scope, send: Send) -> None:
        self._guard, self._scope, self._send = guard, scope, send
        self._start: Message | None = None
        self._body = bytearray()
        self._state = "new"  # then held, passed or dropped

    async def send(self, message: Message) -> None:
        """Handle a message that the application sends."""
        kind = message["type"]
        if kind == "http.response.start" and self._state == "new":
            await self._begin(message)
        elif kind == "http.response.body" and self._state == "held":
            await self._hold(message)
        elif self._state != "dropped":
            await self._send(message)

    async def _begin(self, message: Message) -> None:
        self._start = message
        headers = {bytes(name).lower(): bytes(value) for name, value in message.get("headers", ())}
        media = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if not 200 <= message["status"] < 300:
            await self._pass("skipped; because=status")
        elif self._scope["method"] == "HEAD":
            await self._pass("skipped; because=no-body")
        elif media != b"application/json" and not media.endswith(b"+json"):
            await self._pass("skipped; because=not-json")
        elif headers.get(b"content-encoding", b"identity").strip().lower() != b"identity":
            await self._settle(self._guard.failed("invalid_output", "the response is compressed"))
        else:
            self._state = "held"

    async def _hold(self, message: Message) -> None:
        self._body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(self._body) > self._guard.most_bytes:
            told = f"the response is longer than {self._guard.most_bytes:,} bytes"
            await self._settle(self._guard.failed("invalid_output", told), more)
        elif not more:
            decided = await self._guard.decide(self._scope, bytes(self._body))
            if decided is None:
                await self._pass("skipped; because=nothing-to-judge", more)
            else:
                await self._settle(decided, more)

    async def _settle(self, guarded: Guarded, more: bool | None = None) -> None:
        """Send the buffered response, or a refusal in its place. `more` is None if no body came yet."""
        if guarded.allowed:
            await self._pass(guarded.header, more)
            return
        self._state = "dropped"
        status, value = self._guard.refusal(guarded)
        body = json.dumps(value).encode()
        assert self._start is not None
        headers = [pair for pair in self._start.get("headers", ()) if _is_kept(bytes(pair[0]).lower())]
        headers += [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"cache-control", b"no-store"),
            (HEADER, guarded.header.encode()),
        ]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def _pass(self, header: str, more: bool | None = None) -> None:
        self._state = "passed"
        assert self._start is not None
        theirs = [pair for pair in self._start.get("headers", ()) if bytes(pair[0]).lower() != HEADER]
        headers = [*theirs, (HEADER, header.encode())]
        await self._send({**self._start, "headers": headers})
        if more is not None:
            await self._send({"type": "http.response.body", "body": bytes(self._body), "more_body": more})


def _is_kept(name: bytes) -> bool:
    return name in KEPT or name.startswith(b"access-control-")
