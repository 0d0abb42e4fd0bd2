"""A comparison says who is better only where that can be told, and what it left out."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom, binomtest, norm, t
from sklearn import metrics as sk
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.multitest import multipletests

import magistrate
from magistrate import ScriptedEngine
from magistrate.analysis.comparison import Comparison, PairResult, Side, compare, shared
from magistrate.api.compare import compare as compare_runs
from magistrate.errors import InputError, SpecError
from magistrate.judges import instance
from magistrate.metrics.paired import COMPARED, Figures, exact_mcnemar, holm, smallest_difference
from magistrate.report.formatting import distinct_names
from magistrate.types import Abstention, Failure, Outcome, Sample, Scoring, Verdict
from terminal import Call
from two_judges import LOW_IS_GOOD, a_run, label, rows, samples_of, verdicts


def side(
    name: str,
    samples: dict[str, Sample],
    outcomes: dict[str, Outcome],
    scoring: Scoring | None = LOW_IS_GOOD,
) -> Side:
    return Side(name, name, "judge", len(samples), samples, outcomes, scoring)


def noisy(truth: list[bool], wrong: float, seed: int) -> list[float]:
    """Scores of a judge that is wrong about this share."""
    source = np.random.default_rng(seed)
    return [
        float(source.uniform(0.5, 1) if each != (source.random() < wrong) else source.uniform(0, 0.49))
        for each in truth
    ]


def two(n: int, first: float, second: float, seed: int = 0, primary: Sequence[str] = ()) -> Comparison:
    """Two judges that are wrong about these shares of the same n samples, each in a context of its own."""
    truth = [bool(at % 2) for at in range(n)]
    samples = samples_of(truth)
    return compare(
        [
            side("a", samples, verdicts(noisy(truth, first, 2 * seed))),
            side("b", samples, verdicts(noisy(truth, second, 2 * seed + 1))),
        ],
        primary,
    )


def only(comparison: Comparison) -> PairResult:
    (pair,) = comparison.pairs
    return pair


# --- figures against references ------------------------------------------------------------------


def test_figures_of_weights_are_those_of_samples_taken_as_often() -> None:
    source = np.random.default_rng(2)
    truth = source.random(80) < 0.4
    scores = np.round(np.clip(source.normal(0.3 + 0.3 * truth, 0.2), 0, 1), 1)  # many are tied
    weights = source.integers(0, 4, size=(5, 80))
    found = Figures(truth, scores >= 0.5, scores)(weights.astype(float))
    for row, times in zip(found, weights, strict=True):
        t, s = np.repeat(truth, times), np.repeat(scores, times)
        expected = {
            "accuracy": sk.accuracy_score(t, s >= 0.5),
            "balanced_accuracy": sk.balanced_accuracy_score(t, s >= 0.5),
            "precision": sk.precision_score(t, s >= 0.5),
            "recall": sk.recall_score(t, s >= 0.5),
            "f1": sk.f1_score(t, s >= 0.5),
            "auroc": sk.roc_auc_score(t, s),
            "brier": sk.brier_score_loss(t, s),
        }
        assert dict(zip(COMPARED, row, strict=True)) == pytest.approx(expected)


def test_a_figure_that_is_not_defined_is_none() -> None:
    truth = np.array([True, True])
    found = Figures(truth, ~truth, np.array([0.1, 0.2]))(np.ones((1, 2)))[0]
    assert np.isnan(found).tolist() == [False, True, True, False, False, True, False]
    with pytest.raises(InputError, match="unknown metric 'f2'"):
        Figures(truth, truth, np.array([0.1, 0.2]), ["f2"])


def test_mcnemar_of_a_published_table() -> None:
    """Fagerland, Lydersen and Laake (2013), table 1: 1 and 7 discordant of 21 have an exact p of .0703."""
    assert exact_mcnemar(1, 7) == pytest.approx(0.0703, abs=5e-5)
    assert exact_mcnemar(3, 12) == pytest.approx(binomtest(3, 15).pvalue)
    assert exact_mcnemar(0, 0) == 1
    assert exact_mcnemar(4, 4) == 1


def test_holm_by_hand() -> None:
    """.01 times 3, .03 times 2, and .04 no less than the one before it."""
    assert holm([0.01, None, 0.04, 0.03]) == [pytest.approx(0.03), None, pytest.approx(0.06), 0.06]
    assert holm([None]) == [None]
    assert holm([]) == []


@pytest.mark.full
def test_corrections_and_exact_tests_are_those_of_statsmodels() -> None:
    source = np.random.default_rng(3)
    for n in range(1, 40):
        p_values = np.round(source.random(n) ** 3, 2).tolist()  # many are equal
        assert holm(p_values) == multipletests(p_values, method="holm")[1].tolist()
    for first, second in source.integers(0, 150, size=(200, 2)).tolist():
        reference = mcnemar([[0, first], [second, 0]], exact=True).pvalue
        assert exact_mcnemar(first, second) == pytest.approx(min(1, reference), rel=1e-9)


def test_the_smallest_difference_is_what_would_be_seen_four_times_in_five() -> None:
    assert smallest_difference(0.02, 10**6) == pytest.approx(
        (norm.ppf(0.975) + norm.ppf(0.8)) * 0.02, rel=1e-4
    )
    assert smallest_difference(0.02, 12) == pytest.approx((t.ppf(0.975, 11) + t.ppf(0.8, 11)) * 0.02)
    seven = (norm.ppf(1 - 0.025 / 7) + norm.ppf(0.8)) * 0.02
    assert smallest_difference(0.02, 10**6, 7) == pytest.approx(seven, rel=1e-4)
    assert smallest_difference(0.0, 10) is smallest_difference(None, 10) is None


def test_what_could_have_been_seen_is_after_the_correction() -> None:
    """Of 7 metrics at once the first must be below .05 / 7: a difference must be greater to be shown."""
    truth = [bool(at % 2) for at in range(100)]
    samples = samples_of(truth)
    sides = [side(name, samples, verdicts(noisy(truth, 0.3, 8 + at))) for at, name in enumerate("ab")]
    seven, one = compare(sides, COMPARED), compare(sides, ["f1"])
    many, alone = only(seven).differences["f1"], only(one).differences["f1"]
    assert many.error == pytest.approx(alone.error, rel=0.1)
    assert many.detectable == smallest_difference(many.error, 100, 7)
    assert alone.detectable == smallest_difference(alone.error, 100)
    assert "after correction" in seven.sentences[0] and "correction" not in one.sentences[0]


# --- what is compared ----------------------------------------------------------------------------


def test_only_samples_of_one_text_that_all_have_judged() -> None:
    samples = samples_of([True, False, True, False, None, True, True])
    other = dict(samples)
    other["s1"] = replace(samples["s1"], output="another")
    other["s2"] = replace(samples["s2"], label="faithful")
    del other["s3"]
    first, second = verdicts([0.9] * 7), verdicts([0.1] * 7)
    first["s5"] = Failure("s5", "judge", "timeout", "late")
    second["s6"] = Abstention("s6", "judge", "over_length", "long")
    found = compare([side("a", samples, first), side("b", other, second)])
    assert (found.n, found.n_all) == (1, 7)
    assert found.left_out == {
        "another output in b": 1,
        "labelled differently": 1,
        "not in b": 1,
        "no gold label": 1,
        "failed (a)": 1,
        "abstained (b)": 1,
    }
    assert found.n + sum(found.left_out.values()) == found.n_all
    told = " ".join(found.remarks)
    assert "a failed on 1 and abstained on 0 of 7" in told and "b failed on 0 and abstained on 1 of 6" in told


def test_a_label_that_only_one_run_knows_is_used() -> None:
    unlabelled = samples_of([None, None])
    both = shared(
        [
            side("a", unlabelled, verdicts([0.9, 0.9])),
            side("b", samples_of([True, False]), verdicts([0.9, 0.9])),
        ]
    )
    assert [each.label for each in both.samples] == [label(True), label(False)] and both.gold


def test_nothing_in_common_is_an_error_that_says_why() -> None:
    samples = samples_of([True, False])
    with pytest.raises(InputError, match=r"by all 2 judges: 2 not judged \(b\)"):
        compare([side("a", samples, verdicts([0.9, 0.9])), side("b", samples, {})])
    with pytest.raises(InputError, match="at least two judges, got 1"):
        compare([side("a", samples, {})])


# --- what is said --------------------------------------------------------------------------------


def test_a_judge_and_its_twin_are_tied() -> None:
    samples = samples_of([bool(at % 2) for at in range(60)])
    said = verdicts(noisy([bool(at % 2) for at in range(60)], 0.3, 1))
    pair = only(compare([side("a", samples, said), side("b", samples, said)]))
    assert (pair.only_first, pair.only_second, pair.mcnemar, pair.flips) == (0, 0, 1, ())
    assert all(each.better == 0 and each.value.value == 0 for each in pair.differences.values())


def test_a_difference_is_that_of_the_figures_and_both_ways_round() -> None:
    found = two(200, 0.1, 0.35, primary=COMPARED)
    pair = only(found)
    first, second = found.sides
    for name, each in pair.differences.items():
        a, b = first.figures[name].value, second.figures[name].value
        assert a is not None and b is not None
        assert each.value.value == pytest.approx(a - b)
        assert each.value.low is not None and each.value.high is not None
        assert each.value.low <= a - b <= each.value.high
        assert each.better == 1, name  # also where lower is better
    assert pair.differences["brier"].value.value is not None and pair.differences["brier"].value.value < 0
    assert found.sentences[0].startswith("a is better than b by accuracy: +.")
    back = only(two(200, 0.35, 0.1, primary=COMPARED))
    assert {name: each.better for name, each in back.differences.items()} == dict.fromkeys(COMPARED, -1)


def test_equals_are_called_tied_with_what_could_have_been_seen() -> None:
    found = two(100, 0.3, 0.3, seed=4)
    assert all(each.better == 0 for each in only(found).differences.values())
    (balanced,) = found.sentences
    assert balanced.startswith("No difference between a and b is shown by balanced accuracy")
    assert "these samples could have shown a difference of ." in balanced


def test_twelve_wins_and_no_loss_are_shown_among_many_judges_too() -> None:
    """Of three judges and seven metrics one question is asked: the others cost its correction nothing."""
    truth = [bool(at % 2) for at in range(100)]
    samples = samples_of(truth)
    worse = [at in range(0, 60, 5) for at in range(100)]  # 12 of them
    scores = [
        [0.9 if good != wrong else 0.1 for good, wrong in zip(truth, errs, strict=True)]
        for errs in ([False] * 100, worse, worse)
    ]
    found = compare([side(n, samples, verdicts(s)) for n, s in zip("abc", scores, strict=True)])
    pair = found.pairs[0]
    assert (pair.only_first, pair.only_second, found.family) == (12, 0, 2)  # the twins have no p value
    assert pair.differences["balanced_accuracy"].better == 1
    assert found.sentences[0].startswith("a is better than b by balanced accuracy")
    assert found.pairs[2].differences["balanced_accuracy"].better == 0
    for name, each in pair.differences.items():
        if name != "balanced_accuracy":
            assert each.exploratory and not each.better and each.corrected is each.detectable is None, name
            assert each.to_dict()["exploratory"] and each.to_dict()["better"] is None


@pytest.mark.full
def test_equals_are_seldom_told_apart() -> None:
    """Judges that do not differ, told apart in at most 5 of 100 comparisons but for chance.

    Two or three of them, one question or all, many contexts or few, samples alone or in shared contexts.
    "Better" is said in the sentences and in the pairs alike; of n comparisons at most the 99.9 % point of a
    binomial may say it.
    """
    cases = [
        # judges, samples, samples a context, what is asked, comparisons
        (2, 80, 1, (), 60),
        (3, 80, 1, (), 40),
        (2, 80, 1, COMPARED, 30),
        (3, 60, 1, ("balanced_accuracy", "auroc"), 30),
        (2, 96, 12, (), 60),
        (3, 120, 4, (), 40),
    ]
    too_often = []
    for number, (judges, n, shared_by, asked, times) in enumerate(cases):
        wrong = 0
        for seed in range(times):
            truth = [bool(at % 2) for at in range(n)]
            samples = samples_of(truth, [at // shared_by for at in range(n)])
            found = compare(
                [
                    side(name, samples, verdicts(noisy(truth, 0.3, 1000 * (number + 1) + judges * seed + at)))
                    for at, name in enumerate("abc"[:judges])
                ],
                asked,
                draws=700,
            )
            shown = [each for pair in found.pairs for each in pair.differences.values() if each.better]
            said = [
                each for each in found.sentences if " is better than " in each or " is worse than " in each
            ]
            assert len(shown) == len(said)
            wrong += bool(shown)
        if wrong > binom.ppf(0.999, times, 0.05):
            too_often.append((cases[number], wrong))
    assert not too_often


def test_right_on_all_is_better_than_wrong_on_all() -> None:
    """Every draw is the same, so there is no interval, but 40 contexts all on one side."""
    truth = [bool(at % 2) for at in range(40)]
    samples = samples_of(truth)
    right, wrong = ([0.9 if each == good else 0.1 for each in truth] for good in (True, False))
    found = compare([side("a", samples, verdicts(right)), side("b", samples, verdicts(wrong))], COMPARED)
    pair = only(found)
    assert {each.better for each in pair.differences.values()} == {1}
    assert pair.differences["accuracy"].p == binomtest(0, 40).pvalue
    assert pair.differences["recall"].p == binomtest(0, 20).pvalue  # half of them are hallucinated
    assert pair.differences["accuracy"].value.low is None
    assert found.sentences[0].startswith(
        "a is better than b by accuracy: +1.00, p <.001 corrected (by the sign"
    )
    few = compare(
        [side(n, samples_of(truth, [0] * 38 + [1, 2]), verdicts(s)) for n, s in (("a", right), ("b", wrong))]
    )
    assert {each.better for each in only(few).differences.values()} == {0}


def test_a_figure_rests_on_the_contexts_that_define_it() -> None:
    truth = np.array([True, True, False, False, False, False])
    said = np.array([True, False, False, False, False, False])
    groups = np.array([0, 0, 1, 2, 3, 3])
    figures = Figures(truth, said, said * 0.5)
    expected = {
        "accuracy": 4,
        "balanced_accuracy": 1,
        "precision": 1,
        "recall": 1,
        "f1": 1,
        "auroc": 1,
        "brier": 4,
    }
    assert {name: figures.support(name, groups) for name in COMPARED} == expected


def test_few_contexts_prove_little() -> None:
    """Of 8 contexts no correction for 7 metrics leaves anything below .05; named beforehand one can be."""
    truth = [bool(at % 2) for at in range(200)]
    samples = samples_of(truth, [at // 25 for at in range(200)])
    sides = [side(n, samples, verdicts(noisy(truth, w, 5))) for n, w in (("a", 0.02), ("b", 0.45))]
    found = compare(sides, COMPARED)
    assert all(each.better == 0 and each.detectable is None for each in only(found).differences.values())
    assert any(each.startswith("Nothing can be shown: with 8 contexts") for each in found.remarks)
    named = compare(sides, ["accuracy"])
    assert only(named).differences["accuracy"].better == 1
    assert not any("Nothing can be shown" in each for each in named.remarks)


def test_the_family_is_every_pair_and_metric_that_was_asked_about() -> None:
    truth = [bool(at % 2) for at in range(60)]
    samples = samples_of(truth)
    sides = [side(f"j{at}", samples, verdicts(noisy(truth, 0.3, at))) for at in range(3)]
    for asked, family in (((), 3), (("f1",), 3), (("f1", "auroc"), 6), (COMPARED, 21)):
        found = compare(sides, asked)
        assert (len(found.pairs), found.family) == (3, family)
        assert set(found.primary) == set(asked or ["balanced_accuracy"]) and found.metrics == COMPARED
        inside = [e for pair in found.pairs for e in pair.differences.values() if not e.exploratory]
        assert [e.corrected for e in inside] == holm([e.p for e in inside]) and len(inside) == family
        for pair in found.pairs:
            assert set(pair.differences) == set(COMPARED)
            for each in pair.differences.values():
                assert each.exploratory == (each.metric not in found.primary)
                assert not each.exploratory or (each.p is not None and each.corrected is None)
    named = compare(sides[:2], ["f1"])
    assert named.family == 1 and only(named).differences["f1"].corrected == only(named).differences["f1"].p


def test_samples_of_one_class_are_compared_by_accuracy() -> None:
    samples = samples_of([True] * 40)
    sides = [side(n, samples, verdicts(noisy([True] * 40, w, 3))) for n, w in (("a", 0.02), ("b", 0.6))]
    found = compare(sides)
    assert found.primary == ("accuracy",) and only(found).differences["accuracy"].better == 1
    with pytest.raises(InputError, match="unknown metric 'f2'"):
        compare(sides, ["f2"])


def test_flips_are_listed_with_who_is_right_and_the_furthest_apart_first() -> None:
    samples = samples_of([True, False, True, True])
    found = compare(
        [
            side("a", samples, verdicts([0.9, 0.6, 0.55, 0.8])),
            side("b", samples, verdicts([0.1, 0.4, 0.45, 0.9])),
        ]
    )
    assert [(each.sample_id, each.right) for each in only(found).flips] == [
        ("s0", "a"),
        ("s1", "b"),
        ("s2", "a"),
    ]
    assert (only(found).both_right, only(found).only_first, only(found).only_second) == (1, 2, 1)


def test_few_contexts_give_no_interval_and_no_p_value() -> None:
    truth = [True, False] * 10
    samples = samples_of(truth, [at % 3 for at in range(20)])
    found = compare(
        [side("a", samples, verdicts(noisy(truth, 0, 1))), side("b", samples, verdicts(noisy(truth, 1, 2)))]
    )
    pair = only(found)
    assert {each.p for each in pair.differences.values()} == {None}
    assert all(each.better == 0 for each in pair.differences.values())
    assert any("3 independent contexts" in each for each in found.sentences)
    assert any("McNemar's test does not" in each for each in found.remarks)


def test_copies_in_one_context_prove_nothing_more() -> None:
    truth = [bool(at % 2) for at in range(50)]
    scores = [noisy(truth, 0.2, 3), noisy(truth, 0.3, 4)]
    once = compare([side(n, samples_of(truth), verdicts(s)) for n, s in zip("ab", scores, strict=True)])
    four = samples_of(truth * 4, list(range(50)) * 4)
    often = compare([side(n, four, verdicts(s * 4)) for n, s in zip("ab", scores, strict=True)])
    for name in ("accuracy", "f1", "auroc"):
        a, b = only(once).differences[name], only(often).differences[name]
        assert a.value.to_dict() == pytest.approx(b.value.to_dict())
        assert a.p == b.p


def test_without_gold_labels_nobody_is_better() -> None:
    samples = samples_of([None] * 20)
    found = compare([side("a", samples, verdicts([0.9] * 20)), side("b", samples, verdicts([0.2] * 20))])
    assert (found.gold, found.metrics, found.sentences) == (False, (), ())
    assert only(found).mcnemar is None and len(only(found).flips) == 20
    assert {each.right for each in only(found).flips} == {None}
    assert "not which judge is better" in found.remarks[0]


def test_labels_of_other_names_are_compared_and_not_graded() -> None:
    samples = samples_of([True, False, True])
    said: list[dict[str, Outcome]] = [
        {each: Verdict(each, "tone", word, 0.4) for each, word in zip(samples, words, strict=True)}
        for words in (("curt", "rude", "curt"), ("curt", "curt", "curt"))
    ]
    found = compare([side("a", samples, said[0]), side("b", samples, said[1])])
    assert not found.gold and [each.sample_id for each in only(found).flips] == ["s1"]
    assert found.sides[0].labels == {"curt": 2, "rude": 1}


def test_scores_that_run_the_other_way_are_turned_round() -> None:
    truth = [bool(at % 2) for at in range(30)]
    samples = samples_of(truth)
    backwards: dict[str, Outcome] = {
        f"s{at}": Verdict(f"s{at}", "judge", label(each), 0.2 if each else 0.8)
        for at, each in enumerate(truth)
    }
    high = Scoring("maximize", ("faithful", "hallucinated"), 0.5)
    found = compare([side("a", samples, backwards, high), side("b", samples, verdicts(noisy(truth, 0.2, 1)))])
    assert found.sides[0].figures["auroc"].value == 1
    assert found.sides[0].figures["brier"].value == pytest.approx(0.04)
    assert any("A low score of a means hallucinated" in each for each in found.remarks)
    assert compare([side(n, samples, backwards) for n in "ab"]).sides[0].figures["auroc"].value == 0


def test_the_same_seed_gives_the_same_numbers() -> None:
    assert two(40, 0.2, 0.3).to_dict() == two(40, 0.2, 0.3).to_dict()


# --- stored runs ---------------------------------------------------------------------------------


def test_two_runs_at_the_command_line(home: Path, call: Call) -> None:
    small, large = a_run(None, "small", 0.4), a_run(None, "large", 0.05)
    found = compare_runs(small, large)
    assert found.n + sum(found.left_out.values()) == found.n_all == 60
    page = found._repr_html_()
    assert "<table" in page and "balanced accuracy" in page and "balanced_accuracy" not in page
    short = call("compare", "small", "large").out
    assert short.count("\n") <= 24 and "small is worse than large by balanced accuracy" in short
    assert "--full" in short and "flips, the" not in short
    assert "flips, the 10 with" in call("compare", "small", "large", "--full").out
    shown = call("compare", "small", "large", "--list", 2)
    assert shown.code == 0
    assert max(map(len, shown.out.splitlines())) <= 80
    for words in (
        "on the 54 shared samples of 60 (90.0%); 30 contexts",
        "5 no gold label, 1 failed (small)",
        "small minus large",
        "small is worse than large by balanced accuracy",
        "flips, the 2 with the largest difference",
    ):
        assert words in shown.out
    data = json.loads(call("compare", "small", "large", "--json").out)
    assert data == json.loads(json.dumps(found.to_dict()))


def test_one_run_compares_its_judges(home: Path, call: Call) -> None:
    faithfulness = instance("faithfulness")
    judges = [faithfulness, replace(faithfulness, name="strict", threshold=0.3)]
    engine = ScriptedEngine(lambda prompt: {"faithful": 0.6, "hallucinated": 0.4}, name="even")
    run = magistrate.evaluate(rows(20), judges, model=engine, name="both", progress=False)
    assert [each.name for each in compare_runs(run).sides] == ["faithfulness", "strict"]
    assert call("compare", "both:strict", "both:faithfulness").code == 0
    a_run(None, "other", 0.2, rows(20))
    names = [each.name for each in compare_runs(run, "other", judges=["faithfulness"]).sides]
    assert names == ["both", "other"]
    vague = call("compare", "both", "other")
    assert vague.code == 2 and "2 judges" in vague.err


def test_what_cannot_be_compared_is_refused(home: Path, call: Call) -> None:
    a_run(None, "small", 0.4)
    a_run(None, "large", 0.1)
    for words, told in (
        ("small", "at least two judges"),
        ("small small", "given twice"),
        ("small none", "unknown run"),
        ("small small:strict", "has no judge 'strict'"),
        ("small large --judge x", "has no judge 'x'"),
        ("small large --metric f2", "unknown metric 'f2'; known: accuracy"),
        ("", "Missing argument"),
    ):
        done = call("compare", *words.split())
        assert done.code == 2 and told in done.err and done.out == "", words


def test_runs_without_labels_and_names_with_colons(home: Path, call: Call) -> None:
    plain = [{key: value for key, value in row.items() if key != "label"} for row in rows(12)]
    a_run(None, "a:b", 0.4, plain)
    a_run(None, "c", 0.1, plain)
    shown = call("compare", "a:b", "c:faithfulness")
    assert shown.code == 0 and "there are no gold labels" in " ".join(shown.out.split()).lower()
    with pytest.raises(SpecError, match="unknown run 'x:faithfulness'"):
        compare_runs("x:faithfulness", "c")


def test_many_judges_of_long_names_fit_the_screen(home: Path, call: Call) -> None:
    names = [f"a-judge-that-has-a-name-of-some-length-{at}" for at in range(4)]
    for at, name in enumerate(names):
        a_run(None, name, at / 10, rows(40))
    shown = call("compare", *names, "--list", 1)
    assert shown.code == 0
    assert max(map(len, shown.out.splitlines())) <= 80
    assert shown.out.count("exact McNemar") == 6 and "AUROC" in shown.out
    assert "6 p values are corrected together" in " ".join(shown.out.split())


@pytest.mark.parametrize("width", [60, 80])
def test_where_room_is_short_words_stay_whole_and_scores_are_shown(
    home: Path, call: Call, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    a_run(None, "small", 0.4)
    a_run(None, "large", 0.2)
    shown = call("compare", "small", "large", "--list", "3")
    assert shown.code == 0 and max(map(len, shown.out.splitlines())) <= width
    assert "exploratory" in shown.out
    for words in ("accuracy", "precision", "recall", "AUROC"):
        assert re.search(rf"^{words} +[+-]\.\d\d \[", shown.out, re.MULTILINE), words
    flips = shown.out[shown.out.index("largest difference") :]
    assert len(re.findall(r"^s\d+ .*\.\d\d +\S+ +\.\d\d ", flips, re.MULTILINE)) == 3
    assert ("detectable" in shown.out) == (width == 80)


def test_long_names_of_sides_stay_apart_on_a_narrow_screen() -> None:
    assert distinct_names(["a", "b"], 8) == ["a", "b"]
    assert distinct_names(["small, nightly", "large, nightly"], 8) == ["small, …", "large, …"]
    assert distinct_names(["nightly, the small", "nightly, the large"], 8) == ["…e small", "…e large"]
    assert distinct_names(["nightly one two run", "nightly 1 2 two run"], 6) == ["1 nig…", "2 nig…"]
