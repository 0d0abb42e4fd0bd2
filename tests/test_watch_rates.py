"""Rates over time: weighted by the probability of inclusion, with intervals that hold; no data is not 0."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import timedelta

import numpy as np
import pytest

from magistrate import _async
from magistrate.errors import EngineBusy, InputError
from magistrate.metrics.prevalence import weighted_share
from magistrate.store import Store
from magistrate.types import Sample
from magistrate.watch.rates import rates
from watched import NOON, Clock, Obedient, answer, rules, watcher


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(place: str, clock: Clock) -> Iterator[Store]:
    with Store.open(place, clock=clock, randomness=random.Random(1)) as opened:
        yield opened


def test_equal_probabilities_are_the_plain_share() -> None:
    found = weighted_share([True] * 3 + [False] * 7, [0.5] * 10, [str(n) for n in range(10)])
    assert found.value == pytest.approx(0.3)
    assert found.low is not None and found.high is not None and 0.08 < found.low < 0.3 < found.high < 0.65


def test_nothing_is_no_data_and_one_trace_has_no_interval() -> None:
    assert weighted_share([], [], []).to_dict() == {
        "value": None, "low": None, "high": None, "undefined": "no data"
    }  # fmt: skip
    assert weighted_share([True], [1.0], ["a"]).low is None
    never = weighted_share([False] * 20, [1.0] * 20, [str(n) for n in range(20)])
    assert (never.value, never.low) == (0, 0) and never.high is not None and 0.1 < never.high < 0.2
    with pytest.raises(InputError):
        weighted_share([True], [0.0], ["a"])


def test_the_interval_holds_the_truth_under_unequal_drawing_in_clusters() -> None:
    """Strata with other shares are drawn at other rates, whole traces at once: 95 % of intervals hold."""
    seed = np.random.default_rng(3)
    held = drawn_high = 0
    for _ in range(300):
        traces = seed.random(600) < 0.3  # uncertain ones, of which most are flagged
        truth = np.where(traces, seed.random(600) < 0.6, seed.random(600) < 0.05)
        sizes = seed.integers(1, 4, 600)
        chance = np.where(traces, 1.0, 0.1)
        taken = seed.random(600) < chance
        rows = [
            (bool(truth[i]), float(chance[i]), str(i)) for i in np.flatnonzero(taken) for _ in range(sizes[i])
        ]
        found = weighted_share(*map(list, zip(*rows, strict=True)))
        real = float((truth * sizes).sum() / sizes.sum())
        assert found.low is not None and found.high is not None
        held += found.low <= real <= found.high
        drawn_high += np.mean([row[0] for row in rows]) > real + 0.1
    assert held >= 0.93 * 300
    assert drawn_high > 250  # the share of those drawn, unweighted, is far off


@pytest.mark.full
def test_the_dear_judges_rate_holds_for_everything(store: Store, clock: Clock) -> None:
    cheap = Obedient(lambda sample: 0.5 if "unsure" in str(sample.output) else 0.1, "cheap")
    dear = Obedient(lambda sample: 0.9 if "wrong" in str(sample.output) else 0.1, "dear")
    text = "name: all\njudges: [novelty, {judge: hallucination, floor: .4}]\nsample: .8\nconcurrency: 50"
    worker = watcher(store, rules(text), clock, cheap, dear)
    for number in range(300):
        unsure, wrong = number % 3 == 0, number % 6 == 0  # a sixth is wrong, and half of the unsure
        store.traces.put(answer(number, f"{unsure and 'unsure'} {wrong and 'wrong'}"), clock())
    clock.pass_(seconds=10)
    _async.run(worker.drain())
    found, later = rates(
        store, "all", "dear", since=NOON, until=NOON + timedelta(hours=2), step=timedelta(hours=1)
    )
    assert found.share.value is not None and found.share.low is not None and found.share.high is not None
    assert found.share.low <= 1 / 6 <= found.share.high and found.share.high - found.share.low < 0.2
    assert found.flagged / found.n > 0.22  # what is judged is mostly what is unsure
    assert (found.of, found.coverage) == (300, 1.0)
    assert (later.share.value, later.share.undefined, later.n, later.coverage) == (None, "no data", 0, None)
    assert later.to_dict()["share"]["value"] is None


def test_what_failed_or_waits_counts_against_the_coverage(store: Store, clock: Clock) -> None:
    def says(sample: Sample) -> object:
        return EngineBusy("full") if "hard" in str(sample.output) else 0.9

    worker = watcher(store, rules("name: all\njudges: [novelty]"), clock, Obedient(says))
    for number in range(8):
        store.traces.put(answer(number, "hard" if number < 2 else "easy"), clock())
    clock.pass_(seconds=10)
    _async.run(worker.drain())
    (found,) = rates(
        store, "all", "obedient", since=NOON, until=NOON + timedelta(hours=1), step=timedelta(hours=1)
    )
    assert (found.n, found.of, found.coverage) == (6, 8, 0.75)
