"""Metrics agree with scikit-learn, intervals keep their laws, and what is undefined is said to be so."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest, norm
from sklearn import metrics as sk

from magistrate.errors import InputError
from magistrate.features import ngram_novelty, output_length, words
from magistrate.metrics import METRICS, Classification, Confusion, classification
from magistrate.types import Sample

rows = st.lists(
    st.tuples(st.booleans(), st.booleans(), st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.75, 1.0])), max_size=40
)


def measured(data: list[tuple[bool, bool, float]]) -> Classification:
    return classification([d[0] for d in data], [d[1] for d in data], [d[2] for d in data])


def drawn(n: int, share: float, gap: float, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Labels, predictions and scores of a judge whose two classes lie `gap` deviations apart."""
    random = np.random.default_rng(seed)
    positives = round(n * share)
    labels = np.arange(n) < positives
    raw = random.normal(size=n) + gap * labels
    return labels, raw > gap / 2, norm.cdf(raw)


# --- points -------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_every_metric_is_scikit_learns(seed: int) -> None:
    labels, said, scores = drawn(n=150, share=0.1 + 0.15 * seed, gap=0.4 * seed, seed=seed)
    scores = scores.round(1)  # many ties
    got = {name: e.value for name, e in classification(labels, said, scores).metrics.items()}
    assert got == pytest.approx(
        {
            "accuracy": sk.accuracy_score(labels, said),
            "balanced_accuracy": sk.balanced_accuracy_score(labels, said),
            "precision": sk.precision_score(labels, said),
            "recall": sk.recall_score(labels, said),
            "f1": sk.f1_score(labels, said),
            "auroc": sk.roc_auc_score(labels, scores),
        }
    )
    c = classification(labels, said).confusion
    matrix = [[c.true_negative, c.false_positive], [c.false_negative, c.true_positive]]
    assert matrix == sk.confusion_matrix(labels, said).tolist()


def test_worked_by_hand() -> None:
    # truth  H H H F F   judge  H H F H F   scores .9 .6 .4 .6 .1
    result = classification(
        [True, True, True, False, False], [True, True, False, True, False], [0.9, 0.6, 0.4, 0.6, 0.1]
    )
    assert result.confusion == Confusion(true_positive=2, false_positive=1, true_negative=1, false_negative=1)
    assert {name: e.value for name, e in result.metrics.items()} == pytest.approx(
        {
            "accuracy": 3 / 5,
            "balanced_accuracy": (2 / 3 + 1 / 2) / 2,
            "precision": 2 / 3,
            "recall": 2 / 3,
            "f1": 2 / 3,
            "auroc": 4.5 / 6,  # of 6 pairs 4 are in order (.9>.6, .9>.1, .6>.1, .4>.1), .6 = .6 is a half
        }
    )


def test_the_metrics_are_always_the_same_six() -> None:
    for result in (classification([], []), measured([(True, False, 0.5), (False, True, 0.5)])):
        assert set(result.metrics) == set(METRICS)


# --- intervals ----------------------------------------------------------------------------------


@settings(deadline=None)
@given(rows)
def test_an_interval_holds_its_value_and_nothing_is_nan(data: list[tuple[bool, bool, float]]) -> None:
    for estimate in measured(data).metrics.values():
        if estimate.value is None:
            assert (estimate.low, estimate.high) == (None, None)
            assert estimate.undefined
        else:
            assert estimate.low is not None
            assert estimate.high is not None
            assert 0 <= estimate.low <= estimate.value <= estimate.high <= 1
            assert estimate.low < estimate.high, "finitely many samples never make certain"
            assert estimate.undefined is None
        json.dumps(estimate.to_dict(), allow_nan=False)


@settings(deadline=None)
@given(rows, st.randoms(use_true_random=False))
def test_the_order_of_samples_changes_nothing(data: list[tuple[bool, bool, float]], random) -> None:
    shuffled = list(data)
    random.shuffle(shuffled)
    before, after = measured(data), measured(shuffled)
    assert before.confusion == after.confusion
    for name in METRICS:
        assert after.metrics[name].value == pytest.approx(before.metrics[name].value)


@settings(deadline=None)
@given(rows)
def test_turning_the_scores_round_mirrors_auroc_and_its_interval(
    data: list[tuple[bool, bool, float]],
) -> None:
    area = measured(data).metrics["auroc"]
    mirrored = measured([(truth, said, 1 - score) for truth, said, score in data]).metrics["auroc"]
    if area.value is not None:
        assert (mirrored.low, mirrored.value, mirrored.high) == pytest.approx(
            (1 - area.high, 1 - area.value, 1 - area.low)
        )


