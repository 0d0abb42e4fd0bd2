"""A cascade asks the dear judge only where the cheap one is not sure, and says who decided."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from magistrate import ScriptedEngine
from magistrate.engines.base import Engine, Option
from magistrate.errors import SpecError
from magistrate.judges import registry
from magistrate.judges.base import Call, JudgeInfo, planned_calls
from magistrate.judges.cascade import Cascade
from magistrate.runs.execute import judge_one
from magistrate.types import (
    FAITHFUL,
    HALLUCINATED,
    Abstention,
    Failure,
    Outcome,
    Prompt,
    Sample,
    Verdict,
)


@dataclass(frozen=True)
class Told:
    """Says what its table has for the output: a score, or an outcome."""

    table: dict[str, Any]
    name: str = "told"
    asked: list[str] = field(default_factory=list)
    changes: dict[str, Any] = field(default_factory=dict)

    @property
    def info(self) -> JudgeInfo:
        return replace(
            JudgeInfo(self.name, labels=(FAITHFUL, HALLUCINATED), kind="code", prompt=f"p-{self.name}"),
            **self.changes,
        )

    def plan(self, sample: Sample) -> list[Call]:
        return [Call(Prompt.of(f"{self.name} {sample.output}"))]

    async def judge(self, sample: Sample, engine: Engine) -> Outcome:
        self.asked.append(sample.output or "")
        await engine.choose(Prompt.of(self.name), OPTIONS)
        found = self.table[sample.output or ""]
        if not isinstance(found, float):
            made: Outcome = found(sample.id, self.name)
            return made
        label = HALLUCINATED if found >= 0.5 else FAITHFUL
        return Verdict(sample.id, self.name, label, found)


OPTIONS = (Option("yes", ("yes",)), Option("no", ("no",)))
ENGINE = ScriptedEngine(lambda prompt: {"yes": 0.5, "no": 0.5}, name="none")
SCORES = {"clear": 0.05, "bad": 0.95, "unsure": 0.4, "edge": 0.2}


def judged(judge: Any, output: str) -> Outcome:
    return asyncio.run(judge_one(Sample("s", output, ("the context",)), judge, ENGINE))


def pair(**changes: Any) -> tuple[Cascade, Told, Told]:
    first = Told(SCORES, "cheap", changes=changes)
    then = Told(dict.fromkeys(SCORES, 0.7), "dear")
    return Cascade(first, then), first, then


@pytest.mark.parametrize(
    ("output", "who", "score", "label"),
    [
        ("clear", "cheap", 0.05, FAITHFUL),
        ("bad", "cheap", 0.95, HALLUCINATED),
        ("edge", "cheap", 0.2, FAITHFUL),
        ("unsure", "dear", 0.7, HALLUCINATED),
    ],
)
def test_the_second_is_asked_within_the_band_alone(output: str, who: str, score: float, label: str) -> None:
    cascade, first, then = pair()
    found = judged(cascade, output)
    assert isinstance(found, Verdict)
    assert (found.details["decided_by"], found.score, found.label) == (who, score, label)
    assert first.asked == [output]
    assert then.asked == ([output] if who == "dear" else [])
    assert found.details["first_score"] == SCORES[output]
    assert found.details["band"] == [0.2, 0.8]
    assert found.usage.calls == len(found.steps) == (2 if who == "dear" else 1)


def test_a_label_on_the_other_side_of_the_band_is_not_sure() -> None:
    def odd(sample: str, name: str) -> Outcome:
        return Verdict(sample, name, HALLUCINATED, 0.1)

    then = Told({"odd": 0.3}, "dear")
    found = judged(Cascade(Told({"odd": odd}, "cheap"), then), "odd")
    assert isinstance(found, Verdict)
    assert (found.details["decided_by"], found.label) == ("dear", FAITHFUL)


def test_scores_that_fall_with_hallucination_are_turned() -> None:
    def good(sample: str, name: str) -> Outcome:
        return Verdict(sample, name, FAITHFUL, 0.9)

    cheap = Told({"good": good}, "cheap", changes={"direction": "maximize"})
    found = judged(Cascade(cheap, Told({}, "dear")), "good")
    assert isinstance(found, Verdict)
    assert (found.details["decided_by"], found.label) == ("cheap", FAITHFUL)
    assert found.score == pytest.approx(0.1)
    assert Cascade(cheap, Told({}, "dear")).info.direction == "minimize"


def test_the_second_decides_what_the_first_is_unsure_of_and_a_failure_is_not_hidden() -> None:
    def unsure(sample: str, name: str) -> Outcome:
        return Abstention(sample, name, "uncertain", "too far away")

    def broken(sample: str, name: str) -> Outcome:
        return Failure(sample, name, "engine_error", "it broke")

    def missing(sample: str, name: str) -> Outcome:
        return Abstention(sample, name, "missing_input", "no question")

    then = Told({"a": 0.9, "b": 0.9, "c": 0.9}, "dear")
    cascade = Cascade(Told({"a": unsure, "b": broken, "c": missing}, "cheap"), then)
    found = judged(cascade, "a")
    assert isinstance(found, Verdict)
    assert found.details["first_abstained"] == "too far away"
    assert (found.details["decided_by"], found.usage.calls) == ("dear", 2)
    failed = judged(cascade, "b")
    assert isinstance(failed, Failure) and failed.message == "cheap: it broke"
    lacking = judged(cascade, "c")
    assert isinstance(lacking, Abstention) and lacking.message == "cheap: no question"
    assert then.asked == ["a"]


def test_the_second_ones_failure_carries_what_the_first_spent() -> None:
    def broken(sample: str, name: str) -> Outcome:
        return Failure(sample, name, "engine_error", "it broke")

    found = judged(Cascade(Told(SCORES, "cheap"), Told({"unsure": broken}, "dear")), "unsure")
    assert isinstance(found, Failure)
    assert (found.judge, found.message, found.usage.calls) == ("cascade", "dear: it broke", 2)


def test_it_is_what_its_judges_are() -> None:
    cascade, *_ = pair(trained_on=frozenset({"begin"}), requires=("output", "context"))
    info = cascade.info
    assert info.kind == "code"
    assert info.trained_on == {"begin"}
    assert set(info.requires) == {"output", "context"}
    assert info.prompt == "p-cheap+p-dear"
    assert Cascade(Told({}, "cheap"), Told({}, changes={"kind": "llm"})).info.kind == "llm"
    assert [call.prompt for call in planned_calls(cascade, Sample("s", "x"))] == [
        Prompt.of("cheap x"),
        Prompt.of("dear x"),
    ]
    one, two = (Told({}, name, changes={"fitted_to": (name, name)}) for name in ("one", "two"))
    with pytest.raises(SpecError, match="fitted to different models: one"):
        _ = Cascade(one, two).info


def test_it_is_written_as_any_judge_and_refuses_what_it_cannot_be() -> None:
    made = registry.judge("cascade:first=faithfulness,then=(windows:of=faithfulness),low=.1")
    assert isinstance(made, Cascade)
    assert (made.low, made.high) == (0.1, 0.8)
    assert registry.spelled(made).startswith("cascade:first=faithfulness@")
    assert "needs two judges" in registry.judge("cascade").info.lacks
    with pytest.raises(SpecError, match=r"with low not above high; got 0.9 to 0.8"):
        registry.judge("cascade:low=.9")
    with pytest.raises(SpecError, match="a cascade needs a judge with the labels"):
        registry.judge("cascade:first=relevance,then=faithfulness")
