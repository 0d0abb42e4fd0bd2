"""What is watched: every target has one decision of every rule, and nothing is judged twice or forgotten."""

from __future__ import annotations

import asyncio
import random
import re
import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import event
from sqlalchemy.engine import Engine as Database

from magistrate import _async
from magistrate.engines.base import Engine
from magistrate.errors import EngineBusy, EngineGone, StoreError
from magistrate.store import Store
from magistrate.store.decisions import Settled
from magistrate.store.traces import Traces
from magistrate.types import Outcome, Sample, Verdict
from magistrate.watch.worker import Watcher
from watched import NOON, Clock, Obedient, answer, plan, rules, watcher

RULE = "name: all\njudges: [novelty]"
RATES = {"tenth": ".1", "third": "{rate: .3}"}


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(place: str, clock: Clock) -> Iterator[Store]:
    with Store.open(place, clock=clock, randomness=random.Random(1)) as opened:
        yield opened


def drain(*workers: Watcher) -> None:
    for each in workers:
        _async.run(each.drain())


def judge(score: float = 0.9) -> Obedient:
    return Obedient(lambda sample: score)


def test_an_answer_is_judged_once_its_trace_is_quiet(store: Store, clock: Clock) -> None:
    asked = judge()
    worker = watcher(store, rules(RULE), clock, asked)
    assert store.traces.put(answer(1), clock()) == 2
    assert store.traces.put(answer(1), clock()) == 0  # a duplicate changes nothing
    drain(worker)
    assert store.traces.counts("all") == {}
    clock.pass_(seconds=10)
    drain(worker)
    assert store.traces.counts("all") == {"judged": 1}
    (decided,) = store.traces.decisions("all")
    assert decided.inclusion == 1.0 and decided.attempts == 1 and decided.outcome_id is not None
    assert [(each["judge"], each["label"], each["score"]) for each in decided.asked] == [
        ("obedient", "hallucinated", 0.9)
    ]
    (run,) = store.runs()
    assert (run.name, run.status, run.n_verdicts, run.tags) == ("watch all v1", "done", 1, ("watch",))
    assert [sample.output for sample in store.samples(run.id)] == ["Bern has 134,000 people."]


def states(store: Store, rule: str = "all") -> dict[str, int]:
    return {state: n for state, n in store.traces.counts(rule).items() if state != "superseded"}


def settled(store: Store, clock: Clock, *workers: Watcher, seconds: float = 10) -> None:
    clock.pass_(seconds=seconds)
    drain(*workers)


# --- what is decided before a judge is asked ------------------------------------------------------


def test_every_target_has_a_state_and_a_reason(store: Store, clock: Clock) -> None:
    text = """
name: all
environment: production
where: {team: {in: [a, b]}, tokens: {at_least: 20}, draft: {exists: false}}
judges: [novelty]
"""
    worker = watcher(store, rules(text), clock, judge())
    good = {"team": "a", "tokens": 20, "deployment.environment": "production"}
    cases = {
        "judged": answer(1, **good),
        "no_output": answer(2, output=None, **good),
        "no_context": answer(3, documents=(), **good),
        "loop": answer(4, service="magistrate", **good),
        "environment: it is not 'production'": answer(5, **good | {"deployment.environment": "test"}),
        "team: it is not one of the given values": answer(6, **good | {"team": "<script>"}),
        "tokens: it is not a number at least 20": answer(7, **good | {"tokens": "many"}),
        "draft: it exists": answer(8, **good, draft=True),
        "tokens: it does not exist": answer(9, **{k: v for k, v in good.items() if k != "tokens"}),
    }
    for spans in cases.values():
        store.traces.put(spans, clock())
    settled(store, clock, worker)
    assert states(store) == {"filtered": 5, "judged": 1, "loop": 1, "no_context": 1, "no_output": 1}
    for told, spans in cases.items():
        (decided,) = store.traces.decisions("all", trace_id=spans[0].trace_id)
        assert told in (decided.state, decided.reason)


