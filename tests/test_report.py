"""Outcomes become numbers that hold what they say, words where caution is due, and a readable screen."""

from __future__ import annotations

import io
import json
import random
import subprocess
import sys
from collections.abc import Iterable, Mapping

import pandas
import pytest
from rich.console import Console
from sklearn import metrics as sk

from magistrate.errors import InputError
from magistrate.features import ngram_novelty
from magistrate.metrics import METRICS
from magistrate.report import (
    JudgeReport,
    Report,
    RunFacts,
    baselines,
    outcome_panel,
    render,
    summarize,
    table,
    to_pandas,
)
from magistrate.report.terminal import print_outcome
from magistrate.types import (
    FAITHFUL,
    HALLUCINATED,
    Abstention,
    Claim,
    Failure,
    Outcome,
    Recipe,
    Sample,
    Scoring,
    Span,
    Step,
    Usage,
    Verdict,
)

RECIPE = Recipe("exact@1", "tiny", "0123456789abcdef", "exact/1#aa", "choice(yes,no)", 0, 8, "0.1.0")


def sample(number: int, label: str | None, output: str = "the pump runs", **fields: object) -> Sample:
    return Sample(f"s{number}", output, (f"the pump runs all day {number}",), label=label, **fields)


def by_id(samples: Iterable[Sample]) -> dict[str, Sample]:
    return {s.id: s for s in samples}


def verdict(number: int, score: float, judge: str = "exact", **fields: object) -> Verdict:
    label = HALLUCINATED if score >= 0.5 else FAITHFUL
    return Verdict(f"s{number}", judge, label, score, **fields)


def alternating(n: int) -> dict[str, Sample]:
    """`n` samples, faithful first, alike in all that a trivial rule could see."""
    return by_id(sample(i, (FAITHFUL, HALLUCINATED)[i % 2]) for i in range(n))


def summary(
    samples: Mapping[str, Sample], outcomes: Iterable[Outcome], n_total: int | None = None, **recipes: object
) -> Report:
    facts = RunFacts("r1", "first", "quickstart", "done", len(samples) if n_total is None else n_total, 12.5)
    outcomes = list(outcomes)
    scoring = {each.judge: Scoring("minimize", (FAITHFUL, HALLUCINATED), 0.5) for each in outcomes}
    return summarize(facts, samples, outcomes, recipes or {"exact": RECIPE}, scoring)


def only(report: Report) -> JudgeReport:
    (judge,) = report.judges
    return judge


def mixed() -> tuple[dict[str, Sample], list[Outcome]]:
    """Ten samples, eight labelled; six verdicts on those, a failure, an abstention, two unlabelled."""
    labels = [FAITHFUL, HALLUCINATED] * 4 + [None, "partly"]
    outputs = ["runs all day" if label == FAITHFUL else "the motor hums at night" for label in labels]
    samples = by_id(sample(i, label, outputs[i]) for i, label in enumerate(labels))
    usage = Usage(calls=1, prompt=100, cached=60, generated=10, forced=4)
    scores = {0: 0.1, 1: 0.9, 2: 0.7, 3: 0.8, 4: 0.2, 5: 0.4, 8: 0.6, 9: 0.3}
    outcomes: list[Outcome] = [verdict(i, s, usage=usage, seconds=0.5) for i, s in scores.items()]
    outcomes[1] = verdict(1, 0.9, usage=usage, seconds=0.5, explanation="off", explanation_agrees=False)
    outcomes[0] = verdict(0, 0.1, usage=usage, seconds=0.5, explanation="fine", explanation_agrees=True)
    outcomes.append(Failure("s6", "exact", "timeout", "no answer", usage=usage, seconds=30.0))
    outcomes.append(Abstention("s7", "exact", "over_length", "too long"))
    return samples, outcomes


# --- counting -----------------------------------------------------------------------------------


