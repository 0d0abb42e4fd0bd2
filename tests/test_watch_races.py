"""Two processes on one PostgreSQL at once: each test holds both where they met, then lets them go."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import psycopg
import pytest
from psycopg import sql

from magistrate import _async
from magistrate.datasets.spans.targets import targets
from magistrate.store import Store
from magistrate.store.decisions import Change, Draft, Settled, TargetRecord
from magistrate.store.traces import Read
from magistrate.types import Verdict
from postgres import Server
from watched import NOON, Clock, Obedient, answer, rules, watcher

pytestmark = pytest.mark.full

RULE = "name: all\njudges: [novelty]"
TRACE = f"{1:032x}"


@pytest.fixture
def url(postgres: Server) -> str:
    return postgres.new_database()


@contextmanager
def at_once(
    postgres: Server, url: str, held: str, *work: Callable[[Store], object]
) -> Iterator[list[object]]:
    """Begin all work while a transaction keeps `held`, one after the other; then let go and wait for all.

    What they returned or raised is there after the block, in which the transaction still is open.
    """
    found: list[object] = [None] * len(work)

    def do(place: int) -> None:
        try:
            with Store.open(url, clock=Clock()) as store:
                found[place] = work[place](store)
        except Exception as error:
            found[place] = error

    threads = [threading.Thread(target=do, args=(place,)) for place in range(len(work))]
    with psycopg.connect(url) as holding:
        holding.execute(sql.SQL(held))  # type: ignore[arg-type]
        for n, thread in enumerate(threads, 1):
            thread.start()
            wait_for_blocked(postgres, url, n)
        yield found
        holding.commit()
    for thread in threads:
        thread.join()


def wait_for_blocked(postgres: Server, url: str, n: int) -> None:
    here = "datname = current_database() AND wait_event_type = 'Lock'"
    blocked = f"SELECT count(*) FROM pg_stat_activity WHERE {here}"
    deadline = time.monotonic() + 60
    while postgres.execute(blocked, url) != [(n,)]:
        assert time.monotonic() < deadline, f"{n} were to wait"
        time.sleep(0.02)


def test_of_one_rule_in_two_contents_both_become_versions(postgres: Server, url: str) -> None:
    Store.open(url).close()
    for last in (2, 4):
        names = [f"digest {last - 1}", f"digest {last}"]
        work = [lambda store, d=name: store.traces.register("all", {"d": d}, d, NOON) for name in names]
        with at_once(postgres, url, "LOCK TABLE rules IN SHARE MODE", *work) as found:
            pass
        told = [(each.digest, each.spec) for each in found]  # type: ignore[attr-defined]
        assert told == [(name, {"d": name}) for name in names]
        assert sorted(each.version for each in found) == [last - 1, last]  # type: ignore[attr-defined]


def test_a_span_of_a_trace_that_is_deleted_meanwhile_is_kept(postgres: Server, url: str) -> None:
    root, search = answer(1)
    with Store.open(url) as store:
        store.traces.put([root], NOON)
    held = f"DELETE FROM traces WHERE id = '{TRACE}'"
    with at_once(postgres, url, held, lambda store: store.traces.put([search], NOON)) as found:
        pass
    assert found == [1]
    held = f"SELECT FROM traces WHERE id = '{TRACE}' FOR UPDATE"
    work = (
        (lambda store: store.trace_deletion.delete(TRACE).traces),
        lambda store: store.traces.put([root], NOON),
    )
    with at_once(postgres, url, held, *work) as found:
        pass
    assert found == [1, 1]
    with Store.open(url) as store:
        assert store.traces.trace(TRACE) == [root]
        assert [each.is_unread for each in store.traces.content([TRACE])] == [True]


def test_a_trace_is_deleted_while_its_verdict_is_stored(postgres: Server, url: str) -> None:
    clock = Clock()
    with Store.open(url, clock=clock) as store:
        worker = watcher(store, rules(RULE), clock, Obedient(lambda _: 0.9))
        store.traces.put(answer(1), clock())
        clock.pass_(seconds=10)
        _async.run(worker.drain())  # the run has its sample, and the hour its cost
        (run,) = store.runs()
        record = store.traces.rule("all")
        assert record is not None
        store.traces.put(answer(1, "Bern has more."), clock())
        clock.pass_(seconds=10)
        worker._read([TRACE])
        (leased,) = store.traces.lease(record, "mine", clock.now.replace(year=2027), clock(), lambda *_: 9)
        leased = replace(leased, sample=replace(leased.sample, id=f"{TRACE}.{'a' * 16}.2"))
        change = Change(state="judged", now=NOON, asked=[{"judge": "obedient", "kind": "verdict"}])
        said = Verdict(leased.sample.id, "obedient", "hallucinated", 0.9)
        work = (
            lambda store: store.traces.settle([Settled(leased, change, run.id, said)])[0],
            lambda store: store.trace_deletion.delete(TRACE).traces,
        )
        held = "SELECT FROM spending FOR UPDATE"
        with at_once(postgres, url, held, *work) as found:
            pass
        assert found == [True, 1]
        assert list(store.samples(run.id)) == [] and store.traces.counts("all") == {}


def test_of_what_is_being_deleted_nothing_is_decided(postgres: Server, url: str) -> None:
    clock = Clock()
    with Store.open(url, clock=clock, busy_seconds=1) as store:
        watcher(store, rules(RULE), clock, Obedient(lambda _: 0.9))
        for number in (1, 2):
            store.traces.put(answer(number), clock())
            (content,) = store.traces.content([f"{number:032x}"])
            found = targets(content.spans, ("answer",))
            store.traces.read([Read(content, ["answer"], found, lambda _: (), clock())], clock())
        record = store.traces.rule("all")
        assert record is not None

        def decide(target: TargetRecord) -> list[Draft]:
            return [Draft(rule="all", version=1, state="filtered")]

        with psycopg.connect(url) as deleting:
            deleting.execute("DELETE FROM traces WHERE id = %s", (TRACE,))
            assert store.traces.cover(record, "answer", decide, clock(), 10) == 1
        assert store.traces.counts("all") == {"filtered": 1}