def test_sampling_is_by_trace_and_its_probability_is_kept(store: Store, clock: Clock) -> None:
    texts = (
        "name: tenth\nsample: .1\njudges: [novelty]",
        "name: third\nsample: {rate: .3}\njudges: [novelty]",
    )
    worker = watcher(store, rules(*texts), clock, judge())
    for number in range(200):
        store.traces.put(answer(number), clock())
    settled(store, clock, worker)
    taken = {
        name: {each.target for each in store.traces.decisions(name) if each.state == "judged"}
        for name in ("tenth", "third")
    }
    assert taken["tenth"] < taken["third"]  # one cohort
    assert 8 < len(taken["tenth"]) < 35 and 40 < len(taken["third"]) < 80
    assert {each.inclusion for each in store.traces.decisions("tenth")} == {0.1}
    assert sum(states(store, "tenth").values()) == 200


def test_a_rule_may_want_longer_quiet_and_a_trace_without_an_end_is_read_at_last(
    store: Store, clock: Clock
) -> None:
    worker = watcher(store, rules(RULE, "name: slow\nquiet: 1m\njudges: [novelty]"), clock, judge())
    store.traces.put(answer(1), clock())
    store.traces.put(answer(2, ended=False), clock())
    settled(store, clock, worker)
    assert (states(store), states(store, "slow")) == ({"judged": 1}, {"waiting": 1})
    settled(store, clock, worker, seconds=50)
    assert states(store, "slow") == {"judged": 1}
    settled(store, clock, worker, seconds=240)
    assert (states(store), states(store, "slow")) == ({"judged": 2}, {"judged": 2})


# --- late, early and strange spans ----------------------------------------------------------------


def test_late_spans_are_judged_again_only_if_they_change_what_is_judged(store: Store, clock: Clock) -> None:
    asked = judge()
    worker = watcher(store, rules(RULE), clock, asked)
    chain, search = answer(1)
    store.traces.put([chain, search], clock())
    settled(store, clock, worker)
    store.traces.put(answer(1, colour="red"), clock())  # an attribute that no judge reads
    settled(store, clock, worker)
    assert store.traces.counts("all") == {"judged": 1}
    store.traces.put(answer(1, documents=("Bern has 134,000 people.", "In 2020.")), clock())
    settled(store, clock, worker)
    assert store.traces.counts("all") == {"judged": 1, "superseded": 1}
    before, after = store.traces.decisions("all")
    assert (before.revision, after.revision) == (1, 2)
    assert before.asked and after.asked and before.outcome_id != after.outcome_id  # both verdicts are kept
    store.traces.put([chain, search], clock())  # what it was at first
    settled(store, clock, worker)
    assert store.traces.counts("all") == {"judged": 1, "superseded": 2}
    assert store.traces.decisions("all")[-1].outcome_id == before.outcome_id
    assert sum(asked.given.values()) == 2


def test_an_attribute_that_comes_late_is_seen_by_every_rule(store: Store, clock: Clock) -> None:
    picky = "where: {team: {in: [a]}}\njudges: [novelty]"
    worker = watcher(store, rules(f"name: one\n{picky}", f"name: two\n{picky}"), clock, judge())
    store.traces.put(answer(1, team="b"), clock())
    settled(store, clock, worker)
    assert [store.traces.counts(name) for name in ("one", "two")] == [{"filtered": 1}] * 2
    store.traces.put(answer(1, team="a"), clock())
    settled(store, clock, worker)
    assert [store.traces.counts(name) for name in ("one", "two")] == [{"judged": 1}] * 2


def test_what_was_missing_may_come_late(store: Store, clock: Clock) -> None:
    worker = watcher(store, rules(RULE), clock, judge())
    chain, search = answer(1)
    store.traces.put([chain], clock())
    settled(store, clock, worker)
    assert states(store) == {"no_context": 1}
    store.traces.put([search], clock())
    settled(store, clock, worker)
    assert states(store) == {"judged": 1}


