"""Quotes against marked spans, character by character."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
from sklearn import metrics as sk

from magistrate.metrics.spans import SPAN_METRICS, characters, overlap, span_scores
from magistrate.report import RunFacts, summarize
from magistrate.report.values import fact_lines
from magistrate.types import Claim, Outcome, Sample, Span, Verdict


def values(found: object) -> dict[str, float | None]:
    return {name: found.metrics[name].value for name in SPAN_METRICS}  # type: ignore[attr-defined]


def test_by_hand() -> None:
    """10 marked, 8 quoted, 5 both: over two samples, and not the mean of two ratios."""
    found = span_scores([[(0, 4)], [(10, 16)]], [[(2, 5)], [(11, 14), (20, 22)]], [0, 1])
    assert (found.marked, found.quoted, found.both) == (10, 8, 5)
    assert values(found) == pytest.approx({"precision": 5 / 8, "recall": 0.5, "f1": 10 / 18, "iou": 5 / 13})


def test_a_character_counts_once() -> None:
    assert characters([(5, 9), (0, 6), (9, 12), (3, 3)]) == [(0, 12)]
    assert overlap([(0, 5), (3, 8)], [(4, 6), (5, 10)]) == 4
    twice = span_scores([[(0, 5), (2, 5)]], [[(0, 5), (0, 5)]], [0])
    assert (twice.marked, twice.quoted, twice.both) == (5, 5, 5)


def test_figures_are_those_of_scikit_learn_over_characters() -> None:
    source = random.Random(3)

    def some() -> list[tuple[int, int]]:
        starts = [source.randrange(90) for _ in range(source.randrange(4))]
        return [(start, start + source.randrange(12)) for start in starts]

    marked, quoted = [some() for _ in range(30)], [some() for _ in range(30)]
    flags = np.zeros((2, 30, 110), dtype=bool)
    for side, spans in enumerate((marked, quoted)):
        for at, each in enumerate(spans):
            for start, end in each:
                flags[side, at, start:end] = True
    truth, said = flags.reshape(2, -1)
    found = span_scores(marked, quoted, np.arange(30))
    assert values(found) == pytest.approx(
        {
            "precision": sk.precision_score(truth, said),
            "recall": sk.recall_score(truth, said),
            "f1": sk.f1_score(truth, said),
            "iou": sk.jaccard_score(truth, said),
        }
    )
    for estimate in found.metrics.values():
        assert estimate.low is not None and estimate.value is not None and estimate.high is not None
        assert estimate.low <= estimate.value <= estimate.high


def test_what_is_not_defined_says_why() -> None:
    none = span_scores([], [], [])
    assert none.metrics["f1"].undefined == "no sample has marked hallucinations"
    silent = span_scores([[(0, 3)]] * 6, [[]] * 6, range(6))
    assert silent.metrics["precision"].undefined == "the judge quoted nothing as wrong"
    assert silent.metrics["recall"].value == 0
    unmarked = span_scores([[]] * 6, [[(0, 3)]] * 6, range(6))
    assert unmarked.metrics["recall"].undefined == "nothing is marked as hallucinated"
    assert span_scores([[]], [[]], [0]).metrics["iou"].undefined is not None


def test_copies_in_one_context_prove_nothing_more() -> None:
    source = random.Random(5)
    marked = [[(0, source.randrange(1, 20))] for _ in range(30)]
    quoted = [[(source.randrange(10), 20)] for _ in range(30)]
    once = span_scores(marked, quoted, np.arange(30))
    copied = span_scores(marked * 6, quoted * 6, np.tile(np.arange(30), 6))
    apart = span_scores(marked * 6, quoted * 6, np.arange(180))
    for name in SPAN_METRICS:
        one, many, wrong = (each.metrics[name] for each in (once, copied, apart))
        assert many.to_dict() == pytest.approx(one.to_dict())
        assert wrong.high - wrong.low < 0.6 * (one.high - one.low)  # type: ignore[operator]


# --- in a report ---------------------------------------------------------------------------------


def claim(kind: str, start: int, end: int) -> Claim:
    return Claim(kind, Span(start, end))  # type: ignore[arg-type]


def reported(samples: list[Sample], claims: dict[str, tuple[Claim, ...]]) -> object:
    outcomes: list[Outcome] = [
        Verdict(each.id, "rubric", "hallucinated", 0.9, claims=claims.get(each.id, ())) for each in samples
    ]
    facts = RunFacts("r", "r", "d", "done", len(samples))
    (judge,) = summarize(facts, {each.id: each for each in samples}, outcomes, {"rubric": "r"}).judges
    return judge


def marked_samples() -> list[Sample]:
    return [
        Sample("a", "x" * 30, ("c",), label="hallucinated", spans=(Span(0, 10),)),
        Sample("b", "x" * 30, ("d",), label="faithful"),
        Sample("c", "x" * 30, ("e",), label="hallucinated"),  # nobody says where
        Sample("d", "x" * 30, ("f",)),
    ]


def test_claims_against_the_output_are_what_is_measured() -> None:
    claims = {
        "a": (claim("contradiction", 0, 5), claim("agreement", 10, 30)),
        "b": (claim("unsupported", 0, 5),),
        "c": (claim("unsupported", 0, 30),),
        "d": (claim("unsupported", 0, 30),),
    }
    judge = reported(marked_samples(), claims)
    spans = judge.spans  # type: ignore[attr-defined]
    assert (spans.n, spans.not_counted) == (2, 1)
    assert (spans.marked, spans.quoted, spans.both) == (10, 10, 5)
    told = dict(fact_lines(judge))["spans"]  # type: ignore[arg-type]
    assert "precision .50" in told and "1 hallucinated without a mark not counted" in told
    data = judge.to_dict()  # type: ignore[attr-defined]
    assert json.loads(json.dumps(data))["spans"]["f1"]["value"] == 0.5


def test_only_where_there_is_something_to_measure() -> None:
    samples = marked_samples()
    assert reported(samples, {}).spans is None  # type: ignore[attr-defined]
    plain = [each for each in samples if not each.spans]
    judge = reported(plain, {"b": (claim("unsupported", 0, 5),)})
    assert judge.spans is None  # type: ignore[attr-defined]
    assert "spans" not in dict(fact_lines(judge))  # type: ignore[arg-type]
    assert judge.to_dict()["spans"] is None  # type: ignore[attr-defined]
