"""Fit what the detector and `novelty` weigh in the judge `combined`, and show it on families it has not seen.

Run: MAGISTRATE_DATA_DIR=DATA .venv/bin/python benchmarks/fit_combined.py [--most N] [--write]

Inputs: the shipped detector, the samples of `SETS`, and the written twins that no detector has learnt from.
Of each part the log-odds are added that it gives itself; those of `novelty` by weights that have not seen
the set's family. The share of the detector is the one of `SHARES` that ranks best, by AUROC, in the mean over
families; the sum is then made a probability by logistic regression, in which each family weighs the same, and
so does each class within a set.

Printed: AUROC and balanced accuracy at .5 of the detector, of `novelty` and of both, the weights fitted to
the other families. `--write` writes src/magistrate/judges/combined.toml.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import fitting
import numpy as np
from detector.twins import samples as twins
from sklearn.metrics import balanced_accuracy_score, roc_auc_score

from magistrate.datasets import load
from magistrate.judges.combined import WEIGHTS
from magistrate.judges.detector import Detector
from magistrate.judges.novelty import Novelty
from magistrate.stats.calibration import log_odds
from magistrate.types import HALLUCINATED, Sample, Verdict

SETS = {
    "summedits:dev": "summedits",
    "begin:dev": "begin",
    "halueval-dialogue:dev": "halueval",
    "halueval-summarization:dev": "halueval",
}
HELD = Path(__file__).parent / "detector" / "held.jsonl"
WRITTEN = "written"
SHARES = np.linspace(0, 1, 21)


def main() -> None:
    """Print the table and, where asked, write the weights."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--most", type=int, default=600, help="samples of a set")
    parser.add_argument("--write", action="store_true", help="write judges/combined.toml")
    told = parser.parse_args()
    learnt = [part(name, family, drawn(load(name), told.most)) for name, family in SETS.items()]
    learnt.append(part(WRITTEN, WRITTEN, drawn(twins(HELD), 2 * told.most)))
    show(learnt)
    weights, intercept = fitted(learnt)
    print(f"\nfitted to all: detector {weights[0]:.3f}, novelty {weights[1]:.3f}, intercept {intercept:.3f}")
    if told.write:
        WEIGHTS.write_text(toml(learnt), encoding="utf-8")
        print("written:", WEIGHTS)


def drawn(every: Sequence[Sample], most: int) -> list[Sample]:
    """At most so many labelled samples, the same every time."""
    usable = [each for each in every if each.label is not None and each.output and each.sources]
    return random.Random(0).sample(usable, min(most, len(usable)))


def part(name: str, family: str, samples: Sequence[Sample]) -> fitting.Part:
    """What both say of the samples, as log-odds; 0 where `novelty` finds nothing to count."""
    compares, counts = Detector(), Novelty(without="" if family == WRITTEN else family)
    rows = []
    for sample, logit in zip(samples, compares.model.logits(samples), strict=True):
        counted = counts.verdict(sample)
        odds = log_odds(counted.score) if isinstance(counted, Verdict) else 0.0
        rows.append((log_odds(compares.probability(logit)), odds))
    truth = np.array([sample.label == HALLUCINATED for sample in samples])
    return fitting.Part(name, family, np.array(rows), truth)


def fitted(parts: Sequence[fitting.Part]) -> tuple[np.ndarray, float]:
    """Weights of the detector and of `novelty`, and an intercept, at even chances."""

    def worth(share: float) -> float:
        of: dict[str, list[float]] = {}
        for each in parts:
            found = roc_auc_score(each.truth, each.values @ (share, 1 - share))
            of.setdefault(each.family, []).append(found)
        return float(np.mean([np.mean(each) for each in of.values()]))

    best = max(SHARES, key=worth)
    mixed = np.array([best, 1 - best])
    summed = [replace(each, values=(each.values @ mixed)[:, None]) for each in parts]
    (slope,), intercept = fitting.fitted(summed, 0.0)
    return slope * mixed, intercept


def show(parts: Sequence[fitting.Part]) -> None:
    """A line a set: AUROC and balanced accuracy of the detector, of `novelty`, and of both."""
    print(f"{'set':<28}{'n':>6}{'detector':>14}{'novelty':>14}{'combined':>14}{'weights':>16}")
    for each in parts:
        weights, intercept = fitted([other for other in parts if other.family != each.family])
        odds = (*each.values.T, each.values @ weights + intercept)
        figures = "".join(
            f"{roc_auc_score(each.truth, some):>8.3f}{balanced_accuracy_score(each.truth, some >= 0):>6.3f}"
            for some in odds
        )
        print(f"{each.name:<28}{len(each.truth):>6}{figures}{weights[0]:>9.2f}{weights[1]:>7.2f}", flush=True)


def toml(parts: Sequence[fitting.Part]) -> str:
    """The file of weights, fitted to all sets and to all families but one, and how they were made."""
    sizes = ", ".join(f"{each.name} {len(each.truth)}" for each in parts)
    lines = [
        "# What the detector and novelty weigh in the judge `combined`.",
        "# Written by benchmarks/fit_combined.py; not to be edited.",
        "# recipe: the share of the detector that ranks best, then logistic; families, classes equal",
        f"# learnt from: {sizes}; under [without.FAMILY] from those that are of another family",
        *table("all", parts),
    ]
    for family in dict.fromkeys(each.family for each in parts):
        lines += table(f"without.{family}", [each for each in parts if each.family != family])
    return "\n".join(lines) + "\n"


def table(name: str, parts: Sequence[fitting.Part]) -> list[str]:
    """The weights fitted to some sets."""
    weights, intercept = fitted(parts)
    names = ", ".join(f'"{each.name.partition(":")[0]}"' for each in parts)
    return [
        "",
        f"[{name}]",
        f"intercept = {intercept:.4f}",
        f"detector = {weights[0]:.4f}",
        f"novelty = {weights[1]:.4f}",
        f"trained_on = [{names}]",
    ]


if __name__ == "__main__":
    main()