def test_the_order_in_which_spans_come_and_the_clocks_of_applications_change_nothing(
    store: Store, clock: Clock
) -> None:
    asked = judge()
    worker = watcher(store, rules(RULE), clock, asked)
    for number, skew in enumerate((-1, 0, 1)):
        for span in reversed(answer(number, begin=NOON + timedelta(days=skew))):
            store.traces.put([span], clock())
    chain, _ = answer(0, begin=NOON - timedelta(days=1), ended=False)
    store.traces.put([chain], clock())  # its beginning, after its end: the end stays
    settled(store, clock, worker)
    assert states(store) == {"judged": 3}
    assert set(asked.given.values()) == {1}


def test_a_clock_that_is_set_back_a_day_forgets_nothing(store: Store, clock: Clock) -> None:
    worker = watcher(store, rules(RULE), clock, judge())
    store.traces.put(answer(1), clock())
    clock.pass_(days=-1)
    store.traces.put(answer(2), clock())
    settled(store, clock, worker)
    settled(store, clock, worker, seconds=86_400)
    assert states(store) == {"judged": 2}


# --- what fails -----------------------------------------------------------------------------------


class Flaky:
    """Raises what it is told to, until it is told nothing."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error

    def __call__(self, sample: Sample) -> float | BaseException:
        return 0.1 if self.error is None else self.error


@pytest.mark.parametrize("error", [EngineBusy("too many requests"), EngineGone("no server")])
def test_what_may_pass_is_tried_again_for_ever_and_ever_less_often(
    store: Store, clock: Clock, error: Exception
) -> None:
    flaky = Flaky(error)
    asked = Obedient(flaky)
    worker = watcher(store, rules(RULE), clock, asked)
    store.traces.put(answer(1), clock())
    clock.pass_(seconds=10)
    pauses = []
    for _ in range(15):
        drain(worker)
        (decided,) = store.traces.decisions("all")
        assert decided.state == "retrying" and decided.due_at is not None and str(error) in decided.reason
        pauses.append((decided.due_at - clock()).total_seconds())
        clock.now = decided.due_at
    assert (pauses[0] < 13 and pauses == sorted(pauses)[: len(pauses)]) or max(pauses) <= 4500
    flaky.error = None
    drain(worker)
    assert states(store) == {"judged": 1}
    assert store.traces.decisions("all")[0].attempts == 16


def test_what_does_not_pass_fails_after_three_attempts(store: Store, clock: Clock) -> None:
    worker = watcher(store, rules(RULE), clock, Obedient(Flaky(ValueError("a bug"))))
    store.traces.put(answer(1), clock())
    for _ in range(5):
        settled(store, clock, worker, seconds=100)
    (decided,) = store.traces.decisions("all")
    assert (decided.state, decided.attempts, decided.due_at) == ("failed", 3, None)
    assert "a bug" in decided.reason
    (failure,) = store.outcomes(store.runs()[0].id)
    assert failure.sample_id == f"{1:032x}.{'a' * 16}"


class Killed(BaseException):
    """As `kill -9`: nothing that comes after it is done."""


class DiesBetween(Traces):
    """Dies when it is to store what a judge has answered."""

    def settle(self, settled: Sequence[Settled]) -> list[bool]:
        raise Killed


def test_a_worker_that_dies_with_an_answer_in_its_hands_is_succeeded(store: Store, clock: Clock) -> None:
    asked = judge()
    these = rules(RULE)
    dying = watcher(store, these, clock, asked)
    heir = watcher(store, these, clock, asked, seed=2)
    store.traces.put(answer(1), clock())
    clock.pass_(seconds=10)

    dying._traces = DiesBetween(store.traces._writing, store.traces._reading)
    with pytest.raises(Killed):
        drain(dying)
    drain(heir)
    assert states(store) == {"queued": 1}  # the dead one's lease holds
    settled(store, clock, heir, seconds=121)
    assert states(store) == {"judged": 1}
    assert store.find_run("watch all v1").n_outcomes == 1


def test_what_kills_its_workers_is_taken_alone_and_fails_in_the_end(store: Store, clock: Clock) -> None:
    these = rules(RULE + "\nconcurrency: 2")
    for number in range(5):
        store.traces.put(answer(number), clock())
    clock.pass_(seconds=10)
    poison = f"{3:032x}.{'a' * 16}"

    def scored(sample: Sample) -> float:
        if sample.id == poison:
            raise Killed
        return 0.9

    worker = watcher(store, these, clock, Obedient(scored))
    worker._traces = Unheard(store.traces._writing, store.traces._reading)
    for _ in range(10):
        with suppress(Killed, BaseExceptionGroup):
            drain(worker)
        clock.pass_(seconds=121)
    assert states(store) == {"judged": 4, "failed": 1}
    (failed,) = (each for each in store.traces.decisions("all") if each.state == "failed")
    assert failed.reason == "3 workers ended while judging it"


class Unheard(Traces):
    """Of a process that ends at once: what it had in work it does not give back."""

    def settle(self, settled: Sequence[Settled]) -> list[bool]:
        return super().settle([each for each in settled if each.change.reason != "interrupted"])


def test_a_trace_that_cannot_be_read_has_failed_until_it_can(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = watcher(store, rules(RULE), clock, judge())
    store.traces.put(answer(1)[1:], clock())
    with monkeypatch.context() as patched:
        patched.setattr("magistrate.watch.reading.targets", lambda *_: 1 / 0)
        settled(store, clock, worker, seconds=400)
    (decided,) = store.traces.decisions("all")
    assert (decided.state, decided.reason) == (
        "failed",
        "the trace cannot be read: ZeroDivisionError: division by zero",
    )
    store.traces.put(answer(1), clock())
    settled(store, clock, worker)
    assert states(store)["judged"] == 1
    with monkeypatch.context() as patched:  # what was taken before stands
        patched.setattr("magistrate.watch.reading.targets", lambda *_: 1 / 0)
        store.traces.put(answer(1, "Another answer."), clock())
        settled(store, clock, worker, seconds=400)
    assert states(store)["judged"] == 1


def test_two_workers_on_one_store_judge_nothing_twice(place: str, store: Store, clock: Clock) -> None:
    asked = Obedient(lambda sample: 0.9)
    these = rules(RULE + "\nconcurrency: 2")
    for number in range(60):
        store.traces.put(answer(number), clock())
    clock.pass_(seconds=10)
    with Store.open(place, clock=clock, randomness=random.Random(2)) as other:
        workers = [watcher(each, these, clock, asked, seed=n) for n, each in enumerate((store, other))]

        async def both() -> None:
            await asyncio.gather(*(each.drain() for each in workers))

        _async.run(both())
        assert states(store) == {"judged": 60}
        assert set(asked.given.values()) == {1} and len(asked.given) == 60
        (run,) = store.runs()
        assert run.n_verdicts == 60
        assert {each.attempts for each in store.traces.decisions("all")} == {1}


def test_an_answer_after_the_lease_is_not_stored(place: str, store: Store, clock: Clock) -> None:
    with Store.open(place, clock=clock, randomness=random.Random(2)) as other:
        heir = watcher(other, rules(RULE), clock, Obedient(lambda sample: 0.1))

        class Slow(Traces):
            def settle(self, settled: Sequence[Settled]) -> list[bool]:  # another takes over before
                clock.pass_(seconds=121)
                while _step(heir):
                    pass
                return super().settle(settled)

        slow = watcher(store, rules(RULE), clock, Obedient(lambda sample: 0.9))
        slow._traces = Slow(store.traces._writing, store.traces._reading)
        store.traces.put(answer(1), clock())
        settled(store, clock, slow)
        (decided,) = store.traces.decisions("all")
        assert [each["score"] for each in decided.asked] == [0.1]
        assert [(each.score) for each in store.outcomes(store.runs()[0].id)] == [0.1]  # type: ignore[union-attr]
        spent = sum(each.spent.calls for each in store.traces.hours("all", clock()))
        assert spent == 2  # both were paid for


def test_a_lease_that_cannot_be_renewed_once_is_renewed_next_time(store: Store, clock: Clock) -> None:
    """A store that is locked for a moment ends no worker, and no answer is judged by two."""
    renewed = list[bool]()

    class Locked(Traces):
        def renew(self, *told: object) -> None:
            renewed.append(bool(renewed))
            if len(renewed) == 1:
                raise StoreError("the database is locked")
            super().renew(*told)  # type: ignore[arg-type]

    class Slow(Obedient):
        async def judge(self, sample: Sample, engine: Engine) -> Outcome:
            async with asyncio.timeout(10):
                while len(renewed) < 3:  # noqa: ASYNC110 (another task renews)
                    await asyncio.sleep(0.01)
            return await super().judge(sample, engine)

    worker = watcher(store, rules(RULE), clock, Slow(lambda sample: 0.9), lease=0.15)
    worker._traces = Locked(store.traces._writing, store.traces._reading)
    store.traces.put(answer(1), clock())
    settled(store, clock, worker)
    assert states(store) == {"judged": 1} and renewed[:3] == [False, True, True]


class Full(Traces):
    """A store without room for results, as often as `times` says, nor for anything else if it `is_down`."""

    times = 0
    is_down = False

    def settle(self, settled: Sequence[Settled]) -> list[bool]:
        if settled and Full.times:
            Full.times -= 1
            raise StoreError("the disk is full")
        return super().settle(settled)

    def renew(self, *told: object) -> None:
        if Full.is_down and Full.times:
            raise StoreError("the disk is full")
        super().renew(*told)  # type: ignore[arg-type]


def test_what_could_not_be_stored_is_stored_later_and_not_judged_again(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Full, "times", 9)
    monkeypatch.setattr(Full, "is_down", True)
    asked, last = judge(0.5), Obedient(lambda _: 0.9, "last")
    worker = watcher(store, rules("name: all\njudges: [novelty, hallucination]"), clock, asked, last)
    worker._traces = Full(store.traces._writing, store.traces._reading)
    for number in range(5):
        store.traces.put(answer(number + 1), clock())
    clock.pass_(seconds=10)
    while Full.times:
        with pytest.raises(StoreError):
            drain(worker)
        assert states(store) == {"queued": 5}
    drain(worker)
    assert states(store) == {"judged": 5}, "without a wait for the end of a lease"
    for each in (asked, last):
        assert len(each.given) == 5 and set(each.given.values()) == {1}
    assert sum(hour.spent.calls for hour in store.traces.hours("all", clock())) == 10


def test_what_cannot_be_stored_for_itself_holds_nothing_up(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = watcher(store, rules(RULE), clock, judge())
    worker._traces = Full(store.traces._writing, store.traces._reading)
    store.traces.put(answer(1), clock())
    clock.pass_(seconds=10)
    monkeypatch.setattr(Full, "times", 100)
    for _ in range(3):
        with pytest.raises(StoreError):
            drain(worker)
    drain(worker)  # it is given up, and its lease will end
    monkeypatch.setattr(Full, "times", 0)
    store.traces.put(answer(2), clock())
    settled(store, clock, worker)
    assert states(store) == {"judged": 1, "queued": 1}
    settled(store, clock, worker, seconds=120)
    assert states(store) == {"judged": 2}


def test_a_slow_rule_delays_no_other(store: Store, clock: Clock) -> None:
    begun, free = asyncio.Event(), asyncio.Event()

    class Slow(Obedient):
        async def judge(self, sample: Sample, engine: Engine) -> Outcome:
            begun.set()
            await free.wait()
            return await super().judge(sample, engine)

    these = rules("name: slow\njudges: [novelty]\nquiet: 0s", "name: quick\njudges: [novelty]\nquiet: 0s")
    plans = {"slow": [plan(Slow(lambda _: 0.9))], "quick": [plan(judge())]}
    worker = Watcher(store, these, clock=clock, randomness=random.Random(1), plans=plans)
    worker.register()

    async def until(rule: str, n: int) -> None:
        while states(store, rule).get("judged", 0) < n:  # noqa: ASYNC110 (a store tells nobody)
            await asyncio.sleep(0.01)

    async def watched() -> None:
        async with asyncio.timeout(20):
            running = asyncio.create_task(worker.run(poll=0.01))
            store.traces.put(answer(1), clock())
            await begun.wait()
            store.traces.put(answer(2), clock())
            await until("quick", 2)
            assert states(store, "slow").get("judged", 0) == 0
            free.set()
            await until("slow", 2)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    _async.run(watched())


def test_a_worker_that_was_just_busy_looks_again_soon(store: Store, clock: Clock) -> None:
    worker = watcher(store, rules("name: all\njudges: [novelty]\nquiet: 0s"), clock, judge())

    async def watched() -> None:
        async with asyncio.timeout(20):
            running = asyncio.create_task(worker.run(poll=60))
            for n in range(1, 4):
                store.traces.put(answer(n), clock())
                while states(store).get("judged", 0) < n:  # noqa: ASYNC110 (a store tells nobody)
                    await asyncio.sleep(0.01)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    _async.run(watched())


def test_what_cannot_be_stored_fails_and_takes_nothing_with_it(store: Store, clock: Clock) -> None:
    def said(sample: Sample) -> object:
        details = {"of": object()} if sample.id.startswith(f"{2:032x}") else {}
        return Verdict(sample.id, "obedient", "hallucinated", 0.9, details=details)

    worker = watcher(store, rules(RULE), clock, Obedient(said))
    for number in range(4):
        store.traces.put(answer(number), clock())
    settled(store, clock, worker)
    assert states(store) == {"judged": 3, "retrying": 1}
    for _ in range(3):
        settled(store, clock, worker, seconds=100)
    assert states(store) == {"judged": 3, "failed": 1}


def _step(worker: Watcher) -> bool:
    """One step of a worker within another's."""
    with ThreadPoolExecutor(1) as pool:
        return bool(pool.submit(asyncio.run, worker.step()).result())


