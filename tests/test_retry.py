"""Retries only where they help, deadlines, and as many calls at once as a server bears, whoever asks."""

from __future__ import annotations

import asyncio
import gc
import itertools
import random
import selectors
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magistrate.engines.base import Generation, UnusableAnswer
from magistrate.engines.remote.retry import (
    BUSY_RETRIES,
    FIRST_WAIT,
    JITTER,
    LONGEST_WAIT,
    RETRIES,
    ConcurrencyLimiter,
    RetryingEngine,
    with_retries,
)
from magistrate.engines.scripted import ScriptedEngine
from magistrate.errors import (
    CapabilityError,
    EngineBusy,
    EngineError,
    EngineGone,
    EngineRefused,
    EngineTimeout,
    InvalidOutput,
    OverLength,
)
from magistrate.types import Prompt, Usage


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time passes at once, and only where there is nothing else to do."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(_Jumping(self))

    def time(self) -> float:
        return self.now


class _Jumping(selectors.DefaultSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> Any:
        found = super().select(0)
        if not found and timeout:
            self._loop.now += timeout
        assert found or timeout is not None, "everybody waits, and nobody for anything that will come"
        return found


def virtually(work: Callable[[Callable[[], float]], Coroutine[Any, Any, Any]]) -> Any:
    """What `work(clock)` answers, in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        loop = runner.get_loop()
        return runner.run(work(loop.time))


@dataclass
class Server:
    """Simulated: it answers `capacity` calls at once, each in about `latency` seconds, and refuses more."""

    capacity: int
    latency: float = 1.0
    retry_after: float | None = None
    draw: random.Random = field(default_factory=lambda: random.Random(0))
    broken: float = 0.0  # the share of calls that end with an error
    under_way: int = 0
    most: int = 0
    began: list[str] = field(default_factory=list)
    answered: Counter[str] = field(default_factory=Counter)
    refused: int = 0

    async def answer(self, prompt: Prompt) -> str | BaseException:
        name = prompt.messages[0].text
        self.began.append(name)
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            if self.under_way > self.capacity:
                self.refused += 1
                await asyncio.sleep(0.01)
                return EngineBusy("too many", retry_after=self.retry_after)
            await asyncio.sleep(self.latency * (0.5 + self.draw.random()))
            if self.draw.random() < self.broken:
                return EngineError("the connection broke")
            self.answered[name] += 1
            return name
        finally:
            self.under_way -= 1

    def engine(self, concurrency: int, clock: Callable[[], float], timeout: float = 1e6) -> RetryingEngine:
        draw = random.Random(1).random
        return with_retries(
            ScriptedEngine(self.answer), concurrency=concurrency, timeout=timeout, clock=clock, draw=draw
        )


async def asked(engine: RetryingEngine, names: Sequence[str]) -> list[Any]:
    """What every call ended with, an answer's text or an exception."""
    calls = [engine.generate(Prompt.of(name)) for name in names]
    found = await asyncio.gather(*calls, return_exceptions=True)
    return [each.text if isinstance(each, Generation) else each for each in found]


def names(n: int) -> list[str]:
    return [f"call{i}" for i in range(n)]


# --- how many at once --------------------------------------------------------------------------------


@settings(max_examples=60)
@given(
    capacity=st.integers(1, 12),
    concurrency=st.integers(1, 40),
    n=st.integers(1, 80),
    retry_after=st.sampled_from([None, 0.3, 2.0]),
    seed=st.integers(0, 1000),
    given_up=st.dictionaries(st.integers(0, 79), st.floats(0, 20), max_size=10),
)
def test_none_is_lost_and_none_is_asked_again_once_it_is_answered(
    capacity: int, concurrency: int, n: int, retry_after: float | None, seed: int, given_up: dict[int, float]
) -> None:
    async def work(clock: Callable[[], float]) -> None:
        server = Server(capacity, retry_after=retry_after, draw=random.Random(seed))
        engine = server.engine(concurrency, clock)
        tasks = {name: asyncio.create_task(engine.generate(Prompt.of(name))) for name in names(n)}
        for number, after in given_up.items():
            if number < n:
                asyncio.get_running_loop().call_later(after, tasks[f"call{number}"].cancel)
        await asyncio.wait(tasks.values())
        for number, name in enumerate(tasks):
            if number in given_up and tasks[name].cancelled():
                assert server.answered[name] <= 1
            else:
                assert tasks[name].result().text == name
                assert server.answered[name] == 1
        assert server.most <= concurrency
        now = engine.counters
        assert (now.under_way, now.calls, now.failures) == (0, n, 0)
        assert 1 <= now.limit <= concurrency
        assert now.attempts == len(server.began)
        # A place is there for the next one: none was taken along by a call that was given up.
        assert await asked(engine, ["one more"]) == ["one more"]

    virtually(work)


@pytest.mark.parametrize("capacity", [1, 3, 6, 20])
def test_it_settles_near_what_the_server_bears(capacity: int) -> None:
    async def work(clock: Callable[[], float]) -> None:
        server = Server(capacity)
        engine = server.engine(32, clock)
        start = clock()
        found = await asked(engine, names(400))
        assert found == names(400)
        assert capacity / 2 - 1 <= engine.counters.limit <= capacity + 1
        assert engine.counters.retries == server.refused < 100
        ideal = 400 / capacity
        assert clock() - start < 1.6 * ideal

    virtually(work)


def test_it_uses_what_a_server_bears_more_later() -> None:
    async def work(clock: Callable[[], float]) -> None:
        server = Server(2)
        engine = server.engine(32, clock)
        await asked(engine, names(60))
        assert engine.counters.limit <= 3
        server.capacity = 100
        await asked(engine, names(1500))
        assert engine.counters.limit > 25

    virtually(work)


def test_a_server_that_bears_all_is_never_held_back() -> None:
    async def work(clock: Callable[[], float]) -> None:
        server = Server(16)
        engine = server.engine(16, clock)
        await asked(engine, names(64))
        assert (engine.counters.limit, engine.counters.retries, server.most) == (16, 0, 16)

    virtually(work)


def test_timeouts_make_fewer_too() -> None:
    async def work(clock: Callable[[], float]) -> None:
        answers: list[Any] = [EngineTimeout("408")] * 4 + ["yes"] * 100
        engine = with_retries(ScriptedEngine(answers, delay=0.1), concurrency=8, clock=clock)
        await asked(engine, names(4))
        assert engine.counters.timeouts == 4
        assert engine.counters.limit <= 4

    virtually(work)


def test_first_come_first_served_also_after_a_retry() -> None:
    async def work(clock: Callable[[], float]) -> None:
        server = Server(100)
        engine = server.engine(1, clock)
        await asked(engine, names(20))
        assert server.began == names(20)

        broken = Server(100)
        tries: Counter[str] = Counter()

        async def once_broken(prompt: Prompt) -> Any:
            name = prompt.messages[0].text
            tries[name] += 1
            if name == "call0" and tries[name] == 1:
                broken.began.append(name)
                return EngineError("broke")
            return await broken.answer(prompt)

        engine = with_retries(ScriptedEngine(once_broken), concurrency=1, clock=clock)
        await asked(engine, names(5))
        # It waits a little before its second try, and is the next one then.
        assert broken.began == ["call0", "call1", "call0", "call2", "call3", "call4"]

    virtually(work)


def test_users_have_shares_of_their_own_and_learn_of_the_server_together() -> None:
    async def work(clock: Callable[[], float]) -> None:
        server = Server(100)
        engine = server.engine(2, clock)
        other = engine.sharing(10)
        first = asyncio.create_task(asked(engine, names(40)))
        await asyncio.sleep(0.1)
        assert server.under_way == 2
        second = asyncio.create_task(asked(other, names(200)))
        await asyncio.sleep(0.1)
        assert server.under_way == 12
        assert (engine.counters.under_way, other.counters.under_way) == (2, 10)
        server.capacity = 3
        await asyncio.gather(first, second)
        assert (engine.counters.most, other.counters.most) == (2, 10)
        assert other.counters.limit <= 4, "what was too much for the server was so for both"
        assert server.under_way == engine.counters.under_way == other.counters.under_way == 0

    virtually(work)


def test_a_server_of_which_little_is_known_gets_few_at_first_and_more_while_it_is_quick() -> None:
    async def work(clock: Callable[[], float]) -> None:
        for latency, least, most in ((0.1, 16, 16), (4.0, 3, 8), (8.0, 2, 5)):
            server = Server(16, latency=latency)
            engine = with_retries(ScriptedEngine(server.answer), first=2, timeout=12, clock=clock)
            calls = asyncio.create_task(asked(engine, names(40)))
            await asyncio.sleep(0)
            await asyncio.sleep(latency / 4)
            assert server.under_way == 2
            await engine.count(Prompt.of("a"))  # what costs the server nothing says nothing of it
            assert await calls == names(40)
            assert least <= server.most <= most, latency

    virtually(work)


def test_everybody_waits_when_the_server_asks_for_it() -> None:
    async def work(clock: Callable[[], float]) -> None:
        moments: list[float] = []

        async def answer(prompt: Prompt) -> Any:
            moments.append(clock())
            await asyncio.sleep(0.1)
            return EngineBusy("wait", retry_after=7.0) if len(moments) == 1 else "yes"

        engine = with_retries(ScriptedEngine(answer), concurrency=3, clock=clock)
        first = asyncio.create_task(asked(engine, names(1)))
        await asyncio.sleep(0.5)
        await asked(engine, names(10))
        await first
        assert moments[0] == 0
        assert 7.1 <= min(moments[1:]) <= 7.1 + 7 * JITTER
        assert engine.counters.waits >= 3 and engine.counters.waited > 6

    virtually(work)


# --- what is tried again, when, and until when ---------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        InvalidOutput("no JSON", "text"),
        UnusableAnswer("no JSON", "text", (), "", Usage()),
        EngineRefused("filtered"),
        EngineGone("no such model"),
        CapabilityError("no"),
        OverLength("too long"),
        KeyError("bug"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_a_retry_cannot_help_is_asked_once(error: Exception) -> None:
    async def work(clock: Callable[[], float]) -> None:
        script = ScriptedEngine([error, "yes"])
        engine = with_retries(script, clock=clock)
        assert await asked(engine, ["a"]) == [error]
        assert len(script.prompts) == 1 and clock() == 0
        assert (engine.counters.failures, engine.counters.under_way) == (1, 0)

    virtually(work)


@pytest.mark.parametrize(
    ("error", "tries"),
    [
        (EngineError("reset"), 1 + RETRIES),
        (EngineTimeout("408"), 1 + RETRIES),
        (EngineBusy("429"), 1 + BUSY_RETRIES),
    ],
    ids=lambda each: type(each).__name__,
)
def test_what_a_retry_can_help_is_asked_a_few_times_with_jitter(error: Exception, tries: int) -> None:
    async def work(clock: Callable[[], float]) -> None:
        moments: list[float] = []

        def answer(prompt: Prompt) -> Any:
            moments.append(clock())
            return error

        engine = with_retries(ScriptedEngine(answer), clock=clock, draw=random.Random(3).random)
        assert await asked(engine, ["a"]) == [error]
        assert len(moments) == tries
        gaps = [later - sooner for sooner, later in itertools.pairwise(moments)]
        longest = [min(LONGEST_WAIT, FIRST_WAIT * 2**number) for number in range(len(gaps))]
        assert all(most / 2 <= gap <= most for gap, most in zip(gaps, longest, strict=True))
        assert len({round(gap / most, 6) for gap, most in zip(gaps, longest, strict=True)}) == len(gaps)
        assert (engine.counters.retries, engine.counters.failures) == (tries - 1, 1)

    virtually(work)


def test_a_crowd_leaves_the_tries_for_broken_connections() -> None:
    async def work(clock: Callable[[], float]) -> None:
        busy, broken = EngineBusy("429"), EngineError("reset")
        for errors in ([busy] * BUSY_RETRIES + [broken] * RETRIES, [broken, busy] * RETRIES + [busy] * 5):
            engine = with_retries(ScriptedEngine([*errors, "yes"]), clock=clock)
            assert await asked(engine, ["a"]) == ["yes"], errors
        for last, errors in ((busy, [broken] * RETRIES + [busy] * 9), (broken, [busy] * 8 + [broken] * 4)):
            script = ScriptedEngine([*errors, "yes"])
            assert await asked(with_retries(script, clock=clock), ["a"]) == [last]
            assert len(script.prompts) == len(errors)

    virtually(work)


def test_a_server_that_wants_to_be_asked_at_once_is_given_time_all_the_same() -> None:
    async def work(clock: Callable[[], float]) -> None:
        engine = with_retries(ScriptedEngine([EngineBusy("429", retry_after=0.0)] * 5 + ["yes"]), clock=clock)
        assert await asked(engine, ["a"]) == ["yes"]
        assert clock() > FIRST_WAIT * (1 + 2 + 4 + 8 + 16) / 2

    virtually(work)


def test_what_failed_tries_spent_is_counted() -> None:
    async def work(clock: Callable[[], float]) -> None:
        cut = EngineError("cut off")
        cut.usage = Usage(calls=1, prompt=50, generated=7)  # type: ignore[attr-defined]
        engine = with_retries(ScriptedEngine([EngineError("reset"), cut, "two words"]), clock=clock)
        answer = await engine.generate(Prompt.of("one two three"))
        assert answer.usage == Usage(calls=3, prompt=53, generated=9)

    virtually(work)


def test_a_call_ends_at_its_deadline() -> None:
    async def work(clock: Callable[[], float]) -> None:
        engine = with_retries(ScriptedEngine(["late"], delay=1e9), timeout=30, clock=clock)
        (found,) = await asked(engine, ["a"])
        assert isinstance(found, EngineTimeout) and "30 seconds" in str(found)
        assert clock() == pytest.approx(30)
        assert (engine.counters.attempts, engine.counters.under_way) == (1, 0)

    virtually(work)


def test_a_try_that_is_cut_short_says_what_was_before_it() -> None:
    async def work(clock: Callable[[], float]) -> None:
        async def answer(prompt: Prompt) -> Any:
            if clock() == 0:
                return EngineError("HTTP 500")
            await asyncio.sleep(1e6)
            return "late"

        engine = with_retries(ScriptedEngine(answer), timeout=30, clock=clock)
        (found,) = await asked(engine, ["a"])
        assert isinstance(found, EngineTimeout) and "before that: HTTP 500" in str(found)
        assert clock() == pytest.approx(30)

    virtually(work)


def test_who_waits_for_a_second_try_until_the_end_hears_what_the_first_was() -> None:
    async def work(clock: Callable[[], float]) -> None:
        async def answer(prompt: Prompt) -> Any:
            name = prompt.messages[0].text
            if name == "call0" and clock() == 0:
                return EngineError("HTTP 500")
            await asyncio.sleep(20)
            return name

        engine = with_retries(ScriptedEngine(answer), concurrency=1, timeout=15, clock=clock)
        first, second = await asked(engine, names(2))
        assert isinstance(first, EngineError) and "HTTP 500" in str(first)
        assert isinstance(second, EngineTimeout)

    virtually(work)


def test_no_try_begins_that_could_not_end_in_time() -> None:
    async def work(clock: Callable[[], float]) -> None:
        errors = [EngineBusy("later", retry_after=40.0)] * 5
        script = ScriptedEngine(errors)
        engine = with_retries(script, timeout=30, clock=clock)
        assert await asked(engine, ["a"]) == [errors[0]]
        assert clock() == 0 and len(script.prompts) == 1
        # Those who come while it is to be left alone need not ask to know.
        (found,) = await asked(engine, ["b"])
        assert isinstance(found, EngineBusy) and "40 seconds" in str(found)
        assert clock() == 0 and len(script.prompts) == 1

    virtually(work)


def test_time_in_the_queue_is_not_the_calls_own() -> None:
    async def work(clock: Callable[[], float]) -> None:
        server = Server(100, latency=10.0)
        engine = server.engine(1, clock, timeout=20)
        assert await asked(engine, names(10)) == names(10)
        assert clock() > 50

    virtually(work)


def test_clock_sleep_and_chance_are_given() -> None:
    now, slept = [100.0], list[float]()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    script = ScriptedEngine([EngineError("a"), EngineBusy("b", retry_after=10.0), "yes"])
    engine = with_retries(script, clock=lambda: now[0], sleep=sleep, draw=lambda: 0.5)
    assert asyncio.run(asked(engine, ["a"])) == ["yes"]
    assert slept == [pytest.approx(FIRST_WAIT * 0.75), pytest.approx(10 * (1 + JITTER / 2))]


def test_all_verbs_are_steadied_and_the_engine_stays_what_it_is() -> None:
    from magistrate.engines.base import Option

    options = [Option("yes", ("yes",)), Option("no", ("no",))]
    busy = EngineBusy("429")
    script = ScriptedEngine([busy, {"yes": 0.9, "no": 0.1}, busy, [-1.0], busy, "text"])

    async def work(clock: Callable[[], float]) -> None:
        engine = with_retries(script, clock=clock)
        assert engine.info is script.info
        assert (await engine.choose(Prompt.of("a"), options)).usage.calls == 2
        assert (await engine.likelihood(Prompt.of("a"), "b")).usage.calls == 2
        assert (await engine.generate(Prompt.of("a"))).usage.calls == 2
        assert await engine.count(Prompt.of("a b c")) == 3

    virtually(work)


# --- loops and threads ---------------------------------------------------------------------------


def test_several_threads_with_loops_of_their_own_share_the_places() -> None:
    lock, under_way, most = threading.Lock(), [0], [0]

    async def answer(prompt: Prompt) -> str:
        with lock:
            under_way[0] += 1
            most[0] = max(most[0], under_way[0])
        await asyncio.sleep(0.002)
        with lock:
            under_way[0] -= 1
        return "yes"

    engine = with_retries(ScriptedEngine(answer), concurrency=3)
    found: list[Any] = []

    def ask() -> None:
        for _ in range(3):  # a loop after the other
            found.extend(asyncio.run(asked(engine, names(10))))

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert found == ["yes"] * 180
    assert most[0] <= 3
    assert (engine.counters.under_way, engine.counters.calls) == (0, 180)


def test_a_loop_that_ends_takes_no_place_along() -> None:
    limiter = ConcurrencyLimiter(1, clock=lambda: 0.0)

    def enter(ticket: int) -> Awaitable[int]:
        return limiter.enter(ticket)

    left = asyncio.new_event_loop()
    left.run_until_complete(enter(limiter.ticket()))
    waiting = [left.create_task(enter(limiter.ticket())) for _ in range(3)]  # type: ignore[arg-type]
    left.run_until_complete(asyncio.sleep(0))
    assert (limiter.taken, limiter.waiting) == (1, 3)
    left.close()  # without anybody having been told

    async def later() -> int:
        task = asyncio.ensure_future(enter(limiter.ticket()))
        await asyncio.sleep(0)
        limiter.leave()  # what the ended loop still held
        return await asyncio.wait_for(task, 5)

    assert asyncio.run(later()) == 0
    assert limiter.taken == 1
    for task in waiting:
        task._log_destroy_pending = False  # type: ignore[attr-defined]
    del waiting
    gc.collect()


def test_who_is_given_up_in_the_moment_of_being_admitted_frees_the_place() -> None:
    async def work() -> None:
        limiter = ConcurrencyLimiter(1, clock=lambda: 0.0)
        await limiter.enter(limiter.ticket())
        second = asyncio.create_task(limiter.enter(limiter.ticket()))
        await asyncio.sleep(0)
        limiter.leave()  # it is admitted, and has not heard of it
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        assert limiter.taken == 0
        await asyncio.wait_for(limiter.enter(limiter.ticket()), 5)

    asyncio.run(work())


def test_a_round_that_was_too_much_counts_once() -> None:
    async def work() -> None:
        limiter = ConcurrencyLimiter(8, clock=lambda: 0.0)
        begun = [await limiter.enter(limiter.ticket()) for _ in range(8)]
        for each in begun:
            limiter.overloaded(each)
            limiter.leave()
        assert limiter.limit == 4
        limiter.overloaded(await limiter.enter(limiter.ticket()))
        assert limiter.limit == 1

    asyncio.run(work())