@settings(max_examples=30, deadline=None)
@given(rows, st.integers(2, 30))
def test_more_of_the_same_is_narrower(data: list[tuple[bool, bool, float]], times: int) -> None:
    few, many = measured(data).metrics, measured(data * times).metrics
    for name in METRICS:
        if few[name].value is not None:
            assert many[name].value == pytest.approx(few[name].value)
            assert many[name].high - many[name].low < few[name].high - few[name].low


def test_proportions_have_wilson_intervals() -> None:
    labels = np.array([True] * 50 + [False] * 50)
    said = np.array([True] * 40 + [False] * 10 + [True] * 5 + [False] * 45)
    metrics = classification(labels, said).metrics
    for name, hits, n in (("accuracy", 85, 100), ("precision", 40, 45), ("recall", 40, 50)):
        wilson = binomtest(hits, n).proportion_ci(0.95, method="wilson")
        assert (metrics[name].low, metrics[name].high) == pytest.approx((wilson.low, wilson.high))
    # 40 of 50 by the textbook formula (p + z²/2n ± z √(p(1-p)/n + z²/4n²)) / (1 + z²/n), z = 1.96
    assert (metrics["recall"].low, metrics["recall"].high) == pytest.approx((0.6696, 0.8876), abs=1e-4)


@pytest.mark.parametrize("n", [16, 60, 200])
@pytest.mark.parametrize("gap", [0.0, 1.0, 3.0])
def test_intervals_cover_the_truth_about_as_often_as_they_say(n: int, gap: float) -> None:
    """Also on few and nearly perfect samples, where a bootstrap does not."""
    recall = norm.cdf(gap / 2)
    truth = {
        "accuracy": recall,
        "balanced_accuracy": recall,
        "recall": recall,
        "f1": 2 * recall / (1 + recall + (1 - recall)),
        "auroc": norm.cdf(gap / np.sqrt(2)),
    }
    trials = 150
    hits = dict.fromkeys(truth, 0)
    for seed in range(trials):
        metrics = classification(*drawn(n, 0.5, gap, seed=1000 * n + seed)).metrics
        for name, value in truth.items():
            hits[name] += metrics[name].low <= value <= metrics[name].high
    assert min(hits.values()) >= 0.86 * trials, hits


def test_four_right_of_four_is_not_certainty() -> None:
    flags = [True, True, False, False]
    for name, estimate in classification(flags, flags, [0.9, 0.8, 0.2, 0.1]).metrics.items():
        assert estimate.value == 1
        assert estimate.high == 1
        assert estimate.low < 0.6, name


@pytest.mark.full
def test_an_auroc_interval_is_close_to_a_bootstrap_where_that_works() -> None:
    labels, _, scores = drawn(400, 0.5, 1.0, seed=4)
    random = np.random.default_rng(0)
    areas = []
    for _ in range(400):
        rows = np.concatenate([random.integers(0, 200, 200), random.integers(200, 400, 200)])
        areas.append(sk.roc_auc_score(labels[rows], scores[rows]))
    area = classification(labels, labels, scores).metrics["auroc"]
    assert (area.low, area.high) == pytest.approx(tuple(np.quantile(areas, [0.025, 0.975])), abs=0.015)


def test_a_hundred_thousand_samples_are_no_burden() -> None:
    labels, said, scores = drawn(100_000, 0.3, 1.0, seed=9)
    area = classification(labels, said, scores).metrics["auroc"]
    assert area.high - area.low < 0.01
    assert area.value == pytest.approx(sk.roc_auc_score(labels, scores))


# --- what is undefined --------------------------------------------------------------------------

EMPTY = "there are no samples"


