"""What a call came by on its way is kept as evidence: thoughts, answers that could not be used, notes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from magistrate.engines.base import Attempt, Choice, Generation, Option, UnusableAnswer
from magistrate.engines.cache import Cached, CallCache
from magistrate.engines.scripted import EVERYTHING, ScriptedEngine
from magistrate.judges import registry
from magistrate.judges.outcomes import code_of
from magistrate.runs.execute import Recorded, judge_one
from magistrate.server.samples import steps_of
from magistrate.types import Failure, Prompt, Sample, Usage

PROMPT = Prompt.of("Is it so?")
OPTIONS = (Option("yes", ("yes",)), Option("no", ("no",)))
ATTEMPTS = (Attempt("yess", "it is not one of the choices"),)
SPENT = Usage(calls=2, prompt=20, generated=7)


class Thinking(ScriptedEngine):
    """Thinks before it answers, and was asked twice."""

    async def generate(self, *args: Any, **options: Any) -> Generation:
        answer = await super().generate(*args, **options)
        return replace(answer, thinking="Hm.", attempts=ATTEMPTS, notes=("repaired",), usage=SPENT)

    async def choose(self, prompt: Prompt, options: Sequence[Option], **others: Any) -> Choice:
        answer = await super().choose(prompt, options, **others)
        return replace(answer, thinking="Well.", bound=0.25, method="top_k")


class Unusable(ScriptedEngine):
    """Never writes what can be used."""

    async def choose(self, prompt: Prompt, options: Sequence[Option], **others: Any) -> Choice:
        raise UnusableAnswer("it names none (asked 2 times)", "maybe", ATTEMPTS, "Hm.", SPENT)


def test_thoughts_and_refused_answers_are_steps_before_the_answer() -> None:
    recorded = Recorded(Thinking(["yes"]))
    asyncio.run(recorded.generate(PROMPT))
    refused, thought, answered = recorded.steps
    assert refused.result == {"text": "yess", "error": "it is not one of the choices"}
    assert thought.result == {"thinking": "Hm."}
    assert (answered.result["text"], answered.result["notes"]) == ("yes", ["repaired"])
    assert recorded.usage == SPENT, "what the attempts spent is counted once"


def test_a_choice_keeps_its_thought_and_how_far_it_may_be_off() -> None:
    recorded = Recorded(Thinking([{"yes": 0.6, "no": 0.4}]))
    asyncio.run(recorded.choose(PROMPT, OPTIONS))
    thought, answered = recorded.steps
    assert thought.result == {"thinking": "Well."}
    assert (answered.result["best"], answered.result["bound"]) == ("yes", 0.25)


def test_what_was_never_usable_is_a_failure_with_all_of_it() -> None:
    sample = Sample("a", "It closes at five.", ("The museum closes at six.",))
    outcome = asyncio.run(judge_one(sample, registry.judge("faithfulness"), Unusable([])))
    assert isinstance(outcome, Failure) and outcome.code == "invalid_output"
    assert [each.result.get("text") for each in outcome.steps] == ["yess", None, "maybe"]
    assert outcome.usage == SPENT


def test_the_page_shows_the_thought() -> None:
    recorded = Recorded(Thinking(["yes"]))
    asyncio.run(recorded.generate(PROMPT))
    refused, thought, answered = steps_of(Sample("a", "o"), recorded.steps)
    assert refused.summary == "went wrong: it is not one of the choices"
    assert thought.summary == "thought: Hm."
    assert [name for name, _ in thought.texts] == ["thinking"]
    assert answered.summary == "yes"


@pytest.mark.parametrize("verb", ["generate", "choose"])
def test_the_cache_gives_all_of_it_back(verb: str, tmp_path: Any) -> None:
    can = EVERYTHING | {"repeatable"}
    with CallCache.open(tmp_path / "cache.db") as cache:
        engine = Thinking(
            ["yes"] if verb == "generate" else [{"yes": 0.6, "no": 0.4}], can=can, name="thinker"
        )
        cached = Cached(engine, cache)
        asked: Any = (PROMPT,) if verb == "generate" else (PROMPT, OPTIONS)
        first = asyncio.run(getattr(cached, verb)(*asked))
        again = asyncio.run(getattr(cached, verb)(*asked))
    assert again == replace(first, usage=Usage(reused=1))


def test_an_error_is_coded_by_what_it_is() -> None:
    assert code_of(UnusableAnswer("x", "y", (), "", Usage())) == "invalid_output"
