"""Scores become probabilities as the textbooks do it, and are judged on samples they were not fitted to."""

from __future__ import annotations

import json
import math
import warnings
from dataclasses import replace
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import statsmodels.api as sm
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit, logit
from sklearn import metrics as sk
from sklearn.calibration import _SigmoidCalibration, calibration_curve
from sklearn.isotonic import IsotonicRegression

import magistrate
from benchmarks.detector.fit import Part
from magistrate import ScriptedEngine
from magistrate.analysis.calibration import (
    LEAST,
    LEAST_OF_EITHER,
    file_of,
    fit,
    folds_of,
    remarks_of,
)
from magistrate.analysis.columns import Columns
from magistrate.api.calibrate import Calibration, calibrate
from magistrate.errors import InputError, SpecError
from magistrate.judges.calibration_file import CalibrationFile, read_calibration, write_calibration
from magistrate.metrics.calibration import (
    CLIP,
    METHODS,
    Calibrator,
    fitted,
    joint_odds,
    shifted,
    sigmoid,
)
from magistrate.metrics.classification import Estimate
from magistrate.metrics.reliability import LOSSES, reliability
from magistrate.metrics.thresholds import Aim, Unreachable
from magistrate.report.calibration import diagram
from magistrate.report.formatting import as_text
from magistrate.types import Prompt, Recipe
from terminal import Call
from two_judges import LOW_IS_GOOD


def drawn(n: int, *, skill: float = 1.5, rate: float = 0.4, seed: int = 0) -> tuple[Any, Any]:
    """Labels, and scores that are too sure by far."""
    random = np.random.default_rng(seed)
    truth = random.random(n) < rate
    return truth, expit(3 * (random.normal(size=n) + skill * truth - 0.3))


