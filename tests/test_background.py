"""Synchronous callers meet the async core from anywhere: plain code, notebooks, threads; Ctrl-C included."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from magistrate import _async


async def double(number: int, *, pause: float = 0.0) -> int:
    await asyncio.sleep(pause)
    return 2 * number


def test_a_result_comes_back() -> None:
    assert _async.run(double(21)) == 42


def test_an_error_comes_back_as_it_was_raised() -> None:
    async def broken() -> None:
        raise LookupError("here")

    with pytest.raises(LookupError, match="here"):
        _async.run(broken())


def test_it_works_inside_a_running_loop() -> None:
    async def cell() -> int:
        return _async.run(double(21))

    assert asyncio.run(cell()) == 42


def test_many_threads_share_one_loop() -> None:
    async def where() -> str:
        await asyncio.sleep(0.01)
        return threading.current_thread().name

    with ThreadPoolExecutor(16) as pool:
        names = set(pool.map(lambda _: _async.run(where()), range(32)))
    assert len(names) == 1


def test_a_synchronous_call_inside_async_work_is_refused_instead_of_hanging() -> None:
    async def outer() -> int:
        return _async.run(double(1))

    with pytest.raises(RuntimeError, match="await its async version"):
        _async.run(outer())


@pytest.mark.parametrize("end", [SystemExit, KeyboardInterrupt])
def test_work_that_exits_ends_itself_and_not_the_loop(end: type[BaseException]) -> None:
    async def leaves() -> None:
        raise end

    for _ in range(2):
        with pytest.raises(end):
            _async.run(leaves())
        assert _async.run(double(21)) == 42


def test_cancelled_work_says_so() -> None:
    async def gives_up() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        _async.run(gives_up())


async def adouble(number: int, *, pause: float = 0.0) -> int:
    """Twice as much."""
    return await double(number, pause=pause)


def test_the_synchronous_form_has_the_name_and_the_signature_of_its_twin() -> None:
    form = _async.synchronous(adouble)
    assert form(4, pause=0.001) == 8
    assert (form.__name__, form.__doc__) == ("double", "Twice as much.")
    assert inspect.signature(form) == inspect.signature(adouble)
    assert not inspect.iscoroutinefunction(form)


def test_a_call_in_a_thread_lets_the_loop_go_on() -> None:
    async def both() -> tuple[str, float]:
        start = time.monotonic()
        slept = _async.in_thread(time.sleep, 0.2)
        await asyncio.gather(slept, *(asyncio.sleep(0.1) for _ in range(3)))
        name = await _async.in_thread(lambda: threading.current_thread().name)
        return name, time.monotonic() - start

    name, seconds = _async.run(both())
    assert name == "magistrate-call"
    assert seconds < 0.29


def test_a_call_in_a_thread_raises_what_it_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        _async.run(_async.in_thread(lambda: 1 / 0))
    with pytest.raises(RuntimeError, match="StopIteration"):
        _async.run(_async.in_thread(next, iter(())))


def python(code: str) -> tuple[int, str, float]:
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert done.stderr == ""
    return done.returncode, done.stdout, time.monotonic() - start


def test_ctrl_c_cancels_and_waits_until_everything_is_in_order() -> None:
    code, printed, _ = python("""
import asyncio, os, signal, threading
from magistrate import _async

async def work():
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        await asyncio.sleep(60)
    finally:
        await asyncio.sleep(0.1)
        print("in order")

try:
    _async.run(work())
except KeyboardInterrupt:
    print("interrupted")
""")
    assert (code, printed.split("\n")[:2]) == (0, ["in order", "interrupted"])


def test_a_second_ctrl_c_does_not_wait_and_threads_do_not_hold_the_program_up() -> None:
    code, printed, seconds = python("""
import asyncio, os, signal, threading, time
from magistrate import _async

async def work():
    for delay in (0.1, 0.3):
        threading.Timer(delay, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        await _async.in_thread(time.sleep, 20)
    finally:
        await asyncio.sleep(20)

try:
    _async.run(work())
except KeyboardInterrupt:
    print("interrupted")
""")
    assert (code, printed) == (0, "interrupted\n")
    assert seconds < 10
