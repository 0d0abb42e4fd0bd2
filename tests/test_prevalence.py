"""The corrected share is that of the papers, its interval holds the truth, and what it assumes is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import statsmodels.api as sm
from scipy.stats import norm, t
from statsmodels.stats.proportion import proportion_confint

import magistrate
from magistrate import ScriptedEngine
from magistrate.analysis.columns import groups_of
from magistrate.api.prevalence import prevalence as of_run
from magistrate.errors import EngineError, InputError, SpecError
from magistrate.metrics.prevalence import prevalence
from magistrate.types import Prompt, Sample
from terminal import Call

TRUTH = np.array([1, 0, 0, 1, 0, 1, 0, 0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0, 1]) > 0
SAID = np.array([1, 0, 1, 1, 0, 1, 0, 0, 0, 0, 1, 0, 1, 0, 1, 0, 0, 1, 0, 1.0])
OTHERS = np.array([1, 0, 0, 1, 1, 0, 0, 1, 0, 0] * 8 + [1, 1, 0, 1, 0.0])


@pytest.mark.parametrize(
    ("tuning", "value", "low", "high"),
    [  # ppi_mean_pointestimate and ppi_mean_ci(alpha=0.05) of ppi-python 0.2.3, lam=None, 1 and 0
        (None, 0.33205476900149034, 0.15630624551175892, 0.5078032924912217),
        (1.0, 0.31176470588235294, 0.09395650230131644, 0.5295729094633894),
        (0.0, 0.35, 0.14096269690460586, 0.5590373030953941),
    ],
)
def test_estimate_and_error_are_those_of_ppi_python(
    tuning: Any, value: float, low: float, high: float
) -> None:
    found = prevalence(TRUTH, SAID, OTHERS, tuning=tuning)
    assert found.corrected.value == pytest.approx(value, rel=1e-9)
    assert found.standard_error == pytest.approx((high - low) / 2 / norm.ppf(0.975), rel=1e-9)
    far = t.ppf(0.975, 18) * found.standard_error * np.sqrt(20 / 18)
    assert (found.corrected.low, found.corrected.high) == pytest.approx((value - far, value + far))


def test_the_labels_alone_are_lambda_0_and_worth_themselves() -> None:
    found = prevalence(TRUTH, SAID, OTHERS, tuning=0.0)
    assert found.corrected.value == found.labelled.value
    mean, error = TRUTH.mean(), TRUTH.std(ddof=1) / np.sqrt(20)
    assert (found.labelled.low, found.labelled.high) == pytest.approx(t.interval(0.95, 19, mean, error))
    assert found.worth == pytest.approx(TRUTH.size)
    assert prevalence(TRUTH, SAID, OTHERS).worth > TRUTH.size  # type: ignore[operator]


def test_predictions_that_say_nothing_are_left_out() -> None:
    assert prevalence(TRUTH, np.ones(20), np.ones(50)).tuning == 0
    assert prevalence(TRUTH, (~TRUTH).astype(float), OTHERS).tuning == 0
    one = prevalence(TRUTH, TRUTH.astype(float), OTHERS)
    assert one.tuning == pytest.approx(0.8, abs=0.1)
    assert one.corrected.value == pytest.approx(one.tuning * OTHERS.mean() + (1 - one.tuning) * TRUTH.mean())


def test_rogan_gladen_is_worked_by_hand() -> None:
    """Recall 6/7, specificity 9/13, naive 35/85; variance of Rogan and Gladen 1978."""
    found = prevalence(TRUTH, SAID, OTHERS).rogan_gladen
    se, sp, p = 6 / 7, 10 / 13, 35 / 85
    assert (SAID[TRUTH].mean(), 1 - SAID[~TRUTH].mean(), OTHERS.mean()) == pytest.approx((se, sp, p))
    value = (p + sp - 1) / (se + sp - 1)
    moves = p * (1 - p) / 85 + value**2 * se * (1 - se) / 7 + (1 - value) ** 2 * sp * (1 - sp) / 13
    far = t.ppf(0.975, 18) * np.sqrt(moves * 20 / 18) / (se + sp - 1)
    assert found.value == pytest.approx(value)
    assert found.high == pytest.approx(value + far)
    assert found.low == pytest.approx(max(value - far, 0))


def test_rogan_gladen_of_chance_is_not_defined() -> None:
    found = prevalence(TRUTH, (~TRUTH).astype(float), OTHERS).rogan_gladen
    assert found.value is None and "chance" in (found.undefined or "")


def test_samples_of_one_context_count_together_as_in_statsmodels() -> None:
    random = np.random.default_rng(0)
    groups = np.repeat(np.arange(12), 5)
    truth = random.random(12)[groups] < 0.4
    others = np.arange(100, 140)
    found = prevalence(truth, truth * 0.5, np.zeros(40), groups=np.concatenate([groups, others]), tuning=0.0)
    theirs = sm.OLS(truth.astype(float), np.ones(60)).fit(
        cov_type="cluster", cov_kwds={"groups": groups, "use_correction": False}
    )
    assert found.standard_error == pytest.approx(theirs.bse[0])
    alone = prevalence(truth, truth * 0.5, np.zeros(40), tuning=0.0)
    assert found.standard_error > 1.5 * alone.standard_error


def test_a_context_in_both_samples_is_one() -> None:
    """Where a context is on both sides its samples move together, and the correction's parts cancel."""
    apart = prevalence(TRUTH, SAID, SAID, tuning=1.0)
    shared = prevalence(TRUTH, SAID, SAID, groups=np.tile(np.arange(20), 2), tuning=1.0)
    assert shared.corrected.value == apart.corrected.value == pytest.approx(TRUTH.mean())
    assert shared.standard_error == pytest.approx(TRUTH.std() / np.sqrt(20))
    assert shared.standard_error < apart.standard_error


