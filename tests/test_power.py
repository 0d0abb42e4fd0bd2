"""The number of samples is that of the literature, and so many samples have the power that was asked for."""

from __future__ import annotations

import json
from math import ceil, sqrt
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import norm

from magistrate.analysis.comparison import Side
from magistrate.analysis.power import plan, plan_from
from magistrate.api.compare import samples_needed as needed_samples
from magistrate.errors import InputError, SpecError
from magistrate.metrics.paired import (
    POWERED,
    _area_variance,
    assumed,
    auroc_samples_needed,
    deviation,
    samples_needed,
    value_of,
)
from terminal import Call
from two_judges import LOW_IS_GOOD, a_run, samples_of, verdicts

RATIOS = [metric for metric in POWERED if metric != "auroc"]


def discordant(only_first: float, only_second: float) -> np.ndarray:
    """Shares of two judges that disagree so often, on faithful samples alone."""
    shares = np.zeros((2, 2, 2))
    shares[0] = [[0, only_second], [only_first, 1 - only_first - only_second]]
    return shares


def test_mcnemars_sample_size_of_a_published_example() -> None:
    """Chow, Shao and Wang (2003), example 6.4.3: .5 and .2 discordant, alpha .05, power .8: 59 pairs."""
    assert samples_needed("accuracy", discordant(0.5, 0.2), 0.3) == 59


@pytest.mark.parametrize(("one", "two"), [(0.05, 0.45), (0.1, 0.2), (0.02, 0.03)])
def test_accuracy_needs_what_connor_1987_says(one: float, two: float) -> None:
    apart, difference = one + two, two - one
    spread = norm.ppf(0.975) * sqrt(apart) + norm.ppf(0.9) * sqrt(apart - difference**2)
    expected = ceil((spread / difference) ** 2)
    assert samples_needed("accuracy", discordant(one, two), difference, power=0.9) == expected


@pytest.mark.parametrize("metric", RATIOS)
@pytest.mark.parametrize("agreement", [None, 0.85])
def test_judges_are_what_was_assumed(metric: str, agreement: float | None) -> None:
    shares = assumed(metric, 0.7, 0.06, 0.3, agreement)
    assert shares.sum() == pytest.approx(1) and shares.min() >= 0
    assert shares[1].sum() == pytest.approx(0.3)
    assert value_of(metric, shares, second=False) == pytest.approx(0.7)
    assert value_of(metric, shares, second=True) == pytest.approx(0.76)
    if agreement is not None:
        assert shares[:, 0, 0].sum() + shares[:, 1, 1].sum() == pytest.approx(agreement)


def metric_of(metric: str, counts: np.ndarray, *, second: bool) -> np.ndarray:
    """A judge's metric in many tables of counts at once, written down anew."""
    right = counts.sum(2 if second else 3)  # [b, truth, right]
    fp, tn, fn, tp = right[:, 0, 0], right[:, 0, 1], right[:, 1, 0], right[:, 1, 1]
    return {
        "accuracy": (tp + tn) / (tp + tn + fp + fn),
        "balanced_accuracy": (tp / (tp + fn) + tn / (tn + fp)) / 2,
        "precision": tp / (tp + fp),
        "recall": tp / (tp + fn),
        "f1": 2 * tp / (2 * tp + fp + fn),
    }[metric]


@pytest.mark.full
@pytest.mark.parametrize("metric", RATIOS)
def test_so_many_samples_show_the_difference_four_times_in_five(metric: str) -> None:
    shares = assumed(metric, 0.7, 0.05, 0.35, 0.8)
    n = samples_needed(metric, shares, 0.05)
    source = np.random.default_rng(11)
    drawn = source.multinomial(n, shares.ravel(), size=3000).reshape(-1, 2, 2, 2)
    difference = metric_of(metric, drawn, second=True) - metric_of(metric, drawn, second=False)
    assert difference.mean() == pytest.approx(0.05, abs=0.002)
    assert difference.std() * sqrt(n) == pytest.approx(deviation(metric, shares), rel=0.05)
    errors = np.array([deviation(metric, each / n) for each in drawn]) / sqrt(n)
    shown = (difference / errors > norm.ppf(0.975)).mean()
    assert 0.77 <= shown <= 0.84


def test_the_variance_of_an_area_is_that_of_hanley_and_mcneil_1982() -> None:
    """Their example: an area of .893 from 51 abnormal and 58 normal images has a standard error of .032."""
    assert sqrt(_area_variance(0.893, 51 / 109) / 109) == pytest.approx(0.032, abs=5e-4)


def test_areas_that_are_correlated_need_fewer_samples() -> None:
    needed = [auroc_samples_needed(0.8, 0.05, 0.5, each) for each in (0, 0.4, 0.8)]
    assert needed == sorted(needed, reverse=True) and needed[0] > 4 * needed[2]


