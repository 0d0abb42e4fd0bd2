"""The cluster bootstrap: intervals that hold the truth where samples of one context resemble each other."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import bootstrap

from magistrate.errors import InputError
from magistrate.stats.resampling import LEAST_GROUPS, draws_of, interval_of, two_sided_p


def mean(values: np.ndarray):  # type: ignore[type-arg,no-untyped-def]
    return lambda weights: (weights @ values) / weights.sum(axis=1)


def test_with_a_context_each_it_is_the_bootstrap_of_scipy() -> None:
    values = np.random.default_rng(3).beta(2, 5, 80)
    found = interval_of(values.mean(), draws_of(mean(values), np.arange(80), draws=8000)[:, 0], 80)
    low, high = bootstrap(
        (values,), np.mean, method="percentile", n_resamples=8000, rng=np.random.default_rng(4)
    ).confidence_interval
    assert found.value == pytest.approx(values.mean())
    assert found.low == pytest.approx(low, abs=0.005)
    assert found.high == pytest.approx(high, abs=0.005)


def test_samples_of_one_context_are_drawn_together() -> None:
    groups = np.array([0, 0, 0, 1, 2, 2, 3])
    seen: list[np.ndarray] = []  # type: ignore[type-arg]

    def remember(weights: np.ndarray):  # type: ignore[type-arg,no-untyped-def]
        seen.append(weights)
        return weights.sum(axis=1)

    draws_of(remember, groups, draws=50)
    weights = np.concatenate(seen)
    assert weights.shape == (50, 7)
    assert (weights[:, 0] == weights[:, 1]).all() and (weights[:, 1] == weights[:, 2]).all()
    assert (weights[:, 4] == weights[:, 5]).all()
    assert (weights[:, [0, 3, 4, 6]].sum(axis=1) == 4).all()  # as many contexts in every draw


def test_clustered_intervals_hold_the_truth_where_plain_ones_do_not() -> None:
    source, truth, held = np.random.default_rng(0), 0.5, {"clustered": 0, "plain": 0}
    for _ in range(150):
        rates = source.beta(0.4, 0.4, 30)  # contexts differ a lot
        values = (source.random((30, 10)) < rates[:, None]).astype(float).ravel()
        for name, groups in (("clustered", np.repeat(np.arange(30), 10)), ("plain", np.arange(300))):
            drawn = draws_of(mean(values), groups, draws=300)[:, 0]
            found = interval_of(values.mean(), drawn, 30)
            assert found.low is not None and found.high is not None
            held[name] += found.low <= truth <= found.high
    assert held["clustered"] / 150 > 0.87
    assert held["plain"] / 150 < 0.70


def test_draws_are_the_same_for_the_same_seed_and_whatever_the_statistic() -> None:
    values, groups = np.random.default_rng(1).random(40), np.arange(40) // 2
    assert (draws_of(mean(values), groups) == draws_of(mean(values), groups)).all()
    assert (draws_of(mean(values), groups) != draws_of(mean(values), groups, seed=1)).any()
    both = draws_of(lambda w: np.stack([mean(values)(w), mean(values + 1)(w)], axis=1), groups)
    assert both[:, 1] - both[:, 0] == pytest.approx(np.ones(len(both)))
    assert (both[:, 0] == draws_of(mean(values), groups)[:, 0]).all()


def test_many_samples_at_a_time_give_the_draws_of_few(monkeypatch: pytest.MonkeyPatch) -> None:
    values, groups = np.random.default_rng(1).random(40), np.arange(40) // 2
    whole = draws_of(mean(values), groups, draws=100)
    monkeypatch.setattr("magistrate.stats.resampling._AT_ONCE", 50)
    assert draws_of(mean(values), groups, draws=100) == pytest.approx(whole, abs=1e-12)


@pytest.mark.parametrize("groups", [[], [[0, 1]], [0.5, 1.5], ["a", "b"]])
def test_groups_are_whole_numbers(groups: object) -> None:
    with pytest.raises(InputError, match="groups must be a flat list of numbers"):
        draws_of(lambda weights: weights.sum(axis=1), groups)  # type: ignore[arg-type]


def test_where_nothing_varies_there_is_no_interval_and_a_reason() -> None:
    found = interval_of(1.0, np.ones(100), 40)
    assert (found.value, found.low, found.high) == (1.0, None, None)
    assert found.undefined is not None and "the same in every draw" in found.undefined


def test_few_contexts_have_no_interval() -> None:
    few = interval_of(0.5, np.linspace(0, 1, 100), LEAST_GROUPS - 1)
    assert (few.value, few.low) == (0.5, None)
    assert few.undefined is not None and "4 independent contexts" in few.undefined
    assert interval_of(0.5, np.linspace(0, 1, 100), LEAST_GROUPS).low is not None


def test_draws_that_define_nothing_are_left_out_or_leave_no_interval() -> None:
    some = np.where(np.arange(100) < 30, np.nan, np.linspace(0, 1, 100))
    assert interval_of(0.6, some, 40).low is not None
    most = np.where(np.arange(100) < 70, np.nan, np.linspace(0, 1, 100))
    assert interval_of(0.6, most, 40).low is None
    assert interval_of(None, some, 40).value is None
    assert interval_of(float("nan"), some, 40).value is None


def test_the_p_value_of_a_difference_is_uniform_where_there_is_none() -> None:
    source, rejected = np.random.default_rng(5), 0
    for _ in range(200):
        values = source.normal(size=60)
        p = two_sided_p(draws_of(mean(values), np.arange(60), draws=400)[:, 0])
        assert p is not None and 0 < p <= 1
        rejected += p < 0.05
    assert rejected / 200 < 0.12
    assert two_sided_p(np.full(10, np.nan)) is None
    assert two_sided_p(np.full(999, 0.3)) == pytest.approx(2 / 1000)
