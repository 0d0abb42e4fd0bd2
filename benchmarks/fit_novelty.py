"""Fits the weights of the judge `novelty`, and measures them on families of data sets not used for fitting.

Run: MAGISTRATE_DATA_DIR=DATA .venv/bin/python benchmarks/fit_novelty.py [--write]

The inputs are the samples of `SETS`, labelled faithful or hallucinated. HaluEval QA is measured but not
used for fitting: its hallucinated answers are longer, which alone reveals them. Each family of sets has the
same weight, and so has each class within a set, so that the fitted probabilities assume even odds.

The model is a logistic regression on the signals' values, with one intercept per set (thresholds do not
transfer), no weight below 0, and weights shrunk towards one common weight in standard deviations
(`SHRINK`). Equal weights are hard to beat when the fitted samples differ from those judged (Dawes 1979).
For a signal that is seldom above 0 that would be much, so it is taken to vary by `LEAST`. An undefined value
counts as 0. The final intercept is the mean over the families.

It prints the AUROC of `novelty` with the family of each set left out, its balanced accuracy at .5, its
estimate of the hallucinated share beside the true one, and the AUROC of every single signal and of length.
`--write` writes src/magistrate/judges/novelty.toml.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit
from sklearn.metrics import balanced_accuracy_score, roc_auc_score

from magistrate.datasets import load
from magistrate.features.signals import SIGNALS, readings
from magistrate.judges.novelty import WEIGHTS
from magistrate.metrics.calibration import estimated_base_rate
from magistrate.types import HALLUCINATED

SETS = {
    "summedits:dev": "summedits",
    "begin:dev": "begin",
    "halueval-dialogue:dev": "halueval",
    "halueval-summarization:dev": "halueval",
}
MEASURED_ONLY = {"halueval-qa:dev": "halueval"}
CHOSEN = ("numbers", "dates", "names", "negations", "sentence_support", "rouge_l")
SHRINK = 1.0
LEAST = 0.15  # the least standard deviation that a signal is taken to have


@dataclass(frozen=True)
class Measured:
    """One set: values `[n, signals]` with NaN where undefined, labels and lengths `[n]`."""

    name: str
    family: str
    values: np.ndarray
    truth: np.ndarray
    length: np.ndarray

    def of(self, names: Sequence[str]) -> np.ndarray:
        """Return the values of some signals, 0 where undefined."""
        return np.nan_to_num(self.values[:, [list(SIGNALS).index(name) for name in names]], nan=0.0)


def main() -> None:
    """Print the table and, if requested, write the weights."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="write judges/novelty.toml")
    write = parser.parse_args().write
    sets = [measured(name, family) for name, family in {**SETS, **MEASURED_ONLY}.items()]
    learnt = [each for each in sets if each.name in SETS]
    show(sets, learnt)
    found, intercept = fitted(learnt)
    print(
        "\nweights fitted to all:",
        dict(zip(CHOSEN, found.round(3).tolist(), strict=True)),
        f"intercept {intercept:.3f}",
    )
    if write:
        WEIGHTS.write_text(toml(learnt), encoding="utf-8")
        print("written:", WEIGHTS)


def measured(name: str, family: str) -> Measured:
    """Compute all signals of all samples of a set."""
    samples = [sample for sample in load(name) if sample.label is not None]
    values = [[reading.value for reading in readings(sample).values()] for sample in samples]
    return Measured(
        name,
        family,
        np.array(values, dtype=np.float64),
        np.array([sample.label == HALLUCINATED for sample in samples]),
        np.array([len(sample.output or "") for sample in samples], dtype=np.float64),
    )


