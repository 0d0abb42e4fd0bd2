"""Traces are deleted with all that was made of them, and with nothing else."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from magistrate import _async
from magistrate.labels.queues import QueueOptions, queue_of_run
from magistrate.store import Store
from magistrate.types import Outcome, Sample
from magistrate.watch.rules import RuleFile
from magistrate.watch.upkeep import Upkeep
from terminal import Call
from test_watch_cli import exported
from watched import Clock, Obedient, answer, rules, watcher

RULE = "name: all\njudges: [novelty]"
PRIVATE = "Anna Muster lives in Bern"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(place: str, clock: Clock) -> Iterator[Store]:
    with Store.open(place, clock=clock, randomness=random.Random(1)) as opened:
        yield opened


def everything(store: Store) -> str:
    """All texts in all tables of a store."""
    from sqlalchemy import select

    from magistrate.store.schema import metadata

    with store.traces._reading() as connection:
        return "\n".join(
            str(tuple(row)) for table in metadata.sorted_tables for row in connection.execute(select(table))
        )


def test_a_trace_goes_with_all_that_was_made_of_it(store: Store, clock: Clock) -> None:
    worker = watcher(store, rules(RULE), clock, Obedient(lambda _: 0.9), send_to=["spans to http://x"])
    store.traces.put(answer(1, PRIVATE, documents=(f"{PRIVATE}.",)), clock())
    store.traces.put(answer(2, "Bern is a town."), clock())
    clock.pass_(seconds=10)
    _async.run(worker.drain())
    store.traces.put(answer(1, f"{PRIVATE} still", documents=(f"{PRIVATE}.",)), clock())  # a second revision
    clock.pass_(seconds=10)
    _async.run(worker.drain())
    (run,) = store.runs()
    assert (run.n_samples, run.n_verdicts) == (3, 3) and PRIVATE in everything(store)
    done = store.trace_deletion.delete(f"{1:032x}")
    assert (done.traces, done.targets, done.samples) == (1, 1, 2)
    left = everything(store)
    assert PRIVATE not in left and f"{1:032x}" not in left
    (run,) = store.runs()
    assert (run.n_samples, run.n_verdicts) == (1, 1)
    assert store.traces.counts("all") == {"judged": 1}
    assert [each.waiting for each in store.outbox.queues()] == [1]
    assert sum(hour.spent.calls for hour in store.traces.hours("all", clock())) == 3
    assert store.trace_deletion.delete(f"{1:032x}").traces == 0
    store.traces.put(answer(3, "Biel is one too."), clock())
    clock.pass_(seconds=10)
    _async.run(worker.drain())
    assert store.runs()[0].n_verdicts == 2, "the run goes on"


def test_a_sample_that_something_else_uses_stays_there(store: Store, clock: Clock) -> None:
    worker = watcher(store, rules(RULE), clock, Obedient(lambda _: 0.9))
    store.traces.put(answer(1, PRIVATE), clock())
    clock.pass_(seconds=10)
    _async.run(worker.drain())
    (run,) = store.runs()
    (sample,) = store.samples(run.id)
    other = store.create_run(
        dataset="checked", dataset_digest="d", model="m", engine_fingerprint="f", recipes={}
    )
    store.add_samples(other, [sample])
    assert store.trace_deletion.delete(f"{1:032x}").samples == 1
    assert [each.output for each in store.samples(other)] == [PRIVATE]
    assert list(store.samples(run.id)) == []


def test_a_sample_that_people_label_stays_in_their_queue(store: Store, clock: Clock) -> None:
    worker = watcher(store, rules(RULE), clock, Obedient(lambda _: 0.9))
    store.traces.put(answer(1, PRIVATE), clock())
    clock.pass_(seconds=10)
    _async.run(worker.drain())
    (run,) = store.runs()
    queue_of_run(store, store.find_run(run.id), "q", QueueOptions(), clock())
    assert store.trace_deletion.delete(f"{1:032x}").samples == 1
    assert [each.output for each in store.labels.samples("q")] == [PRIVATE]
    assert list(store.samples(run.id)) == []
    store.labels.delete("q")
    assert PRIVATE not in everything(store)


def test_what_is_deleted_while_it_is_judged_does_not_come_back(store: Store, clock: Clock) -> None:
    class Slow(Obedient):
        async def judge(self, sample: Sample, engine: object) -> Outcome:
            store.trace_deletion.delete(f"{1:032x}")
            await asyncio.sleep(0)
            return await super().judge(sample, engine)  # type: ignore[arg-type]

    worker = watcher(store, rules(RULE), clock, Slow(lambda _: 0.9))
    store.traces.put(answer(1, PRIVATE), clock())
    clock.pass_(seconds=10)
    _async.run(worker.drain())
    assert PRIVATE not in everything(store) and store.traces.counts("all") == {}


def test_old_traces_are_deleted_and_those_with_news_are_kept(store: Store, clock: Clock) -> None:
    file = RuleFile.model_validate({"rules": [{"name": "all", "judges": ["novelty"]}], "keep_days": 30})
    worker, upkeep = (
        watcher(store, rules(RULE), clock, Obedient(lambda _: 0.9)),
        Upkeep(store, file, clock=clock),
    )
    store.traces.put(answer(1, PRIVATE), clock())
    store.traces.put(answer(2), clock())
    clock.pass_(days=29)
    _async.run(worker.drain())
    store.traces.put(answer(2, "Something else."), clock())
    upkeep.step()
    assert store.traces.trace(f"{1:032x}") != []
    clock.pass_(days=2)
    upkeep.step()
    assert store.traces.trace(f"{1:032x}") == [] and store.traces.trace(f"{2:032x}") != []
    assert PRIVATE not in everything(store)


def test_the_command_deletes_one_trace(call: Call, home: Path) -> None:
    spans, file = home.parent / "spans.jsonl", home.parent / "rules.yaml"
    spans.write_text("".join(json.dumps(exported(answer(n))) + "\n" for n in range(2)))
    file.write_text("rules:\n  - name: all\n    judges: [novelty]\n")
    assert call("watch", "run", "--rules", file, "--from", spans, "--once").code == 0
    done = call("watch", "delete", f"{1:032x}"[:31])
    assert done.code == 2 and f"ids that start like this: '{0:032x}'" in done.err
    done = call("watch", "delete", f"{1:032x}")
    assert done.code == 0 and "deleted 1 trace, 1 targets, 1 judged samples" in done.out
    assert call("watch", "delete", f"{1:032x}").code == 2