@pytest.mark.parametrize(
    ("labels", "said", "undefined"),
    [
        ([], [], dict.fromkeys(METRICS, EMPTY)),
        (
            [True],
            [True],
            {"balanced_accuracy": "every sample is hallucinated", "auroc": "every sample is hallucinated"},
        ),
        (
            [False, False],
            [False, False],
            {
                "balanced_accuracy": "every sample is faithful",
                "precision": "nothing was flagged",
                "recall": "no sample is hallucinated",
                "f1": "no sample is hallucinated and none was flagged",
                "auroc": "every sample is faithful",
            },
        ),
        ([True, False], [False, False], {"precision": "nothing was flagged"}),
        (
            [False, False],
            [True, False],
            {
                "balanced_accuracy": "every sample is faithful",
                "recall": "no sample is hallucinated",
                "auroc": "every sample is faithful",
            },
        ),
    ],
)
def test_an_undefined_metric_says_why(
    labels: list[bool], said: list[bool], undefined: dict[str, str]
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        metrics = classification(labels, said, [0.5] * len(labels)).metrics
    assert {name: e.undefined for name, e in metrics.items() if e.value is None} == undefined


def test_nothing_found_scores_zero_not_undefined() -> None:
    metrics = classification([True, True, False], [False, False, True]).metrics
    assert [metrics[name].value for name in ("accuracy", "precision", "recall", "f1")] == [0, 0, 0, 0]


def test_a_constant_score_ranks_like_a_coin() -> None:
    area = classification([True] * 30 + [False] * 30, [True] * 60, [0.9] * 60).metrics["auroc"]
    assert area.value == 0.5
    assert area.low < 0.5 < area.high


def test_without_scores_there_is_no_auroc() -> None:
    area = classification([True, False], [True, False]).metrics["auroc"]
    assert area.to_dict() == {
        "value": None,
        "low": None,
        "high": None,
        "undefined": "there are no scores",
    }


@pytest.mark.parametrize(
    ("labels", "said", "scores", "message"),
    [
        ([True], [True, False], None, "got 1 and 2"),
        ([1, 0], [True, False], None, "labels must be a flat list of booleans"),
        ([True, False], ["yes", "no"], None, "predictions must be a flat list of booleans"),
        ([[True]], [[True]], None, "flat"),
        ([True, False], [True, False], [0.5], "labels must have the same length"),
        ([True, False], [True, False], [0.5, 1.5], "got 1.5"),
        ([True, False], [True, False], [float("nan"), 0.5], "got nan"),
    ],
)
def test_what_is_not_data_is_refused(labels, said, scores, message: str) -> None:
    with pytest.raises(InputError, match=message):
        classification(labels, said, scores)


# --- overlap ------------------------------------------------------------------------------------


def sample(output: str | None, *context: str) -> Sample:
    return Sample("s", output, context)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The pump's 25 °C limit", ["the", "pump", "s", "25", "c", "limit"]),
        ("Straße \uff21\uff22\uff23 \ufb01ne", ["strasse", "abc", "fine"]),
        ("e\u0301te\u0301 ete", ["été", "ete"]),
        ("東京は大きい", list("東京は大きい")),
        ("हिन्दी भाषा", ["हिन्दी", "भाषा"]),
        (" --- \n", []),
    ],
)
def test_words_of_any_script(text: str, expected: list[str]) -> None:
    assert words(text) == expected


@pytest.mark.parametrize(
    ("output", "context", "n", "novelty"),
    [
        ("the cat sat", ("The cat, sat!",), 2, 0.0),
        ("the cat ran", ("the cat sat",), 2, 1 / 2),
        ("the cat ran off", ("the cat sat", "ran off"), 2, 1 / 3),
        ("cat sat", ("the cat", "sat down"), 2, 1.0),  # a run does not cross from one context to the next
        ("new new new old", ("old",), 1, 3 / 4),
        ("Paris", ("in Paris in spring",), 2, 0.0),
        ("Rome", ("in Paris in spring",), 2, 1.0),
        ("anything", (), 2, 1.0),
        ("...", ("context",), 2, 0.0),
    ],
)
def test_novelty_is_the_share_of_new_runs(
    output: str, context: tuple[str, ...], n: int, novelty: float
) -> None:
    assert ngram_novelty(sample(output, *context), n) == pytest.approx(novelty)


@settings(deadline=None)
@given(st.text(max_size=60), st.text(max_size=60), st.integers(1, 4))
def test_novelty_is_a_share_and_copying_has_none(output: str, context: str, n: int) -> None:
    assert 0 <= ngram_novelty(sample(output, context), n) <= 1
    assert ngram_novelty(sample(output, context, output), n) == 0


def test_overlap_needs_an_output_and_a_size() -> None:
    assert output_length(sample("héé")) == 3
    with pytest.raises(InputError, match="no output yet"):
        output_length(sample(None))
    with pytest.raises(InputError, match="no output yet"):
        ngram_novelty(sample(None), 2)
    with pytest.raises(InputError, match="got 0"):
        ngram_novelty(sample("a"), 0)
