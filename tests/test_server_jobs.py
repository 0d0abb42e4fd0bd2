"""Background jobs: one job for all who ask, in turn, and no more than there is room for."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from magistrate.errors import InputError, SpecError, StoreError
from magistrate.server.state import STOPPING, TOO_MUCH, Finished, JobQueue, Pending, Refused
from served import Clock

PATIENCE = 20.0


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """What works in these tests wait for; open at the end, so that no thread is left behind."""
    event = threading.Event()
    yield event
    event.set()


def after(gate: threading.Event, value: object = None) -> Callable[[], object]:
    def work() -> object:
        assert gate.wait(PATIENCE)
        return value

    return work


def pending(found: object) -> Pending:
    assert isinstance(found, Pending), found
    return found


def value_of(jobs: JobQueue, key: str) -> object:
    """The value of a key that has been asked for, once it is there."""
    found = jobs.find(key)
    if isinstance(found, Pending):
        found.done.result(PATIENCE)
        found = jobs.find(key)
    assert isinstance(found, Finished), found
    return found.value


def workers() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "magistrate-jobs"]


def wait_until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_all_who_ask_the_same_have_one_work_done() -> None:
    jobs, done = JobQueue(), []
    gate = threading.Event()

    def work() -> str:
        gate.wait(PATIENCE)
        done.append(threading.current_thread().name)
        return "found"

    asked = [pending(jobs.submit("key", work)) for _ in range(5)]
    gate.set()
    for each in asked:
        each.done.result(PATIENCE)
    found = jobs.submit("key", work)
    assert isinstance(found, Finished) and (found.value, done) == ("found", ["magistrate-jobs"])


def test_askers_in_many_threads_have_one_work_done() -> None:
    jobs, done = JobQueue(), []
    start = threading.Barrier(8)

    def ask() -> None:
        start.wait(PATIENCE)
        jobs.submit("key", lambda: done.append(1))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(PATIENCE)
    value_of(jobs, "key")
    assert done == [1]


def test_works_are_done_one_after_another_in_the_order_they_were_asked(gate: threading.Event) -> None:
    jobs, done = JobQueue(), []
    jobs.submit("first", after(gate))
    wait_until(lambda: jobs.n_running == 1)
    for n, name in enumerate("abc"):
        found = pending(jobs.submit(name, lambda name=name: done.append(name)))  # type: ignore[misc]
        assert found.ahead == n + 1, "the one under way counts, too"
    gate.set()
    value_of(jobs, "c")
    assert done == ["a", "b", "c"]


def test_how_long_it_took_is_told(gate: threading.Event) -> None:
    clock = Clock()
    jobs = JobQueue(clock=clock)

    def work() -> None:
        clock.now += 2.5

    pending(jobs.submit("key", work)).done.result(PATIENCE)
    found = jobs.find("key")
    assert isinstance(found, Finished) and found.seconds == 2.5


@pytest.mark.parametrize(
    ("error", "status", "told"),
    [
        (InputError("nothing in common"), 422, "nothing in common"),
        (SpecError("no such run"), 404, "no such run"),
        (StoreError("the store is gone"), 503, "the store is gone"),
        (ZeroDivisionError("12 / 0"), 500, "an error in the program (ZeroDivisionError)"),
    ],
)
def test_an_error_is_told_to_all_who_ask_and_not_for_ever(
    error: Exception, status: int, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock, done = Clock(), []
    jobs = JobQueue(clock=clock, error_seconds=20)

    def work() -> None:
        done.append(1)
        raise error

    with caplog.at_level(logging.ERROR, "magistrate"):
        pending(jobs.submit("key", work)).done.result(PATIENCE)
    for _ in range(2):
        found = jobs.submit("key", work)
        assert isinstance(found, Refused) and (found.status, found.error) == (status, error)
        assert found.message.startswith(told) and "12 / 0" not in found.message
    assert [each.message.split()[0] for each in caplog.records] == ["jobs.failed"] * (status == 500)
    assert len(done) == 1
    clock.now += 20
    pending(jobs.submit("key", work)).done.result(PATIENCE)
    assert len(done) == 2, "it may have been of the moment"


def test_a_refusal_holds_nothing_of_what_led_to_it() -> None:
    class Large:
        pass

    jobs, seen = JobQueue(), list[weakref.ref[Any]]()

    def work() -> None:
        large = Large()
        seen.append(weakref.ref(large))
        raise InputError("no")

    pending(jobs.submit("key", work)).done.result(PATIENCE)
    gc.collect()
    assert isinstance(jobs.find("key"), Refused) and seen[0]() is None


def test_no_more_wait_than_there_is_room_for(gate: threading.Event) -> None:
    jobs = JobQueue(most_waiting=2)
    jobs.submit("under way", after(gate))
    wait_until(lambda: jobs.n_running == 1)
    assert isinstance(jobs.submit("a", after(gate, 1)), Pending)
    assert isinstance(jobs.submit("b", after(gate, 2)), Pending)
    assert jobs.submit("c", after(gate, 3)) == Refused(TOO_MUCH)
    assert Refused(TOO_MUCH).status == 503
    assert isinstance(jobs.submit("a", after(gate, 4)), Pending), "who asked before waits on"
    gate.set()
    assert (value_of(jobs, "a"), value_of(jobs, "b")) == (1, 2)
    assert jobs.find("c") is None, "nothing is kept of what was not taken"
    jobs.submit("c", after(gate, 3))
    assert value_of(jobs, "c") == 3


def test_what_nobody_asked_for_the_longest_is_dropped_first(gate: threading.Event) -> None:
    jobs = JobQueue(kept=2)
    for key in "ab":
        jobs.submit(key, lambda key=key: key)  # type: ignore[misc]
        value_of(jobs, key)
    jobs.submit("a", after(gate))
    jobs.submit("c", lambda: "c")
    value_of(jobs, "c")
    assert [jobs.find(key) is None for key in "abc"] == [False, True, False]


def test_what_is_waiting_is_never_dropped(gate: threading.Event) -> None:
    jobs = JobQueue(kept=1, most_waiting=9)
    for key in "abcdefgh":
        jobs.submit(key, after(gate, key))
    gate.set()
    assert value_of(jobs, "h") == "h"


def test_what_is_only_looked_for_causes_no_work() -> None:
    jobs = JobQueue()
    assert jobs.find("key") is None
    wait_until(lambda: workers() == [])
    assert jobs.find("key") is None


def test_no_thread_is_there_while_there_is_nothing_to_do() -> None:
    jobs = JobQueue()
    for n in range(3):
        jobs.submit(f"key {n}", lambda: 1)
        value_of(jobs, f"key {n}")
        wait_until(lambda: workers() == [])


def test_at_the_end_nothing_more_is_worked_out(gate: threading.Event) -> None:
    jobs, done = JobQueue(), []
    under_way = pending(jobs.submit("under way", after(gate, "done")))
    wait_until(lambda: jobs.n_running == 1)
    waiting = pending(jobs.submit("waiting", lambda: done.append(1)))
    ending = threading.Thread(target=jobs.close)
    ending.start()
    waiting.done.result(PATIENCE)
    assert jobs.find("waiting") == Refused(STOPPING)
    assert jobs.submit("late", lambda: done.append(1)) == Refused(STOPPING)
    gate.set()
    ending.join(PATIENCE)
    assert not ending.is_alive()
    wait_until(lambda: workers() == [])
    under_way.done.result(PATIENCE)
    assert value_of(jobs, "under way") == "done" and done == []


def test_the_end_does_not_wait_for_ever(gate: threading.Event) -> None:
    jobs = JobQueue()
    jobs.submit("key", after(gate))
    began = time.monotonic()
    jobs.close(0.05)
    assert time.monotonic() - began < PATIENCE / 2


def test_whoever_waits_and_goes_away_ends_it_for_nobody(gate: threading.Event) -> None:
    jobs = JobQueue()
    found = pending(jobs.submit("key", after(gate, "found")))

    async def impatient() -> None:
        await asyncio.wait_for(asyncio.wrap_future(found.done), 0.01)

    with pytest.raises(TimeoutError):
        asyncio.run(impatient())
    gate.set()
    assert value_of(jobs, "key") == "found"
