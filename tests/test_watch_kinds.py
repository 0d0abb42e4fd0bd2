"""Rules that come later, or change: what they are about is looked for in traces that are there already."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from magistrate import _async
from magistrate.api.rule_estimate import undecided_targets
from magistrate.datasets.spans.span import Span
from magistrate.store import Store
from magistrate.watch.rules import Rule
from terminal import Call
from watched import Clock, Obedient, answer, rules, watcher

ANSWERS = "name: answers\njudges: [novelty]"
CALLS = "name: calls\ntarget: call\njudges: [novelty]"
WEEK = timedelta(days=7)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(place: str, clock: Clock) -> Iterator[Store]:
    with Store.open(place, clock=clock) as opened:
        yield opened


def trace(number: int, said: str = "Bern has 134,000 people.", calls: int = 2) -> list[Span]:
    """A trace with one answer and some calls of a model."""
    chain, search = answer(number, said)
    asked = {"llm.input_messages.0.message.role": "user", "llm.input_messages.0.message.content": "134,000"}
    asked |= {"openinference.span.kind": "LLM", "output.value": said}
    found = [
        replace(search, span_id=f"{n:x}" * 16, attributes=asked, start_ns=search.start_ns + n * 1_000_000_000)
        for n in range(1, calls + 1)
    ]
    return [chain, search, *found]


def come(
    store: Store, clock: Clock, these: list[Rule], *numbers: int, since: timedelta | None = None
) -> Obedient:
    """New traces are put, and a new worker does all there is to do. It had an hour's time."""
    judge = Obedient(lambda _: 0.9)
    worker = watcher(store, these, clock, judge, judge)
    if since is not None:
        worker.register(clock() - since)
    for number in numbers:
        store.traces.put(trace(number), clock())
    clock.pass_(hours=1)
    _async.run(worker.drain())
    return judge


def live(store: Store, rule: str) -> dict[str, int]:
    return {state: n for state, n in store.traces.counts(rule).items() if state != "superseded"}


def test_a_new_rule_about_calls_is_filled_back_from_traces_that_were_read_for_answers(
    store: Store, clock: Clock
) -> None:
    come(store, clock, rules(ANSWERS), 1)
    clock.pass_(days=8)
    come(store, clock, rules(ANSWERS), 2, 3)
    told = rules(ANSWERS, CALLS, CALLS.replace("calls", "later"))
    since = clock() - WEEK
    assert [len(undecided_targets(store, told[1], since, most)) for most in (None, 3, 99)] == [4, 3, 4]
    seen = clock() - timedelta(hours=1)
    new = [told[0], told[1]]
    assert sum(come(store, clock, new, since=WEEK).given.values()) == 4
    assert live(store, "calls") == {"judged": 4} and live(store, "answers") == {"judged": 3}
    # They count for the time when they came, and a rule that asks for nothing of the past gets none of it.
    assert [at for at, *_ in store.traces.answers("calls", seen, seen + timedelta(minutes=1))] == [seen] * 4
    assert not come(store, clock, told).given and live(store, "later") == {}
    assert undecided_targets(store, told[1], since) == []
    come(store, clock, told, 4)
    assert (live(store, "calls"), live(store, "later")) == ({"judged": 6}, {"judged": 2})


def test_a_worker_without_the_rule_leaves_its_calls_alone(store: Store, clock: Clock) -> None:
    both = rules(ANSWERS, CALLS)
    come(store, clock, both, 1)
    chain, *_ = trace(1)
    store.traces.put([replace(chain, attributes={**chain.attributes, "late": "yes"})], clock())
    come(store, clock, both[:1], 2)
    assert store.traces.counts("calls") == {"judged": 2}, "none of them is gone"
    store.traces.put(trace(1, "Bern has more.", calls=3), clock())
    come(store, clock, both[:1])
    come(store, clock, both)
    assert live(store, "calls") == {"judged": 5} and live(store, "answers") == {"judged": 2}


def test_a_rule_that_changes_what_it_is_about_begins_anew(store: Store, clock: Clock) -> None:
    """From then on, unless the past is asked for; what still waited of the old kind is not judged."""
    come(store, clock, rules(ANSWERS), 1, 2)
    shifted = rules(CALLS.replace("calls", "answers"))
    assert not come(store, clock, shifted).given
    assert live(store, "answers") == {"judged": 2}
    come(store, clock, shifted, 3)
    assert live(store, "answers") == {"judged": 4}
    come(store, clock, shifted, since=WEEK)
    assert live(store, "answers") == {"judged": 6}, "the calls of all three, and nothing else"
    kinds = {each.target for each in store.traces.decisions("answers") if each.state == "judged"}
    assert len(kinds) == 6


def test_a_changed_filter_or_environment_takes_over_what_is_asked_for(store: Store, clock: Clock) -> None:
    for more in ("where: {user: nobody}", "environment: nowhere"):
        none = rules(f"{CALLS}\n{more}".replace("calls", more[:5]))
        come(store, clock, none, 1, 2)
        assert live(store, more[:5]) == {"filtered": 4}
        every = rules(CALLS.replace("calls", more[:5]))
        assert not come(store, clock, every).given, "what is decided stays"
        come(store, clock, every, since=WEEK)
        assert live(store, more[:5]) == {"judged": 4}
        come(store, clock, rules(ANSWERS), 3)  # the rule is gone from the file for a while
        come(store, clock, every)
        assert live(store, more[:5]) == {"judged": 6}, "what came meanwhile"
        for number in (1, 2, 3):
            store.trace_deletion.delete(f"{number:032x}")


def test_a_dry_run_counts_calls_that_nobody_looked_for_yet(call: Call, tmp_path: Path, clock: Clock) -> None:
    place, file = tmp_path / "m.db", tmp_path / "rules.yaml"
    file.write_text("rules:\n  - {name: calls, target: call, judges: [novelty]}\n")
    with Store.open(place) as store:
        come(store, clock, rules(ANSWERS), 1)
        store.traces.put(trace(2), clock())
    words = ("watch", "run", "--rules", file, "--since", "2000w", "--store", place, "--dry-run", "--json")
    done = call(*words)
    assert json.loads(done.out)["rules"][0]["decisions"] == {"queued": 4}, done.err
