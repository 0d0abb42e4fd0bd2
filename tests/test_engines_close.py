"""What `benchmarks/engines.py close` says of how far apart two engines are."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from magistrate.engines.base import Engine
from magistrate.engines.scripted import EVERYTHING, ScriptedEngine
from magistrate.types import Sample

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "engines.py"
SAMPLES = [
    Sample("one", output="It rains.", context=("It rains in Bern.",)),
    Sample("two", output="It never rains.", context=("It rains in Bern.",)),
]


def said(one: Engine, other: Engine) -> list[str]:
    found: list[str] = runpy.run_path(str(SCRIPT))["close"](one, other, SAMPLES)
    return found


def engine(yes: float, *logprobs: list[float]) -> ScriptedEngine:
    return ScriptedEngine([{"Yes": yes, "No": 1 - yes}, {"Yes": 0.25, "No": 0.75}, *logprobs])


def test_means_and_largest_differences_are_over_all_answers_and_all_tokens() -> None:
    one = engine(0.75, [-1.0, -2.0], [-1.0, -1.0, -4.0])
    other = engine(0.375, [-1.0, -2.5], [-1.0, -1.0, -2.0])
    assert said(one, other) == [
        "choose: 2 questions, the likelier answer is the same in 1; probabilities 0.1875 apart on average, "
        "0.3750 at most",
        "likelihood: 2 of 2 texts are cut into the same tokens, 5 in all; log-probabilities 0.5000 apart on "
        "average, 2.0000 at most, in nats",
    ]


def test_an_engine_that_reads_no_texts_is_named() -> None:
    one = engine(0.75, [-1.0, -2.0], [-1.0, -1.0, -4.0])
    other = ScriptedEngine(
        lambda prompt: {"Yes": 1.0, "No": 0.0}, can=EVERYTHING - {"likelihood"}, name="mute"
    )
    assert said(one, other)[1] == "likelihood: mute cannot"


@pytest.mark.parametrize("swapped", [False, True])
def test_texts_that_are_cut_otherwise_are_left_out_and_counted(swapped: bool) -> None:
    class Other(ScriptedEngine):
        """Cuts a text of two words into one token."""

        async def likelihood(self, prompt, text, *, capture=None):  # type: ignore[no-untyped-def]
            read = await super().likelihood(prompt, text, capture=capture)
            return (
                read if text.count(" ") > 1 else type(read)(text, (0,), read.logprobs[:1], ((0, len(text)),))
            )

    script = [{"Yes": 0.5, "No": 0.5}] * 2
    engines = [kind([*script, [-1.0, -2.0], [-1.0, -1.0, -4.0]]) for kind in (ScriptedEngine, Other)]
    told = said(*(engines[::-1] if swapped else engines))[1]
    assert told.startswith("likelihood: 1 of 2 texts are cut into the same tokens, 3 in all; ")
    assert "0.0000 at most" in told