# --- several judges -------------------------------------------------------------------------------

CASCADE = """
name: all
judges:
  - novelty
  - {judge: hallucination, uncertain: [.2, .8], floor: .25}
"""


def test_the_dear_judge_is_asked_of_the_uncertain_and_of_a_share_of_all(store: Store, clock: Clock) -> None:
    cheap = Obedient(lambda sample: 0.5 if "unsure" in sample.output else 0.1, "cheap")
    dear = Obedient(lambda sample: 0.9, "dear")
    worker = watcher(store, rules(CASCADE), clock, cheap, dear)
    for number in range(100):
        store.traces.put(answer(number, "unsure" if number < 20 else "sure"), clock())
    settled(store, clock, worker)
    assert states(store) == {"judged": 100}
    found = Counter(
        tuple((each["judge"], each["inclusion"]) for each in decided.asked)
        for decided in store.traces.decisions("all")
    )
    assert found[("cheap", 1.0), ("dear", 1.0)] == 20
    floor = found[("cheap", 1.0), ("dear", 0.25)]
    assert floor + found[(("cheap", 1.0),)] == 80 and 10 <= floor <= 35
    (run,) = store.runs()
    assert run.n_verdicts == 120 + floor and run.n_samples == 100
    kept = [each.get("outcome") for one in store.traces.decisions("all") for each in one.asked]
    assert None not in kept and len(set(kept)) == run.n_verdicts, "each answer names its outcome"


