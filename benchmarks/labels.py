"""The value of 25 to 400 labels by simulated annotators, for each sampling policy.

Run: MAGISTRATE_DATA_DIR=DATA .venv/bin/python benchmarks/labels.py [--rounds 20] [--most 840]

The judges `novelty` and `detector` judge up to `--most` samples of each set once. In every round a new
random half of the contexts is the pool from which a policy draws the labels, as a queue does. The other
half is for testing. Annotators give the set's label, except for a share `--wrong` of the samples.

It prints tables for docs/labels.md. The first gives the mean error over rounds of the weighted hallucinated
share relative to the pool's (in parentheses: of the unweighted share, which is refused where it is biased).
The others give the result of `improve` for the threshold of either judge: in how many rounds it was shown
to be better and kept, and the mean change of balanced accuracy on the test half over all rounds (0 if not
kept).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

import magistrate
from magistrate.analysis.columns import Columns, groups_of
from magistrate.analysis.improvement import by_threshold, compared, current
from magistrate.errors import InputError
from magistrate.labels.sampling import Candidate, Policy, draw, wanted
from magistrate.metrics.prevalence import weighted_share
from magistrate.metrics.thresholds import best_cut
from magistrate.training.split import held_out
from magistrate.types import HALLUCINATED, Scoring, Verdict

SETS = ("begin:dev", "summedits:dev")
JUDGES = ("novelty", "detector")
POLICIES: tuple[Policy, ...] = ("uniform", "threshold", "mixed")
SIZES = (25, 50, 100, 200, 400)
HOW = Scoring("minimize", ("faithful", "hallucinated"), 0.5)
DRAWS = 500  # bootstrap draws: fewer than `improve` takes, to finish in minutes


@dataclass(frozen=True)
class Judged:
    """Samples with a verdict of both judges: labels, scores `[n, judges]`, contexts."""

    truth: np.ndarray
    scores: np.ndarray
    groups: np.ndarray

    def columns(self, judge: int, places: np.ndarray, truth: np.ndarray) -> Columns:
        """Return a judge's results on the samples at `places`, with the labels `truth` of all samples."""
        scores = self.scores[places, judge]
        ids = tuple(map(str, places))
        return Columns(JUDGES[judge], ids, truth[places], scores >= 0.5, scores, self.groups[places], {}, HOW)


def judged(name: str, most: int, store: Path) -> Judged:
    """Return a set with the judges' results."""
    run = magistrate.evaluate(name, list(JUDGES), sample=most, store=store, progress=False)
    by_judge: dict[str, dict[str, float]] = {judge: {} for judge in JUDGES}
    for each in run.outcomes():
        if isinstance(each, Verdict):
            by_judge[each.judge][each.sample_id] = each.score
    kept = [each for each in run.samples() if each.label and all(each.id in of for of in by_judge.values())]
    return Judged(
        np.array([each.label == HALLUCINATED for each in kept]),
        np.array([[by_judge[judge][each.id] for judge in JUDGES] for each in kept]),
        groups_of(kept),
    )


def balanced(truth: np.ndarray, said: np.ndarray) -> float:
    """Return the balanced accuracy of labels."""
    return float((said[truth].mean() + (~said[~truth]).mean()) / 2)


@dataclass
class Cell:
    """Results of the rounds of one set, policy and number of labels."""

    errors: list[float]
    bare: list[float]
    gains: dict[str, list[float]]
    kept: dict[str, int]


def rounds(of: Judged, policy: Policy, size: int, n: int, wrong: float) -> Cell | None:
    """Execute all rounds; None if the pool is smaller than `size`."""
    cell = Cell([], [], {judge: [] for judge in JUDGES}, dict.fromkeys(JUDGES, 0))
    for number in range(n):
        random = np.random.default_rng(number)
        out = np.array(held_out(of.groups.tolist(), 0.5, number))
        pool, test = np.flatnonzero(~out), np.flatnonzero(out)
        if pool.size < size:
            return None
        said = of.truth ^ (random.random(of.truth.size) < wrong)
        for at, judge in enumerate(JUDGES):
            # The scores for the policy: those of both judges, the current one first.
            order = [at, 1 - at]
            candidates = [Candidate(str(each), tuple(of.scores[each, order])) for each in pool]
            drawn = draw(candidates, wanted(policy, candidates, threshold=0.5), size, number)
            places = pool[[each.place for each in drawn]]
            chances = np.array([each.inclusion for each in drawn])
            names = [str(each) for each in of.groups[places]]
            share = weighted_share(said[places].tolist(), chances.tolist(), names).value or 0.0
            cell.errors.append(abs(share - of.truth[pool].mean()))
            cell.bare.append(abs(said[places].mean() - of.truth[pool].mean()))
            gain, kept = threshold_gain(of, at, places, 1 / chances, said, test)
            cell.gains[judge].append(gain)
            cell.kept[judge] += kept
    return cell


def threshold_gain(
    of: Judged, judge: int, places: np.ndarray, weights: np.ndarray, said: np.ndarray, test: np.ndarray
) -> tuple[float, bool]:
    """Return the gain of a threshold by `improve` on the test half, and whether it was kept."""
    try:
        now = current(of.columns(judge, places, said), weights, draws=DRAWS)
    except InputError:
        return 0.0, False
    if not compared("threshold", by_threshold(now), now).shown:
        return 0.0, False
    cut = best_cut(now.columns.scores, now.columns.truth, now.aim, now.weights)
    scores = of.scores[test, judge]
    return balanced(of.truth[test], scores >= cut) - balanced(of.truth[test], scores >= 0.5), True


def tables(sets: Sequence[str], most: int, n: int, wrong: float) -> Iterator[str]:
    """Yield the lines of both tables."""
    head = f"| set | policy | {' | '.join(f'{size} labels' for size in SIZES)} |"
    line = "| --- " * (2 + len(SIZES)) + "|"
    shares, gains = [head, line], {judge: [head, line] for judge in JUDGES}
    for name in sets:
        with TemporaryDirectory() as folder:
            of = judged(name, most, Path(folder) / "runs.db")
        for policy in POLICIES:
            cells = [rounds(of, policy, size, n, wrong) for size in SIZES]
            start = f"| {name} | {policy} | "
            shares.append(start + " | ".join(map(share_cell, cells)) + " |")
            for judge in JUDGES:
                gains[judge].append(start + " | ".join(gain_cell(each, judge, n) for each in cells) + " |")
    yield from (f"{n} rounds, {wrong:.0%} of the labels wrong, at most {most} samples a set", "", *shares)
    for judge in JUDGES:
        yield from ("", f"the threshold of {judge}:", "", *gains[judge])


def share_cell(cell: Cell | None) -> str:
    """Format the mean error of the weighted share, and of the unweighted one."""
    return "-" if cell is None else f"{np.mean(cell.errors):.3f} ({np.mean(cell.bare):.3f})"


def gain_cell(cell: Cell | None, judge: str, n: int) -> str:
    """Format a judge's gain on the test half, and the number of rounds that kept another threshold."""
    return "-" if cell is None else f"{np.mean(cell.gains[judge]):+.3f}, kept {cell.kept[judge]} of {n}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--most", type=int, default=840)
    parser.add_argument("--wrong", type=float, default=0.05)
    parser.add_argument("--set", nargs="*", default=SETS)
    given = parser.parse_args()
    print(*tables(given.set, given.most, given.rounds, given.wrong), sep="\n")


if __name__ == "__main__":
    main()