def fitted(sets: Sequence[Measured]) -> tuple[np.ndarray, float]:
    """Fit weights `[CHOSEN]` and an intercept, at even odds."""
    families = sorted({each.family for each in sets})
    spread = np.maximum(LEAST, np.mean([each.of(CHOSEN).std(axis=0) for each in sets], axis=0))
    values = np.vstack([each.of(CHOSEN) / spread for each in sets])
    sign = np.concatenate([np.where(each.truth, 1.0, -1.0) for each in sets])
    number = np.concatenate([np.full(len(each.truth), at) for at, each in enumerate(sets)])
    mine = [sum(other.family == each.family for other in sets) for each in sets]
    weight = np.concatenate(
        [
            np.where(each.truth, 0.5 / each.truth.sum(), 0.5 / (~each.truth).sum()) / share / len(families)
            for each, share in zip(sets, mine, strict=True)
        ]
    )
    k = len(CHOSEN)

    def loss(at: np.ndarray) -> tuple[float, np.ndarray]:
        margin = sign * (values @ at[:k] + at[k:][number])
        away = at[:k] - at[:k].mean()
        pull = -sign * expit(-margin) * weight
        slopes = [values.T @ pull + 2 * SHRINK * away, np.bincount(number, pull, len(sets))]
        return float((weight * np.logaddexp(0, -margin)).sum() + SHRINK * away @ away), np.concatenate(slopes)

    bounds = [(0, None)] * k + [(None, None)] * len(sets)
    at = minimize(loss, np.full(k + len(sets), 0.1), jac=True, method="L-BFGS-B", bounds=bounds).x
    own = {
        family: np.mean([at[k + n] for n, each in enumerate(sets) if each.family == family])
        for family in families
    }
    return at[:k] / spread, float(np.mean(list(own.values())))


def show(sets: Sequence[Measured], learnt: Sequence[Measured]) -> None:
    """Print the table: one row per rule, one column per set."""
    print(f"{'AUROC':<28}" + "".join(f"{each.name.partition(':')[0]:>24}" for each in sets))
    print(f"{'samples':<28}" + "".join(f"{len(each.truth):>24}" for each in sets))
    left_out = []
    for each in sets:
        found, intercept = fitted([other for other in learnt if other.family != each.family])
        score = expit(each.of(CHOSEN) @ found + intercept)
        right = balanced_accuracy_score(each.truth, score >= 0.5)
        left_out.append(
            (roc_auc_score(each.truth, score), right, estimated_base_rate(score), each.truth.mean())
        )
    for at, name in enumerate(
        ("novelty, family left out", "  balanced accuracy at .5", "  share estimated", "  true")
    ):
        print(f"{name:<28}" + "".join(f"{figures[at]:>24.3f}" for figures in left_out))
    for name in SIGNALS:
        areas = [roc_auc_score(each.truth, each.of([name])[:, 0]) for each in sets]
        print(f"{name:<28}" + "".join(f"{area:>24.3f}" for area in areas))
    lengths = [roc_auc_score(each.truth, each.length) for each in sets]
    print(f"{'length (not used)':<28}" + "".join(f"{area:>24.3f}" for area in lengths))


def toml(learnt: Sequence[Measured]) -> str:
    """Return the file of weights: fitted to all sets and to all families but one, with their recipe."""
    sizes = ", ".join(f"{each.name} {len(each.truth)}" for each in learnt)
    lines = [
        "# The weights of the judge `novelty`. Written by benchmarks/fit_novelty.py; not to be edited.",
        f"# recipe: logistic, none below 0, shrunk by {SHRINK:g} to a common one in standard deviations of",
        f"# at least {LEAST:g}; families, classes equal",
        f"# learnt from: {sizes}; under [without.FAMILY] from those that are of another family",
        *table("all", learnt),
    ]
    for family in dict.fromkeys(each.family for each in learnt):
        lines += table(f"without.{family}", [each for each in learnt if each.family != family])
    return "\n".join(lines) + "\n"


def table(name: str, learnt: Sequence[Measured]) -> list[str]:
    """Return the weights fitted to some sets."""
    found, intercept = fitted(learnt)
    names = ", ".join(f'"{each.name.partition(":")[0]}"' for each in learnt)
    return [
        "",
        f"[{name}]",
        f"intercept = {intercept:.4f}",
        f"trained_on = [{names}]",
        f"[{name}.weights]",
        *(f"{signal} = {value:.4f}" for signal, value in zip(CHOSEN, found, strict=True)),
    ]


if __name__ == "__main__":
    main()
