"""The scripted engine answers like a real one, and `Recorded` keeps what was asked and what it cost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np
import pytest

from magistrate.constraints import constraint
from magistrate.engines.base import Option
from magistrate.engines.scripted import ScriptedEngine
from magistrate.errors import ConstraintError, EngineError, EngineGone, InvalidOutput, OverLength, SpecError
from magistrate.runs.execute import Recorded
from magistrate.types import Data, Message, Prompt, Trusted, Usage

ASKED = Prompt.of("Is the sky blue?")
OPTIONS = (Option("yes", ("Yes", "yes")), Option("no", ("No",)))
SCORE = constraint({"type": "number", "minimum": 0, "maximum": 1, "multipleOf": 0.01})


def test_answers_come_in_order_and_then_the_engine_is_gone() -> None:
    async def ask() -> None:
        engine = ScriptedEngine(["fine", {"yes": 0.3, "no": 0.1}, [-0.5, -1.5]])
        generation = await engine.generate(ASKED)
        assert (generation.text, generation.value, generation.finish) == ("fine", "fine", "stop")
        choice = await engine.choose(ASKED, OPTIONS)
        assert choice.best == "yes" and choice.mass == pytest.approx(0.4)
        assert dict(choice.probabilities) == pytest.approx({"yes": 0.75, "no": 0.25})
        likelihood = await engine.likelihood(ASKED, "so  it")
        assert likelihood.total == -2 and likelihood.offsets == ((0, 2), (4, 6))
        assert [likelihood.text[start:end] for start, end in likelihood.offsets] == ["so", "it"]
        assert engine.prompts == [ASKED] * 3
        with pytest.raises(EngineGone):
            await engine.generate(ASKED)

    asyncio.run(ask())


def test_a_function_sees_the_prompt_and_may_be_awaited() -> None:
    async def slow(prompt: Prompt) -> str:
        await asyncio.sleep(0)
        return prompt.messages[-1].text.upper()

    for script in (slow, lambda prompt: prompt.messages[-1].text.upper()):
        generation = asyncio.run(ScriptedEngine(script).generate(ASKED))
        assert generation.text == "IS THE SKY BLUE?"
        assert generation.usage == Usage(calls=1, prompt=4, generated=4)


@pytest.mark.parametrize(
    ("answer", "ask"),
    [
        ("1.5", lambda engine: engine.generate(ASKED, SCORE)),
        ("0.", lambda engine: engine.generate(ASKED, SCORE)),
        ({"yes": 1.0}, lambda engine: engine.generate(ASKED)),
        ("yes", lambda engine: engine.choose(ASKED, OPTIONS)),
        ({"maybe": 1.0}, lambda engine: engine.choose(ASKED, OPTIONS)),
        ({"yes": 1.5, "no": -0.5}, lambda engine: engine.choose(ASKED, OPTIONS)),
        ({"yes": 0.9, "no": 0.9}, lambda engine: engine.choose(ASKED, OPTIONS)),
        ({"yes": float("nan")}, lambda engine: engine.choose(ASKED, OPTIONS)),
        ([-1.0], lambda engine: engine.likelihood(ASKED, "two words")),
        ("two words", lambda engine: engine.likelihood(ASKED, "two words")),
    ],
)
def test_an_answer_of_the_wrong_form_is_invalid_output(
    answer: Any, ask: Callable[[ScriptedEngine], Any]
) -> None:
    with pytest.raises(InvalidOutput):
        asyncio.run(ask(ScriptedEngine([answer])))


def test_what_no_engine_would_accept_is_refused() -> None:
    for script in ("Yes", {"yes": 1.0}):
        with pytest.raises(SpecError, match="a list of answers or a function"):
            ScriptedEngine(script)
    with pytest.raises(ConstraintError):
        asyncio.run(ScriptedEngine(["x"]).generate(ASKED, constraint({"type": "string"})))
    with pytest.raises(OverLength, match="4 tokens"):
        asyncio.run(ScriptedEngine(["x"], context_window=3).generate(ASKED))
    for options in (OPTIONS[:1], (OPTIONS[0], OPTIONS[0]), (OPTIONS[0], Option("also", ("yes",)))):
        with pytest.raises(SpecError):
            asyncio.run(ScriptedEngine([{"yes": 1.0}]).choose(ASKED, options))


def test_every_call_is_recorded_with_its_answer_its_cost_and_its_time() -> None:
    ticks = count(0, 2)
    engine = Recorded(ScriptedEngine(["0.25", {"yes": 0.3, "no": 0.1}, [-0.5]]), clock=lambda: next(ticks))
    prompt = Prompt((Message("user", (Trusted("Say: "), Data("<b>", "output"))),))

    async def ask() -> None:
        assert (await engine.generate(prompt, SCORE)).value == 0.25
        await engine.choose(prompt, OPTIONS)
        await engine.likelihood(prompt, "yes")

    asyncio.run(ask())
    wrote, chose, read = engine.steps
    assert {step.prompt for step in engine.steps} == {(("user", "Say: <b>"),)}
    assert {step.seconds for step in engine.steps} == {2}
    assert wrote.result == {"text": "0.25", "finish": "stop", "steered": False, "constraint": SCORE.digest}
    assert chose.result["best"] == "yes" and chose.result["probabilities"] == pytest.approx(
        {"yes": 0.75, "no": 0.25}
    )
    assert read.result == {"text": "yes", "logprobs": [-0.5]}
    assert engine.usage == Usage(calls=3, prompt=7, generated=1)
    assert engine.info.name == "scripted"


def test_a_call_that_fails_is_recorded_too() -> None:
    engine = Recorded(ScriptedEngine(["not a number", EngineError("broken"), asyncio.CancelledError()]))

    async def ask() -> None:
        for kind in (InvalidOutput, EngineError, asyncio.CancelledError):
            with pytest.raises(kind):
                await engine.generate(ASKED, SCORE)

    asyncio.run(ask())
    assert [step.result["error"].split(":")[0] for step in engine.steps] == [
        "InvalidOutput",
        "EngineError",
        "CancelledError",
    ]
    assert engine.steps[0].result["text"] == "not a number"
    assert engine.usage.calls == 3


def test_a_delay_passes_before_each_answer() -> None:
    async def ask() -> float:
        loop = asyncio.get_running_loop()
        start = loop.time()
        await ScriptedEngine(["x"], delay=0.05).generate(ASKED)
        return loop.time() - start

    assert asyncio.run(ask()) >= 0.049
    likelihood = asyncio.run(ScriptedEngine([np.array([-1.0]).tolist()]).likelihood(ASKED, "x"))
    assert likelihood.logprobs.dtype == np.float64