def test_a_failure_of_the_dear_judge_does_not_ask_the_cheap_one_again(store: Store, clock: Clock) -> None:
    flaky = Flaky(EngineBusy("full"))
    cheap, dear = Obedient(lambda sample: 0.5, "cheap"), Obedient(flaky, "dear")
    worker = watcher(store, rules(CASCADE), clock, cheap, dear)
    store.traces.put(answer(1), clock())
    settled(store, clock, worker)
    assert states(store) == {"retrying": 1}
    flaky.error = None
    settled(store, clock, worker, seconds=60)
    assert states(store) == {"judged": 1}
    assert list(cheap.given.values()) == list(dear.given.values()) == [1]
    assert store.traces.decisions("all")[0].calls == 2


# --- budgets, and what rules give up --------------------------------------------------------------


@pytest.mark.parametrize("budget", ["{hour: {calls: 10}}", "{hour: {tokens: 100}}", "{hour: {dollars: .1}}"])
def test_a_budget_puts_off_and_never_writes_off(store: Store, clock: Clock, budget: str) -> None:
    asked = judge()
    worker = watcher(store, rules(f"{RULE}\nbudget: {budget}\nconcurrency: 1"), clock, asked)
    for number in range(25):
        store.traces.put(answer(number), clock())
    settled(store, clock, worker)
    assert states(store) == {"judged": 10, "budget_deferred": 15}
    waiting = [each for each in store.traces.decisions("all") if each.state == "budget_deferred"]
    assert {each.due_at for each in waiting} == {NOON + timedelta(hours=1)}
    assert "of this hour have been spent" in waiting[0].reason
    clock.now = NOON + timedelta(minutes=59)
    drain(worker)
    assert states(store)["judged"] == 10
    for hour, n in ((1, 20), (2, 25)):
        clock.now = NOON + timedelta(hours=hour)
        drain(worker)
        assert states(store)["judged"] == n
    assert set(asked.given.values()) == {1}


