"""Verdicts beside labels: what is counted, what is left out and why, and which samples belong together."""

from __future__ import annotations

import pytest

from magistrate.analysis.columns import columns, groups_of, one_judge
from magistrate.errors import InputError, SpecError
from magistrate.types import Abstention, Failure, Outcome, Sample, Scoring, Turn, Verdict


def sample(id: str, label: str | None = "faithful", context: str = "c") -> Sample:
    return Sample(id, "out", (context,), label=label)


def verdict(id: str, label: str = "faithful", score: float = 0.2, judge: str = "j") -> Verdict:
    return Verdict(id, judge, label, score)


def test_every_sample_is_counted_or_left_out_for_a_reason() -> None:
    samples = {
        each.id: each
        for each in (
            sample("a", "hallucinated"),
            sample("b"),
            sample("failed"),
            sample("abstained"),
            sample("missing"),
            sample("unlabelled", None),
            sample("odd", "curt"),
            sample("named"),
        )
    }
    outcomes: list[Outcome] = [
        verdict("b"),
        verdict("a", "hallucinated", 0.9),
        verdict("a", judge="another"),
        Failure("failed", "j", "timeout", "late"),
        Abstention("abstained", "j", "no_context", "none"),
        verdict("unlabelled"),
        verdict("odd"),
        verdict("named", "rude"),
    ]
    found = columns(samples, outcomes, "j", Scoring("minimize"))
    assert found.ids == ("a", "b")
    assert found.truth.tolist() == [True, False]
    assert found.said.tolist() == [True, False]
    assert found.scores.tolist() == [0.9, 0.2]
    assert dict(found.left_out) == {
        "failed": 1,
        "abstained": 1,
        "not judged": 1,
        "no gold label": 1,
        "another gold label": 1,
        "verdict with another label": 1,
    }
    assert found.n + sum(found.left_out.values()) == len(samples)
    assert found.take(found.truth).ids == ("a",)


def test_foreign_and_doubled_outcomes_are_refused() -> None:
    with pytest.raises(InputError, match="'x' is not one of the given samples"):
        columns({"a": sample("a")}, [verdict("x")], "j", None)
    with pytest.raises(InputError, match="'a' has two outcomes"):
        columns({"a": sample("a")}, [verdict("a"), verdict("a")], "j", None)


def test_samples_of_the_same_context_belong_together() -> None:
    said = (Turn("user", "hello"),)
    samples = [
        sample("a", context="one"),
        sample("b", context="two"),
        sample("c", context="one"),
        Sample("d", "out", ("one",), messages=said),
        Sample("e", "out"),
        Sample("f", "out", ("",)),
        Sample("g", "out", messages=said),
        Sample("h", "out", messages=said),
        Sample("i", "out", (" ",)),
        Sample("j", "out", (" ",)),
    ]
    numbers = groups_of(samples).tolist()
    assert numbers == [0, 1, 0, 2, 3, 4, 5, 5, 6, 7]


def test_the_judge_that_is_meant() -> None:
    assert one_judge(["a"], None, "run x") == "a"
    assert one_judge(["a", "b"], "b", "run x") == "b"
    with pytest.raises(SpecError, match=r"run x has 2 judges \(a, b\); choose one: --judge NAME"):
        one_judge(["a", "b"], None, "run x")
    with pytest.raises(SpecError, match="run x has no judge 'c'; it has: a, b"):
        one_judge(["a", "b"], "c", "run x")
