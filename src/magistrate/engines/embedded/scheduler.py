"""The scheduler of in-process engines: one thread that owns the model and batches all requests.

A request is a prompt to process and a program that continues from there. A program is a generator: it
yields the rows that it wants computed and is sent their outputs, so that each verb reads like straight-line
code. Every step collects rows of all active requests (chunks of prompts and decoding steps alike), as many
tokens as fit, and computes them in one forward pass. Token masks are computed during the pass.
"""

from __future__ import annotations

import os
import queue
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from magistrate.constraints.masks import Matcher
from magistrate.engines.base import Capture
from magistrate.engines.embedded.backend import Backend, Row, RowOutput
from magistrate.engines.embedded.prefix_cache import BLOCK, BlockPool, CachedSequence, shared_prefix
from magistrate.errors import EngineBusy, EngineError, EngineGone, MagistrateError, OverLength

CHUNK = 256  # tokens of one text in one forward pass, so that long texts do not block the others
STEP_TOKENS = 576  # tokens in one forward pass: two chunks of prompts and some decoding; more is no faster
SPARE_BLOCKS = 2  # copying a shared block holds both; a backend may add a row of padding
LOOKED_AT = 64  # waiting requests that are considered in one step


# --- requests -------------------------------------------------------------------------------------


def no_matcher() -> None:
    """Return None: the default of `ForwardRequest.prepare`, for rows that need no mask."""


@dataclass(frozen=True, slots=True)
class ForwardRequest:
    """Rows that a program wants computed; `prepare` runs during the pass and returns the next matcher."""

    rows: list[Row]
    prepare: Callable[[], Matcher | None] = no_matcher


class Prefilled(NamedTuple):
    """A prompt in the cache, from which a program starts.

    `cached` of its tokens were in the cache before. `last` is the output at its last token.
    """

    backend: Backend
    sequence: CachedSequence
    cached: int
    last: RowOutput


Program = Generator[ForwardRequest, list[RowOutput], Any]


@dataclass(slots=True, eq=False)
class Request:
    """A prompt (int32 `[n]`, at least one token) and the program that follows.

    `blocks` is the most blocks of the cache that both will hold. `capture` selects what of the model's
    state is captured at the prompt's last token.
    """

    prompt: np.ndarray
    begin: Callable[[Prefilled], Program]
    blocks: int
    future: Future[Any]
    capture: Capture | None = None
    sequence: CachedSequence = field(default_factory=CachedSequence)
    cached: int = 0
    program: Program | None = None
    rows: list[Row] = field(default_factory=list)
    prepare: Callable[[], Matcher | None] = no_matcher
    size: int = 0  # tokens in its next forward pass
    error: BaseException | None = None

    @property
    def reading(self) -> bool:
        """Whether the prompt is not completely in the cache yet."""
        return self.program is None

    def wants(self, wanted: ForwardRequest) -> None:
        """Set what the next forward pass computes for this request."""
        self.rows, self.prepare = wanted.rows, wanted.prepare
        self.size = sum(len(row.tokens) for row in wanted.rows)

    def read_on(self) -> None:
        """Set the next forward pass to the next chunk of the prompt."""
        start, end = next(chunks(self.sequence.length, len(self.prompt)))
        last = range(end - start - 1, end - start) if end == len(self.prompt) else range(0)
        self.wants(ForwardRequest([Row(self.sequence, self.prompt[start:end].tolist(), last, self.capture)]))


