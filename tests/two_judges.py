"""Samples and verdicts whose figures are known, and two stored runs over the same rows."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import magistrate
from magistrate import Run, ScriptedEngine
from magistrate.errors import EngineError
from magistrate.types import FAITHFUL, HALLUCINATED, Outcome, Prompt, Sample, Scoring, Verdict

LOW_IS_GOOD = Scoring("minimize", (FAITHFUL, HALLUCINATED), 0.5)


def label(hallucinated: bool) -> str:
    return HALLUCINATED if hallucinated else FAITHFUL


def samples_of(truth: Iterable[bool | None], contexts: Iterable[int] | None = None) -> dict[str, Sample]:
    """`s0`, `s1`, …, each with a context of its own unless told otherwise."""
    gold = list(truth)
    numbers = range(len(gold)) if contexts is None else contexts
    return {
        f"s{at}": Sample(
            f"s{at}", f"output {at}", (f"context {number}",), label=None if each is None else label(each)
        )
        for at, (each, number) in enumerate(zip(gold, numbers, strict=True))
    }


def verdicts(scores: Iterable[float], judge: str = "judge") -> dict[str, Outcome]:
    """A verdict on each sample by its score."""
    return {
        f"s{at}": Verdict(f"s{at}", judge, label(score >= 0.5), score, max(score, 1 - score))
        for at, score in enumerate(scores)
    }


def rows(n: int = 60) -> list[dict[str, Any]]:
    """Rows of which two share a context; every tenth has no label, and the last one breaks an engine."""
    return [
        {
            "id": f"s{at}",
            "output": f"claim {at}" + (" break" if at == n - 1 else ""),
            "context": [f"what is true {at // 2}"],
            "domain": ("law", "news")[at % 2],
            **({"label": label(at % 3 == 0)} if at % 10 != 9 else {}),
        }
        for at in range(n)
    ]


def a_run(store: Path | str | None, name: str, wrong: float, data: list[dict[str, Any]] | None = None) -> Run:
    """A stored run of a judge that is wrong about this share of the samples."""

    def script(prompt: Prompt) -> Mapping[str, float] | EngineError:
        (output,) = (part.text for part in prompt.data() if part.name == "output")
        if "break" in output:
            return EngineError(output)
        source = random.Random(f"{name} {output}")
        hallucinated = int(output.split()[1]) % 3 == 0
        score = source.uniform(0.55, 0.95)
        right = source.random() >= wrong
        return (
            {HALLUCINATED: score, FAITHFUL: 1 - score}
            if hallucinated == right
            else {FAITHFUL: score, HALLUCINATED: 1 - score}
        )

    return magistrate.evaluate(
        rows() if data is None else data,
        "faithfulness",
        model=ScriptedEngine(script, name=name),
        name=name,
        store=store,
        progress=False,
    )