def test_a_budget_of_less_than_one_target_takes_still_lets_one_begin(store: Store, clock: Clock) -> None:
    worker = watcher(store, rules(f"{RULE}\nbudget: {{day: {{tokens: 3}}}}"), clock, judge())
    for number in range(3):
        store.traces.put(answer(number), clock())
    settled(store, clock, worker)
    for day in (1, 2, 3):
        assert states(store)["judged"] == day
        clock.now = NOON.replace(hour=0) + timedelta(days=day)
        drain(worker)


def test_two_workers_share_a_budget(place: str, store: Store, clock: Clock) -> None:
    asked = judge()
    these = rules(f"{RULE}\nbudget: {{hour: {{calls: 10}}}}\nconcurrency: 3")
    for number in range(40):
        store.traces.put(answer(number), clock())
    clock.pass_(seconds=10)
    with Store.open(place, clock=clock, randomness=random.Random(2)) as other:
        workers = [watcher(each, these, clock, asked, seed=n) for n, each in enumerate((store, other))]

        async def both() -> None:
            await asyncio.gather(*(each.drain() for each in workers))

        _async.run(both())
        drain(*workers)
    assert states(store) == {"judged": 10, "budget_deferred": 30}


def test_only_what_a_rule_says_ends_what_waits(store: Store, clock: Clock) -> None:
    flaky = Flaky(EngineGone("no server"))
    texts = ("name: all\njudges: [novelty]", "name: short\nkeep: 1h\njudges: [novelty]")
    texts += ("name: few\nmost_queued: 3\njudges: [novelty]",)
    worker = watcher(store, rules(*texts), clock, Obedient(flaky))
    for number in range(5):
        store.traces.put(answer(number), clock())
        settled(store, clock, worker)
    settled(store, clock, worker, seconds=3 * 86_400)
    assert states(store) == {"retrying": 5}
    assert states(store, "short") == {"expired": 5}
    assert states(store, "few") == {"retrying": 3, "shed": 2}


