"""Calibrate the large detector, fit the judge `combined`, and show what both are worth on other families.

Run: MAGISTRATE_DATA_DIR=DATA .venv-train/bin/python -m benchmarks.detector.measure_large [FOLDER] [--write]

FOLDER is the detector's, by default that of the large one, pulled. Fitted are the dev parts of the sets of
`python -m benchmarks.quality`, and the written documents in `held.jsonl`, from which nothing was learnt. Each
family weighs the same, and so does each label within one. Measured are the test parts and the everyday
cases, each with weights that were fitted without its family; of `novelty` as well. `--write` keeps those
fitted to all: of the detector alone in its manifest in the package, of both in judges/combined.toml. What the
judges said is kept in --work, so that a second run takes seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.detector.measure_small import EVERYDAY
from benchmarks.detector.twins import samples as twins
from benchmarks.quality.protocol import SETS, draw, here
from magistrate.datasets import load
from magistrate.detectors.detector import detector
from magistrate.detectors.folder import MANIFEST, read_manifest
from magistrate.detectors.folder import WEIGHTS as DETECTOR_WEIGHTS
from magistrate.detectors.large import LEARNT, pull
from magistrate.engines.none import NONE
from magistrate.judges.combined import WEIGHTS, log_odds
from magistrate.judges.novelty import Novelty, weights
from magistrate.metrics.classification import classification
from magistrate.types import HALLUCINATED, Sample, Verdict

HELD = Path(__file__).with_name("held.jsonl")
WRITTEN = "written"  # the family of what was written for the detector: held-out and everyday cases


@dataclass(frozen=True)
class Part:
    """A set: the detector's logit and novelty's log-odds `[n, 2]`, which are hallucinated, contexts `[n]`."""

    name: str
    family: str
    values: np.ndarray
    truth: np.ndarray
    groups: np.ndarray


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--most", type=int, default=300, help="samples of a test part; of a dev part half")
    parser.add_argument("--work", type=Path, default=Path("build/measure-large"))
    parser.add_argument("--write", action="store_true")
    told = parser.parse_args()
    folder = told.folder or pull()
    learnt, tested = parts(folder, told.most, told.work)
    print(f"{'set':<26}{'n':>6}  {'detector':^24}{'novelty':^24}{'combined':^32}")
    for each in tested:
        others = [part for part in learnt if part.family != each.family]
        alone = fitted(others, [True, False])
        both = fitted(others, [True, True])
        odds = (alone[0] + each.values @ alone[1:], each.values[:, 1], both[0] + each.values @ both[1:])
        row = [figure(each, of) for of in odds]
        print(f"{each.name:<26}{len(each.truth):>6}  {'  '.join(row)}", flush=True)
    alone, both = fitted(learnt, [True, False]), fitted(learnt, [True, True])
    print("fitted to all, intercept and weights: detector", alone[:2].round(3), "both", both.round(3))
    if told.write:
        write(alone, both, learnt)


def write(alone: np.ndarray, both: np.ndarray, learnt: Sequence[Part]) -> None:
    """Into the package: the detector's calibration, and the weights in terms of its calibrated log-odds."""
    offset, scale, _ = (float(each) for each in alone)
    manifest = read_manifest(LEARNT).model_copy(update={"scale": round(scale, 4), "offset": round(offset, 4)})
    (LEARNT / MANIFEST).write_text(manifest.text(), encoding="utf-8")
    weight = both[1] / manifest.scale
    found = np.array([both[0] - weight * manifest.offset, weight, both[2]])
    WEIGHTS.write_text(toml(found, learnt), encoding="utf-8")
    print("written:", LEARNT / MANIFEST, "and", WEIGHTS)