def told(
    n: int = 300, *, per: int = 2, skill: float = 1.5, rate: float = 0.4, seed: int = 0, columns: Any = None
) -> Columns:
    """What a judge said of n samples, `per` a context."""
    truth, scores = columns or drawn(n, skill=skill, rate=rate, seed=seed)
    ids = tuple(f"s{at}" for at in range(len(truth)))
    return Columns("j", ids, truth, scores >= 0.5, scores, np.arange(len(truth)) // per, {}, LOW_IS_GOOD)


# --- the maps -----------------------------------------------------------------------------------


def test_platt_is_a_logistic_regression_on_platts_targets() -> None:
    truth, scores = drawn(200)
    found = fitted("platt", scores, truth).parameters
    n1, n0 = truth.sum(), (~truth).sum()
    target = np.where(truth, (n1 + 1) / (n1 + 2), 1 / (n0 + 2))
    odds = sm.add_constant(logit(np.clip(scores, CLIP, 1 - CLIP)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that such targets are no counts is what is meant
        model = sm.GLM(target, odds, family=sm.families.Binomial()).fit(tol=1e-12)
    assert [*found["intercept"], *found["slope"]] == pytest.approx(model.params.tolist(), abs=1e-5)
    theirs = _SigmoidCalibration().fit(odds[:, 1], truth)
    assert found["slope"][0] == pytest.approx(-theirs.a_, rel=1e-3)
    assert found["intercept"][0] == pytest.approx(-theirs.b_, rel=1e-3)


def test_platt_with_weights_is_that_of_repeated_samples() -> None:
    truth, scores = drawn(120)
    times = np.where(truth, 1, 3)
    model = sm.GLM(
        np.where(truth, (truth.sum() + 1) / (truth.sum() + 2), 1 / ((~truth).sum() + 2)),
        sm.add_constant(logit(np.clip(scores, CLIP, 1 - CLIP))),
        family=sm.families.Binomial(),
        freq_weights=times,
    ).fit(tol=1e-12)
    found = fitted("platt", scores, truth, times).parameters
    assert [*found["intercept"], *found["slope"]] == pytest.approx(model.params.tolist(), abs=1e-5)


def test_isotonic_is_scikit_learns_within_its_bounds() -> None:
    truth, scores = drawn(300)
    scores = scores.round(2)  # ties
    least = 1 / 302
    theirs = IsotonicRegression(y_min=least, y_max=1 - least, out_of_bounds="clip").fit(scores, truth)
    asked = np.linspace(0, 1, 501)
    assert fitted("isotonic", scores, truth).of_all(asked) == pytest.approx(theirs.predict(asked), abs=1e-8)


def test_temperature_is_the_best_of_a_grid() -> None:
    truth, scores = drawn(300)
    odds, n1, n0 = logit(np.clip(scores, CLIP, 1 - CLIP)), truth.sum(), (~truth).sum()
    target = np.where(truth, (n1 + 1) / (n1 + 2), 1 / (n0 + 2))

    def loss(temperature: float) -> float:  # of both labels, each as far as the target is it
        both, label = np.concatenate([expit(odds / temperature)] * 2), np.repeat([True, False], truth.size)
        return float(sk.log_loss(label, both, sample_weight=np.concatenate([target, 1 - target])))

    grid = np.geomspace(0.05, 50, 101)
    losses = [loss(each) for each in grid]
    found = fitted("temperature", scores, truth).parameters["temperature"][0]
    assert found == pytest.approx(grid[int(np.argmin(losses))], rel=0.08)
    assert loss(found) <= min(losses) + 1e-12


@pytest.mark.parametrize("method", METHODS)
def test_one_score_is_mapped_as_many_are_and_none_becomes_certain(method: Any) -> None:
    truth, scores = drawn(250)
    scores[:4] = [0, 1, 0, 1]
    own = fitted(method, scores, truth)
    asked = [0.0, 1.0, 1e-9, 0.5, *scores.tolist()]
    each = [own(score) for score in asked]
    assert each == pytest.approx(own.of_all(asked).tolist(), abs=1e-12)
    assert all(0 < value < 1 for value in each)
    order = np.argsort(asked)
    assert (np.diff(np.array(each)[order]) >= -1e-15).all()  # the ranking stays


@pytest.mark.parametrize("method", METHODS)
def test_scores_that_separate_the_classes_have_finite_maps(method: Any) -> None:
    scores = np.repeat([0.0, 1.0], 40)
    own = fitted(method, scores, scores == 1)
    assert 0 < own(0.0) < 0.05 and 0.95 < own(1.0) < 1


def test_calibrated_scores_stay_as_they_are() -> None:
    random = np.random.default_rng(3)
    scores = random.uniform(0.02, 0.98, 20_000)
    truth = random.random(20_000) < scores
    platt, temperature = fitted("platt", scores, truth), fitted("temperature", scores, truth)
    assert platt.parameters["slope"][0] == pytest.approx(1, abs=0.05)
    assert platt.parameters["intercept"][0] == pytest.approx(0, abs=0.05)
    assert temperature.parameters["temperature"][0] == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize(
    ("method", "parameters"),
    [
        ("platt", {"slope": (1.0,)}),
        ("platt", {"slope": (float("nan"),), "intercept": (0.0,)}),
        ("platt", {"slope": (1.0, 2.0), "intercept": (0.0,)}),
        ("temperature", {"temperature": (0.0,)}),
        ("isotonic", {"scores": (0.2, 0.1), "probabilities": (0.1, 0.2)}),
        ("isotonic", {"scores": (0.1, 0.2), "probabilities": (0.2, 0.1)}),
        ("isotonic", {"scores": (0.1,), "probabilities": (1.0,)}),
        ("isotonic", {"scores": (), "probabilities": ()}),
        ("histogram", {}),
    ],
)
def test_parameters_that_make_no_map_are_refused(method: Any, parameters: Any) -> None:
    with pytest.raises((InputError, KeyError)):
        Calibrator(method, parameters)


def test_the_base_rate_moves_the_odds_of_platt_by_its_own() -> None:
    """Where only the frequency differs the log odds move by theirs (Saerens 2002, eq. 2.4)."""
    truth, scores = drawn(40_000, rate=0.5)
    plain = fitted("platt", scores, truth)
    rare = fitted("platt", scores, truth, shifted(np.ones(truth.size), truth, 0.1))
    share = truth.mean()
    moved = logit(0.1) - logit(share)
    assert rare.parameters["intercept"][0] - plain.parameters["intercept"][0] == pytest.approx(moved, abs=0.1)
    assert rare.parameters["slope"][0] == pytest.approx(plain.parameters["slope"][0], abs=0.05)


def test_shifted_weights_have_the_share_that_is_asked_for() -> None:
    truth = np.array([True, False, False, False])
    weights = shifted(np.array([[1.0, 1, 1, 1], [0, 2, 1, 1]]), truth, 0.5)
    assert weights[0] == pytest.approx([2, 2 / 3, 2 / 3, 2 / 3])
    assert np.isnan(weights[1]).any()  # a draw without a hallucination has no such share


# --- the figures --------------------------------------------------------------------------------


def test_the_calibration_error_worked_by_hand() -> None:
    # Two bins of four: mean scores .2 and .7, shares 1/4 and 2/4; so (|.2 - .25| + |.7 - .5|) / 2.
    scores = [0.1, 0.2, 0.2, 0.3, 0.6, 0.7, 0.7, 0.8]
    truth = [False, True, False, False, True, False, True, False]
    found = reliability(truth, scores, bins=2)
    assert found.ece == pytest.approx(0.125)
    assert [(each.n, each.mean_score, each.observed.value) for each in found.bins] == [
        (4, pytest.approx(0.2), 0.25),
        (4, pytest.approx(0.7), 0.5),
    ]
    # Bins as wide as each other: [0, .5) and [.5, 1] are the same eight here, [0, .25) and so on are not.
    assert reliability(truth, scores, bins=2, binning="width").ece == pytest.approx(0.125)
    wide = reliability(truth, scores, bins=4, binning="width")
    by_hand = (3 * abs(0.5 / 3 - 1 / 3) + 1 * 0.3 + 3 * abs(2 / 3 - 2 / 3) + 1 * 0.8) / 8
    assert [each.n for each in wide.bins] == [3, 1, 3, 1]
    assert wide.ece == pytest.approx(by_hand)


@pytest.mark.parametrize("seed", range(4))
def test_brier_and_log_loss_are_scikit_learns(seed: int) -> None:
    truth, scores = drawn(150, seed=seed)
    found = reliability(truth, scores)
    assert found.brier == pytest.approx(sk.brier_score_loss(truth, scores))
    assert found.log_loss == pytest.approx(sk.log_loss(truth, np.clip(scores, CLIP, 1 - CLIP)))


def test_wide_bins_are_scikit_learns() -> None:
    truth, scores = drawn(400)
    share, mean = calibration_curve(truth, scores, n_bins=10, strategy="uniform")
    found = reliability(truth, scores, binning="width").bins
    assert [each.observed.value for each in found] == pytest.approx(share.tolist())
    assert [each.mean_score for each in found] == pytest.approx(mean.tolist())


def test_a_certain_error_costs_no_more_than_the_clip_says() -> None:
    assert reliability([True], [0.0]).log_loss == pytest.approx(-log(CLIP))
    assert reliability([True, False], [1.0, 0.0]).ece == 0


rows = st.lists(
    st.tuples(st.booleans(), st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.9, 1.0])), min_size=1, max_size=40
)


@settings(deadline=None)
@given(rows, st.sampled_from(["mass", "width"]), st.randoms())
def test_bins_keep_equals_together_and_no_order_matters(data: Any, binning: Any, random: Any) -> None:
    found = reliability([d[0] for d in data], [d[1] for d in data], binning=binning)
    assert sum(each.n for each in found.bins) == len(data)
    assert all(low.high < high.low for low, high in zip(found.bins, found.bins[1:], strict=False))
    assert 0 <= found.ece <= 1 and 0 <= found.brier <= 1 and found.log_loss >= 0
    for each in found.bins:
        assert each.observed.low is not None and each.observed.high is not None
        assert each.observed.low <= each.observed.value + 1e-9 <= each.observed.high + 2e-9  # type: ignore
    mixed = random.sample(data, len(data))
    again = reliability([d[0] for d in mixed], [d[1] for d in mixed], binning=binning)
    assert [getattr(again, name) for name in LOSSES] == pytest.approx([getattr(found, n) for n in LOSSES])


def test_figures_at_another_base_rate_are_those_of_repeated_samples() -> None:
    truth, scores = drawn(200, rate=0.5)
    times = np.where(truth, 1, 4)
    many = reliability(np.repeat(truth, times), np.repeat(scores, times), bins=1)
    rate = truth.sum() / (truth.sum() + 4 * (~truth).sum())
    found = reliability(truth, scores, bins=1, base_rate=float(rate))
    assert [getattr(found, name) for name in LOSSES] == pytest.approx([getattr(many, n) for n in LOSSES])
    assert found.bins[0].observed.value == pytest.approx(many.bins[0].observed.value)


@pytest.mark.parametrize(
    ("truth", "scores"),
    [([], []), ([True], [0.5, 0.5]), ([True], [1.5]), ([True], [float("nan")]), ([1], [0.5])],
)
def test_what_cannot_be_measured_is_refused(truth: Any, scores: Any) -> None:
    with pytest.raises(InputError):
        reliability(truth, scores)


# --- held-out folds -----------------------------------------------------------------------------


def test_no_context_is_in_two_folds_and_every_sample_is_in_one() -> None:
    columns = told(200, per=4)
    parts = folds_of(columns, 5, seed=0)
    assert sorted(np.concatenate([test for _, test in parts]).tolist()) == list(range(200))
    for train, test in parts:
        assert not set(columns.groups[train]) & set(columns.groups[test])


def test_figures_after_are_of_samples_that_the_map_had_not_seen() -> None:
    """Labels that are the same within a context and else random: what has seen a context knows its labels."""
    random = np.random.default_rng(0)
    places = np.arange(300) // 2
    label, score = random.random(150) < 0.5, random.random(150)
    columns = told(300, columns=(label[places], score[places]))
    seen = fitted("isotonic", columns.scores, columns.truth).of_all(columns.scores)
    found = fit(columns, "isotonic")
    chance = np.mean((columns.truth.mean() - columns.truth) ** 2)
    assert np.mean((seen - columns.truth) ** 2) < chance - 0.005  # on its own samples it looks useful
    assert found.after.reliability.brier > chance - 0.005  # on others it is not
    assert "not shown to rank better than chance" in " ".join(found.remarks)


@pytest.mark.parametrize("method", METHODS)
def test_scores_that_are_too_sure_become_better(method: Any) -> None:
    found = fit(told(600), method)
    for name in LOSSES:
        assert found.after.figures[name].value < found.before.figures[name].value  # type: ignore[operator]
        assert found.change[name].high is not None and found.change[name].high < 0
    assert not [remark for remark in found.remarks if "worse" in remark or "not shown" in remark.lower()]


def test_the_change_is_that_of_the_figures_and_its_interval_that_of_pairs() -> None:
    found = fit(told(300))
    for name, change in found.change.items():
        before, after = found.before.figures[name].value, found.after.figures[name].value
        assert change.value == pytest.approx(after - before)  # type: ignore[operator]
    loss = found.change["log_loss"]
    apart = found.after.figures["log_loss"].high - found.before.figures["log_loss"].low  # type: ignore
    assert loss.high is not None and loss.high < apart


def test_what_does_not_help_is_said() -> None:
    random = np.random.default_rng(5)
    scores = random.uniform(0.02, 0.98, 400)
    found = fit(told(columns=(random.random(400) < scores, scores)))
    assert any("Not shown to help" in remark for remark in found.remarks)


def test_a_change_that_two_decimals_do_not_show_is_none() -> None:
    found = fit(told())
    small = {name: Estimate(0.001, 0.0005, 0.002) for name in found.change}
    told_of = " ".join(remarks_of(replace(found, change=small)))
    assert "No visible change (two decimals) on held-out samples: ECE, Brier score" in told_of
    assert "worse" not in told_of
    large = {name: Estimate(0.01, 0.005, 0.02) for name in found.change}
    assert "made it worse" in " ".join(remarks_of(replace(found, change=large)))


def test_a_judge_at_chance_gets_the_base_rate_and_a_remark() -> None:
    found = fit(told(400, skill=0, rate=0.3))
    middle = [found.calibrator(score) for score in (0.1, 0.9)]
    assert middle == pytest.approx([0.3, 0.3], abs=0.08)
    assert found.remarks[0].startswith(
        "On these 400 samples, the judge is not shown to rank better than chance"
    )


@pytest.mark.parametrize("method", METHODS)
def test_a_map_that_would_fall_or_stand_still_is_refused(method: Any) -> None:
    truth, scores = drawn(300, seed=2)
    with pytest.raises(InputError, match=r"do not rise with the labels \(AUROC \.1"):
        fit(told(columns=(~truth, scores)), method)
    with pytest.raises(InputError, match="cannot calibrate"):
        fit(told(columns=(truth, np.full(300, 0.5))), method)


def test_two_to_four_contexts_make_nothing_certain() -> None:
    truth, scores = drawn(240, skill=9)
    few = replace(told(columns=(truth, scores)), groups=np.arange(240) % 4)
    found = fit(few, folds=2)
    for side in (found.before, found.after):
        for name in ("precision", "recall", "f1", "balanced_accuracy", "brier"):
            assert side.figures[name].low is None
            assert side.figures[name].undefined == "no interval from 4 independent contexts"


def test_an_ece_has_no_interval_and_stands_beside_what_chance_shows() -> None:
    """Levels of an ECE lie above the truth by chance, so that their intervals nearly never hold it."""
    found = fit(told(300))
    for side in (found.before, found.after):
        assert side.figures["ece"].low is None and "chance" in str(side.figures["ece"].undefined)
        assert side.figures["brier"].low is not None and side.figures["log_loss"].low is not None
    assert found.after.reliability.to_dict()["ece_by_chance"] == found.after.reliability.ece_by_chance


@pytest.mark.parametrize("n", [50, 200, 2000])
def test_scores_that_are_the_probabilities_show_the_ece_that_chance_does(n: int) -> None:
    random, seen, told_of = np.random.default_rng(n), list[float](), list[float]()
    for _ in range(60):
        scores = random.beta(2, 2, n)
        found = reliability(random.random(n) < scores, scores)
        seen.append(found.ece)
        told_of.append(found.ece_by_chance)
    assert np.mean(told_of) == pytest.approx(np.mean(seen), rel=0.1)
    # Ten bins of n / 10 samples each, of a variance near s (1 - s): Bröcker and Smith's bars in one number.
    assert np.mean(told_of) == pytest.approx(np.sqrt(2 / np.pi) * np.sqrt(0.2 / (n / 10)), rel=0.1)


def test_sure_scores_show_nothing_by_chance_and_the_same_seed_the_same() -> None:
    assert reliability([True, False], [1.0, 0.0]).ece_by_chance == 0
    truth, scores = drawn(100)
    assert reliability(truth, scores) == reliability(truth, scores)
    assert reliability(truth, scores).ece_by_chance != reliability(truth, scores, seed=1).ece_by_chance


def test_the_same_seed_gives_the_same_and_another_one_other_folds() -> None:
    assert fit(told(120)) == fit(told(120))
    assert fit(told(120)).after != fit(told(120), seed=1).after
    assert fit(told(120)).calibrator == fit(told(120), seed=1).calibrator


@pytest.mark.parametrize("method", METHODS)
def test_too_few_samples_are_refused_with_both_numbers(method: Any) -> None:
    least = LEAST[method]
    truth, scores = drawn(least, seed=1)
    assert fit(told(columns=(truth, scores)), method).n == least
    with pytest.raises(InputError, match=rf"at least {least} labelled.*has {least - 1}:"):
        fit(told(columns=(truth[:-1], scores[:-1])), method)


def test_too_few_of_a_class_and_too_few_contexts_are_refused() -> None:
    _, scores = drawn(100)
    few = np.arange(100) < LEAST_OF_EITHER - 1
    with pytest.raises(InputError, match=rf"{LEAST_OF_EITHER} of each class.*14 hallucinated in 7 contexts"):
        fit(told(columns=(few, scores)))
    with pytest.raises(InputError, match="in at least 5 contexts"):
        fit(told(100, per=25))
    with pytest.raises(SpecError, match="folds must be"):
        fit(told(100), folds=1)
    with pytest.raises(SpecError, match="base rate"):
        fit(told(100), base_rate=1.0)


def test_isotonic_on_few_samples_and_few_contexts_have_remarks() -> None:
    found = fit(told(240, per=10), "isotonic")
    assert any("below about 1,000" in remark for remark in found.remarks)
    assert any(remark.startswith("Only 24 independent contexts") for remark in found.remarks)


# --- thresholds, held out -----------------------------------------------------------------------


def test_without_an_aim_the_label_is_what_is_likelier() -> None:
    assert fit(told(200)).threshold == 0.5


def test_an_aim_is_reached_on_all_and_reported_on_held_out_samples() -> None:
    columns = told(600)
    found = fit(columns, aim=Aim("recall", least=0.9))
    said = found.calibrator.of_all(columns.scores) >= found.threshold
    assert sk.recall_score(columns.truth, said) >= 0.9
    assert found.after.figures["recall"].value == pytest.approx(0.9, abs=0.05)
    assert found.after.figures["recall"].value != pytest.approx(
        sk.recall_score(columns.truth, said), abs=1e-9
    )


def test_an_aim_that_no_threshold_reaches_is_an_error() -> None:
    with pytest.raises(Unreachable, match=r"no threshold reaches a precision of 0.999.*the highest is"):
        truth, scores = drawn(400)
        scores[np.flatnonzero(~truth)[:3]] = 1.0  # whatever is flagged, these three are with it
        fit(told(columns=(truth, scores)), aim=Aim("precision", least=0.999))


def test_a_fold_without_a_threshold_flags_nothing_and_is_counted() -> None:
    truth, scores = drawn(100)
    truth[[0, 2]], truth[[31, 51, 71]], scores = True, False, scores * 0.9
    # Above three faithful ones there are two hallucinated, both of one context.
    scores[[0, 2, 31, 51, 71]] = [0.98, 0.99, 0.95, 0.95, 0.95]
    found = fit(told(columns=(truth, scores), per=4), aim=Aim("precision", least=1.0))
    assert found.unreached == 1
    assert any(remark.startswith("In 1 of 5 folds, no threshold reached") for remark in found.remarks)


def test_what_held_out_samples_do_not_show_is_said() -> None:
    found = fit(told(100), aim=Aim("precision", least=0.95))
    value, low = found.after.figures["precision"].value, found.after.figures["precision"].low
    assert value is not None and low is not None and low < 0.95
    assert any("On held-out samples the precision" in remark for remark in found.remarks)


def test_costs_are_figures_too() -> None:
    columns = told(400)
    found = fit(columns, aim=Aim.costs("50/1"))
    assert found.threshold < 0.2
    assert found.change["cost"].high is not None and found.change["cost"].high < 0


def test_a_precision_of_all_seven_is_not_certain() -> None:
    found = fit(told(60, seed=2), aim=Aim("precision", least=0.9))
    assert all(
        each.low is None or each.low < each.high
        for each in found.after.figures.values()  # type: ignore
    )


def test_the_base_rate_changes_precision_and_not_recall() -> None:
    columns = told(400, rate=0.5)
    plain, rare = fit(columns), fit(columns, base_rate=0.1)
    assert rare.before.figures["recall"].value == pytest.approx(plain.before.figures["recall"].value)
    assert rare.before.figures["precision"].value < plain.before.figures["precision"].value  # type: ignore
    said, truth = columns.said, columns.truth
    tpr, fpr = said[truth].mean(), said[~truth].mean()
    assert rare.before.figures["precision"].value == pytest.approx(0.1 * tpr / (0.1 * tpr + 0.9 * fpr))


# --- the file -----------------------------------------------------------------------------------

RECIPE = Recipe("faithfulness@2", "m", "f" * 64, "p", "c", 0, 120, "0.1.0")


def a_file(**options: Any) -> CalibrationFile:
    return file_of(fit(told(250), **options), RECIPE, "faithfulness", "rows", "d" * 64)


@pytest.mark.parametrize("method", METHODS)
def test_a_file_says_the_same_when_it_is_read(method: Any, tmp_path: Path) -> None:
    made = a_file(method=method, aim=Aim.costs("10/1"), base_rate=0.19)
    write_calibration(made, tmp_path / "c.json")
    read = read_calibration(tmp_path / "c.json")
    assert (read, read.digest) == (made, made.digest)
    assert read.calibrator(0.7) == made.calibrator(0.7)
    assert (read.base_rate, read.aim, read.data.n, read.folds) == (0.19, "costs 10/1", 250, 5)


def test_the_same_inputs_give_the_same_bytes_and_others_another_digest() -> None:
    assert a_file().text() == a_file().text()
    assert a_file().digest != a_file(aim=Aim("recall", least=0.9)).digest


def test_a_file_is_not_replaced_unasked(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    write_calibration(a_file(), path)
    with pytest.raises(SpecError, match="already exists"):
        write_calibration(a_file(), path)
    write_calibration(a_file(), path, replace=True)
    assert [each.name for each in tmp_path.iterdir()] == ["c.json"]
    for wrong in (tmp_path / "c.yaml", tmp_path / "no" / "c.json"):
        with pytest.raises(SpecError):
            write_calibration(a_file(), wrong)


def test_a_file_that_cannot_be_used_says_why(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    for change, says in [
        ({"format": 3}, "has format 3"),
        ({"kind": "other"}, "is not a calibration"),
        ({"threshold": 1.5}, "threshold: must be at most 1"),
        ({"threshold": "0.5"}, "threshold: must be a number"),
        ({"method": "magic"}, "method"),
        ({"parameters": {"slope": [1.0]}}, "platt"),
        ({"aim": "happiness"}, "unknown aim"),
        ({"extra": 1}, "unknown key"),
        ({"judge": {}}, "judge.name: is missing"),
    ]:
        path.write_text(json.dumps({**a_file().model_dump(), **change}))
        with pytest.raises(SpecError, match=says) as error:
            read_calibration(path)
        assert str(path) in str(error.value), says


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"kind": NaN}', "[" * 100_000, '"x"', a_file().text()[:300], "\xff\xfe"]
)
def test_what_is_no_calibration_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(SpecError):
        read_calibration(path)
    path.write_text(a_file().text().replace('"threshold": 0.5', '"threshold": NaN'))
    with pytest.raises(SpecError, match="NaN is not a number"):
        read_calibration(path)
    with pytest.raises(SpecError, match="cannot read"):
        read_calibration(tmp_path / "gone.json")


# --- the command --------------------------------------------------------------------------------


def by_number(prompt: Prompt) -> dict[str, float]:
    """The model thinks of an output what the output says it thinks."""
    (output,) = (part.text for part in prompt.data() if part.name == "output")
    score = float(output.split()[0])
    return {"faithful": 1 - score, "hallucinated": score}


def a_run(n: int = 120, name: str = "lab") -> None:
    truth, scores = drawn(n)
    rows = [
        {
            "id": f"s{at}",
            "context": f"c{at // 2}",
            "output": f"{min(max(score, 1e-6), 1 - 1e-6):.6f} {at}",
            "label": ("faithful", "hallucinated")[int(label)],
        }
        for at, (label, score) in enumerate(zip(truth, scores, strict=True))
    ]
    magistrate.evaluate(
        rows, "faithfulness", model=ScriptedEngine(by_number, name="told"), name=name, progress=False
    )


def test_the_command_shows_and_writes(call: Call) -> None:
    a_run()
    done = call("calibrate", "lab", "--recall", 0.9, "--to", "c.json")
    assert (done.code, done.err) == (0, "")
    assert done.width <= 80
    assert "chosen for the highest precision with a recall of at least 0.9" in " ".join(done.out.split())
    full = call("calibrate", "lab", "--recall", 0.9, "--full")
    assert full.code == 0 and "── after, held out" in full.out and "── after" not in done.out
    assert done.out.count("\n") <= 24 < full.out.count("\n")
    for words in (
        "before",
        "ECE",
        "Brier score",
        "log loss",
        "120 in 60 contexts",
        "c.json",
    ):
        assert words in done.out
    held = read_calibration(Path("c.json"))
    assert (held.judge.words, held.judge.name, held.model.name) == ("faithfulness@2", "faithfulness", "told")
    assert held.aim == "recall 0.9"
    assert call("calibrate", "lab", "--to", "c.json").code == 2
    data = call("calibrate", "lab", "--to", "c.json", "--force", "--json", "--maximize", "f1").data
    assert data["file"] == "c.json" and data["aim"] == "maximize f1"
    assert set(data["change"]) >= set(LOSSES)


def test_what_cannot_be_done_is_said(call: Call) -> None:
    a_run(60)
    for words, says in [
        (["nobody"], "unknown run"),
        (["lab", "--judge", "x"], "no judge 'x'"),
        (["lab", "--recall", "0.9", "--precision", "0.9"], "one aim"),
        (["lab", "--costs", "ten"], "MISS/FALSE_ALARM"),
        (["lab", "--costs", "0/0"], "not both 0"),
        (["lab", "--method", "isotonic"], "at least 200"),
        (["lab", "--to", "c.txt"], "must end in .json"),
        (["lab", "--to", "no/c.json"], "folder does not exist"),
        (["lab", "--folds", "1"], "--folds"),
    ]:
        done = call("calibrate", *words)
        assert (done.code, done.out) == (2, ""), words
        assert says in done.err, words


def test_foreign_names_can_do_nothing_in_pages_and_terminals() -> None:
    own = fit(told(60), draws=20)
    told_of = file_of(own, replace(RECIPE, judge="<b>\x1b[2J@1"), "<b>", "<script>", "d")
    found = Calibration(own, told_of)
    assert "<script>" not in found._repr_html_() and "&lt;script&gt;" not in found._repr_html_()
    assert "&lt;b&gt;" in found._repr_html_() and "\x1b" not in str(found)


def test_in_python_it_is_the_same(home: Path) -> None:
    a_run()
    found = calibrate("lab", aim="precision 0.8")
    assert "after, held out" in str(found) and "<table" in found._repr_html_()
    assert json.dumps(found.to_dict(), allow_nan=False)
    found.save("x.json")
    assert read_calibration(Path("x.json")) == found.file


def test_a_diagram_has_a_bar_for_the_share_and_a_mark_for_the_score() -> None:
    shown = as_text(lambda console: console.print(diagram(reliability([True] * 3 + [False], [0.5] * 4))))
    bar = shown.splitlines()[-1]
    assert bar.count("█") == 17 and bar.index("│") - bar.index("█") == 12


def test_copies_in_one_context_make_no_interval_narrower() -> None:
    """Four copies of each sample in its context: the same Brier score, with an interval as wide."""
    truth, scores = drawn(200, seed=4)
    once = fit(told(per=1, columns=(truth, scores))).before.figures["brier"]
    copied = fit(told(per=4, columns=(np.repeat(truth, 4), np.repeat(scores, 4)))).before.figures["brier"]
    assert copied.value == pytest.approx(once.value)
    widths = [each.high - each.low for each in (once, copied)]  # type: ignore[operator]
    assert widths[1] == pytest.approx(widths[0], rel=0.1)


@given(st.lists(st.floats(-690, 690), min_size=1, max_size=30))
def test_joint_odds_are_those_of_as_many_independent_sentences_as_the_root_of_their_number(
    odds: list[float],
) -> None:
    found = joint_odds(odds)
    assert math.isfinite(found) and found == pytest.approx(joint_odds(odds[::-1]))
    assert joint_odds(odds[:1]) == pytest.approx(odds[0], abs=1e-9)
    assert found <= joint_odds([*odds[:-1], odds[-1] + 1]) + 1e-9, "no sentence makes another one better"
    if max(map(abs, odds)) < 10:
        supported = math.prod(1 - sigmoid(each) for each in odds) ** (1 / math.sqrt(len(odds)))
        assert sigmoid(found) == pytest.approx(1 - supported, abs=1e-9)
    part = Part("a", "a", np.array([odds]).T, np.zeros(len(odds), int), np.zeros(1, bool), np.zeros(1, int))
    assert part.odds(np.array([0.0, 1.0]))[0] == pytest.approx(found), "weights are fitted to the same"
