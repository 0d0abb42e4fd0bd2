"""`improve` keeps what labels have shown to be better than a judge, and nothing else."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from scipy.special import expit

import magistrate
from furnished import run_of
from magistrate.analysis.columns import Columns
from magistrate.analysis.improvement import (
    Attempt,
    Current,
    by_threshold,
    compared,
    current,
    kept_threshold,
    settled,
)
from magistrate.errors import InputError, SpecError
from magistrate.judges.calibration_file import read_calibration
from magistrate.labels.queues import QueueOptions, queue_of_run
from magistrate.metrics.calibration import fitted
from magistrate.store import Store
from magistrate.store.labels import Answer
from magistrate.types import FAITHFUL, HALLUCINATED, Failure, Outcome, Sample, Scoring, Verdict
from terminal import Call
from two_judges import LOW_IS_GOOD

NOW = datetime(2026, 1, 2, tzinfo=UTC)


def shifted_judge(n: int, *, skill: float = 2.5, shift: float = 2.0, seed: int = 0) -> Columns:
    """A judge that ranks well and cuts at the wrong place, two samples a context."""
    random = np.random.default_rng(seed)
    truth = random.random(n) < 0.5
    scores = expit(random.normal(size=n) + skill * (truth - 0.5) + shift)
    ids = tuple(f"s{at}" for at in range(n))
    return Columns("j", ids, truth, scores >= 0.5, scores, np.arange(n) // 2, {}, LOW_IS_GOOD)


def stored(
    store: Store, n: int = 200, *, labels: bool = True, judges: tuple[str, ...] = ("novelty", "exact")
) -> str:
    """A run of two judges of which the first cuts at the wrong place."""
    told = shifted_judge(n)
    other = shifted_judge(n, shift=0.0, seed=0)
    samples, outcomes = [], list[Outcome]()
    for at in range(n):
        label = HALLUCINATED if told.truth[at] else FAITHFUL
        samples.append(
            Sample(f"s{at}", f"output {at}", (f"context {at // 2}",), label=label if labels else None)
        )
        for judge, score in zip(judges, (told.raw[at], other.raw[at]), strict=False):
            said = HALLUCINATED if score >= 0.5 else FAITHFUL
            outcomes.append(Verdict(f"s{at}", judge, said, float(score)))
    return run_of(store, samples, outcomes, name="judged")


# --- comparing ------------------------------------------------------------------------------------


def test_what_is_better_is_shown_and_what_is_not_is_not() -> None:
    told = shifted_judge(200)
    now = current(told, np.ones(told.n))
    found = compared("threshold", by_threshold(now), now)
    assert found.shown and found.gain.value is not None and found.gain.value > 0.2
    assert found.then.value == pytest.approx(found.now.value + found.gain.value)  # type: ignore[operator]
    fine = shifted_judge(200, shift=0.0)
    none = compared("threshold", by_threshold(current(fine, np.ones(fine.n))), current(fine, np.ones(fine.n)))
    assert not none.shown and none.visible is not None and none.visible > 0


def test_a_judge_that_cannot_be_made_better_seldom_seems_to_be() -> None:
    fooled = 0
    for seed in range(40):
        fine = shifted_judge(80, shift=0.0, seed=seed)
        now = current(fine, np.ones(fine.n), draws=300)
        fooled += compared("threshold", by_threshold(now), now).shown
    assert fooled <= 4  # one in 20, and a test that fails one time in 100


def test_samples_count_as_many_times_as_they_stand_for() -> None:
    told = shifted_judge(120)
    times = np.where(np.arange(told.n) % 3 == 0, 3, 1)
    rows = np.repeat(np.arange(told.n), times)
    now = current(told, times.astype(float))
    # The same folds, with every sample written out as often as it stands for.
    wide = told.take(rows)
    folds = tuple((np.flatnonzero(np.isin(rows, a)), np.flatnonzero(np.isin(rows, b))) for a, b in now.folds)
    beside = Current(wide, np.ones(wide.n), folds)
    one, other = (compared("threshold", by_threshold(each), each) for each in (now, beside))
    for name in ("now", "then", "gain"):
        assert getattr(one, name).value == pytest.approx(getattr(other, name).value), name
    assert one.contexts == other.contexts == 60


def test_labels_that_do_not_do_are_refused_with_what_is_missing() -> None:
    told = shifted_judge(60)
    one = np.flatnonzero(told.truth)
    for columns, message in (
        (told.take(np.arange(30)), "50 are needed, 15 of each class"),
        (told.take(np.arange(30)), "Label at least 20 more"),
        (told.take(one), "all labels are hallucinated"),
    ):
        with pytest.raises(InputError, match=message):
            current(columns, np.ones(columns.n))


def test_a_calibration_alone_changes_no_label_and_is_not_kept_where_it_would() -> None:
    told = shifted_judge(200, shift=0.5)
    map_ = fitted("platt", told.scores, told.truth)
    cut = kept_threshold(told, map_)
    assert cut is not None and ((map_.of_all(told.scores) >= cut) == told.said).all()
    maximize = Scoring("maximize", (FAITHFUL, HALLUCINATED), 0.5)
    turned = Columns("j", told.ids, told.truth, ~(told.raw >= 0.5), told.raw, told.groups, {}, maximize)
    assert kept_threshold(turned, map_) is not None
    odd = Columns("j", told.ids, told.truth, ~told.said, told.raw, told.groups, {}, LOW_IS_GOOD)
    assert kept_threshold(odd, map_) is None
    now = current(odd, np.ones(odd.n))
    better = Attempt(name="calibration", metric="brier", gain=magistrate_estimate(0.1, 0.05, 0.2), p=0.001)
    (kept,) = settled([better], now)
    assert not kept.shown and kept.reason is not None and "would change them" in kept.reason


def magistrate_estimate(value: float, low: float, high: float) -> object:
    from magistrate.metrics.classification import Estimate

    return Estimate(value, low, high)


# --- a run and its labels -------------------------------------------------------------------------


def test_it_writes_what_calibrate_would_and_says_how_to_use_it(tmp_path: Path) -> None:
    place = tmp_path / "runs.db"
    with Store.open(place) as store:
        run = stored(store)
    found = magistrate.improve(run, store=place, to=tmp_path / "better", ways=("threshold", "calibration"))
    assert [each.shown for each in found.attempts] == [True, True]
    assert found.best is not None and found.best.name == "threshold"
    assert found.commands[0].endswith(f"--calibration {tmp_path / 'better' / 'calibration.json'}")
    made = read_calibration(tmp_path / "better" / "calibration.json")
    same = magistrate.calibrate(run, "novelty", aim="maximize balanced_accuracy", store=place).file
    assert (made.parameters, made.threshold, made.aim, made.scores) == (
        *(same.parameters, same.threshold, same.aim, same.scores),
    )
    assert "better, on 200 samples" in str(found)
    with pytest.raises(SpecError, match="already exists"):
        magistrate.improve(run, store=place, to=tmp_path / "better")


def test_a_stack_is_compared_and_kept(tmp_path: Path) -> None:
    place = tmp_path / "runs.db"
    with Store.open(place) as store:
        run = stored(store, judges=("novelty", "detector"))
    found = magistrate.improve(run, store=place, to=tmp_path / "better", ways=("stack", "detector"))
    stack, detector = found.attempts
    assert stack.shown and (tmp_path / "better" / "stack" / "stack.json").is_file()
    assert not detector.shown and detector.reason is not None
    with Store.open(place) as store:
        alone = stored(store, judges=("novelty",))
    (one,) = magistrate.improve(alone, store=place, ways=("stack",)).attempts
    assert not one.shown and "needs two judges" in str(one.reason)


def test_labels_of_an_active_queue_are_weighted_and_what_does_not_count_is_counted(tmp_path: Path) -> None:
    place = tmp_path / "runs.db"
    with Store.open(place) as store:
        run = stored(store, labels=False)
        record = store.find_run(run)
        with pytest.raises(InputError, match=r"has no labels\. Label its samples: magistrate label"):
            magistrate.improve(run, store=place)
        truth = shifted_judge(200).truth
        for name, policy in (("mixed", "mixed"), ("bad", "disagreement"), ("all", "uniform")):
            options = QueueOptions(policy=policy, size=150, double=0.0)
            queue = queue_of_run(store, record, name, options, NOW)
            for item in store.labels.items(name):
                if name == "all" and item.position >= 20:
                    continue
                label = HALLUCINATED if truth[int(item.sample_id[1:])] else FAITHFUL
                label = "unsure" if item.position == 0 else label
                shown = item.position == 1
                store.labels.lease(name, item.position, "ana", NOW, shown=shown)
                store.labels.add(name, item.position, "ana", Answer(label=label), revision=0, now=NOW)
        assert queue.policy == "uniform"
    with pytest.raises(SpecError, match="several queues have labels of this run"):
        magistrate.improve(run, store=place)
    with pytest.raises(InputError, match="Label at least 32 more"):
        magistrate.improve(run, store=place, labels="all")
    found = magistrate.improve(run, store=place, labels="mixed", ways=("threshold", "stack"))
    assert found.weighted and found.n == 148 and found.attempts[0].shown
    assert found.left_out["label: unsure"] == found.left_out["labelled after the verdict was shown"] == 1
    assert "each counts 1 / its probability" in str(found)


def test_a_queue_whose_labels_speak_for_some_samples_only_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "runs.db"
    with Store.open(place) as store:
        samples = [Sample(f"s{at}", f"o {at}", (f"c {at}",)) for at in range(4)]
        said: list[Outcome] = [Failure("s0", "novelty", "timeout", "slow")]
        said += [Verdict(f"s{at}", "novelty", FAITHFUL, 0.1) for at in range(1, 4)]
        run = run_of(store, samples, said, name="failing")
        queue_of_run(store, store.find_run(run), "failures", QueueOptions(policy="failures"), NOW)
        store.labels.add("failures", 0, "ana", Answer(label=FAITHFUL), revision=0, now=NOW)
    with pytest.raises(InputError, match="the policy failures could not draw"):
        magistrate.improve(run, store=place)


def test_the_command_prints_each_attempt_and_the_next_line(home: Path, call: Call, tmp_path: Path) -> None:
    with Store.open(home / "magistrate.db") as store:
        stored(store)
    done = call("improve", "judged", "--try", "threshold", "--to", tmp_path / "better")
    assert done.code == 0 and "compared by  balanced accuracy" in done.out
    assert f"magistrate run DATA --judge novelty --calibration {tmp_path}" in done.out.replace("\n", "")
    told = json.loads(call("improve", "judged", "--try", "threshold", "--json").out)
    assert told["best"] == "threshold" and told["kept"] == {} and told["attempts"][0]["shown"]
    wrong = call("improve", "judged", "--judge", "nobody")
    assert wrong.code == 2 and "has no judge 'nobody'" in wrong.err