def test_of_what_was_decided_at_one_moment_no_more_wait_than_the_rule_says(
    store: Store, clock: Clock
) -> None:
    text = "name: few\nmost_queued: 3\njudges: [novelty]"
    worker = watcher(store, rules(text), clock, Obedient(Flaky(EngineGone("no server"))))
    for number in range(5):
        store.traces.put(answer(number), clock())
    settled(store, clock, worker)
    assert states(store, "few") == {"retrying": 3, "shed": 2}


# --- rules change ---------------------------------------------------------------------------------


def test_a_new_version_takes_over_what_is_open_and_leaves_what_is_judged(store: Store, clock: Clock) -> None:
    flaky = Flaky(None)
    worker = watcher(store, rules(RULE), clock, Obedient(flaky))
    store.traces.put(answer(1), clock())
    settled(store, clock, worker)
    flaky.error = EngineGone("a wrong model")
    store.traces.put(answer(2), clock())
    settled(store, clock, worker)
    assert states(store) == {"judged": 1, "retrying": 1}
    mended = judge()
    worker = watcher(store, rules(RULE + "\norder: newest"), clock, mended)
    drain(worker)
    assert store.traces.counts("all") == {"judged": 2, "superseded": 1}
    assert sum(mended.given.values()) == 1
    assert [each.version for each in store.traces.decisions("all")] == [1, 1, 2]
    assert {run.name for run in store.runs()} == {"watch all v1", "watch all v2"}