def test_counts_and_metrics_rest_on_labelled_verdicts_alone() -> None:
    judge = only(summary(*mixed()))
    assert (judge.n_total, judge.n_judged, judge.n_ok) == (10, 10, 8)
    assert (judge.n_labelled, judge.n_measured, judge.other_gold) == (8, 6, 1)
    assert judge.failures == {"timeout": 1}
    assert judge.abstentions == {"over_length": 1}
    assert judge.verdicts == {FAITHFUL: 4, HALLUCINATED: 4}
    assert judge.hallucinated_share == 0.5
    assert judge.gold == {FAITHFUL: 4, HALLUCINATED: 4, "partly": 1}
    assert (judge.n_explained, judge.flips) == (2, 1)
    assert judge.usage == Usage(calls=9, prompt=900, cached=540, generated=90, forced=36)
    assert judge.latency_median == 0.5
    assert judge.seconds_per_sample == pytest.approx(12.5 / 10)
    assert judge.result is not None
    assert judge.result.confusion.to_dict() == {
        "true_positive": 2,
        "false_positive": 1,
        "true_negative": 2,
        "false_negative": 1,
    }
    truth, scores = [0, 1, 0, 1, 0, 1], [0.1, 0.9, 0.7, 0.8, 0.2, 0.4]
    assert judge.result.metrics["auroc"].value == pytest.approx(sk.roc_auc_score(truth, scores))


@pytest.mark.parametrize("gold", [FAITHFUL, HALLUCINATED])
def test_a_failure_or_abstention_never_counts_as_a_label(gold: str) -> None:
    samples = by_id(sample(i, gold) for i in range(4))
    outcomes: list[Outcome] = [
        Failure("s0", "exact", "invalid_output", HALLUCINATED),
        Failure("s1", "exact", "engine_error", FAITHFUL),
        Abstention("s2", "exact", "uncertain", HALLUCINATED),
        verdict(3, 1.0 if gold == HALLUCINATED else 0.0),
    ]
    judge = only(summary(samples, outcomes))
    assert judge.n_ok == judge.n_measured == 1
    assert sum(judge.verdicts.values()) == 1
    assert judge.result is not None
    assert judge.result.metrics["accuracy"].value == 1
    failed = only(summary(samples, outcomes[:3]))
    assert (failed.result, failed.n_ok, failed.verdicts) == (None, 0, {})
    assert len(failed.baselines) == 4, "the baselines stand on all labelled samples judged"


def test_the_label_decides_and_the_score_ranks() -> None:
    samples = alternating(4)
    outcomes = [
        Verdict("s0", "exact", HALLUCINATED, 0.4),
        Verdict("s1", "exact", FAITHFUL, 0.9),
        Verdict("s2", "exact", HALLUCINATED, 0.1),
        Verdict("s3", "exact", FAITHFUL, 0.3),
    ]
    result = only(summary(samples, outcomes)).result
    assert result is not None
    assert (result.metrics["accuracy"].value, result.metrics["auroc"].value) == (0, 0.75)


def test_the_order_of_outcomes_changes_nothing() -> None:
    samples, outcomes = mixed()
    shuffled = outcomes.copy()
    random.Random(3).shuffle(shuffled)
    assert summary(samples, shuffled).to_dict() == summary(samples, outcomes).to_dict()


def test_judges_come_in_the_order_of_their_recipes() -> None:
    samples = alternating(2)
    outcomes = [verdict(i, 0.9, judge) for judge in ("late", "b", "a") for i in range(2)]
    report = summary(samples, outcomes, b="recipe b", a="recipe a", silent="recipe c")
    assert [j.judge for j in report.judges] == ["b", "a", "silent", "late"]
    assert [j.recipe for j in report.judges] == ["recipe b", "recipe a", "recipe c", None]
    assert report.judges[2].n_judged == 0


