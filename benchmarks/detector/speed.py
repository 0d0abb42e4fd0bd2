"""Measures how fast the small detector reads, as a share of what this machine can compute.

Run: .venv/bin/python -m benchmarks.detector.speed

The limit is the best rate of an 8-bit matrix product on all cores, measured between the rounds. A detector's
rate counts the products with its layers' weights only, so attention, norms and everything around it are in
the time but not in the operations. Prints medians of the rounds, and how fast a run with one worker and with
one for each core judges `--outputs` outputs, from the first verdict on.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

import magistrate
from benchmarks.judge_speed import sized
from benchmarks.machine import LimitsMeter, machine
from magistrate.datasets import Problem, load
from magistrate.detectors.detector import Detector, detector
from magistrate.detectors.folder import SHIPPED, WEIGHTS
from magistrate.detectors.weights import BLOCK, is_product, read_weights
from magistrate.detectors.windows import Rewritten
from magistrate.engines.base import Engine
from magistrate.engines.embedded.cores import available_cores
from magistrate.engines.none import NONE
from magistrate.judges.novelty import Novelty
from magistrate.runs.execute import Judged
from magistrate.types import Sample, Verdict

TOKENS = 500  # of context and output of a sample
WINDOWS, LENGTH = 8, 256  # of a pass


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=SHIPPED)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--outputs", type=int, default=200)
    told = parser.parse_args()
    model, cores = detector(told.folder), available_cores()
    meter, sample = LimitsMeter(cores), sample_of(model)
    operations = 2 * weights_of(told.folder) / 1e9  # 10^9 per token
    ids = np.random.default_rng(0).integers(100, 10_000, (WINDOWS, LENGTH))
    given = {"ids": ids, "types": np.zeros_like(ids), "mask": np.ones_like(ids)}
    words = Novelty()
    rows: dict[str, Callable[[], object]] = {
        "a pass": lambda: model._networks.get().run(None, given),
        "detector": lambda: model.read(sample),
        "novelty": lambda: asyncio.run(words.judge(sample, NONE)),
    }
    times: dict[str, list[float]] = {name: [] for name in rows}
    limit = 0.0
    for _ in range(told.rounds):
        limit = max(limit, meter.measure().int8_gop_s or meter.measure().f32_gflop_s)
        for name, run in rows.items():
            run()
            times[name].append(timed(run))
    rate = WINDOWS * LENGTH / statistics.median(times["a pass"])
    read = model.read(sample)
    table = Table("what", "measured", box=None, pad_edge=False)
    table.add_row("limit of 8-bit products", f"{limit:,.0f} GOP/s")
    table.add_row(f"{WINDOWS} windows of {LENGTH} tokens", f"{rate:,.0f} tokens/s")
    table.add_row("of the limit", f"{rate * operations / limit:.0%}")
    table.add_row(
        f"a sample of {TOKENS} tokens ({read.windows} windows, {read.tokens} tokens read)",
        f"{1000 * statistics.median(times['detector']):.0f} ms",
    )
    table.add_row("its products alone, at the limit", f"{1000 * read.tokens * operations / limit:.0f} ms")
    table.add_row("the same by novelty", f"{1000 * statistics.median(times['novelty']):.1f} ms")
    table.add_row("`magistrate judge`, start to end", f"{statistics.median(starts(sample)):.2f} s")
    for workers in sorted({1, cores}):
        outputs, tokens = run_of(told.outputs, told.folder, workers)
        share = tokens * operations / limit
        table.add_row(
            f"a run of {told.outputs} outputs over {TOKENS} tokens, {workers} worker{'s' * (workers > 1)}",
            f"{outputs:.1f} rows/s, {tokens:,.0f} tokens/s, {share:.0%} of the limit",
        )
    console = Console(width=110)
    console.print(f"{machine(cores).cpu}, {cores} cores")
    console.print(table)


def sample_of(model: Detector) -> Sample:
    """Return an output of the built-in set with as much context that both have `TOKENS` tokens."""
    every = list(load("quickstart"))
    output = every[0].output or ""

    def size(text: str) -> int:
        return len(model.reader._encode(Rewritten(text)).ids)

    context = ""
    for each in every:
        text = "\n".join(each.sources)
        if text not in context:
            context += "\n" * bool(context) + text
        if size(context) + size(output) > TOKENS:
            break
    while size(context) + size(output) > TOKENS:
        context = context.rpartition(" ")[0]
    return Sample(id="sample", context=(context,), output=output)


def weights_of(folder: Path) -> int:
    """Return how many weights a token is multiplied by."""
    packed = (
        each for name, each in read_weights(folder / WEIGHTS).items() if is_product(name) and each.ndim == 3
    )
    return sum(each.shape[0] * each.shape[1] * BLOCK for each in packed)


class Times:
    """Notes when each outcome of a run is stored."""

    def __init__(self) -> None:
        self.of: list[float] = []

    def started(self, run_id: str, total: int | None, engine: Engine, done: int) -> None:
        pass

    def judged(self, judged: Judged) -> None:
        self.of.append(time.perf_counter())

    def finished(self, problems: Sequence[Problem], stopped: str | None) -> None:
        pass


def run_of(outputs: int, folder: Path, workers: int) -> tuple[float, float]:
    """Return the outputs and the tokens that a run judges in a second, without the start of its processes."""
    samples = [sized(TOKENS, number) for number in range(outputs)]
    times = Times()
    with tempfile.TemporaryDirectory() as scratch:
        run = magistrate.evaluate(
            samples,
            judges=f"detector:folder={folder}",
            store=Path(scratch, "runs.db"),
            workers=workers,
            watcher=times,
        )
        read = [each.details["tokens"] for each in run.outcomes() if isinstance(each, Verdict)]
    rate = (len(times.of) - 1) / (times.of[-1] - times.of[0])
    return rate, rate * sum(read) / len(read)


def starts(sample: Sample) -> Sequence[float]:
    """Return the seconds of some runs of the command line, without a large detector."""
    words = ["judge", "--judge", "detector", "--context", sample.sources[0], "--output", sample.output or ""]
    environment = {**os.environ, "MAGISTRATE_HOME": "build/no-home"}
    return [
        timed(
            lambda: subprocess.run(
                [sys.executable, "-m", "magistrate", *words], capture_output=True, env=environment
            )
        )
        for _ in range(5)
    ]


def timed(run: Callable[[], object]) -> float:
    """Return the seconds that a call takes."""
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
