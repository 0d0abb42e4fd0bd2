"""The built-in judges read what they are given: with the contexts dealt out anew, probabilities change."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from magistrate.datasets import load
from magistrate.engines.base import Engine
from magistrate.judges import instance
from magistrate.runs.execute import judge_one
from magistrate.types import Outcome, Sample, Verdict
from processor import CLOSE, EXACT

N = 6


def judged(samples: Sequence[Sample], engine: Engine) -> list[Outcome]:
    async def all_of_them() -> list[Outcome]:
        return await asyncio.gather(
            *(judge_one(sample, instance("faithfulness"), engine) for sample in samples)
        )

    return asyncio.run(all_of_them())


def scores(outcomes: Sequence[Outcome]) -> list[float]:
    assert all(isinstance(outcome, Verdict) for outcome in outcomes), outcomes
    return [outcome.score for outcome in outcomes if isinstance(outcome, Verdict)]


@pytest.mark.full
def test_permuted_contexts_change_every_probability(engine: Engine) -> None:
    samples = list(load("quickstart", limit=2 * N))[::2]
    shifted = [
        replace(sample, context=other.context)
        for sample, other in zip(samples, samples[1:] + samples[:1], strict=True)
    ]
    own, foreign = scores(judged(samples, engine)), scores(judged(shifted, engine))
    assert all(abs(a - b) > 1e-4 for a, b in zip(own, foreign, strict=True)), (own, foreign)


@pytest.mark.full
def test_the_same_sample_has_the_same_probability_to_the_last_bit(engine: Engine) -> None:
    samples = list(load("quickstart", limit=N))
    alone = [scores(judged([sample], engine))[0] for sample in samples]
    together = scores(judged(samples[::-1], engine))[::-1]
    assert together == (alone if EXACT else pytest.approx(alone, abs=CLOSE))
