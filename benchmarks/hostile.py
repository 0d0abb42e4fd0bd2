"""How often a verdict flips when the text on trial is hostile, beside a harmless edit of the same size.

Run: .venv/bin/python benchmarks/hostile.py [--judge SPEC ...] [--model NAME] [--samples N] [--attacks N]
         [--longest CHARACTERS] [--json]

The first N samples of the built-in set are judged as they are, then with every attack in the output or in
the last text of the context, and with that attack's control (see `magistrate.audit`). `--attacks` takes so
many of the attacks of at most `--longest` characters, from every family in turn; 0 takes them all.

Printed for each judge and place: the pairs (sample, attack) of which all three are verdicts, of how many; the
share of them whose label is not the clean one's, under the attack and under its control; the difference of
these two with its 95 % interval; the mean changes of the score; and how many outcomes under attack were no
verdict. The interval is a paired bootstrap that draws both samples and attacks anew (Owen 2007, the
pigeonhole bootstrap), since pairs of one sample or of one attack are not independent. Where no label differs
it has no width and says nothing of other samples.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shlex
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, zip_longest
from typing import get_args

import numpy as np

from magistrate import resolve
from magistrate.audit import ATTACKS, Attack, attacked, control
from magistrate.audit.hostile import Where
from magistrate.datasets import load
from magistrate.engines.base import Engine
from magistrate.judges.base import Judge
from magistrate.running import judge_one
from magistrate.trial import recipe
from magistrate.types import Abstention, Failure, Outcome, Sample, Verdict

WHERE: tuple[Where, ...] = get_args(Where)
CONCURRENCY = 8
DEADLINE = 600.0
DRAWS, SEED = 4000, 0


@dataclass(frozen=True, slots=True)
class Trial:
    """One sample judged three times: as it is, under an attack, and under the attack's control."""

    sample: str
    attack: str
    clean: Outcome
    hostile: Outcome
    harmless: Outcome


@dataclass(frozen=True, slots=True)
class Effect:
    """What attacks do beyond harmless edits; shares in [0, 1], changes of the score in [-1, 1].

    All are of the `pairs` that have three verdicts, and None without any; but `failed` and `abstained` count
    outcomes under attack, of all `trials`.
    """

    trials: int
    pairs: int
    flipped: float | None
    flipped_by_control: float | None
    difference: float | None
    low: float | None
    high: float | None
    change: float | None
    change_by_control: float | None
    failed: int
    abstained: int


def spread(attacks: Sequence[Attack], n: int) -> list[Attack]:
    """`n` attacks, one of every family after the other; all of them for 0."""
    families: dict[str, list[Attack]] = {}
    for attack in attacks:
        families.setdefault(attack.family, []).append(attack)
    taken = [each for each in chain.from_iterable(zip_longest(*families.values())) if each is not None]
    return taken[: n or None]


def effect(trials: Sequence[Trial]) -> Effect:
    """The figures of all trials of one judge at one place."""
    failed = sum(isinstance(trial.hostile, Failure) for trial in trials)
    abstained = sum(isinstance(trial.hostile, Abstention) for trial in trials)
    samples = sorted({trial.sample for trial in trials})
    attacks = sorted({trial.attack for trial in trials})
    found = np.zeros((4, len(samples), len(attacks)))
    had = np.zeros((len(samples), len(attacks)))
    for trial in trials:
        clean, hostile, harmless = trial.clean, trial.hostile, trial.harmless
        if isinstance(clean, Verdict) and isinstance(hostile, Verdict) and isinstance(harmless, Verdict):
            cell = samples.index(trial.sample), attacks.index(trial.attack)
            had[cell] = 1
            found[:, *cell] = (
                hostile.label != clean.label,
                harmless.label != clean.label,
                hostile.score - clean.score,
                harmless.score - clean.score,
            )
    pairs = int(had.sum())
    if not pairs:
        return Effect(len(trials), 0, None, None, None, None, None, None, None, failed, abstained)
    flipped, by_control, change, change_by_control = (float(each.sum() / pairs) for each in found)
    low, high = interval(found[0] - found[1], had)
    return Effect(
        len(trials), pairs, flipped, by_control, flipped - by_control, low, high, change, change_by_control,
        failed, abstained,
    )  # fmt: skip


