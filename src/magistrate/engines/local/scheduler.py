"""One thread owns the model and moves everything in flight forward together.

A request is a *program*: a generator that yields the rows it wants computed and is sent their
logits, so that each verb reads like straight-line code. Every step takes rows of all active
programs, as many tokens as fit, and computes them in one forward.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from magistrate.engines.local.backend import Backend, Row
from magistrate.engines.local.blocks import BLOCK
from magistrate.engines.local.prefix import PrefixCache
from magistrate.errors import EngineError, EngineGone, MagistrateError, OverLength

Program = Generator[list[Row], list[np.ndarray], Any]

SPARE_BLOCKS = 2  # while a shared block is copied both are held; a backend may pad with a row of its own
CHUNK = 256  # tokens of one prompt in one forward, so that long prompts do not hold up the others
STEP_TOKENS = 576  # tokens in one forward: two chunks of prompts and what the others write; more is no faster


@dataclass(slots=True)
class Request:
    """A program waiting or running; `blocks` is the most of the cache that it will hold."""

    start: Callable[[Backend, PrefixCache], Program]
    blocks: int
    future: Future[Any]
    program: Program | None = None
    rows: list[Row] = field(default_factory=list)

    @property
    def wanted(self) -> int:
        """Tokens that its next forward computes."""
        return sum(len(row.tokens) for row in self.rows)


class Scheduler:
    """Runs programs on a backend. `load` is called once, in the scheduler's own thread, at the first request.

    `most_active` bounds how many programs run at the same time; the others wait their turn.
    """

    def __init__(self, load: Callable[[], Backend], most_active: int) -> None:
        self._load = load
        self._most_active = most_active
        self._arrivals: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._waiting: deque[Request] = deque()
        self._active: deque[Request] = deque()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._closed = False
        self.steps = 0

    def submit(self, start: Callable[[Backend, PrefixCache], Program], blocks: int) -> Future[Any]:
        """Queue a program that will hold at most `blocks` blocks of the cache.

        Cancelling the future frees them before the next forward.
        """
        request = Request(start, blocks + SPARE_BLOCKS, Future())
        with self._lock:
            if self._closed:
                raise EngineGone("the engine was closed")
            if self._thread is None:
                thread = threading.Thread(target=self._main, name="magistrate-engine", daemon=True)
                thread.start()
                self._thread = thread
            self._arrivals.put(request)
        return request.future

    def close(self) -> None:
        """Stop the thread; requests in flight fail with `EngineGone`. Closing twice is harmless."""
        with self._lock:
            self._closed = True
            thread = self._thread
            self._arrivals.put(None)
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=30)

    # --- everything below runs in the engine's own thread -----------------------------------------

    def _main(self) -> None:
        try:
            backend = self._load()
        except BaseException as error:
            self._end(error if isinstance(error, MagistrateError) else _failed("loading the model", error))
            return
        try:
            self._serve(backend)
        except BaseException as error:
            self._end(_failed("the engine's scheduler", error))
        else:
            self._end(EngineGone("the engine was closed"))

    def _serve(self, backend: Backend) -> None:
        prefixes = PrefixCache(backend.pool)
        backend.pool.relieve = prefixes.evict
        while self._receive():
            self._discard_cancelled()
            self._admit(backend, prefixes)
            if self._active:
                self._step(backend)

    def _receive(self) -> bool:
        """Take in what has arrived, waiting where there is nothing else to do; False when closed."""
        while True:
            try:
                idle = not self._active and not self._waiting
                arrival = self._arrivals.get(block=idle)
            except queue.Empty:
                return True
            if arrival is None:
                return False
            self._waiting.append(arrival)

    def _discard_cancelled(self) -> None:
        for requests in (self._active, self._waiting):
            for request in [each for each in requests if each.future.cancelled()]:
                requests.remove(request)
                if request.program is not None:
                    request.program.close()

    def _admit(self, backend: Backend, prefixes: PrefixCache) -> None:
        """Begin as many as the next step has room for: who begins later finds more in the prefix cache."""
        held = sum(request.blocks for request in self._active)
        while self._waiting and len(self._active) < self._most_active:
            if sum(request.wanted for request in self._active) + CHUNK > STEP_TOKENS:
                return
            request = self._waiting[0]
            if request.blocks > backend.pool.total:
                self._waiting.popleft()
                room = (backend.pool.total - SPARE_BLOCKS) * BLOCK
                _settle(
                    request.future,
                    None,
                    OverLength(
                        f"this takes more than the {room} tokens of the engine's cache; "
                        "shorten it or give the engine more cache_bytes"
                    ),
                )
                continue
            if held + request.blocks > backend.pool.total:
                return
            self._waiting.popleft()
            held += request.blocks
            self._active.append(request)
            self._begin(request, backend, prefixes)

    def _step(self, backend: Backend) -> None:
        """One forward with rows of as many active requests as fit.

        Who has waited longest comes first, so that everybody's turn comes; then those who want least, so
        that long prompts do not hold up who is writing.
        """
        first, *others = self._active
        chosen = [first]
        tokens = first.wanted
        for request in sorted(others, key=lambda request: request.wanted):
            if tokens + request.wanted <= STEP_TOKENS:
                chosen.append(request)
                tokens += request.wanted
        rows = [row for request in chosen for row in request.rows]
        try:
            logits = backend.forward(rows)
            self.steps += 1
        except BaseException as error:
            # What these sequences hold is unknown now, so nobody in flight may go on. Remembered prompts are
            # safe: a block that somebody else holds too is copied before it is written.
            for request in list(self._active):
                self._fail(request, _failed("a forward pass of the model", error))
            return
        for request in chosen:
            self._active.remove(request)
            self._active.append(request)
            own, logits = logits[: len(request.rows)], logits[len(request.rows) :]
            assert request.program is not None
            self._advance(request, request.program, own)

    def _begin(self, request: Request, backend: Backend, prefixes: PrefixCache) -> None:
        try:
            request.program = request.start(backend, prefixes)
        except BaseException as error:
            self._fail(request, error)
        else:
            self._advance(request, request.program, None)

    def _advance(self, request: Request, program: Program, logits: list[np.ndarray] | None) -> None:
        """Run a program up to the rows that it wants next, or to its end."""
        try:
            request.rows = program.send(logits) if logits is not None else next(program)
        except StopIteration as stop:
            self._active.remove(request)
            _settle(request.future, stop.value, None)
        except BaseException as error:
            self._fail(request, error)

    def _fail(self, request: Request, error: BaseException) -> None:
        self._active.remove(request)
        if request.program is not None:
            request.program.close()
        # A panic of a compiled library is no Exception, and would pass through everybody who waits.
        _settle(request.future, None, error if isinstance(error, Exception) else _failed("a request", error))

    def _end(self, error: Exception) -> None:
        """Answer everybody who still waits; whoever comes later starts anew or hears that it is closed."""
        with self._lock:
            left = [*self._active, *self._waiting]
            while not self._arrivals.empty():
                if (arrival := self._arrivals.get()) is not None:
                    left.append(arrival)
            self._active.clear()
            self._waiting.clear()
            self._thread = None
        for request in left:
            if request.program is not None:
                request.program.close()
            _settle(request.future, None, error)


def _failed(what: str, error: BaseException) -> EngineError:
    reason = str(error).strip() or type(error).__name__
    failure = EngineError(f"{what} failed: {reason[:400]}")
    failure.__cause__ = error
    return failure


def _settle(future: Future[Any], value: Any, error: Exception | None) -> None:
    try:
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)
    except InvalidStateError:
        pass  # cancelled meanwhile: nobody waits for it
