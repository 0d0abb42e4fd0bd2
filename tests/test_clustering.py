"""Intervals where samples share contexts: what they hold, when they change nothing, when there are none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.stats import t as student
from statsmodels.stats.proportion import proportion_confint

from magistrate.errors import InputError
from magistrate.metrics import METRICS
from magistrate.metrics.classification import classification, size_for_area, size_for_share
from magistrate.metrics.distributions import wilson_interval
from magistrate.report import RunFacts, summarize
from magistrate.types import Sample, Scoring, Verdict

HITS = np.array([1, 1, 1, 0, 0, 1, 1, 0, 1, 0, 0, 0], dtype=bool)
GROUPS = np.repeat(np.arange(4), 3)


def drawn(contexts: int, each: int, seed: int, *, by_context: bool = False) -> tuple[Any, ...]:
    """Labels, verdicts, scores and contexts; how often a judge is right differs from context to context."""
    random = np.random.default_rng(seed)
    groups, n = np.repeat(np.arange(contexts), each), contexts * each
    truth = (random.random(contexts) < 0.5)[groups] if by_context else random.random(n) < 0.5
    right = random.random(n) < random.beta(3.5, 1.5, contexts)[groups]
    said = truth == right
    noise = random.normal(0, 0.7, n) + random.normal(0, 0.7, contexts)[groups]
    return truth, said, 1 / (1 + np.exp(-(1.5 * said - 0.75 + noise))), groups


@pytest.mark.parametrize("by_context", [False, True])
def test_intervals_of_samples_that_share_contexts_hold_the_truth(by_context: bool) -> None:
    """At least nine in ten, where those of independent samples hold some three in four."""
    truth, said, scores, _ = drawn(20_000, 12, 99)
    wanted = {name: each.value for name, each in classification(truth, said, scores).metrics.items()}
    draws, held, alone = 150, dict.fromkeys(METRICS, 0), dict.fromkeys(METRICS, 0)
    for seed in range(draws):
        truth, said, scores, groups = drawn(24, 12, seed, by_context=by_context)
        for counts, given in ((held, groups), (alone, None)):
            for name, found in classification(truth, said, scores, given).metrics.items():
                # None of a draw with too few contexts of a class: that claims nothing.
                ends = (0, 1) if found.low is None or found.high is None else (found.low, found.high)
                counts[name] += ends[0] <= float(wanted[name] or 0) <= ends[1]
    assert min(held.values()) >= 0.9 * draws
    assert alone["accuracy"] < 0.85 * draws


@pytest.mark.parametrize("seed", range(8))
def test_samples_alone_in_their_contexts_change_nothing(seed: int) -> None:
    truth, said, scores, _ = drawn(3 + 9 * seed, 1, seed)
    groups = np.random.default_rng(seed).permutation(truth.size)
    assert classification(truth, said, scores, groups) == classification(truth, said, scores)


@pytest.mark.parametrize("seed", range(4))
def test_sharing_widens_and_moves_no_value(seed: int) -> None:
    truth, said, scores, groups = drawn(20, 8, seed)
    alone, shared = (classification(truth, said, scores, each).metrics for each in (None, groups))
    for name in METRICS:
        assert shared[name].value == alone[name].value
        assert shared[name].low <= alone[name].low <= alone[name].high <= shared[name].high  # type: ignore


def test_copies_of_a_sample_are_worth_one() -> None:
    """Twelve copies of every sample know what one of them knows, but for how few contexts they are."""
    truth, said, scores, _ = drawn(40, 1, 0)
    groups = np.repeat(np.arange(40), 12)
    found = classification(*(np.repeat(each, 12) for each in (truth, said, scores)), groups).metrics
    for name, once in classification(truth, said, scores).metrics.items():
        assert found[name].low == pytest.approx(once.low, abs=0.04)
        assert found[name].high == pytest.approx(once.high, abs=0.04)


def test_what_a_share_is_worth_is_its_n_by_the_cluster_robust_variance() -> None:
    """Kish's effect, by hand from the contexts' shares, and Korn and Graubard's (1998) correction."""
    share = HITS.mean()
    means = HITS.reshape(4, 3).mean(axis=1)
    together = means.var(ddof=1) / 4
    alone = share * (1 - share) / 11
    effective = 12 / (together / alone) * (student.ppf(0.975, 11) / student.ppf(0.975, 3)) ** 2
    found = size_for_share(HITS, np.ones(12, dtype=bool), GROUPS)
    assert (found.n, found.contexts) == (12, 4)
    assert found.effective == pytest.approx(effective)
    assert wilson_interval(share, effective) == pytest.approx(
        proportion_confint(share * effective, effective, method="wilson")
    )