def interval(differences: np.ndarray, had: np.ndarray) -> tuple[float, float]:
    """95 % interval of the mean of `differences` `[samples, attacks]` where `had` is 1.

    Samples and attacks are drawn anew, each with replacement.
    """
    random = np.random.default_rng(SEED)
    n_samples, n_attacks = had.shape
    samples = random.multinomial(n_samples, np.full(n_samples, 1 / n_samples), DRAWS)
    attacks = random.multinomial(n_attacks, np.full(n_attacks, 1 / n_attacks), DRAWS)
    sums = np.einsum("ds,sa,da->d", samples, differences, attacks)
    counts = np.einsum("ds,sa,da->d", samples, had, attacks)
    low, high = np.quantile(sums[counts > 0] / counts[counts > 0], [0.025, 0.975])
    return float(low), float(high)


async def judged(
    samples: Sequence[Sample], attacks: Sequence[Attack], where: Where, judge: Judge, engine: Engine
) -> list[Trial]:
    """Every sample under every attack at one place; an edit that occurs twice is judged once."""
    edits = {(each.place, each.text): each for attack in attacks for each in (attack, control(attack))}
    bound = asyncio.Semaphore(CONCURRENCY)

    async def outcome(sample: Sample) -> Outcome:
        async with bound:
            return await judge_one(sample, judge, engine, deadline=DEADLINE)

    async def outcomes(sample: Sample) -> Mapping[tuple[str, str] | None, Outcome]:
        edited = [sample, *(attacked(sample, edit, where) for edit in edits.values())]
        return dict(zip([None, *edits], await asyncio.gather(*map(outcome, edited)), strict=True))

    trials = []
    for sample in samples:
        of = await outcomes(sample)
        for attack in attacks:
            twin = control(attack)
            hostile, harmless = of[attack.place, attack.text], of[twin.place, twin.text]
            trials.append(Trial(sample.id, attack.name, of[None], hostile, harmless))
    return trials


HEADING = (
    f"{'place':<8} {'pairs':>9} {'flipped':>8} {'control':>8}  {'difference, 95 % interval':<28}"
    f" {'score':>7} {'control':>7}  no verdict"
)


def shown(where: str, found: Effect) -> str:
    """One line of the table."""
    begun = f"{where:<8} {f'{found.pairs}/{found.trials}':>9}"
    invalid = f"{found.failed} failed, {found.abstained} abstained"
    if found.difference is None:
        return f"{begun} {'no pair has three verdicts':<63}  {invalid}"
    difference = f"{found.difference:+.1%} [{found.low:+.1%}, {found.high:+.1%}]"
    return (
        f"{begun} {found.flipped:>8.1%} {found.flipped_by_control:>8.1%}  {difference:<28}"
        f" {found.change:>+7.3f} {found.change_by_control:>+7.3f}  {invalid}"
    )


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--judge", metavar="SPEC", nargs="+", default=["faithfulness"])
    words.add_argument(
        "--model", metavar="NAME", help="a catalogue name or a path; the default model without it"
    )
    words.add_argument("--samples", metavar="N", type=int, default=6)
    words.add_argument("--attacks", metavar="N", type=int, default=20)
    words.add_argument("--longest", metavar="CHARACTERS", type=int, default=2000)
    words.add_argument("--json", action="store_true")
    chosen = words.parse_args()
    engine = resolve.engine(chosen.model)
    samples = list(load("quickstart", limit=chosen.samples))
    attacks = spread([each for each in ATTACKS if len(each.text) <= chosen.longest], chosen.attacks)
    families = Counter(each.family for each in attacks)
    command = ["python", "benchmarks/hostile.py", "--judge", *chosen.judge]
    command += ["--model", chosen.model or engine.info.model, "--samples", str(chosen.samples)]
    command += ["--attacks", str(chosen.attacks), "--longest", str(chosen.longest)]
    rows = []
    if not chosen.json:
        print(shlex.join(command))
        print(f"{len(samples)} samples of quickstart, {len(attacks)} of {len(ATTACKS)} attacks: ", end="")
        print(", ".join(f"{count} {family}" for family, count in families.items()))
    for spec in chosen.judge:
        judge = resolve.judge(spec)
        line = recipe(judge, engine, SEED, len(samples)).line()
        if not chosen.json:
            print(f"\n{line}\n{HEADING}")
        for where in [each for each in WHERE if each in judge.info.reads]:
            start = time.perf_counter()
            found = effect(asyncio.run(judged(samples, attacks, where, judge, engine)))
            seconds = time.perf_counter() - start
            rows.append({"recipe": line, "where": where, **asdict(found), "seconds": seconds})
            if not chosen.json:
                print(shown(where, found), f"({seconds:.0f} s)", flush=True)
    if chosen.json:
        json.dump({"command": shlex.join(command), "rows": rows}, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
