"""The laws of watching, whatever happens: spans in any order, failures, clocks that jump, killed workers."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sqlalchemy import func, select

from magistrate import _async
from magistrate.errors import EngineBusy, EngineGone
from magistrate.store import Store
from magistrate.store.decisions import UNDECIDED
from magistrate.store.schema import targets
from magistrate.types import Abstention, Sample
from magistrate.watch.worker import Watcher
from postgres import Server
from tiers import tries
from watched import Clock, Obedient, answer, plan, rules, watcher

RULES = (
    "name: all\njudges: [novelty]\nbudget: {hour: {calls: 4}}",
    "name: two\nquiet: 30\nsample: .7\nwhere: {colour: {in: [red, blue]}}\n"
    "judges: [novelty, {judge: hallucination, floor: .5}]",
)
OUTPUTS = ("Bern is large.", "Bern is small.", None)
DOCUMENTS = (("Bern has 134,000 people.",),) * 3 + ((),)

puts = st.tuples(
    st.just("put"),
    st.integers(0, 1),  # the trace
    st.sampled_from(OUTPUTS),
    st.sampled_from(DOCUMENTS),
    st.sampled_from(["red", "green"]),
    st.sampled_from(["both", "both", "backwards", "chain", "search", "open"]),
)
times = st.tuples(st.just("time"), st.sampled_from([1, 10, 30, 200, 400, 4000, 86_400, -86_400]))
moods = st.tuples(st.just("mood"), st.sampled_from(["sure", "unsure", "busy", "gone", "bug", "abstains"]))
steps = st.tuples(st.just("step"), st.integers(0, 1))
passes = st.just(("passes",))  # time enough for all that was put to be read and judged
crashes = st.tuples(st.just("crash"), st.sampled_from(["all", "two"]))
events = st.lists(
    st.one_of(puts, puts, passes, passes, times, moods, steps, crashes), min_size=1, max_size=25
)


ONE, OTHER = ((0, output, DOCUMENTS[0], "red", "both") for output in OUTPUTS[:2])
BACK_AND_FORTH = [event for which in (ONE, OTHER, ONE) for event in (("put", *which), ("passes",))]


class World:
    """A store with two workers, and judges in a mood."""

    def __init__(self, place: str | Path) -> None:
        self.clock = Clock()
        self.store = Store.open(place, clock=self.clock, randomness=random.Random(1))
        self.mood = "sure"
        self.rules = rules(*RULES)
        self.judges = {
            rule.name: [Obedient(self._say, name) for name in ("cheap", "dear")[: len(rule.judges)]]
            for rule in self.rules
        }
        plans = {name: [plan(each) for each in judges] for name, judges in self.judges.items()}
        self.workers = [
            Watcher(self.store, self.rules, clock=self.clock, randomness=random.Random(seed), plans=plans)
            for seed in (1, 2)
        ]
        for worker in self.workers:
            worker.register()

    def _say(self, sample: Sample) -> Any:
        return {
            "sure": 0.9,
            "unsure": 0.5,
            "busy": EngineBusy("too many requests"),
            "gone": EngineGone("no server"),
            "bug": ValueError("a bug"),
            "abstains": Abstention(sample.id, "cheap", "uncertain", "not sure"),
        }[self.mood]

    def happens(self, event: Sequence[Any]) -> None:
        match event:
            case ("put", number, output, documents, colour, which):
                outer, search = answer(number, output, documents, ended=which != "open", colour=colour)
                spans = {"backwards": [search, outer], "chain": [outer], "search": [search]}
                self.store.traces.put(spans.get(which, [outer, search]), self.clock())
            case ("time", seconds):
                self.clock.pass_(seconds=seconds)
            case ("mood", mood):
                self.mood = mood
            case ("passes",):
                self.clock.pass_(hours=1)
                _async.run(self.workers[0].drain())
            case ("step", number):
                _async.run(self.workers[number].step())
            case ("crash", name):  # somebody takes what is due, and is never heard of again
                record, now = self.store.traces.rule(name), self.clock()
                assert record is not None
                until = now + timedelta(seconds=120)
                self.store.traces.lease(record, "dead", until, now, lambda *_: 2)

    def check(self) -> None:
        with self.store.traces._reading() as connection:
            n = connection.scalar(select(func.count()).where(targets.c.gone == 0))
        for rule in self.rules:
            found = self.store.traces.decisions(rule.name)
            live = [each.target for each in found if each.state != "superseded"]
            assert len(live) == len(set(live)) == n
            assert sum(self.store.traces.counts(rule.name).values()) == len(found)
            assert all((each.due_at is None) == (each.state not in UNDECIDED) for each in found)
        for each in chain.from_iterable(self.judges.values()):
            assert set(each.given.values()) <= {1}

    def heals(self) -> None:
        """All is well for long enough: nothing is left undone."""
        self.mood = "sure"
        self.clock.now += timedelta(days=2)
        for number in range(6):
            self.clock.pass_(hours=2)
            _async.run(self.workers[number % 2].drain())
        self.check()
        for rule in self.rules:
            assert not set(self.store.traces.counts(rule.name)) & set(UNDECIDED)


def lived(place: str | Path, happened: Sequence[Sequence[Any]]) -> None:
    world = World(place)
    with world.store:
        for event in happened:
            world.happens(event)
            world.check()
        world.heals()


@settings(max_examples=tries(15))
@example(BACK_AND_FORTH)
@given(events)
def test_whatever_happens_every_target_has_one_decision_and_nothing_is_judged_twice(
    happened: Sequence[Sequence[Any]],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        lived(Path(folder) / "watched.db", happened)


@pytest.mark.full
def test_and_on_postgresql(postgres: Server) -> None:
    @settings(max_examples=10)
    @given(events)
    def on_a_server(happened: Sequence[Sequence[Any]]) -> None:
        lived(postgres.new_database(), happened)

    on_a_server()


# --- kill -9 --------------------------------------------------------------------------------------

DYING = """
import asyncio, sys
from datetime import UTC, datetime
from magistrate.store import Store
from watched import Obedient, rules, watcher

async def main():
    with Store.open(sys.argv[1]) as store:
        judge = Obedient(lambda sample: 0.9)
        these = rules("name: all\\njudges: [novelty]")
        worker = watcher(store, these, lambda: datetime.now(UTC), judge, lease=1)
        print("begun", flush=True)
        await worker.run(poll=0.01)

asyncio.run(main())
"""


@pytest.mark.full
def test_workers_that_are_killed_again_and_again_lose_nothing(place: str) -> None:
    seed = random.Random(7)
    with Store.open(place) as store:
        stored = 0
        while stored < 300:
            store.traces.put(
                [span for i in range(100) for span in answer(stored + i)],
                datetime.now(UTC) - timedelta(minutes=1),
            )
            stored += 100
        paths = {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
        for _ in range(4):
            worker = subprocess.Popen(
                [sys.executable, "-c", DYING, place], env=os.environ | paths, stdout=subprocess.PIPE
            )
            assert worker.stdout is not None
            worker.stdout.readline()
            time.sleep(seed.uniform(0.2, 0.9))
            worker.send_signal(signal.SIGKILL)
            worker.wait()
            worker.stdout.close()
        clock = Clock(datetime.now(UTC) + timedelta(seconds=5))
        heir = watcher(store, rules("name: all\njudges: [novelty]"), clock, Obedient(lambda sample: 0.9))
        _async.run(heir.drain())
        assert store.traces.counts("all") == {"judged": 300}
        (run,) = store.runs()
        assert (run.n_samples, run.n_verdicts) == (300, 300)
