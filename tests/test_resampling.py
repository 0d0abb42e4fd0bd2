"""The cluster bootstrap: intervals that hold the truth where samples of one context resemble each other."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import ndtr
from scipy.stats import bootstrap, t

from magistrate.errors import InputError
from magistrate.metrics.resampling import (
    LEAST_GROUPS,
    difference_of,
    draws_of,
    interval_of,
    least_p,
    standard_error,
    two_sided_p,
)


def mean(values: np.ndarray):  # type: ignore[type-arg,no-untyped-def]
    return lambda weights: (weights @ values) / weights.sum(axis=1)


def test_with_a_context_each_it_is_the_bootstrap_of_scipy() -> None:
    values = np.random.default_rng(3).beta(2, 5, 80)
    found = interval_of(values.mean(), draws_of(mean(values), np.arange(80), draws=8000)[:, 0], 80)
    low, high = bootstrap(
        (values,), np.mean, method="percentile", n_resamples=8000, rng=np.random.default_rng(4)
    ).confidence_interval
    assert found.value == pytest.approx(values.mean())  # with 80 contexts the expanded ends are near
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


@pytest.mark.full
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
    monkeypatch.setattr("magistrate.metrics.resampling._AT_ONCE", 50)
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
    assert few.undefined is not None and "5 independent contexts" in few.undefined
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
        p = two_sided_p(draws_of(mean(values), np.arange(60), draws=400)[:, 0], 60)
        assert p is not None and 0 < p <= 1
        rejected += p < 0.05
    assert rejected / 200 < 0.12
    assert two_sided_p(np.full(10, np.nan), 60) is None
    assert two_sided_p(np.full(999, 0.3), 10**6) == pytest.approx(2 / 1000, rel=1e-3)
    assert two_sided_p(np.linspace(-1, 1, 100), 60) == 1


# --- few contexts --------------------------------------------------------------------------------


def test_the_ends_are_those_of_the_expanded_percentile_interval() -> None:
    """Hesterberg (2015, section 4.3): the percentiles at the normal tail of t by the root of n / (n - 1)."""
    drawn = np.random.default_rng(1).normal(size=20_000)
    for n_groups in (6, 8, 24, 2000):
        found = interval_of(0.0, drawn, n_groups)
        tail = ndtr(-np.sqrt(n_groups / (n_groups - 1)) * t.ppf(0.975, n_groups - 1))
        assert (found.low, found.high) == pytest.approx(tuple(np.quantile(drawn, [tail, 1 - tail])), abs=0.1)


def test_an_interval_of_shares_stays_within_them() -> None:
    values = np.array([1.0] * 7 + [0.5])
    found = interval_of(values.mean(), draws_of(mean(values), np.arange(8))[:, 0], 8)
    assert found.high == 1 and found.low is not None and found.low >= 0.5


@pytest.mark.full
@pytest.mark.parametrize(
    ("n_groups", "per", "times"),
    [(6, 25, 1500), (8, 25, 1500), (24, 25, 1500), (200, 25, 1000), (8, 1, 1500), (24, 1, 1500)],
)
def test_twins_are_seldom_called_different_however_few_contexts(n_groups: int, per: int, times: int) -> None:
    """Two judges that err as often, by contexts that differ: a p value below .05 comes in 5 of 100, or less.

    Taken as it is, the percentile interval of the draws leaves zero out in .15 to .10 where contexts are few.
    """
    source = np.random.default_rng(n_groups + per)
    weights = draws_of(lambda w: w, np.arange(n_groups)) / n_groups
    rates = source.beta(0.5, 1.5, (2, times, n_groups))
    wrong = source.binomial(per, rates) / per
    seen, plain, apart = 0, 0, 0
    for each in wrong[0] - wrong[1]:
        drawn = weights @ each
        found, p = difference_of(float(each.mean()), drawn, n_groups, n_groups)
        seen += p is not None and p < 0.05
        low, high = np.quantile(drawn, [0.025, 0.975])
        plain += low > 0 or high < 0
        if found.low is not None and found.high is not None and p is not None:
            apart += (found.low > 0 or found.high < 0) != (p < 0.05)
    assert seen / times <= 0.06
    assert apart == 0  # interval and p value say the same
    if n_groups <= 8 and per > 1:
        assert plain / times > 0.09


def test_contexts_that_are_all_on_one_side_prove_no_more_than_their_number() -> None:
    """An exact sign flip of 6 contexts has 64 ways, two of them as extreme: p is .031 at the least."""
    for n_groups in (6, 8):
        values = np.linspace(0.5, 0.6, n_groups)
        drawn = draws_of(mean(values), np.arange(n_groups))[:, 0]
        _, p = difference_of(values.mean(), drawn, n_groups, n_groups)
        assert p is not None and 0.5 ** (n_groups - 1) <= p < 0.05
        assert p >= least_p(n_groups, 2000)
    values = np.linspace(0.5, 0.6, 5)
    assert difference_of(values.mean(), draws_of(mean(values), np.arange(5))[:, 0], 5, 5)[1] is None


def test_the_standard_error_of_a_mean_is_that_of_its_contexts() -> None:
    values = np.random.default_rng(2).normal(size=12)
    drawn = draws_of(mean(values), np.arange(12), draws=20_000)[:, 0]
    assert standard_error(drawn, 12) == pytest.approx(values.std(ddof=1) / np.sqrt(12), rel=0.03)


def test_a_difference_that_never_varies_has_the_p_value_of_the_sign_test() -> None:
    found, p = difference_of(1.0, np.ones(100), 40, 12)
    assert (found.value, found.low, p) == (1.0, None, 2 * 0.5**12)
    assert difference_of(0.0, np.zeros(100), 40, 12)[1] is None
