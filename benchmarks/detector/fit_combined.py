"""Fits the weights of the judge `combined`, and measures it on families of data sets not used for fitting.

Run: MAGISTRATE_DATA_DIR=DATA .venv-train/bin/python -m benchmarks.detector.fit_combined [--size large]

Weights of sentences are fitted to the dev parts of the sets of `python -m benchmarks.quality` and to held
statements and answers, and measured on the test parts, on the built-in set, on reports (summaries and answers
about longer texts), on the everyday cases, on half of these after one sentence of their context, and on
additions (statements that the context supports in other words, and such that it is silent on), alone and
after a supported one. Each family of sets has the same weight, and so has each label within a set. No weight
is below 0. For each set the table has the AUROC of the detector, of `novelty` and of `combined`, the last two
with weights fitted without the family of the set, the gain of `combined` over `novelty` with its interval
(contexts resampled, paired), balanced accuracies at .5, and what `combined` flags there: which share of the
hallucinated outputs, and of the others.

`--write` writes the weights for this size to src/magistrate/judges/combined.toml.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.detector.fit import FAMILIES, Part, contexts_of, fitted, known, truth_of
from benchmarks.detector.measure import sentences_of
from benchmarks.detector.twins import ADDITIONS, ANSWERS, EVERYDAY, HELD, REPORTS, elsewhere
from benchmarks.detector.twins import samples as twins
from benchmarks.quality.protocol import SETS, draw, here
from magistrate.datasets import load
from magistrate.detectors.large import pull
from magistrate.engines.none import NONE
from magistrate.features.splitting import sentences
from magistrate.judges.combined import WEIGHTS, Combined
from magistrate.judges.detector import Size
from magistrate.judges.novelty import Novelty
from magistrate.metrics.calibration import log_odds
from magistrate.metrics.paired import Figures
from magistrate.metrics.resampling import difference_of, draws_of
from magistrate.types import Sample, Verdict

COPIED = 2.0  # log odds of a copied sentence before it is weighted; weights are drawn towards each other
OURS = 6  # the last sets of the table were written for this project


def main() -> None:
    """Print the table and, if requested, write the weights."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--most", type=int, default=300, help="samples of a test part; half of that of a dev part"
    )
    parser.add_argument("--size", choices=["small", "large"], default="small")
    parser.add_argument("--write", action="store_true", help="write judges/combined.toml")
    told = parser.parse_args()
    if told.size == "large":
        pull()
    learnt, tested = parts(told.size, told.most)
    print(
        f"{'set':<26}{'n':>6}  detector  novelty  combined  gain [95 %]          at .5: novelty combined"
        "  finds  flags wrongly"
    )
    gains, without = [], {}
    for each, new in tested:
        others = [part for part in learnt if part.family != each.family]
        fit = fitted(others)
        if each.family in FAMILIES:
            without[each.family] = weights(fit, others)
        gains.append(show(each, new, each.odds(fit)))
    print(f"mean gain of the sets that are not ours: {np.mean(gains[:-OURS]):+.3f}")
    fit = fitted(learnt)
    print("fitted to all:", weights(fit, learnt))
    if told.write:
        known = tomllib.loads(WEIGHTS.read_text(encoding="utf-8"))
        WEIGHTS.write_text(
            toml({**known, told.size: {"all": weights(fit, learnt), "without": without}}), encoding="utf-8"
        )
        print("written:", WEIGHTS)


