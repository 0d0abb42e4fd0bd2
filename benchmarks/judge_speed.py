"""Time of code-based judges for one sample of a given size, one after the other.

Run: .venv/bin/python benchmarks/judge_speed.py [JUDGE ...] [--tokens 500] [--samples 40] [--data FILE ...]

Samples are built from the built-in set until context and output have about `--tokens` tokens (3.6
characters each); the output gets a fifth of them. That set is dense in numbers and names. With `--data`, of
each of these data sets, they are the first whose length is within a quarter of it. It prints the median and
the 95th percentile in milliseconds per sample, after a first sample for loading, and the ratio to the first
judge.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections.abc import Sequence
from itertools import islice

import numpy as np

from magistrate import Sample
from magistrate.datasets import load
from magistrate.engines.none import NONE
from magistrate.judges import registry
from magistrate.judges.base import Judge
from magistrate.runs.execute import judge_one

CHARACTERS = 3.6  # per token of English
OUTPUT = 0.2  # the output's share of the tokens
SEED = 1


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("judges", nargs="*", default=["novelty", "auto"])
    parser.add_argument("--tokens", type=int, default=500)
    parser.add_argument("--samples", type=int, default=40)
    parser.add_argument("--data", nargs="*", default=[])
    told = parser.parse_args()
    samples = [sized(told.tokens, number) for number in range(told.samples + 1)]
    if told.data:
        samples = [each for data in told.data for each in near(told.tokens, data, told.samples)]
        print(f"{len(samples)} samples of {np.mean([*map(tokens_of, samples)]):.0f} tokens on average")
    peer = 0.0
    for words in told.judges:
        judge = registry.judge(words)
        times = asyncio.run(milliseconds(judge, samples))
        middle, slow = np.percentile(times[1:], [50, 95])
        peer = peer or middle
        print(
            f"{words}: {middle:.2f} ms a sample of {told.tokens} tokens (95th percentile {slow:.2f}), "
            f"{middle / peer:.1f} times {told.judges[0]}; the first {times[0]:.0f} ms"
        )


async def milliseconds(judge: Judge, samples: Sequence[Sample]) -> list[float]:
    """Return the milliseconds that each sample takes."""
    found = []
    for sample in samples:
        began = time.perf_counter()
        await judge_one(sample, judge, NONE)
        found.append(1000 * (time.perf_counter() - began))
    return found


def tokens_of(sample: Sample) -> float:
    return sum(map(len, (*sample.sources, sample.output or ""))) / CHARACTERS


def near(tokens: int, data: str, most: int) -> list[Sample]:
    """Return the first samples of a data set that have about `tokens` tokens."""
    fitting = (each for each in load(data) if abs(tokens_of(each) - tokens) <= tokens / 4)
    return list(islice(fitting, most))


def sized(tokens: int, number: int) -> Sample:
    """Return a sample of about `tokens` tokens, a different one for every number."""
    every = list(load("quickstart"))
    random.Random(f"{SEED}/{number}").shuffle(every)
    context = " ".join(text for each in every for text in each.sources)
    output = " ".join(each.output or "" for each in every)
    size = round(tokens * CHARACTERS)
    return Sample(f"s{number}", output[: round(size * OUTPUT)], (context[: round(size * (1 - OUTPUT))],))


if __name__ == "__main__":
    main()
