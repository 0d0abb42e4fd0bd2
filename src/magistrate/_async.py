"""Run async code for synchronous callers, on an event loop in a background thread.

It also works under a running loop, as in a notebook, because it never touches the caller's loop.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar

from magistrate import _fork
from magistrate._work import Deadline

T = TypeVar("T")
P = ParamSpec("P")

CLEAN_UP = 60.0  # seconds that cancelled work has for cleanup
SLICE = 0.2  # seconds until a Ctrl-C is noticed, at most

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_thread: threading.Thread | None = None
_left: list[Any] = []  # the parent process's loops, kept alive: a child neither runs nor closes them


def _forget() -> None:
    """Reset after a fork: the loop's thread and all its work are gone."""
    global _lock, _loop, _thread
    _left.append(_loop)
    _lock, _loop, _thread = threading.Lock(), None, None


_fork.in_child(_forget)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end and return its result.

    Ctrl-C cancels it and waits for its cleanup; a second Ctrl-C does not wait.
    """
    loop = _background_loop()
    if threading.current_thread() is _thread:
        work.close()
        raise RuntimeError(
            "this synchronous function cannot be called inside async code of Magistrate; await its async "
            "version instead"
        )
    outcome: Future[T] = Future()
    tasks: list[asyncio.Task[T]] = []

    def begin() -> None:
        tasks.append(loop.create_task(work))
        tasks[0].add_done_callback(functools.partial(_hand_over, outcome))

    with Deadline() as interrupted:  # the task starts with a copy of this context
        loop.call_soon_threadsafe(begin)
    try:
        # In slices: a signal received by another thread does not wake a thread that waits for a lock.
        while not wait([outcome], timeout=SLICE).done:
            pass
    except KeyboardInterrupt:
        loop.call_soon_threadsafe(lambda: tasks[0].cancel())
        interrupted.stop()
        wait([outcome], timeout=CLEAN_UP)
        raise
    return outcome.result()


def synchronous(twin: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Return the synchronous form of an async function `aNAME`, with the same signature."""

    @functools.wraps(twin)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return run(twin(*args, **kwargs))

    call.__name__ = call.__qualname__ = twin.__name__.removeprefix("a")
    return call


def explained(
    example: str,
) -> Callable[[Callable[P, Coroutine[Any, Any, T]]], Callable[P, Coroutine[Any, Any, T]]]:
    """Make an async function keyword-only, with error messages that show `example`.

    Raises `TypeError`, which names the function without its `a`, for positional arguments and for unknown
    names.
    """

    def decorate(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
        known = list(inspect.signature(function).parameters)

        @functools.wraps(function)
        async def call(*args: P.args, **kwargs: P.kwargs) -> T:
            name = function.__name__.removeprefix("a")
            if args:
                raise TypeError(f"{name}() takes its arguments by name, as in {example}")
            if unknown := [each for each in kwargs if each not in known]:
                listed = f"it takes {', '.join(known)}, as in {example}"
                raise TypeError(f"{name}() has no argument {unknown[0]!r}; {listed}")
            return await function(*args, **kwargs)

        return call

    return decorate


async def in_thread(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call `call` in a new thread and return its result, without blocking the loop.

    Unlike `asyncio.to_thread` it starts at once, however many other calls are running. An abandoned call
    does not keep the program from exiting.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[tuple[T | None, BaseException | None]] = loop.create_future()

    def settle(value: T | None, error: BaseException | None) -> None:
        if not ended.done():
            ended.set_result((value, error))

    def work() -> None:
        value, error = None, None
        try:
            value = call(*args, **kwargs)
        except BaseException as raised:
            error = raised
        with suppress(RuntimeError):  # the loop is closed: nobody waits for the result
            loop.call_soon_threadsafe(settle, value, error)

    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(work,), name="magistrate-call", daemon=True).start()
    value, error = await ended
    if isinstance(error, StopIteration):
        raise RuntimeError("StopIteration was raised") from error  # a coroutine may not raise it
    if error is not None:
        raise error
    return value  # type: ignore[return-value]


def _hand_over(outcome: Future[T], task: asyncio.Task[T]) -> None:
    if task.cancelled():
        outcome.set_exception(asyncio.CancelledError())
    elif (error := task.exception()) is not None:
        outcome.set_exception(error)
    else:
        outcome.set_result(task.result())


def _background_loop() -> asyncio.AbstractEventLoop:
    global _loop, _thread
    with _lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            _thread = threading.Thread(target=_serve, args=(_loop,), name="magistrate-loop", daemon=True)
            _thread.start()
        return _loop


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    while True:
        # Work that calls sys.exit() stops the loop. Its caller has the result; restart the loop for other
        # work.
        with suppress(SystemExit, KeyboardInterrupt):
            loop.run_forever()