def parts(size: Size, most: int) -> tuple[list[Part], list[tuple[Part, np.ndarray]]]:
    """Return the sets to fit to, and those to measure on with novelty's log odds of their outputs."""
    learnt = [part(size, "held", "held", twins(HELD))]
    learnt.append(part(size, "elsewhere", "elsewhere", twins(HELD, elsewhere)))
    learnt.append(part(size, "answers", "answers", twins(ANSWERS)))
    tests = []
    for each in filter(here, SETS):
        split = draw(each, most)
        learnt.append(part(size, f"{each.name}-dev", each.family, split.dev[: most // 2]))
        tests.append((each.name, each.family, split.test))
    tests.append(("quickstart", "quickstart", list(load("quickstart"))))
    tests.append(("reports", "reports", twins(REPORTS)))
    tests.append(("everyday", "everyday", twins(EVERYDAY)))
    tests.append(("everyday, after one", "everyday", after_one(twins(EVERYDAY))))
    tests.append(("additions", "additions", twins(ADDITIONS)))
    tests.append(("additions, after one", "additions", after_right(twins(ADDITIONS))))
    return learnt, [(part(size, *each), asyncio.run(counted(*each[1:]))) for each in tests]


def part(size: Size, name: str, family: str, samples: Sequence[Sample]) -> Part:
    """Return what both judges say of the sentences of a set."""
    judge = Combined(size, without=known(family))
    values, outputs = [], []
    read = sentences_of(judge.detector.model, samples)
    for at, (sample, found) in enumerate(zip(samples, read, strict=True)):
        places = [(start, end) for start, end, _ in found]
        wording, copied = asyncio.run(judge.wording(sample, places, NONE)), judge.copied(sample, places)
        values += [
            (logit, new, -COPIED * copy)
            for (*_, logit), new, copy in zip(found, wording, copied, strict=True)
        ]
        outputs += [at] * len(found)
    return Part(name, family, np.array(values), np.array(outputs), truth_of(samples), contexts_of(samples))


async def counted(family: str, samples: Sequence[Sample]) -> np.ndarray:
    """Return novelty's log odds of outputs, 0 where it abstains."""
    judge = Novelty(without=known(family))
    outcomes = [await judge.judge(each, NONE) for each in samples]
    return np.array([log_odds(each.score) if isinstance(each, Verdict) else 0.0 for each in outcomes])


def after_one(samples: Sequence[Sample]) -> list[Sample]:
    """Return every second pair, each output after one sentence of its context, which is supported."""
    found = []
    for each in (each for at, each in enumerate(samples) if at // 2 % 2 == 0):
        text = each.context[0]
        start, end = sentences(text)[0]
        found.append(replace(each, output=f"{text[start:end].strip()} {each.output}"))
    return found


def after_right(samples: Sequence[Sample]) -> list[Sample]:
    """Return the statements of each context but its first right one, each after that one."""
    first: dict[tuple[str, ...], str] = {}
    found = []
    for each in samples:
        said = each.output or ""
        if first.setdefault(each.context, said) != said:
            found.append(replace(each, output=f"{first[each.context]} {said}"))
    return found


def show(each: Part, new: np.ndarray, odds: np.ndarray) -> float:
    """Print a line of the table; return the gain in AUROC of `combined` over `novelty`."""
    one = np.ones((1, len(odds)))
    drawn, values = [], []
    for scores in (each.odds(np.array([0.0, 1.0, 0.0, 0.0])), new, odds):
        figures = Figures(each.truth, scores >= 0, scores, ("auroc", "balanced_accuracy"))
        values.append(figures(one)[0])
        drawn.append(draws_of(figures, each.groups)[:, 0])
        support = figures.support("auroc", each.groups)
    flagged = odds >= 0
    gain = float(values[2][0] - values[1][0])
    told, _ = difference_of(gain, drawn[2] - drawn[1], int(each.groups.max()) + 1, support)
    print(
        f"{each.name:<26}{len(odds):>6}  {values[0][0]:>8.3f}  {values[1][0]:>7.3f}  {values[2][0]:>8.3f}"
        f"  {gain:+.3f} [{told.low:+.3f}, {told.high:+.3f}]"
        f"        {values[1][1]:>7.3f}  {values[2][1]:>8.3f}"
        f"  {flagged[each.truth].mean():>5.0%}  {flagged[~each.truth].mean():>13.0%}",
        flush=True,
    )
    return gain


def weights(fit: np.ndarray, learnt: Sequence[Part]) -> dict[str, object]:
    """Return what the file says of weights."""
    names = ("intercept", "detector", "novelty", "copied")
    told = fit * (1, 1, 1, COPIED)
    return {
        **{name: round(float(each), 4) for name, each in zip(names, told, strict=True)},
        "trained_on": sorted(each.name.removesuffix("-dev") for each in learnt),
        "samples": sum(len(each.truth) for each in learnt),
    }


def toml(known: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the file of the weights. JSON's numbers and lists of strings are TOML's too."""
    found = ["# The weights of the judge `combined`. Written by benchmarks/detector/fit_combined.py."]
    for size, told in known.items():
        parts = {f"{size}.all": told["all"]}
        parts |= {f"{size}.without.{family}": mine for family, mine in told["without"].items()}
        for name, mine in parts.items():
            found += ["", f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in mine.items())]
    return "\n".join(found) + "\n"


if __name__ == "__main__":
    main()