def test_a_rule_decides_of_the_past_only_where_it_is_told_to(store: Store, clock: Clock) -> None:
    drain(watcher(store, rules("name: other\njudges: [novelty]"), clock, judge()))
    for number in range(3):
        store.traces.put(answer(number), clock())
        settled(store, clock, watcher(store, rules("name: other\njudges: [novelty]"), clock, judge()))
        clock.pass_(days=1)
    worker = watcher(store, rules(RULE), clock, judge())
    drain(worker)
    assert states(store) == {}
    worker.register(since=clock() - timedelta(days=2, minutes=1))
    drain(worker)
    assert states(store) == {"judged": 2}


def test_what_an_answer_costs_does_not_grow_with_the_store(tmp_path: Path, clock: Clock) -> None:
    """No statement of storing and judging reads a whole table, but for the few rows of rules."""
    place, asked = tmp_path / "watch.db", dict[str, tuple[object, ...]]()

    def note(_connection: object, _cursor: object, statement: str, values: object, *_: object) -> None:
        given = values[0] if isinstance(values, list) else values
        asked.setdefault(statement, given)

    with Store.open(place, clock=clock, randomness=random.Random(1)) as store:
        worker = watcher(store, rules(RULE), clock, judge())
        event.listen(Database, "before_cursor_execute", note)
        try:
            for number in range(1, 4):
                store.traces.put(answer(number), clock())
                clock.pass_(seconds=10)
                drain(worker)
        finally:
            event.remove(Database, "before_cursor_execute", note)
        assert store.traces.counts("all") == {"judged": 3}
    asked = {each: values for each, values in asked.items() if re.match(r"SELECT|INSERT|UPDATE|DELETE", each)}
    assert len(asked) > 20
    with closing(sqlite3.connect(place)) as connection:
        scans = {
            (step, statement)
            for statement, values in asked.items()
            for *_, step in connection.execute(f"EXPLAIN QUERY PLAN {statement}", values)
            if re.match(r"SCAN (spans|traces|targets|decisions|outcomes|samples|run_samples|steps)\b", step)
        }
    # The index has unread traces only.
    assert {step for step, _ in scans} <= {"SCAN traces USING INDEX traces_unread"}, scans
