"""A jury makes one score of its members', leaves out those without a verdict, and says who said what."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from magistrate import ScriptedEngine
from magistrate.engines.base import Engine
from magistrate.errors import EngineGone, EngineTimeout, InvalidOutput, OverLength, SpecError
from magistrate.judges import registry
from magistrate.judges.base import Call, JudgeInfo
from magistrate.judges.jury import Jury
from magistrate.judges.registry import OptionPolicyError
from magistrate.metrics.jury import POOLINGS, pooled
from magistrate.runs.execute import judge_one
from magistrate.runs.spec import whole
from magistrate.types import (
    FAITHFUL,
    HALLUCINATED,
    Abstention,
    Claim,
    Failure,
    Outcome,
    Prompt,
    Sample,
    Span,
    Verdict,
)

Says = Callable[[Sample], Outcome] | float | BaseException
ENGINE = ScriptedEngine(lambda prompt: {}, name="none")
SAMPLE = Sample("s", "It closes at six.", ("It closes at five.",))


@dataclass(frozen=True)
class Told:
    """Says one score, raises, or answers what a function makes of the sample."""

    name: str
    says: Says
    changes: Any = ()

    @property
    def info(self) -> JudgeInfo:
        info = JudgeInfo(self.name, labels=(FAITHFUL, HALLUCINATED), kind="code", prompt=f"p-{self.name}")
        return replace(info, **dict(self.changes))

    def plan(self, sample: Sample) -> list[Call]:
        return [Call(Prompt.of(self.name))]

    async def judge(self, sample: Sample, engine: Engine) -> Outcome:
        if isinstance(self.says, BaseException):
            raise self.says
        if callable(self.says):
            return self.says(sample)
        label = HALLUCINATED if self.says >= 0.5 else FAITHFUL
        return Verdict(sample.id, self.name, label, self.says, probability=max(self.says, 1 - self.says))


def abstains(sample: Sample) -> Outcome:
    return Abstention(sample.id, "whoever", "uncertain", "too far away")


def jury(*says: Says, **options: Any) -> Jury:
    return Jury(tuple(Told(f"m{at}", each) for at, each in enumerate(says)), **options)


def judged(judge: Any, sample: Sample = SAMPLE) -> Outcome:
    return asyncio.run(judge_one(sample, judge, ENGINE))


def verdict(judge: Any) -> Verdict:
    found = judged(judge)
    assert isinstance(found, Verdict), found
    return found


def test_scores_are_pooled_as_asked() -> None:
    votes = [False, False, True]
    for how, expected in {
        "mean": 0.4,
        "median": 0.2,
        "majority": 1 / 3,
        "logit": 1 / (1 + 4 ** (1 / 3)),  # the odds of .1 and .9 cancel each other
    }.items():
        found = verdict(jury(0.1, 0.2, 0.9, aggregate=how))
        assert found.score == pytest.approx(expected, abs=1e-4), how
        assert found.label == FAITHFUL
        assert (found.probability is None) == (how == "majority"), how
    robust = pooled([0.1, 0.12, 1.0], votes, "geometric_median")
    assert 0.1 < robust < 0.2, "one member far away moves it little"
    assert pooled([0.4, 0.42], [False, False], "geometric_median") == pytest.approx(0.41, abs=1e-3)
    for how in POOLINGS:
        assert (
            pooled([0.0, 1.0], [False, True], how, [1, 3])
            >= 0.5
            >= pooled([0, 1], [False, True], how, [3, 1])
        )
        assert pooled([0.3], [False], how) == (0.0 if how == "majority" else pytest.approx(0.3))
    assert pooled([0.2, 0.4, 0.6, 0.8], [False] * 4, "median") == pytest.approx(0.5)
    assert pooled([1.0, 0.4], [True, False], "logit") < 0.95, "a certain member does not decide alone"


def test_a_member_without_a_verdict_is_left_out_and_counted() -> None:
    cases: Sequence[tuple[Says, tuple[str, str]]] = [
        (abstains, ("abstained", "uncertain")),
        (EngineTimeout("it took too long"), ("failed", "timeout")),
        (InvalidOutput("the answer was cut off", "{"), ("failed", "invalid_output")),
        (OverLength("too long"), ("abstained", "over_length")),
        (ZeroDivisionError("oops"), ("failed", "engine_error")),
        (asyncio.CancelledError(), ("failed", "cancelled")),
        (lambda sample: Verdict(sample.id, "x", FAITHFUL, float("nan")), ("failed", "invalid_output")),
        (lambda sample: None, ("failed", "invalid_output")),  # type: ignore[arg-type,return-value]
    ]
    for silent, (what, code) in cases:
        found = verdict(jury(0.9, silent, 0.7))
        assert found.score == pytest.approx(0.8), silent
        assert (found.details["counted"], found.details["left_out"]) == (2, 1)
        member = found.details["members"][1]
        assert member["judge"] == "m1" and member[what] == code and "score" not in member, silent
        assert "2 of 2 say hallucinated" in (found.explanation or "")
    assert found.details["spread"] == pytest.approx(0.2)
    weighted = verdict(jury(0.9, abstains, 0.5, weights=(1, 100, 3)))
    assert weighted.score == pytest.approx(0.6), "the weight of who is left out counts nothing"


def test_too_few_members_are_no_verdict() -> None:
    failed = judged(jury(0.1, EngineTimeout("too slow"), abstains))
    assert isinstance(failed, Failure) and failed.code == "timeout"
    assert "1 of 3 members gave a verdict, but least=2" in failed.message
    assert "m1 failed (timeout)" in failed.message and "m2 abstained (uncertain)" in failed.message
    silent = judged(jury(0.1, abstains))
    assert isinstance(silent, Abstention) and silent.reason == "uncertain"
    assert isinstance(judged(jury(0.1, abstains, least=1)), Verdict)
    assert isinstance(judged(jury(EngineTimeout("x"), abstains, least=1)), Failure)
    with pytest.raises(EngineGone):
        judged(jury(0.1, 0.2, EngineGone("nobody answers")))


def test_members_are_asked_as_each_of_them_would_be() -> None:
    lacking = Told("lacking", 0.9, (("requires", ("output", "input")),))
    good = Told("good", 0.9, (("direction", "maximize"),))
    three = Jury((Told("m", 0.3), good, lacking))
    assert three.info.requires == ("output",), "a field that one of them needs is not needed by all"
    found = verdict(three)
    assert found.details["members"][1]["score"] == pytest.approx(0.1), "scores are turned: 1 is hallucinated"
    assert found.details["members"][2]["abstained"] == "missing_input"
    assert found.score == pytest.approx(0.2)
    assert three.info.prompt == "p-m+p-good+p-lacking"
    assert all(call.optional for call in three.plan(SAMPLE))
    tight = ScriptedEngine(lambda prompt: {}, name="none", context_window=1)
    told = asyncio.run(judge_one(SAMPLE, three, tight))
    assert isinstance(told, Abstention) and told.message.startswith("0 of 3"), "no member fits its window"


def test_claims_are_of_the_members_that_say_hallucinated() -> None:
    def found(label: str, score: float, *spans: tuple[int, int]) -> Callable[[Sample], Outcome]:
        claims = tuple(Claim("unsupported", Span(*each), output_text="x") for each in spans)
        return lambda sample: Verdict(sample.id, "x", label, score, claims=claims)

    bad, worse = found(HALLUCINATED, 0.8, (0, 2), (3, 6)), found(HALLUCINATED, 0.9, (3, 6))
    fine = found(FAITHFUL, 0.3, (7, 9))
    assert [(c.output_quote.start, c.output_quote.end) for c in verdict(jury(bad, worse, fine)).claims] == [
        (0, 2),
        (3, 6),
    ]
    assert verdict(jury(bad, 0.1, 0.1)).claims == ()


def test_it_is_written_as_any_judge_and_refuses_what_it_cannot_be() -> None:
    words = "jury:members=novelty+(faithfulness:permute=true)+(rubric:flag=contradiction+agreement),least=1"
    made = registry.judge(words)
    assert isinstance(made, Jury)
    assert [each.info.name for each in made.members][1:] == [
        "faithfulness:permute=true",
        "rubric:flag=contradiction+agreement",
    ]
    assert made.info.kind == "llm" and made.info.name == words
    again = registry.judge(registry.spelled(made))
    assert isinstance(again, Jury) and registry.spelled(again) == registry.spelled(made)
    nested = registry.judge("jury:members=(jury:members=novelty+detector)+faithfulness")
    assert isinstance(nested, Jury) and isinstance(nested.members[0], Jury)
    assert registry.judge("jury:members=novelty+detector", outside=True).info.name.startswith("jury:")
    with pytest.raises(OptionPolicyError, match="cannot be set remotely"):
        registry.judge("jury:members=novelty+(detector:folder=/tmp)", outside=True)
    here = f"jury:members=(stack:({Path.cwd()}/some/folder))+novelty"
    assert whole("jury:members=(stack:some/folder)+novelty") == here, "a run is resumed from anywhere"
    assert "needs members" in registry.judge("jury").info.lacks
    for bad, match in {
        "jury:members=novelty": "2 to 20 members, got 1",
        "jury:members=novelty+novelty": "need different names",
        "jury:members=novelty+relevance": "a jury needs a judge with the labels",
        "jury:members=novelty+detector,least=3": "least must be 1 to the number of members, 2; got 3",
        "jury:members=novelty+detector,weights=1": "weights must be positive numbers, one for each member",
        "jury:members=novelty+detector,weights=1+-1": "weights must be positive",
        "jury:members=novelty+detector,threshold=0": "threshold must be in",
        "jury:members=novelty+(nobody)": "unknown judge 'nobody'",
    }.items():
        with pytest.raises(SpecError, match=match):
            registry.judge(bad)