@pytest.mark.parametrize(
    ("outcomes", "n_total", "message"),
    [
        ([verdict(7, 0.1)], 2, "'s7', which is not among the 2 given samples"),
        ([verdict(0, 0.1), verdict(0, 0.2)], 2, "two outcomes for sample 's0'"),
        ([verdict(0, 0.1), verdict(1, 0.2)], 1, "2 outcomes in a run of 1 samples"),
        ([verdict(0, 0.1, seconds=float("nan"))], 2, "seconds are nan"),
        ([verdict(0, float("nan"))], 2, "got nan"),
    ],
)
def test_outcomes_that_cannot_be_counted_are_refused(
    outcomes: list[Outcome], n_total: int, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        summary(alternating(2), outcomes, n_total)


# --- as data ------------------------------------------------------------------------------------


def test_the_report_as_data_has_the_promised_shape() -> None:
    data = summary(*mixed()).to_dict()
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    assert set(data) == {"run", "dataset", "judges"}
    assert data["run"] == {
        "id": "r1",
        "name": "first",
        "status": "done",
        "n_total": 10,
        "seconds": 12.5,
        "reason": None,
        "unread": None,
        "damaged": [],
    }
    assert data["dataset"] == "quickstart"
    judge = data["judges"]["exact"]
    assert (judge["n_ok"], judge["n_total"], judge["coverage"]) == (8, 10, 0.8)
    assert list(judge["metrics"]) == list(METRICS)
    for estimate in judge["metrics"].values():
        assert set(estimate) == {"value", "low", "high"}
        assert 0 <= estimate["low"] <= estimate["value"] <= estimate["high"] <= 1
    assert set(judge["confusion"]) == {"true_positive", "false_positive", "true_negative", "false_negative"}
    assert list(judge["baselines"]) == ["majority", "always_hallucinated", "length", "ngram_overlap"]
    for baseline in judge["baselines"].values():
        assert set(baseline) == {*METRICS, "rule"}
    assert judge["seconds_per_sample"] == pytest.approx(1.25)
    assert judge["latency_median"] == 0.5
    assert judge["recipe"] == RECIPE.line()


def test_the_time_of_a_run_is_shared_among_its_judges() -> None:
    """However many are in flight at once, the parts add up to the run's wall clock."""
    samples = alternating(4)
    outcomes = [verdict(i, 0.9, "slow", seconds=9.0) for i in range(4)]
    outcomes += [verdict(i, 0.9, "quick", seconds=1.0) for i in range(2)]
    slow, quick = summary(samples, outcomes, slow="recipe", quick="recipe").judges
    assert slow.seconds_per_sample is not None
    assert quick.seconds_per_sample is not None
    assert 4 * slow.seconds_per_sample + 2 * quick.seconds_per_sample == pytest.approx(12.5)
    assert slow.seconds_per_sample == pytest.approx(9 * quick.seconds_per_sample)


def test_a_run_without_an_end_says_that_its_time_is_not_known() -> None:
    samples = alternating(2)
    facts = RunFacts("r1", "first", "quickstart", "running", 2)
    report = summarize(facts, samples, [verdict(i, 0.9, seconds=3.0) for i in range(2)], {"exact": RECIPE})
    judge = only(report)
    assert (judge.seconds_per_sample, judge.latency_median) == (None, 3.0)
    assert "unknown, the run has no end; answered after 3.0 s" in printed(report, 100)


def test_a_run_without_anything_is_data_too() -> None:
    for report in (summary({}, []), summary(by_id([sample(0, None)]), [verdict(0, 0.9)])):
        judge = json.loads(json.dumps(report.to_dict(), allow_nan=False))["judges"]["exact"]
        assert (judge["metrics"], judge["confusion"], judge["baselines"]) == ({}, {}, {})


# --- baselines ----------------------------------------------------------------------------------


def test_constant_baselines_are_what_they_say() -> None:
    labels = [HALLUCINATED] * 3 + [FAITHFUL] * 7
    majority, always, _, _ = baselines(sample(i, label) for i, label in enumerate(labels))
    assert majority.metrics == {
        "accuracy": 0.7,
        "balanced_accuracy": 0.5,
        "precision": None,
        "recall": 0.0,
        "f1": 0.0,
        "auroc": 0.5,
    }
    assert always.metrics == pytest.approx(
        {
            "accuracy": 0.3,
            "balanced_accuracy": 0.5,
            "precision": 0.3,
            "recall": 1.0,
            "f1": 6 / 13,
            "auroc": 0.5,
        }
    )


@pytest.mark.parametrize("longer", [HALLUCINATED, FAITHFUL])
def test_length_takes_the_better_direction(longer: str) -> None:
    shorter = FAITHFUL if longer == HALLUCINATED else HALLUCINATED
    samples = [sample(i, longer if i > 5 else shorter, "x" * i) for i in range(10)]
    length = baselines(samples)[2]
    assert length.metrics == dict.fromkeys(METRICS, 1.0)
    side = "6 or more" if longer == HALLUCINATED else "5 or fewer"
    assert length.rule == f"hallucinated where the output has {side} characters"


def test_thresholds_are_the_best_there_are() -> None:
    """No threshold on the signal, tried one by one in both directions, does better."""
    draw = random.Random(5)
    vocabulary = ["the", "pump", "runs", "all", "day", "motor", "night", "valve"]
    samples = [
        sample(
            i, draw.choice((FAITHFUL, HALLUCINATED)), " ".join(draw.choices(vocabulary, k=draw.randint(2, 9)))
        )
        for i in range(60)
    ]
    truth = [s.label == HALLUCINATED for s in samples]
    length, overlap = baselines(samples)[2:]
    for baseline, values in (
        (length, [float(len(s.output or "")) for s in samples]),
        (overlap, [ngram_novelty(s, 2) for s in samples]),
    ):
        best = max(
            sk.balanced_accuracy_score(truth, [sign * v >= sign * cut for v in values])
            for cut in values
            for sign in (1, -1)
        )
        assert baseline.metrics["balanced_accuracy"] == pytest.approx(best)
        area = sk.roc_auc_score(truth, values)
        assert baseline.metrics["auroc"] == pytest.approx(max(area, 1 - area))


def test_baselines_without_two_classes_or_samples() -> None:
    assert baselines([]) == ()
    assert baselines([sample(0, None), sample(1, "partly"), Sample("s2", None, label=FAITHFUL)]) == ()
    for baseline in baselines([sample(0, FAITHFUL), sample(1, FAITHFUL, "longer than that")]):
        assert baseline.metrics["balanced_accuracy"] is None
        assert baseline.metrics["auroc"] is None


# --- remarks ------------------------------------------------------------------------------------


def said(samples: Mapping[str, Sample], outcomes: Iterable[Outcome], n_total: int | None = None) -> str:
    return " ".join(only(summary(samples, outcomes, n_total)).remarks)


def test_a_good_judge_needs_no_remark() -> None:
    assert said(alternating(40), [verdict(i, 0.1 + 0.8 * (i % 2)) for i in range(40)]) == ""


def test_one_label_for_everything_is_said() -> None:
    text = said(alternating(40), [verdict(i, 0.6 + 0.3 * (i % 2)) for i in range(40)])
    assert "every sample the same label: all 40 verdicts are 'hallucinated'" in text
    assert "does not beat the best trivial baseline on balanced accuracy: .50 against .50" in text
    assert "chance" not in text, "it ranks perfectly all the same"


def test_ranking_by_chance_is_said() -> None:
    text = said(alternating(40), [verdict(i, 0.1 + 0.8 * (i // 2 % 2)) for i in range(40)])
    assert "On 40 samples, ranking is not shown to be better than chance" in text
    assert "its interval contains .5 (AUROC .50 [.33, .67])" in text


def test_ranking_the_wrong_way_round_is_said() -> None:
    text = said(alternating(40), [verdict(i, 0.9 - 0.8 * (i % 2)) for i in range(40)])
    assert "in the wrong order, worse than chance (AUROC .00 [.00, " in text


def test_a_shortcut_that_does_as_well_is_named() -> None:
    samples = by_id(sample(i, (FAITHFUL, HALLUCINATED)[i % 2], "ab" * (1 + i % 2)) for i in range(40))
    outcomes = [verdict(i, 0.1 + 0.8 * (i % 2)) for i in range(40)]
    assert "balanced accuracy: 1.00 against 1.00 by length only" in said(samples, outcomes)


def test_missing_verdicts_are_said() -> None:
    text = said(*mixed(), n_total=12)
    assert "4 of 12 samples have no verdict (coverage 66.7%)" in text
    assert "1 failed (1 timeout), 1 abstained (1 over_length), 2 not judged" in text
    assert "Other gold labels: 1;" in text
    assert "Without a gold label: 1 of 10 samples" in text


def test_unlabelled_data_is_described() -> None:
    samples = by_id(sample(i, None) for i in range(4))
    text = said(samples, [verdict(i, 0.9 if i else 0.1) for i in range(4)])
    assert "No sample is labelled, so nothing can be measured; 75.0% of the verdicts" in text


def test_verdicts_of_other_labels_are_left_out_and_said() -> None:
    judge = only(summary(alternating(2), [verdict(0, 0.1), Verdict("s1", "exact", "partly", 0.5)]))
    assert (judge.n_ok, judge.n_measured, judge.other_verdicts) == (2, 1, 1)
    assert "Other verdict labels: 1;" in " ".join(judge.remarks)


# --- the screen ---------------------------------------------------------------------------------


def printed(report: Report, width: int, **options: object) -> str:
    stream = io.StringIO()
    render(report, Console(file=stream, width=width, **options))
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines())


SNAPSHOT = r"""
first  r1
quickstart  ·  10 samples  ·  done  ·  12.5 s

── exact
                                                   always  length   n-gram
metric                      judge  majority  hallucinated    only  overlap
──────────────────────────────────────────────────────────────────────────
accuracy           .67 [.30, .90]       .50           .50    1.00     1.00
balanced accuracy  .67 [.34, .86]       .50           .50    1.00     1.00
precision          .67 [.21, .94]         -           .50    1.00     1.00
recall             .67 [.21, .94]       .00          1.00    1.00     1.00
F1                 .67 [.26, .92]       .00           .67    1.00     1.00
AUROC              .89 [.40, .99]       .50           .50    1.00     1.00

truth \ judged  hallucinated  faithful
──────────────────────────────────────
hallucinated               2         1
faithful                   1         2

ok              8/10 (80.0%)
failures        1 timeout
abstentions     1 over_length
verdicts        4 faithful, 4 hallucinated
measured on     6 samples: 3 hallucinated, 3 faithful in truth
calibration     ECE .32 (.32 by chance), Brier .16, log loss .46
scores          a high score means hallucinated; threshold .50
time a sample   1.2 s of the run; answered after 500 ms (median)
tokens          900 read (540 from cache), 90 generated (36 forced), 9 calls
explanations    1 of 2 contradict the label
length only     hallucinated where the output has 23 or more characters
n-gram overlap  hallucinated where the share of new bigrams is 1 or more
recipe          judge=exact@1 model=tiny#0123456789ab prompt=exact/1#aa constraint=choice(yes,no)
                seed=0 n=8 magistrate=0.1.0
remark          2 of 10 samples have no verdict (coverage 80.0%): 1 failed (1 timeout), 1 abstained
                (1 over_length). They count for neither label.
remark          Other gold labels: 1; only 'faithful' and 'hallucinated' are counted.
remark          Without a gold label: 1 of 10 samples; metrics do not include them.
remark          On 6 samples, ranking is not shown to be better than chance: its interval contains
                .5 (AUROC .89 [.40, .99]).
remark          It does not beat the best trivial baseline on balanced accuracy: .67 against 1.00 by
                length only.

Brackets: 95 % intervals. Positive: hallucinated. For length and n-gram overlap, the threshold and
direction are the best ones on this data, and AUROC is max(a, 1 - a): an upper bound for these
shortcuts.
"""


def test_the_screen_at_100_columns() -> None:
    assert printed(summary(*mixed()), 100) == SNAPSHOT.strip("\n")


@pytest.mark.parametrize("width", [60, 80, 100, 120, 200])
def test_no_number_is_ever_cut(width: int) -> None:
    samples = alternating(200)
    outcomes = [
        verdict(i, 1.0, judge, usage=Usage(1, 10**6, 0, 10**5, 0), seconds=75.0)
        for judge in ("a-judge-with-quite-a-long-name", "exact")
        for i in range(200)
    ]
    text = printed(summary(samples, outcomes, exact=RECIPE), width)
    assert all(len(line) <= width for line in text.splitlines())
    if width >= 80:
        assert "…" not in text
        assert text.count("1.00 [.96, 1.00]") == 2, "recall of both judges, whole"
        assert text.count("200/200") == 4


def test_without_colour_there_is_no_escape_and_with_it_the_same_text() -> None:
    report = summary(*mixed())
    bare = printed(report, 80, force_terminal=True, no_color=True, color_system=None)
    assert "\x1b" not in bare
    coloured = Console(
        file=io.StringIO(), width=80, force_terminal=True, color_system="truecolor", record=True
    )
    render(report, coloured)
    assert [line.rstrip() for line in coloured.export_text().splitlines()] == bare.splitlines()


def test_names_from_outside_are_text_and_nothing_else() -> None:
    evil = "[red]x[/red] [link=http://a]:smile: \x1b[2J\x9b1m"
    facts = RunFacts("r[/]", evil, evil, "done", 2, None)
    samples = alternating(2)
    stream = io.StringIO()
    outcomes = [verdict(i, 0.9, evil) for i in range(2)]
    render(
        summarize(facts, samples, outcomes, {evil: evil}),
        Console(file=stream, width=200, force_terminal=True, color_system=None),
    )
    text = stream.getvalue()
    assert "\x1b" not in text
    assert "\x9b" not in text
    assert text.count("[red]x[/red] [link=http://a]:smile: ␛[2J\ufffd1m") == 4


def shown(subject: Sample, outcomes: Iterable[Outcome], **options: bool) -> str:
    stream = io.StringIO()
    outcome_panel(subject, outcomes, Console(file=stream, width=80), **options)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines())


def test_a_sample_is_shown_with_its_spans_and_every_outcome() -> None:
    output = "It runs for [b]12[/b] hours\x1b[2J a day."
    subject = Sample(
        "pump",
        output,
        ("It runs for 8 hours.", "No [oil]."),
        input="How long?",
        label=HALLUCINATED,
        spans=(Span(12, 21), Span(15, 27)),
    )
    step = Step(
        "generate", (("system", "You judge."), ("user", "[i]text[/i]")), {"text": '{"a": 1}'}, Usage(), 0.2
    )
    claim = Claim("contradiction", Span(12, 21), Span(12, 19), 0, "8, not 12", 0.8)
    outcomes: list[Outcome] = [
        Verdict(
            "pump",
            "exact",
            HALLUCINATED,
            0.93,
            0.9,
            "Twelve is not eight.",
            False,
            0.7,
            (claim,),
            steps=(step,),
        ),
        Failure("pump", "second", "invalid_output", "not [json]"),
        Abstention("pump", "third", "no_context", "nothing to go by"),
    ]
    text = shown(subject, outcomes)
    for part in (
        "gold label hallucinated",
        "input\n  How long?",
        "context 1\n  It runs for 8 hours.",
        "context 2\n  No [oil].",
        "It runs for ⟦[b]12[/b] hours⟧␛[2J a day.",
        "── exact  hallucinated  score .93  probability .90  mass .70",
        "explanation, which contradicts the label\n  Twelve is not eight.",
        "claim 1: contradiction, probability .80\n"
        "  output   It runs for ⟦[b]12[/b]⟧ hours␛[2J a day.\n"
        "  context  It runs for ⟦8 hours⟧.\n"
        "  8, not 12",
        "── second  failed: invalid_output",
        "not [json]",
        "── third  abstained: no_context",
    ):
        assert part in text
    assert "\x1b" not in text
    assert "step 1" not in text
    detailed = shown(subject, outcomes, steps=True)
    for part in (
        "step 1: generate, 200 ms",
        "system\n      You judge.",
        "user\n      [i]text[/i]",
        r"{\"a\": 1}",
    ):
        assert part in detailed


@pytest.mark.parametrize("letters", ["x", "雨", "ab\n"], ids=["latin", "chinese", "lines"])
def test_an_excerpt_of_a_text_without_spaces_is_bounded(letters: str) -> None:
    text = letters * 20_000
    for start, end in ((9_000, 9_020), (0, 20), (len(text) - 20, len(text)), (5_000, 19_000)):
        claim = Claim("contradiction", Span(start, end), Span(0, 10), 0, "It is said otherwise.")
        subject = Sample("s", text, (text,))
        printed = io.StringIO()
        console = Console(file=printed, width=80, color_system=None)
        print_outcome(Verdict("s", "exact", HALLUCINATED, 0.9, claims=(claim,)), subject, console)
        assert len("".join(printed.getvalue().split())) < 3_500, (start, end)
        assert "⟦" in printed.getvalue() and "It is said otherwise." in printed.getvalue()


def test_a_sample_without_output_or_label_is_shown() -> None:
    assert "not produced yet" in shown(Sample("s", None), [Failure("s", "exact", "task_error", "task broke")])


# --- rows ---------------------------------------------------------------------------------------

COLUMNS = [
    "sample_id",
    "judge",
    "kind",
    "label",
    "score",
    "probability",
    "direction",
    "threshold",
    "explanation",
    "gold_label",
    "reason",
    "message",
    "seconds",
    "tokens",
]


def test_every_outcome_is_a_row() -> None:
    samples, outcomes = mixed()
    rows = table(samples, outcomes, {"exact": Scoring("minimize", (), 0.5)})
    assert [list(row) for row in rows] == [COLUMNS] * 10
    assert rows[1] == {
        "sample_id": "s1",
        "judge": "exact",
        "kind": "verdict",
        "label": HALLUCINATED,
        "score": 0.9,
        "probability": None,
        "direction": "minimize",
        "threshold": 0.5,
        "explanation": "off",
        "gold_label": HALLUCINATED,
        "reason": None,
        "message": None,
        "seconds": 0.5,
        "tokens": 110,
    }
    assert [(r["kind"], r["label"], r["score"], r["reason"]) for r in rows[-2:]] == [
        ("failure", None, None, "timeout"),
        ("abstention", None, None, "over_length"),
    ]
    json.dumps(rows, allow_nan=False)


def test_a_frame_holds_the_same_rows_and_knows_missing_from_nan() -> None:
    samples, outcomes = mixed()
    frame = to_pandas(samples, outcomes)
    assert list(frame.columns) == COLUMNS
    assert len(frame) == 10
    assert frame.score.dropna().tolist() == [o.score for o in outcomes if isinstance(o, Verdict)]
    assert frame.score[8] is pandas.NA
    assert frame.probability.isna().all()
    assert frame.groupby("kind").size().to_dict() == {"abstention": 1, "failure": 1, "verdict": 8}
    assert list(to_pandas({}, []).columns) == COLUMNS


LIGHT = """
import sys
sys.modules["pandas"] = None  # as where it is not installed
import magistrate.report as report
heavy = {"numpy", "scipy", "sklearn", "rich", "sqlalchemy"} & set(sys.modules)
assert not heavy, heavy
try:
    report.to_pandas({}, [])
except report.export.MissingExtra as error:
    print(error)
"""


def test_heavy_packages_are_imported_when_used_and_a_missing_one_is_named() -> None:
    done = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True, check=True)
    assert "pip install 'magistrate[pandas]'" in done.stdout