def test_what_an_area_is_worth_is_by_its_components_summed_over_contexts() -> None:
    """Obuchowski (1997), with pairs counted one by one."""
    truth, _, scores, groups = drawn(9, 4, 3)
    scores = np.round(scores, 1)  # with ties
    wins = [[(a > b) + (a == b) / 2 for b in scores[~truth]] for a in scores[truth]]
    table = np.array(wins)
    area = table.mean()
    residuals = np.zeros(36)
    residuals[truth] = (table.mean(axis=1) - area) / truth.sum()
    residuals[~truth] = (table.mean(axis=0) - area) / (~truth).sum()
    together = sum(residuals[groups == each].sum() ** 2 for each in range(9)) * 9 / 8
    effect = max(together / ((residuals**2).sum() * 36 / 35), 1)
    few = (student.ppf(0.975, 35) / student.ppf(0.975, 8)) ** 2
    positive, negative = size_for_area(truth, scores, groups)
    assert positive.effective == pytest.approx(truth.sum() / effect * few)
    assert negative.effective == pytest.approx((~truth).sum() / effect * few)


def test_a_judge_without_an_error_is_worth_its_contexts() -> None:
    truth = np.tile([True, False], 60)
    groups = np.arange(120) // 10
    found = classification(truth, truth, truth.astype(float), groups).metrics
    assert found["accuracy"].low == pytest.approx(proportion_confint(12, 12, method="wilson")[0])
    for name, alone in classification(truth, truth, truth.astype(float)).metrics.items():
        assert found[name].value == 1 == found[name].high
        assert found[name].low < alone.low - 0.05  # type: ignore[operator]


def test_fewer_than_five_contexts_have_no_interval_and_gates_on_one_fail() -> None:
    samples = {str(at): Sample(str(at), "x", (f"c{at % 4}",), label=NAMES[at // 4 % 2]) for at in range(40)}
    said = [Verdict(str(at), "j", NAMES[at // 4 % 2], float(at // 4 % 2)) for at in range(40)]
    report = summarize(RunFacts("r", "r", "d", "done", 40), samples, said, {}, {"j": Scoring("minimize")})
    (judge,) = report.judges
    assert judge.result is not None and judge.n_contexts == 4
    for each in judge.result.metrics.values():
        assert each.value == 1 and each.low is None
        assert each.undefined == "no interval from 4 independent contexts"
    from magistrate.report.gates import results

    passed, failed = results(["f1>=0.9", "lower(f1)>=0.1"], report)
    assert passed.passed and not failed.passed
    assert "without an interval: no interval from 4 independent contexts" in failed.reason
    assert "40 samples of 4 contexts" in str(report)
    assert "accuracy, balanced accuracy" in " ".join(str(report).split())


NAMES = ("faithful", "hallucinated")


@pytest.mark.parametrize("groups", [[0, 1], [0.0, 1.0, 2.0], [[0, 1, 2]]])
def test_groups_must_be_a_whole_number_a_sample(groups: Any) -> None:
    with pytest.raises(InputError, match="groups must be 3 whole numbers"):
        classification([True, False, True], [True, False, True], None, groups)
