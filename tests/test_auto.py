"""`auto`, the judge that is asked where none is named: code decides, a model explains where it is told to."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import magistrate
from lean import Plain, installed
from magistrate import Sample, ScriptedEngine
from magistrate.detectors import large
from magistrate.engines.none import NO_MODEL
from magistrate.errors import CapabilityError, EngineError, SpecError
from magistrate.judges import Auto, Classify, Hallucination, registry
from magistrate.judges.base import planned_calls
from magistrate.judges.builtin import instance
from magistrate.runs.spec import RunSpec
from magistrate.testing import assert_faithful
from magistrate.types import Abstention, Failure, Prompt, Verdict
from terminal import Call

CONTEXT = "Entry is free for children."


@pytest.fixture(autouse=True)
def lean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: Path) -> Iterator[None]:
    with installed(tmp_path / "site", monkeypatch):
        yield


def answering(agrees: bool = True) -> ScriptedEngine:
    """A model that writes a sentence and reads it again as it was meant, or the other way round."""

    def script(prompt: Prompt) -> Any:
        if prompt.messages[-1].role == "assistant":
            return " the price is made up"
        hallucinated = "supported: the price" in str(prompt) and agrees
        return (
            {"hallucinated": 0.9, "faithful": 0.1} if hallucinated else {"faithful": 0.8, "hallucinated": 0.2}
        )

    return ScriptedEngine(script, name="script")


def asked(output: str, explain: Any, engine: Any = None) -> Any:
    return magistrate.judge(
        output=output, context=CONTEXT, judge=Auto(Plain(), explain=explain), model=engine or answering()
    )


# --- the default ----------------------------------------------------------------------------------


def test_it_is_the_default_wherever_a_judge_can_be_left_out(call: Call) -> None:
    assert registry.DEFAULT_JUDGE == "auto"
    for function in (magistrate.judge, magistrate.ajudge, magistrate.evaluate, magistrate.guard):
        parameters = inspect.signature(function).parameters
        assert {each.default for name, each in parameters.items() if name in ("judge", "judges")} == {"auto"}
    assert RunSpec.model_validate({"dataset": "quickstart"}).judges == ["auto"]
    for command in ("run", "judge"):
        assert "[default: auto]" in " ".join(call(command, "--help").out.split())


def test_the_default_needs_no_model_no_key_and_no_network(
    call: Call, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    def made(*_: Any, **__: Any) -> Any:
        raise AssertionError("an engine was made")

    monkeypatch.setattr("magistrate.engines.embedded.engine.LocalEngine", made)
    verdict = magistrate.judge(output=CONTEXT, context=CONTEXT)
    assert isinstance(verdict, Verdict) and (verdict.judge, verdict.label) == ("auto", "faithful")
    assert assert_faithful(CONTEXT, context=CONTEXT).usage.calls == 0
    assert call("judge", "--output", CONTEXT, "--context", CONTEXT).code == 0
    done = call("run", "quickstart", "--json")
    assert done.code == 0 and done.data["judges"]["auto"]["n_ok"] == 72
    assert f"model={NO_MODEL} " in done.data["judges"]["auto"]["recipe"]
    assert not (home / "models").exists()


def test_what_was_never_asked_for_is_not_decided() -> None:
    without = magistrate.judge(output="It is free.")
    assert isinstance(without, Abstention) and without.reason == "no_context"
    empty = magistrate.judge(output=" \n", context="c")
    assert isinstance(empty, Abstention) and empty.reason == "no_output"


@pytest.mark.parametrize(
    "output", ["Kinder zahlen nichts.", "入場は子供は無料です。", "word " * 5000, "\x1b[31m<b>paid"]
)
def test_any_words_have_a_verdict(output: str) -> None:
    assert isinstance(magistrate.judge(output=output, context=CONTEXT), Verdict)


@pytest.mark.parametrize("output", ["😀", "a\u0000b", "…", "-"])
def test_what_says_nothing_is_no_failure_and_never_faithful_by_default(output: str) -> None:
    outcome = magistrate.judge(output=output, context=CONTEXT)
    assert isinstance(outcome, Abstention) or (isinstance(outcome, Verdict) and outcome.label != "faithful")


@pytest.mark.parametrize(
    ("context", "right", "wrong"),
    [
        (
            "Maria hired Paul in 2019 after the board had rejected two other candidates.",
            "Paul was hired by Maria.",
            "Paul hired Maria in 2019.",
        ),
        (
            "The warranty covers the motor for 24 months. Batteries are excluded.",
            "Batteries are not part of the warranty.",
            "The batteries are covered too.",
        ),
        (
            "Sales rose by 12 percent in the first quarter, to 4.2 million euros.",
            "Sales were up in the first quarter.",
            "Sales reached 4.2 billion euros.",
        ),
    ],
)
def test_it_compares_what_is_said_and_not_only_the_words(context: str, right: str, wrong: str) -> None:
    for output, label in ((right, "faithful"), (wrong, "hallucinated")):
        verdict = magistrate.judge(output=output, context=context)
        assert isinstance(verdict, Verdict) and verdict.label == label, output


def test_it_decides_as_the_judge_that_it_stands_for() -> None:
    of = Auto().of
    assert not of.info.asks
    for output in (CONTEXT, "Entry costs nine million dollars in Zurich on 3 May."):
        mine = magistrate.judge(output=output, context=CONTEXT)
        theirs = magistrate.judge(output=output, context=CONTEXT, judge=of)
        assert isinstance(mine, Verdict) and isinstance(theirs, Verdict)
        assert (mine.label, mine.score, mine.claims) == (theirs.label, theirs.score, theirs.claims)


def test_it_stands_for_the_same_judge_on_every_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    before = Auto().info
    monkeypatch.setattr(large, "is_pulled", lambda: True)
    assert registry.spelled(Auto().of) == "combined" and Auto().info == before
    assert registry.spelled(registry.judge("auto")) == "auto"
    verdict = magistrate.judge(output=CONTEXT, context=CONTEXT)
    assert isinstance(verdict, Verdict) and verdict.judge == "auto" and "novelty" in verdict.details


# --- the recipe -----------------------------------------------------------------------------------


def test_its_recipe_says_what_it_stands_for() -> None:
    info = Auto().info
    assert (info.name, info.kind, info.needs) == ("auto", "code", frozenset())
    assert Auto().of.info.name in info.prompt
    assert Auto(Plain("x")).info.prompt == "plain@1"
    assert registry.judge("auto:of=plain,explain=always").info.prompt.startswith("plain@1+")
    assert registry.spelled(registry.judge("auto")) == "auto"


def test_only_a_judge_of_faithfulness_can_stand_behind_it() -> None:
    with pytest.raises(SpecError, match="'moderation' has safe, flagged"):
        registry.judge("auto:of=moderation")
    with pytest.raises(SpecError, match=r"option 'explain': .*'never', 'flagged' or 'always'"):
        registry.judge("auto:explain=true")


def test_a_judge_that_asks_makes_it_one_that_asks() -> None:
    assert not Auto().info.asks
    assert Auto(Hallucination()).info.asks
    assert Auto(Plain(), explain="flagged").info.kind == "llm"


# --- explained ------------------------------------------------------------------------------------


def test_nothing_is_asked_unless_it_is_told_to_explain() -> None:
    engine = answering()
    with pytest.warns(UserWarning, match="needs no model"):
        assert asked("false", "never", engine).explanation is None
    assert asked("true", "flagged", engine).explanation is None
    assert engine.prompts == []
    assert asked("true", "always", engine).explanation == "the price is made up"


def test_the_explanation_is_opened_by_the_label_that_code_decided() -> None:
    engine = answering()
    verdict = asked("false", "flagged", engine)
    assert (verdict.label, verdict.score) == ("hallucinated", 1.0)
    assert verdict.explanation == "the price is made up"
    assert verdict.details["explained_by"] == "script"
    opening = engine.prompts[0].messages[-1]
    assert opening.role == "assistant" and opening.text.startswith("No. Not everything")
    faithful = instance("faithfulness")
    assert isinstance(faithful, Classify)
    told = faithful.plan(Sample("s", "o", ("c",)))[0].prompt.messages[0]
    assert engine.prompts[0].messages[0].text == told.text


@pytest.mark.parametrize("agrees", [True, False])
def test_a_sentence_that_argues_for_the_other_label_changes_nothing_and_is_told(agrees: bool) -> None:
    def script(prompt: Prompt) -> Any:
        if prompt.messages[-1].role == "assistant":
            return " so it is"
        return {"hallucinated": 1.0} if agrees else {"faithful": 1.0}

    verdict = asked("false", "flagged", ScriptedEngine(script))
    assert (verdict.label, verdict.explanation_agrees) == ("hallucinated", agrees)


def test_what_does_not_fit_the_model_keeps_its_verdict_and_says_why_it_is_not_explained() -> None:
    engine = answering()
    small = ScriptedEngine(lambda prompt: "x", name="small", context_window=300)
    verdict = asked("false " * 2000, "flagged", small)
    assert (verdict.label, verdict.explanation) == ("hallucinated", None)
    assert "the context window of small is 300" in verdict.details["unexplained"]
    assert small.prompts == []
    assert asked("false", "flagged", engine).details.get("unexplained") is None


def test_a_model_that_breaks_is_a_failure_and_no_verdict() -> None:
    outcome = asked("false", "flagged", ScriptedEngine([EngineError("it broke")]))
    assert isinstance(outcome, Failure) and "it broke" in outcome.message


def test_a_model_that_cannot_write_is_refused_before_anything_is_spent() -> None:
    deaf = ScriptedEngine([], can=frozenset({"choose"}))
    with pytest.raises(CapabilityError, match="needs constraints, generate"):
        asked("false", "flagged", deaf)
    assert not deaf.prompts


def test_the_plan_has_the_explanation_which_may_be_left_out() -> None:
    sample = Sample("s", "false", (CONTEXT,))
    assert planned_calls(Auto(Plain()), sample) == ()
    calls = planned_calls(Auto(Plain(), explain="flagged"), sample)
    assert calls and all(call.optional for call in calls)


def test_a_run_that_explains_has_its_model_in_the_recipe(tmp_path: Path) -> None:
    rows = [{"output": word, "context": "c"} for word in ("true", "false")]
    run = magistrate.evaluate(
        rows, "auto:of=plain,explain=flagged", model=answering(), store=tmp_path / "r.db", progress=False
    )
    (recipe,) = run.record.recipes.values()
    assert (recipe.model, recipe.judge) == ("script", "auto:of=plain@1,explain=flagged@1")
    told = {outcome.sample_id: outcome.explanation for outcome in run.outcomes()}  # type: ignore[union-attr]
    assert sorted(map(str, told.values())) == ["None", "the price is made up"]