@pytest.mark.parametrize(("n", "per", "rate"), [(80, 1, 0.4), (60, 1, 0.25), (120, 3, 0.4)])
def test_the_interval_holds_the_truth_as_often_as_it_says(n: int, per: int, rate: float) -> None:
    random, held, narrower = np.random.default_rng(n), 0, 0
    times = 1500
    for _ in range(times):
        places = np.arange(n + 600) // per
        own = norm.cdf(random.normal(size=places.max() + 1)[places] * 0.6 + random.normal(size=n + 600) * 0.8)
        truth = own < rate
        said = np.where(random.random(n + 600) < 0.2, ~truth, truth).astype(float)
        found = prevalence(truth[:n], said[:n], said[n:], groups=places if per > 1 else None)
        low, high = found.corrected.low, found.corrected.high
        assert low is not None and high is not None
        held += low <= rate <= high
        narrower += high - low < found.labelled.high - found.labelled.low  # type: ignore[operator]
    assert 0.935 <= held / times <= 0.97
    assert narrower / times > 0.95  # what the correction is for


def test_the_interval_stays_within_0_and_1() -> None:
    few = np.arange(30) < 2
    found = prevalence(few, few.astype(float), np.arange(100) < 1)
    assert found.corrected.low == 0 and 0 < found.corrected.value < found.corrected.high < 0.3  # type: ignore


@pytest.mark.parametrize(
    ("truth", "said", "others"),
    [([], [], [1.0]), ([True], [1.0], [1.0]), ([True, False], [1.0], [1.0]), ([True, False], [1.0, 0.0], [])],
)
def test_what_cannot_be_estimated_is_refused(truth: Any, said: Any, others: Any) -> None:
    with pytest.raises(InputError):
        prevalence(truth, said, others)


def test_labels_without_a_prediction_count_in_the_labels_alone() -> None:
    failed = np.array([True] * 8 + [False] * 2)
    found, without = prevalence(TRUTH, SAID, OTHERS, failed=failed), prevalence(TRUTH, SAID, OTHERS)
    every = np.concatenate([TRUTH, failed])
    error = every.std(ddof=1) / np.sqrt(30)
    assert found.labelled.value == pytest.approx(15 / 30)
    assert (found.labelled.low, found.labelled.high) == pytest.approx(t.interval(0.95, 29, 0.5, error))
    assert (found.corrected, found.rogan_gladen) == (without.corrected, without.rogan_gladen)
    assert (found.n_labelled, found.n_failed, found.positives_failed) == (20, 10, 8)


def test_an_estimate_that_is_no_share_is_none() -> None:
    """A judge that flags a fifth of what is faithful cannot flag nothing of 500 outputs of the same kind."""
    truth = np.arange(100) < 40
    said = np.where(truth, np.arange(100) % 5 != 0, np.arange(100) % 5 == 0)
    found = prevalence(truth, said.astype(float), np.zeros(500))
    assert found.rogan_gladen.value is found.rogan_gladen.low is None
    assert "is below 0: labels and outputs do not fit" in (found.rogan_gladen.undefined or "")
    value, low, high = found.beyond["rogan_gladen"]
    assert (value, value < 0, low < high < 0) == (pytest.approx(-0.2 / 0.6), True, True)
    full = prevalence(~truth, 1.0 - said, np.ones(500)).rogan_gladen
    assert full.value is None and "is above 1" in (full.undefined or "")
    assert json.dumps(found.to_dict(), allow_nan=False)