def parts(folder: Path, most: int, work: Path) -> tuple[list[Part], list[Part]]:
    """The sets to fit to, and those to measure on."""
    learnt, tested = [], []
    for each in filter(here, SETS):
        split = draw(each, most)
        learnt.append(part(f"{each.name}, dev", each.family, split.dev, folder, work))
        tested.append(part(each.name, each.family, split.test, folder, work))
    learnt.append(part("held", WRITTEN, twins(HELD), folder, work))
    tested.append(part("quickstart", "quickstart", list(load("quickstart")), folder, work))
    tested.append(part("everyday", WRITTEN, twins(EVERYDAY), folder, work))
    return learnt, tested


def part(name: str, family: str, samples: Sequence[Sample], folder: Path, work: Path) -> Part:
    """What both judges say of a set, kept for the next time."""
    model = detector(folder)
    kept = (
        work / f"{name.replace(', ', '-')}-{len(samples)}-{model.manifest.files[DETECTOR_WEIGHTS][:12]}.json"
    )
    if not kept.is_file():
        without = family if family in {"summedits", "begin", "halueval"} else ""
        odds = [[logit] for logit in model.logits(samples)]
        for row, new in zip(odds, asyncio.run(novelty(samples, without)), strict=True):
            row.append(log_odds(new))
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(odds), encoding="utf-8")
    groups = np.unique(["\n".join(each.sources) for each in samples], return_inverse=True)[1]
    truth = np.array([each.label == HALLUCINATED for each in samples])
    return Part(name, family, np.array(json.loads(kept.read_text(encoding="utf-8"))), truth, groups)


async def novelty(samples: Sequence[Sample], without: str) -> list[float]:
    """Novelty's scores, with the weights that were fitted without a family; even where it abstains."""
    weights(without)
    judge = Novelty(without=without)
    outcomes = [await judge.judge(each, NONE) for each in samples]
    return [each.score if isinstance(each, Verdict) else 0.5 for each in outcomes]


def fitted(parts: Sequence[Part], free: Sequence[bool]) -> np.ndarray:
    """Intercept and weights `[3]`, none below 0, by logistic regression with even families and labels.

    Weights that are not `free` are 0.
    """
    from scipy.optimize import minimize

    families = {each.family for each in parts}
    values = np.concatenate([each.values for each in parts])
    truth = np.concatenate([each.truth for each in parts])
    shares = []
    for each in parts:
        sets = sum(other.family == each.family for other in parts)
        of_label = np.where(each.truth, each.truth.mean(), 1 - each.truth.mean())
        shares.append(1 / (2 * of_label * len(each.truth) * sets * len(families)))
    share = np.concatenate(shares)

    def loss(at: np.ndarray) -> float:
        odds = at[0] + values @ at[1:]
        return float(share @ np.logaddexp(0, np.where(truth, -odds, odds)))

    bounds = [(None, None), *((0, None if each else 0) for each in free)]
    found = minimize(loss, np.array([0.0, *map(float, free)]), bounds=bounds)
    return np.asarray(found.x)


def figure(each: Part, odds: np.ndarray) -> str:
    """AUROC with its interval, and balanced accuracy at even odds."""
    scores = 1 / (1 + np.exp(-odds))
    metrics = classification(each.truth, scores >= 0.5, scores, groups=each.groups).metrics
    auroc, balanced = metrics["auroc"], metrics["balanced_accuracy"]
    return f"{auroc.value:.3f} [{auroc.low:.2f}, {auroc.high:.2f}] {balanced.value:.3f}"


def toml(found: np.ndarray, learnt: Sequence[Part]) -> str:
    """The file that the judge reads."""
    data = ", ".join(f"{each.name} {len(each.truth)}" for each in learnt)
    return f"""\
# The weights of the judge `combined`. Written by benchmarks/detector/measure_large.py; not to be edited.
# recipe: logistic, none below 0; families and labels equal
# fitted to: {data}

[all]
intercept = {found[0]:.4f}
detector = {found[1]:.4f}
novelty = {found[2]:.4f}
"""


if __name__ == "__main__":
    main()
