"""A threshold does best by its aim among all that there are, and says where the aim cannot be reached."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk

from magistrate.errors import InputError, SpecError
from magistrate.metrics.thresholds import MAXIMIZED, RATES, Aim, Unreachable, best_cut, confusion_of, rates

rows = st.lists(
    st.tuples(st.booleans(), st.sampled_from([0.05, 0.1, 0.25, 0.5, 0.75, 0.95])), min_size=2, max_size=30
)
SKLEARN: dict[str, Any] = {
    "f1": lambda truth, said: sk.f1_score(truth, said, zero_division=0),
    "balanced_accuracy": sk.balanced_accuracy_score,
    "accuracy": sk.accuracy_score,
    "precision": lambda truth, said: sk.precision_score(truth, said, zero_division=0),
    "recall": sk.recall_score,
    "flagged": lambda truth, said: np.mean(said),
}


def both(data: list[tuple[bool, float]]) -> tuple[Any, Any]:
    truth, scores = np.array([d[0] for d in data]), np.array([d[1] for d in data])
    assume(truth.any() and not truth.all())
    return truth, scores


def every_cut(scores: Any) -> list[float]:
    edges = np.concatenate([[0.0], np.unique(scores), [1.0]])
    return [float(each) for each in (edges[1:] + edges[:-1]) / 2]


@settings(deadline=None, max_examples=60)
@given(rows, st.sampled_from(MAXIMIZED))
def test_nothing_is_higher_than_the_maximum(data: Any, metric: str) -> None:
    truth, scores = both(data)
    of = SKLEARN[metric]
    chosen = best_cut(scores, truth, Aim("maximize", metric=metric))
    assert of(truth, scores >= chosen) == pytest.approx(
        max(of(truth, scores >= t) for t in every_cut(scores))
    )


@pytest.mark.full
@settings(deadline=None, max_examples=60)
@given(rows, st.sampled_from(["precision", "recall"]), st.sampled_from([0.3, 0.5, 0.8, 1.0]))
def test_what_is_asked_for_is_reached_at_the_least_price(data: Any, kind: Any, least: float) -> None:
    truth, scores = both(data)
    sought = SKLEARN["recall" if kind == "precision" else "precision"]
    reach = [
        t
        for t in every_cut(scores)
        if SKLEARN[kind](truth, scores >= t) >= least and truth[scores >= t].any()
    ]
    if not reach:
        with pytest.raises(Unreachable):
            best_cut(scores, truth, Aim(kind, least=least))
        return
    chosen = best_cut(scores, truth, Aim(kind, least=least))
    assert SKLEARN[kind](truth, scores >= chosen) >= least
    assert sought(truth, scores >= chosen) == pytest.approx(max(sought(truth, scores >= t) for t in reach))


@settings(deadline=None, max_examples=60)
@given(rows, st.sampled_from([(1, 1), (10, 1), (1, 10), (0, 1), (1, 0)]))
def test_nothing_costs_less(data: Any, costs: Any) -> None:
    truth, scores = both(data)
    miss, alarm = costs

    def cost(threshold: float) -> float:
        said = scores >= threshold
        return float(miss * (truth & ~said).sum() + alarm * (~truth & said).sum())

    chosen = best_cut(scores, truth, Aim("costs", miss=miss, false_alarm=alarm))
    assert cost(chosen) == min(map(cost, every_cut(scores)))


def test_precision_and_recall_are_those_of_the_curve() -> None:
    random = np.random.default_rng(0)
    truth = random.random(300) < 0.3
    scores = np.clip(random.normal(0.4 + 0.2 * truth, 0.15), 0.01, 0.99)
    precision, recall, _ = sk.precision_recall_curve(truth, scores)
    chosen = best_cut(scores, truth, Aim("precision", least=0.8))
    assert sk.recall_score(truth, scores >= chosen) == pytest.approx(recall[precision >= 0.8].max())
    chosen = best_cut(scores, truth, Aim("recall", least=0.8))
    assert sk.precision_score(truth, scores >= chosen) == pytest.approx(precision[recall >= 0.8].max())


def test_worked_by_hand() -> None:
    scores, truth = [0.2, 0.4, 0.6, 0.8], [False, True, False, True]
    assert best_cut(scores, truth, Aim("precision", least=1.0)) == pytest.approx(0.7)
    assert best_cut(scores, truth, Aim("recall", least=1.0)) == pytest.approx(0.3)
    assert best_cut(scores, truth, Aim("maximize", metric="f1")) == pytest.approx(0.3)  # 4/5, at .7 it is 2/3
    assert best_cut(scores, truth, Aim("maximize", metric="accuracy")) == pytest.approx(
        0.7
    )  # .3 does as well
    assert best_cut(scores, truth, Aim.costs("1/0")) == pytest.approx(0.3)
    assert best_cut(scores, truth, Aim.costs("0/1")) == pytest.approx(0.9)  # nothing is flagged


def test_weights_are_repeated_samples() -> None:
    random = np.random.default_rng(1)
    truth, scores, times = random.random(60) < 0.5, random.random(60).round(1), random.integers(1, 4, 60)
    for aim in (Aim("maximize", metric="f1"), Aim.costs("3/1"), Aim("recall", least=0.7)):
        many = best_cut(np.repeat(scores, times), np.repeat(truth, times), aim)
        assert best_cut(scores, truth, aim, times) == many


def test_what_cannot_be_reached_says_how_near_one_comes() -> None:
    with pytest.raises(Unreachable, match=r"precision of 0.9 on 4 samples: the highest is 0.500, at 0.\d+"):
        best_cut([0.5, 0.5, 0.9, 0.9], [True, False, True, False], Aim("precision", least=0.9))
    with pytest.raises(InputError, match="both classes"):
        best_cut([0.5], [True], Aim("recall", least=0.9))


def test_scores_at_the_ends_have_no_cut_beyond_them() -> None:
    assert 0 < best_cut([0.0, 1.0], [False, True], Aim("maximize", metric="f1")) < 1
    chosen = best_cut([0.0, 1.0], [True, False], Aim("recall", least=1.0))
    assert chosen == 0.0  # all of them


@pytest.mark.parametrize("text", ["maximize f1", "precision 0.95", "recall 0.9", "costs 10/1", "costs 0.5/2"])
def test_an_aim_is_read_as_it_is_written(text: str) -> None:
    assert str(Aim.parse(text)) == text
    assert Aim.parse(str(Aim.parse(text))) == Aim.parse(text)


@pytest.mark.parametrize(
    "text",
    [
        *("", "happiness", "maximize auroc", "precision 0", "precision 1.1", "recall x", "precision nan"),
        *("costs 1", "costs 1/x", "costs -1/2", "costs 0/0", "costs inf/1"),
    ],
)
def test_what_is_no_aim_is_refused(text: str) -> None:
    with pytest.raises(SpecError):
        Aim.parse(text)


@settings(deadline=None, max_examples=40)
@given(rows, st.floats(0.01, 0.99))
def test_rates_are_scikit_learns(data: Any, threshold: float) -> None:
    truth, scores = both(data)
    said = scores >= threshold
    found = rates(*confusion_of(truth, said)(np.ones((1, truth.size))))
    for name in RATES:
        value = float(found[name][0])
        assert (
            np.isnan(value)
            if not said.any() and name == "precision"
            else value == pytest.approx(SKLEARN[name](truth, said))
        )