@pytest.mark.parametrize("said", [0.0, 1.0])
def test_nothing_of_fifty_is_not_taken_for_nothing_ever(said: float) -> None:
    found = prevalence(TRUTH, SAID, np.full(50, said)).naive
    low, high = proportion_confint(50 * said, 50, method="wilson")
    assert (found.value, found.low, found.high) == (said, pytest.approx(low), pytest.approx(high))
    in_pairs = np.concatenate([np.arange(20), 100 + np.arange(50) // 2])
    pairs = prevalence(TRUTH, SAID, np.full(50, said), groups=in_pairs).naive
    low, high = proportion_confint(25 * said, 25, method="wilson")
    assert (pairs.low, pairs.high) == pytest.approx((low, high))


def test_no_interval_has_no_width() -> None:
    source = np.random.default_rng(1)
    for _ in range(200):
        rate = source.choice([0.02, 0.1, 0.9])
        truth = source.random(60) < source.choice([0.2, 0.5])
        if not 2 <= truth.sum() <= 58:
            continue
        said = np.where(source.random(60) < 0.2, ~truth, truth)
        found = prevalence(truth, said.astype(float), (source.random(400) < rate).astype(float))
        for each in (found.corrected, found.labelled, found.naive, found.rogan_gladen):
            assert each.low is None or (each.high is not None and each.low < each.high)


# --- of runs ------------------------------------------------------------------------------------


def by_number(prompt: Prompt) -> dict[str, float]:
    (output,) = (part.text for part in prompt.data() if part.name == "output")
    score = float(output.split()[0])
    return {"faithful": 1 - score, "hallucinated": score}


def rows(n: int, *, seed: int, rate: float = 0.3, labelled: bool = True, errors: float = 0.2) -> list[Any]:
    random, made = np.random.default_rng(seed), []
    for at in range(n):
        truth = random.random() < rate
        said = truth != (random.random() < errors)
        row = {
            "id": f"s{seed}-{at}",
            "context": f"c{seed}-{at // 2}",
            "output": f"{0.9 if said else 0.2} {at}",
        }
        made.append(row | ({"label": "hallucinated" if truth else "faithful"} if labelled else {}))
    return made


def run(data: list[Any], name: str, model: str = "told") -> None:
    magistrate.evaluate(
        data, "faithfulness", model=ScriptedEngine(by_number, name=model), name=name, progress=False
    )


def test_a_run_of_both_kinds_of_samples_is_enough(call: Call) -> None:
    run([*rows(100, seed=1), *rows(400, seed=2, labelled=False)], "mixed")
    done = call("prevalence", "mixed")
    assert (done.code, done.err) == (0, "")
    assert done.width <= 80
    for words in ("corrected (PPI++)", "labels alone", "the judge alone", "Rogan-Gladen", "random sample"):
        assert words in done.out
    data = call("prevalence", "mixed", "--json").data
    assert (data["n_labelled"], data["n_unlabelled"]) == (100, 400)
    assert data["corrected"]["low"] <= 0.3 <= data["corrected"]["high"]
    assert data["naive"]["value"] > data["corrected"]["high"]
    assert any("is outside" in remark for remark in data["remarks"])


def test_labels_of_other_data_are_warned_of(call: Call) -> None:
    run(rows(100, seed=1), "lab")
    run(rows(200, seed=2, labelled=False), "production")
    found = of_run("production", "lab")
    assert found.remarks[0].startswith("The labels are of other data (rows, run lab)")
    assert "<table" in found._repr_html_() and "corrected" in str(found)
    assert json.dumps(found.to_dict(), allow_nan=False)
    by_score = of_run("production", "lab", using="score")
    assert by_score.estimates.naive == found.estimates.naive
    assert by_score.estimates.rogan_gladen == found.estimates.rogan_gladen
    with pytest.raises(SpecError, match="using must be label or score"):
        of_run("production", "lab", using="claims")  # type: ignore[arg-type]


def test_outputs_that_are_labelled_in_the_other_run_count_once_and_are_no_other_data(call: Call) -> None:
    bare = rows(400, seed=1, labelled=False)
    run(bare, "production")
    run(rows(400, seed=1)[:80], "lab")
    found = of_run("production", "lab")
    assert (found.estimates.n_labelled, found.estimates.n_unlabelled) == (80, 320)
    assert dict(found.facts)["in both"].startswith("80 outputs of run production are labelled in run lab")
    assert not any("other data" in remark for remark in found.remarks)
    run(rows(400, seed=1), "all")
    with pytest.raises(InputError, match="no unlabelled sample"):
        of_run("production", "all")


def test_errors_of_another_judge_correct_nothing(call: Call) -> None:
    run(rows(100, seed=1), "lab", model="other")
    run(rows(50, seed=2, labelled=False), "production")
    done = call("prevalence", "production", "--labelled", "lab")
    assert done.code == 2 and "errors of one judge cannot correct another judge: model is 'told'" in done.err


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (rows(100, seed=1), "no unlabelled sample"),
        (rows(50, seed=2, labelled=False), "--labelled RUN"),
        ([*rows(29, seed=1), *rows(50, seed=2, labelled=False)], "at least 30 labelled"),
        ([*rows(60, seed=1, rate=0.01), *rows(50, seed=2, labelled=False)], "5 of each class"),
    ],
)
def test_too_little_is_refused_with_what_there_is(call: Call, data: Any, says: str) -> None:
    run(data, "lab")
    done = call("prevalence", "lab")
    assert (done.code, done.out) == (2, "") and says in done.err


