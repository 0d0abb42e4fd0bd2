"""`magistrate watch status`: states sum to targets, shares are weighted and corrected, no data is not 0."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

from magistrate import _async
from magistrate.errors import EngineBusy, SpecError
from magistrate.metrics.prevalence import corrected_share, prevalence
from magistrate.store import Store
from magistrate.types import HALLUCINATED, Sample
from magistrate.watch.status import UNDECIDED, status
from terminal import Call
from test_watch_cli import exported
from watched import Clock, Obedient, answer, rules, watcher

DAY = timedelta(days=1)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[Store]:
    with Store.open(tmp_path / "watched.db", clock=clock, randomness=random.Random(1)) as opened:
        yield opened


def says(sample: Sample) -> object:
    if "busy" in str(sample.output):
        return EngineBusy("full")
    return 0.9 if "wrong" in str(sample.output) else 0.1


def test_the_states_sum_to_what_was_seen_and_nothing_missing_is_0(store: Store, clock: Clock) -> None:
    text = "name: all\nsample: .5\nwhere: {team: a}\njudges: [novelty]\nbudget: {day: {calls: 50}}"
    worker = watcher(store, rules(text), clock, Obedient(says))
    (nothing,) = status(store, clock(), DAY).rules
    (judge,) = nothing.judges
    assert (nothing.n, dict(nothing.states), nothing.waiting, nothing.queue_age) == (0, {}, 0, None)
    assert (judge.judge, judge.rate.share.value, judge.rate.coverage) == ("novelty", None, None)
    assert judge.rate.share.undefined == judge.corrected.undefined == "no data"
    for number in range(60):
        words = "wrong" if number % 4 == 0 else "busy" if number % 10 == 1 else "right"
        team = "b" if number % 6 == 5 else "a"
        store.traces.put(answer(number, f"{words} {number}", team=team), clock())
    clock.pass_(seconds=10)
    _async.run(worker.drain())
    clock.pass_(minutes=5)
    (found,) = status(store, clock(), DAY).rules
    assert found.n == sum(found.states.values()) == 60
    assert found.states["filtered"] == 10 and found.states["judged"] > 5 and found.states["retrying"] > 0
    assert found.waiting == found.states["retrying"] and found.queue_age == 300
    assert [(state, "full" in reason) for state, reason, _ in found.reasons] == [("retrying", True)]
    (judge,) = found.judges
    assert judge.rate.share.low is not None and judge.rate.share.high is not None
    assert judge.rate.share.low < 0.3 < judge.rate.share.high
    assert judge.rate.n == found.states["judged"] and judge.rate.coverage is not None
    assert judge.rate.coverage < 1
    assert judge.corrected.value is None and "30 labels are needed" in str(judge.corrected.undefined)
    assert found.day.spent.calls == found.states["judged"] and found.day.budget == {"calls": 50}
    assert json.loads(json.dumps(status(store, clock(), DAY).to_dict()))["rules"][0]["n"] == 60


def test_what_no_worker_has_decided_of_is_counted(store: Store, clock: Clock) -> None:
    watcher(store, rules("name: all\njudges: [novelty]"), clock, Obedient(says))
    other = watcher(store, rules("name: other\njudges: [novelty]"), clock, Obedient(says))
    store.traces.put(answer(1), clock())
    clock.pass_(seconds=10)
    _async.run(other.drain())  # the worker of the other rule has ended
    found = {each.rule: dict(each.states) for each in status(store, clock(), DAY).rules}
    assert found == {"all": {UNDECIDED: 1}, "other": {"judged": 1}}
    with pytest.raises(SpecError, match="rule 'rest' has not been run on this store; known: all, other"):
        status(store, clock(), DAY, rule="rest")


def test_the_share_is_corrected_by_labels_of_its_own_answers(store: Store, clock: Clock) -> None:
    """The judge misses half of what is wrong: a share of .15 is a share of .3."""
    worker = watcher(store, rules("name: all\njudges: [novelty]"), clock, Obedient(says))
    for number in range(200):
        words = "wrong" if number % 20 < 3 else "right"
        store.traces.put(answer(number, f"{words} {number}"), clock())
    clock.pass_(seconds=10)
    _async.run(worker.drain())
    (run,) = store.runs()
    for sample in list(store.samples(run.id)):
        number = int(str(sample.output).split()[1])
        if number >= 100:
            continue
        label = HALLUCINATED if number % 20 < 6 else "faithful"
        store.replace_sample(run.id, replace(sample, label=label))
    (found,) = status(store, clock(), DAY).rules
    (judge,) = found.judges
    assert judge.rate.share.value == pytest.approx(0.15)
    assert judge.corrected.value == pytest.approx(0.3)
    assert judge.corrected.low is not None and judge.corrected.low > 0.15
    assert "100 labels of its own answers, 30 hallucinated" in judge.labels


def test_weights_take_the_place_of_equal_probabilities() -> None:
    seed = np.random.default_rng(2)
    truth = seed.random(200) < 0.3
    said = np.where(seed.random(200) < 0.2, ~truth, truth)
    others = seed.random(500) < 0.4
    groups = list(range(700))
    plain = prevalence(truth, said, others).rogan_gladen
    equal = corrected_share(truth, said, others, weights=np.full(500, 4.0), groups=groups)
    assert equal.to_dict() == pytest.approx(plain.to_dict())
    doubled = corrected_share(truth, said, others, weights=np.where(others, 2.0, 1.0), groups=groups)
    assert doubled.value is not None and plain.value is not None and doubled.value > plain.value
    assert corrected_share(truth, said, [], weights=[], groups=range(200)).undefined == "no data"


def test_the_interval_of_the_corrected_share_holds_under_unequal_drawing() -> None:
    seed, held = np.random.default_rng(5), 0
    for _ in range(200):
        truth = seed.random(150) < 0.3
        said = np.where(truth, seed.random(150) < 0.7, seed.random(150) < 0.1)
        strata = seed.random(1500) < 0.2
        real = np.where(strata, seed.random(1500) < 0.6, seed.random(1500) < 0.1)
        called = np.where(real, seed.random(1500) < 0.7, seed.random(1500) < 0.1)
        chance = np.where(strata, 0.8, 0.2)
        taken = seed.random(1500) < chance
        n = int(taken.sum())
        found = corrected_share(truth, said, called[taken], weights=1 / chance[taken], groups=range(150 + n))
        assert found.low is not None and found.high is not None
        held += found.low <= real.mean() <= found.high
    assert held >= 0.92 * 200


def test_the_command_shows_it(call: Call, home: Path) -> None:
    assert "no store" in call("watch", "status").err
    spans, file = home.parent / "spans.jsonl", home.parent / "rules.yaml"
    outputs = ["Bern has 134,000 people.", "Bern has two million people."]
    spans.write_text("".join(json.dumps(exported(answer(n, outputs[n % 2]))) + "\n" for n in range(6)))
    file.write_text("rules:\n  - name: all\n    judges: [novelty]\n")
    assert call("watch", "run", "--rules", file, "--from", spans, "--once").code == 0
    done = call("watch", "status")
    assert done.code == 0, done.err
    assert "all v1: 6 answers since" in done.out and "decided    6 judged" in done.out
    assert "novelty: 50.0% [" in done.out and "n=6 for 6, coverage 100.0%" in done.out
    assert "queue      0 waiting" in done.out
    (told,) = json.loads(call("watch", "status", "--json").out)["rules"]
    assert told["states"] == {"judged": 6} and told["judges"][0]["rate"]["share"]["value"] == 0.5
    assert told["queue_age"] is None and told["judges"][0]["corrected"]["value"] is None
    assert call("watch", "status", "--rule", "rest").code == 2