def test_a_pilot_of_judges_that_are_as_assumed_needs_as_many() -> None:
    """1,000 samples with exactly the assumed shares, each with a context of its own."""
    shares = assumed("f1", 0.7, 0.05, 0.4, 0.8)
    counts = np.round(shares * 1000).astype(int)
    cells = [(t, a, b) for t in (0, 1) for a in (0, 1) for b in (0, 1) for _ in range(counts[t, a, b])]
    truth = [bool(t) for t, _, _ in cells]
    samples = samples_of(truth)
    sides = [
        Side(
            name,
            name,
            "judge",
            len(cells),
            samples,
            verdicts([0.9 if bool(t) == bool((a, b)[at]) else 0.1 for t, a, b in cells]),
            LOW_IS_GOOD,
        )
        for at, name in enumerate("ab")
    ]
    found = plan_from(sides, "f1", 0.05)
    assert found.n == pytest.approx(plan("f1", 0.05, base_rate=0.4, agreement=0.8).n, rel=0.03)
    assert (found.design, found.n_clustered) == (1.0, found.n)
    area = plan_from(sides, "auroc", 0.05)
    assert area.design is None and area.n > 100


def test_samples_that_share_contexts_count_for_less() -> None:
    source = np.random.default_rng(0)
    truth = (source.random(60) < 0.5).tolist()
    scores = [np.where(source.random(60) < 0.7, truth, ~np.array(truth)) * 0.8 + 0.1 for _ in range(2)]
    contexts = list(range(60)) * 5
    samples = samples_of(truth * 5, contexts)
    sides = [
        Side(name, name, "judge", 300, samples, verdicts(each.tolist() * 5), LOW_IS_GOOD)
        for name, each in zip("ab", scores, strict=True)
    ]
    found = plan_from(sides, "accuracy", 0.05)
    assert found.design == pytest.approx(5, rel=0.15)  # five copies of a sample are one sample
    assert found.n_clustered == ceil(found.n * found.design)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"metric": "f2"}, "unknown metric 'f2'; known: accuracy"),
        ({"difference": 0}, "difference must be between 0 and 1"),
        ({"value": 0.99}, "no judge can have such a f1"),
        ({"base_rate": 1}, "base rate must be between 0 and 1"),
        ({"agreement": 0.999}, "agree on 0.430 to 0.970 of them"),
        ({"power": 0.01}, "power must be above alpha"),
        ({"metric": "auroc", "correlation": 1}, "--correlation must be"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, float], told: str) -> None:
    given = {"metric": "f1", "difference": 0.03, **options}
    with pytest.raises(InputError, match=told):
        plan(**given)


def test_differences_that_no_judge_has_are_dashes() -> None:
    found = plan("accuracy", 0.02, value=0.93)
    assert found.others[0.1] is None and found.others[0.05] is not None
    assert list(found.others) == sorted(found.others)


def test_at_the_command_line(home: Path, call: Call) -> None:
    shown = call("power", "--metric", "f1", "--difference", "0.03")
    assert shown.code == 0 and "3,846 labelled samples" in shown.out and "errors are independent" in shown.out
    assert max(map(len, shown.out.splitlines())) <= 80
    data = json.loads(call("power", "--metric", "f1", "--difference", "0.03", "--json").out)
    assert data["n"] == 3846 == data["others"]["0.03"]
    wrong = call("power", "--metric", "f1", "--difference", "3")
    assert wrong.code == 2 and "between 0 and 1, got 3" in wrong.err


def test_a_pilot_of_stored_runs(home: Path, call: Call) -> None:
    a_run(None, "small", 0.4)
    a_run(None, "large", 0.2)
    shown = call("power", "--metric", "accuracy", "--difference", "0.1", "--pilot", "small", "large")
    assert shown.code == 0 and "a pilot of 54 samples and 30 contexts" in shown.out
    with pytest.raises(SpecError, match="--value is an assumption"):
        needed_samples("f1", 0.1, value=0.7, pilot=["small", "large"])
    twice = call("power", "--metric", "f1", "--difference", "0.1", "--pilot", "small", "small")
    assert twice.code == 2 and "given twice" in twice.err
    found = needed_samples("f1", 0.1, pilot=["small", "large"])
    assert "<table" in found._repr_html_()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ["--metric", "auroc", "--agreement", ".9"],
            "--agreement is about labels, but auroc is about scores",
        ),
        (["--metric", "f1", "--correlation", ".4"], "--correlation is only for auroc, not for f1"),
        (["--metric", "f1", "--difference", ".0009"], "must be at least 0.001, got 0.0009"),
    ],
)
def test_options_that_would_change_nothing_are_refused(
    home: Path, call: Call, words: list[str], told: str
) -> None:
    done = call("power", "--difference", "0.05", *words)
    assert done.code == 2 and told in done.err and done.out == ""


def test_more_comparisons_at_once_need_more_samples(home: Path, call: Call) -> None:
    shares = assumed("f1", 0.7, 0.03, 0.5, None)
    found = plan("f1", 0.03, comparisons=7)
    assert found.n == samples_needed("f1", shares, 0.03, alpha=0.05 / 7) > plan("f1", 0.03).n
    shown = call("power", "--metric", "f1", "--difference", "0.03", "--comparisons", "7")
    assert shown.code == 0 and "at a level of 0.05 / 7" in " ".join(shown.out.split())
    alone = call("power", "--metric", "f1", "--difference", "0.03")
    assert "one metric of one pair, chosen beforehand" in " ".join(alone.out.split())
    with pytest.raises(InputError, match="comparisons must be at least 1"):
        plan("f1", 0.03, comparisons=0)
    a_run(None, "small", 0.4)
    a_run(None, "large", 0.2)
    pilot = [needed_samples("f1", 0.1, comparisons=m, pilot=["small", "large"]).n for m in (1, 7)]
    assert pilot[0] < pilot[1]