def test_a_judge_without_error_is_not_trusted_blindly(call: Call) -> None:
    run([*rows(60, seed=1, errors=0), *rows(100, seed=2, labelled=False, errors=0)], "lab")
    assert any("made no error on the 60" in remark for remark in of_run("lab").remarks)


def test_samples_of_one_context_count_together_in_a_run(home: Path) -> None:
    """Ten copies of each labelled output, all in its context, are worth no more than one of each."""
    few = rows(40, seed=1)
    copies = [row | {"id": f"{row['id']}-{at}", "context": row["id"]} for row in few for at in range(10)]
    run([*copies, *rows(400, seed=2, labelled=False)], "copied")
    run([*(row | {"context": row["id"]} for row in few), *rows(400, seed=2, labelled=False)], "once")
    many, one = of_run("copied").estimates, of_run("once").estimates
    assert (many.n_labelled, one.n_labelled) == (400, 40)
    assert many.labelled.to_dict() == pytest.approx(one.labelled.to_dict())
    assert many.standard_error == pytest.approx(one.standard_error, rel=0.1)


def test_strangers_of_one_id_are_not_paired() -> None:
    """Without contexts, outputs of two runs are numbered alike and have nothing in common."""

    def bare(data: list[Any], prefix: str) -> list[Any]:
        return [
            {"id": f"{prefix}{at}", "output": f"{row['output']} {row['id']}", "input": "q"}
            | ({"label": row["label"]} if "label" in row else {})
            for at, row in enumerate(data)
        ]

    labelled, production = rows(100, seed=1), rows(100, seed=2, labelled=False)
    samples = [
        Sample(each["id"], each["output"], input="q")
        for data in (bare(labelled, "s"), bare(production, "s"))
        for each in data
    ]
    assert len(set(groups_of(samples).tolist())) == 200
    assert len(set(groups_of([*samples[:100], *samples[:100]]).tolist())) == 100


def fails(prompt: Prompt) -> Any:
    (output,) = (part.text for part in prompt.data() if part.name == "output")
    return EngineError("broken") if "break" in output else by_number(prompt)


def test_labels_that_the_judge_failed_on_are_counted(call: Call) -> None:
    labelled = rows(120, seed=1)
    hard = [row for row in labelled if row["label"] == "hallucinated"][:15]
    for row in hard:
        row["output"] += " break"
    data = [*labelled, *rows(200, seed=2, labelled=False)]
    magistrate.evaluate(
        data, "faithfulness", model=ScriptedEngine(fails, name="told"), name="hard", progress=False
    )
    shown = call("prevalence", "hard")
    assert "15 more labelled outputs, 15 of them hallucinated" in " ".join(shown.out.split())
    found = call("prevalence", "hard", "--json").data
    assert (found["n_labelled"], found["n_labelled_without_verdict"]) == (105, 15)
    positives = sum(row["label"] == "hallucinated" for row in labelled)
    assert found["labelled"]["value"] == pytest.approx(positives / 120)
    (told,) = [remark for remark in found["remarks"] if "of the judge depend on the label" in remark]
    assert "1.00 of the 15" in told and f"{(positives - 15) / 105:.2f}".lstrip("0") in told


def test_labels_and_outputs_that_do_not_fit_together_are_told_of(call: Call) -> None:
    run(rows(100, seed=1, errors=0.2), "lab")
    clean = [row | {"output": f"0.2 {at}"} for at, row in enumerate(rows(400, seed=2, labelled=False))]
    run(clean, "production")
    shown = call("prevalence", "production", "--labelled", "lab")
    assert shown.code == 0 and shown.width <= 80
    text = " ".join(shown.out.split())
    assert (
        "is below 0: labels and outputs do not fit together" in text and "which is not a valid share" in text
    )
    assert "[.00, .00]" not in text
