"""The distributions, ranks and curves of `metrics.distributions` are those of scipy and scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import special, stats
from sklearn import metrics as sk
from sklearn.model_selection import StratifiedGroupKFold

from magistrate.metrics import distributions as own

CLOSE = 1e-9


@pytest.mark.parametrize("freedom", [1, 2, 3, 7.5, 30, 400, 20_000])
def test_students_t_is_that_of_scipy(freedom: float) -> None:
    for x in (-40, -3.2, -1, -1e-3, 0, 0.4, 2, 9):
        assert own.stdtr(freedom, x) == pytest.approx(stats.t.cdf(x, freedom), rel=CLOSE, abs=1e-15)
        assert own.two_sided_t(x, freedom) == pytest.approx(2 * stats.t.sf(abs(x), freedom), rel=CLOSE)
    for p in (1e-9, 0.0005, 0.025, 0.3, 0.5, 0.8, 0.975, 1 - 1e-6):
        assert own.stdtrit(freedom, p) == pytest.approx(stats.t.ppf(p, freedom), rel=1e-8, abs=1e-12)
    assert (own.stdtr(freedom, -np.inf), own.stdtrit(freedom, 0)) == (0, -np.inf)


def test_the_normal_distribution_is_that_of_scipy() -> None:
    for p in (1e-12, 0.01, 0.5, 0.975, 1 - 1e-9):
        assert own.ndtri(p) == pytest.approx(special.ndtri(p), rel=CLOSE, abs=1e-12)
        assert own.ndtr(own.ndtri(p)) == pytest.approx(p, rel=CLOSE)
    assert (own.ndtri(0), own.ndtri(1), own.ndtr(np.inf)) == (-np.inf, np.inf, 1)


def test_binomial_chances_and_wilsons_interval_are_those_of_scipy() -> None:
    for n in (1, 5, 40, 3000):
        for k in {0, 1, n // 3, n // 2, n}:
            assert own.binomial_cdf(k, n, 0.5) == pytest.approx(stats.binom.cdf(k, n, 0.5), rel=CLOSE)
            expected = stats.binomtest(k, n).proportion_ci(0.95, method="wilson")
            assert own.wilson_interval(k / n, n, 0.95) == pytest.approx(tuple(expected), abs=1e-12)


def test_fishers_exact_test_is_that_of_scipy() -> None:
    for table in (
        [3, 1, 2, 9],
        [0, 5, 5, 0],
        [8, 2, 40, 50],
        [10, 10, 10, 10],
        [0, 0, 3, 4],
        [1, 200, 7, 90],
    ):
        expected = stats.fisher_exact(np.reshape(table, (2, 2))).pvalue
        assert own.fisher_exact(*table) == pytest.approx(expected, rel=1e-7)


def test_the_distance_of_two_samples_is_that_of_scipy_and_its_p_value_near() -> None:
    random = np.random.default_rng(0)
    for n, m, moved in ((40, 60, 0.3), (300, 80, 0.1), (1000, 1000, 0.05), (30, 30, 1.0)):
        one, other = np.round(random.random(n), 2), np.round(random.random(m) + moved, 2)
        expected = stats.ks_2samp(one, other, method="asymp")
        distance, p = own.ks_2samp(one, other)
        assert distance == pytest.approx(expected.statistic, abs=1e-12)
        assert p == pytest.approx(expected.pvalue, rel=0.1, abs=0.01)
    for x in (0.3, 0.8, 0.999, 1, 1.4, 3):
        assert own.kolmogorov(x) == pytest.approx(stats.kstwobign.sf(x), rel=1e-7)


def test_functions_of_arrays_are_those_of_scipy() -> None:
    x = np.array([-800.0, -5, -0.1, 0, 2, 30, 900])
    assert own.expit(x) == pytest.approx(special.expit(x), rel=CLOSE)
    p = np.array([1e-12, 0.2, 0.5, 0.999])
    assert own.logit(p) == pytest.approx(special.logit(p), rel=CLOSE)
    values = [3, 1, 3, 2, 2, 2]
    assert own.rankdata(values).tolist() == stats.rankdata(values).tolist()


def test_curves_are_those_of_scikit_learn() -> None:
    random = np.random.default_rng(1)
    truth, scores = random.random(200) < 0.4, np.round(random.random(200), 2)
    weights = random.random(200)
    assert own.roc_auc_score(truth, scores) == pytest.approx(sk.roc_auc_score(truth, scores))
    weighted = sk.roc_auc_score(truth, scores, sample_weight=weights)
    assert own.roc_auc_score(truth, scores, weights) == pytest.approx(weighted)
    for corners in (False, True):
        curves = sk.roc_curve(truth, scores, drop_intermediate=corners)
        for found, curve in zip(own.roc_curve(truth, scores, corners=corners), curves, strict=True):
            assert found == pytest.approx(curve)


def test_a_root_is_found_to_the_last_digit_and_not_where_there_is_none() -> None:
    assert own.brentq(lambda x: x * x - 2, 0, 2) == pytest.approx(2**0.5, rel=1e-15)
    with pytest.raises(ValueError, match="the same sign"):
        own.brentq(lambda x: x * x + 1, 0, 2)


def test_folds_share_no_group_and_are_those_of_scikit_learn() -> None:
    random = np.random.default_rng(2)
    groups = random.integers(0, 60, 300)
    truth = random.random(300) < 0.3
    folds = own.grouped_folds(truth, groups, 5, seed=0)
    assert sorted(np.concatenate([test for _, test in folds])) == list(range(300))
    expected = StratifiedGroupKFold(5, shuffle=True, random_state=0).split(truth, truth, groups)
    for (train, test), (others, fold) in zip(folds, expected, strict=True):
        assert set(groups[train]).isdisjoint(groups[test])
        assert (train.tolist(), test.tolist()) == (others.tolist(), fold.tolist())