def chunks(start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Split `[start, stop)` into ranges of at most `CHUNK`; none has length 1 unless the whole range does."""
    while start < stop:
        lone = stop - start == CHUNK + 1
        end = min(start + CHUNK - lone, stop)
        yield start, end
        start = end


# --- the scheduler --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Counters:
    """Counters of a scheduler's work so far.

    `forward_seconds` is the time in forward passes, `own_seconds` all other time of busy steps (admitting,
    feeding, picking tokens), and `mask_seconds` the time spent on masks during forward passes.
    """

    steps: int = 0
    rows: int = 0
    tokens: int = 0
    forward_seconds: float = 0.0
    own_seconds: float = 0.0
    mask_seconds: float = 0.0


class Scheduler:
    """Runs requests on a backend, which `load` creates in the scheduler's own thread at the first request.

    At most `most_active` requests are in the cache at the same time, and at most `most_waiting` are
    unanswered. If the backend fails, the active requests fail and the backend is loaded again, unless it
    has not answered a single request since the last failure.
    """

    def __init__(self, load: Callable[[], Backend], most_active: int, most_waiting: int = 1 << 16) -> None:
        self._load = load
        self._most_active = most_active
        self._most_waiting = most_waiting
        self._arrivals: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._waiting: deque[Request] = deque()
        self._active: deque[Request] = deque()
        self._thread: threading.Thread | None = None
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._gone: EngineGone | None = None
        self._unanswered = 0
        self._answered = 0
        self._results: list[tuple[Future[Any], Any]] = []  # delivered during the next forward pass
        self.loading = False
        self.counters = Counters()

    def submit(
        self,
        prompt: list[int],
        begin: Callable[[Prefilled], Program],
        blocks: int,
        *,
        capture: Capture | None = None,
    ) -> Future[Any]:
        """Queue a prompt of at least one token and its program.

        Both hold at most `blocks` of the cache. `capture` applies to the prompt's last token. Cancelling
        the future frees the blocks before the next forward pass. Raises `EngineBusy` if too many requests
        are unanswered, and `EngineGone` if the engine has stopped for good.
        """
        if os.getpid() != self._process:
            raise EngineGone(
                "this process was forked after the engine was created, and threads do not survive a fork: "
                "start processes with 'spawn', or create the engine in each process"
            )
        request = Request(np.array(prompt, np.int32), begin, blocks + SPARE_BLOCKS, Future(), capture)
        with self._lock:
            if self._gone is not None:
                raise EngineGone(str(self._gone))
            if self._unanswered >= self._most_waiting:
                raise EngineBusy(
                    f"{self._unanswered} requests are already waiting, which is the limit; send fewer at "
                    "once or raise most_waiting"
                )
            self._unanswered += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._main, name="magistrate-engine", daemon=True)
                self.loading = True
                self._thread.start()
            self._arrivals.put(request)
        request.future.add_done_callback(self._count_answer)
        return request.future

    def close(self) -> None:
        """Stop the thread; requests in flight fail with `EngineGone`. Closing twice is harmless."""
        with self._lock:
            self._gone = self._gone or EngineGone("the engine was closed")
            thread = self._thread
            self._arrivals.put(None)
        if thread is not None and thread is not threading.current_thread() and os.getpid() == self._process:
            thread.join(timeout=30)

    def _count_answer(self, _: Future[Any]) -> None:
        with self._lock:
            self._unanswered -= 1

    # --- everything below runs in the engine's own thread -----------------------------------------

    def _main(self) -> None:
        try:
            self._load_and_serve()
        except BaseException as error:  # no request may wait for a thread that has ended
            self._end(_failed("the engine's thread", error))

    def _load_and_serve(self) -> None:
        answered_before = -1
        while True:
            self.loading = True
            try:
                backend = self._load()
            except BaseException as error:
                self._end(
                    error if isinstance(error, MagistrateError) else _failed("loading the model", error)
                )
                return
            finally:
                self.loading = False
            failure: EngineError = EngineGone("the engine was closed")
            try:
                self._serve(backend)
            except BaseException as error:
                failure = _failed("a forward pass of the model", error)
                # The frames of a kept error would hold the broken backend's memory.
                traceback.clear_frames(error.__traceback__)
            self._deliver()
            # After a crash the content of these sequences is unknown, so no request in flight may continue.
            for request in list(self._active):
                self._fail(request, failure, backend)
            if isinstance(failure, EngineGone):
                self._end(failure)
                return
            del backend
            if self._answered == answered_before:
                self._gone = EngineGone(f"{failure}; it had failed before, and the restart did not help")
                self._end(self._gone)
                return
            answered_before = self._answered

    def _serve(self, backend: Backend) -> None:
        while self._receive():
            start, computed = time.perf_counter(), backend.seconds
            self._discard_cancelled(backend)
            self._admit(backend)
            if self._active:
                rows, tokens, masks = self._step(backend)
                forward = backend.seconds - computed
                self._count(rows, tokens, forward, time.perf_counter() - start - forward, masks)
            if not self._active:
                self._deliver()

    def _receive(self) -> bool:
        """Queue the requests that have arrived, waiting for one if idle; return False when closed."""
        while True:
            try:
                idle = not self._active and not self._waiting
                arrival = self._arrivals.get(block=idle)
            except queue.Empty:
                return True
            if arrival is None:
                return False
            self._waiting.append(arrival)

    def _discard_cancelled(self, backend: Backend) -> None:
        for request in [each for each in self._active if each.future.cancelled()]:
            self._leave(request, backend)
        if any(request.future.cancelled() for request in self._waiting):
            self._waiting = deque(each for each in self._waiting if not each.future.cancelled())

    def _admit(self, backend: Backend) -> None:
        """Start as many requests as the cache and the next step have space for, first come, first served.

        A request waits if it shares a prefix with a prompt that is being processed; later requests may
        overtake it.
        """
        if not self._waiting or len(self._active) >= self._most_active:
            return
        readers = [request for request in self._active if request.reading]
        room = STEP_TOKENS - sum(request.size for request in self._active)
        held = sum(request.blocks - request.cached // BLOCK for request in self._active)
        shared = {
            block for request in self._active for block in request.sequence.blocks[: request.cached // BLOCK]
        }
        for request in list(islice(self._waiting, LOOKED_AT)):
            if (refusal := _too_long(request, backend.pool)) is not None:
                self._waiting.remove(request)
                self._settle(request.future, None, refusal)
                continue
            blocks, cached = backend.prefixes.match(request.prompt)
            if any(_gains(reader, request, cached) for reader in readers):
                continue
            full = blocks[: cached // BLOCK]
            need = request.blocks - len(full) + len(shared.union(full))
            if held + need > backend.pool.total or min(len(request.prompt) - cached, CHUNK) > room:
                return
            self._waiting.remove(request)
            self._active.append(request)
            request.sequence = backend.prefixes.longest(request.prompt)
            request.cached = request.sequence.length
            request.read_on()
            room -= request.size
            held += request.blocks - len(full)
            shared.update(full)
            readers.append(request)
            if len(self._active) >= self._most_active:
                return

    def _step(self, backend: Backend) -> tuple[int, int, float]:
        """Run one forward pass over as many active requests as fit; return rows, tokens and mask seconds.

        The request that has waited longest comes first, so that each gets its turn. Then come the smallest
        ones, so that long prompts do not block decoding.
        """
        first, *others = self._active
        chosen = [first]
        tokens = first.size
        for request in sorted(others, key=lambda request: request.size):
            if tokens + request.size <= STEP_TOKENS:
                chosen.append(request)
                tokens += request.size
        masks = 0.0

        def meanwhile() -> None:
            nonlocal masks
            self._deliver()
            start = time.perf_counter()
            _prepare(chosen)
            masks = time.perf_counter() - start

        rows = [row for request in chosen for row in request.rows]
        outputs = backend.forward(rows, meanwhile)
        for request in chosen:
            own, outputs = outputs[: len(request.rows)], outputs[len(request.rows) :]
            self._active.remove(request)
            self._active.append(request)
            self._advance(request, own, backend)
        return len(rows), tokens, masks

    def _advance(self, request: Request, outputs: list[RowOutput], backend: Backend) -> None:
        """Continue with the prompt, or run the program until it wants more rows or ends."""
        try:
            if request.error is not None:
                raise request.error
            if request.program is not None:
                request.wants(request.program.send(outputs))
                return
            backend.prefixes.keep(request.prompt[: request.sequence.length], request.sequence)
            if request.sequence.length < len(request.prompt):
                request.read_on()
                return
            request.program = request.begin(Prefilled(backend, request.sequence, request.cached, outputs[0]))
            request.wants(next(request.program))
        except StopIteration as stop:
            self._leave(request, backend)
            self._results.append((request.future, stop.value))
        except BaseException as error:
            # A panic of a compiled library is no Exception; raised unchanged, it would end the waiting tasks.
            self._fail(
                request, error if isinstance(error, Exception) else _failed("a request", error), backend
            )

    def _deliver(self) -> None:
        """Set the results of finished requests. Their receivers wake up and compete for the interpreter, so
        this is done during a forward pass or while the thread is idle."""
        for future, value in self._results:
            self._settle(future, value, None)
        self._answered += len(self._results)
        self._results.clear()

    def _fail(self, request: Request, error: Exception, backend: Backend) -> None:
        self._leave(request, backend)
        self._settle(request.future, None, error)

    def _leave(self, request: Request, backend: Backend) -> None:
        """Remove an active request and free its blocks."""
        self._active.remove(request)
        if request.program is not None:
            request.program.close()
        backend.pool.drop(request.sequence)

    def _count(self, rows: int, tokens: int, forward: float, own: float, masks: float) -> None:
        so_far = self.counters
        self.counters = Counters(
            so_far.steps + 1,
            so_far.rows + rows,
            so_far.tokens + tokens,
            so_far.forward_seconds + forward,
            so_far.own_seconds + own,
            so_far.mask_seconds + masks,
        )

    def _end(self, error: Exception) -> None:
        """Fail every waiting request; a later one starts a new thread or gets `EngineGone`."""
        self._deliver()
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
            self._settle(request.future, None, error)

    @staticmethod
    def _settle(future: Future[Any], value: Any, error: Exception | None) -> None:
        try:
            if error is None:
                future.set_result(value)
            else:
                future.set_exception(error)
        except InvalidStateError:
            pass  # cancelled in the meantime


def _gains(reader: Request, request: Request, cached: int) -> bool:
    """Return whether `request` would find more cached blocks after `reader` has processed its prompt."""
    if not reader.reading:
        return False
    shared = min(shared_prefix(reader.prompt, request.prompt), len(request.prompt) - 2)
    return shared >= cached + BLOCK


def _prepare(chosen: list[Request]) -> None:
    """Do the work that does not need the logits; an error is stored in its request."""
    matchers = []
    for request in chosen:
        try:
            matcher = request.prepare()
        except BaseException as error:
            request.error = error
        else:
            if matcher is not None:
                matchers.append(matcher)
    Matcher.compute_masks(matchers)


def _too_long(request: Request, pool: BlockPool) -> OverLength | None:
    if request.blocks <= pool.total:
        return None
    room = (pool.total - SPARE_BLOCKS) * BLOCK
    return OverLength(
        f"this needs more than the {room} tokens of the engine's cache; shorten it or raise cache_bytes"
    )


def _failed(what: str, error: BaseException) -> EngineError:
    reason = str(error).strip() or type(error).__name__
    failure = EngineError(f"{what} failed: {reason[:400]}")
    failure.__cause__ = error
    return failure
