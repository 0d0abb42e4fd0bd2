"""The value of 25 to 400 labels by simulated annotators, for each sampling policy.

Run: MAGISTRATE_DATA_DIR=DATA python -m benchmarks.labels [--rounds 20] [--most 840] [--judge novelty]

Judges (`novelty`, which asks no model, unless others are named) judge up to `--most` samples of each set
once. In every round a new random half of the contexts is the pool from which a policy draws the labels, as a
queue does. The other half is for testing. Annotators give the set's label, except for a share `--wrong`.

The first table is about the weighted hallucinated share. Its cells have the bias (mean of the estimate less
the share that these annotators would give to the whole pool), the mean half width of the 95 % interval, the
share of rounds whose interval holds that share, and in parentheses the bias of the unweighted share, which is
refused where it is biased. The others give the result of `improve` for the threshold of a judge: the mean
change of balanced accuracy on the test half over all rounds (0 if not kept), and in how many rounds it was
shown to be better and kept.

Every finished cell is written to `--cells`, so that what was interrupted goes on where it was.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

import magistrate
from magistrate.analysis.columns import Columns, groups_of
from magistrate.analysis.improvement import by_threshold, compared, current
from magistrate.errors import InputError
from magistrate.labels.sampling import POLICIES, Candidate, Policy, draw, wanted
from magistrate.metrics.prevalence import weighted_share
from magistrate.metrics.thresholds import best_cut
from magistrate.training.split import held_out
from magistrate.types import HALLUCINATED, Scoring, Verdict

SETS = ("begin:dev", "summedits:dev")
DRAWN_BY: tuple[Policy, ...] = ("uniform", "mixed", "threshold", "stratified")
SIZES = (25, 50, 100, 200, 400)
HOW = Scoring("minimize", ("faithful", "hallucinated"), 0.5)
DRAWS = 500  # bootstrap draws: fewer than `improve` takes, to finish in minutes
CELLS = Path("build/labels/cells.jsonl")


@dataclass(frozen=True)
class Judged:
    """Samples with a verdict of every judge: labels, scores `[n, judges]`, contexts."""

    judges: tuple[str, ...]
    truth: np.ndarray
    scores: np.ndarray
    groups: np.ndarray

    def columns(self, judge: int, places: np.ndarray, truth: np.ndarray) -> Columns:
        """Return a judge's results on the samples at `places`, with the labels `truth` of all samples."""
        scores, name = self.scores[places, judge], self.judges[judge]
        ids = tuple(map(str, places))
        return Columns(name, ids, truth[places], scores >= 0.5, scores, self.groups[places], {}, HOW)


def judged(name: str, judges: Sequence[str], most: int) -> Judged:
    """Return a set with the judges' results."""
    by_judge: dict[str, dict[str, float]] = {judge: {} for judge in judges}
    with TemporaryDirectory() as folder:
        store = Path(folder) / "runs.db"
        run = magistrate.evaluate(name, list(judges), sample=most, store=store, progress=False)
        for each in run.outcomes():
            if isinstance(each, Verdict):
                by_judge[each.judge][each.sample_id] = each.score
        samples = run.samples()
    kept = [each for each in samples if each.label and all(each.id in of for of in by_judge.values())]
    return Judged(
        tuple(judges),
        np.array([each.label == HALLUCINATED for each in kept]),
        np.array([[by_judge[judge][each.id] for judge in judges] for each in kept]),
        groups_of(kept),
    )


def balanced(truth: np.ndarray, said: np.ndarray) -> float:
    """Return the balanced accuracy of labels."""
    return float((said[truth].mean() + (~said[~truth]).mean()) / 2)


@dataclass
class Cell:
    """Results of the rounds of one set, policy and number of labels, a number a round.

    `errors` and `bare` are the weighted and the unweighted share less that of the pool, `widths` half the
    interval, `held` whether it has the pool's share; `gains` and `kept` are lists by judge, of its threshold.
    """

    errors: list[float]
    bare: list[float]
    widths: list[float]
    held: list[bool]
    gains: list[list[float]]
    kept: list[list[bool]]


def rounds(of: Judged, policy: Policy, size: int, n: int, wrong: float) -> Cell | None:
    """Execute all rounds; None if the pool is smaller than `size`."""
    cell = Cell([], [], [], [], [[] for _ in of.judges], [[] for _ in of.judges])
    for number in range(n):
        random = np.random.default_rng(number)
        out = np.array(held_out(of.groups.tolist(), 0.5, number))
        pool, test = np.flatnonzero(~out), np.flatnonzero(out)
        if pool.size < size:
            return None
        said = of.truth ^ (random.random(of.truth.size) < wrong)
        for at in range(len(of.judges)):
            # The scores for the policy: those of all judges, the current one first.
            order = [at, *(each for each in range(len(of.judges)) if each != at)]
            candidates = [Candidate(str(each), tuple(of.scores[each, order])) for each in pool]
            drawn = draw(candidates, wanted(policy, candidates, threshold=0.5), size, number)
            places = pool[[each.place for each in drawn]]
            chances = np.array([each.inclusion for each in drawn])
            gain, kept = threshold_gain(of, at, places, 1 / chances, said, test)
            cell.gains[at].append(gain)
            cell.kept[at].append(kept)
            if at:
                continue
            names = [str(each) for each in of.groups[places]]
            share, real = weighted_share(said[places].tolist(), chances.tolist(), names), said[pool].mean()
            if share.value is None or share.low is None or share.high is None:
                raise RuntimeError(f"{size} labels of {policy} give no share: {share.undefined}")
            cell.errors.append(float(share.value - real))
            cell.bare.append(float(said[places].mean() - real))
            cell.widths.append((share.high - share.low) / 2)
            cell.held.append(bool(share.low <= real <= share.high))
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


class Cells:
    """Finished cells in a file, a line each."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found: dict[str, dict[str, object] | None] = {}
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                try:
                    self._found.update([json.loads(line)])
                except ValueError:
                    continue  # the line that was being written when it was interrupted

    def __contains__(self, key: str) -> bool:
        return key in self._found

    def get(self, key: str) -> Cell | None:
        """Return a finished cell, None if its pool was too small."""
        found = self._found[key]
        return None if found is None else Cell(**found)  # type: ignore[arg-type]

    def add(self, key: str, cell: Cell | None) -> None:
        """Write a finished cell."""
        self._found[key] = None if cell is None else asdict(cell)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps([key, self._found[key]]) + "\n")


def tables(given: argparse.Namespace, kept: Cells) -> Iterator[str]:
    """Yield the lines of all tables."""
    head = f"| set | policy | {' | '.join(f'{size} labels' for size in SIZES)} |"
    line = "| --- " * (2 + len(SIZES)) + "|"
    shares, gains = [head, line], {judge: [head, line] for judge in given.judge}
    for name in given.set:
        of: Judged | None = None
        for policy in given.policy:
            cells = []
            for size in SIZES:
                key = f"{name} {policy} {size} {given.judge} {given.most} {given.rounds} {given.wrong}"
                if key not in kept:
                    of = of or judged(name, given.judge, given.most)
                    kept.add(key, rounds(of, policy, size, given.rounds, given.wrong))
                cells.append(kept.get(key))
            start = f"| {name} | {policy} | "
            shares.append(start + " | ".join(map(share_cell, cells)) + " |")
            for at, judge in enumerate(given.judge):
                gains[judge].append(start + " | ".join(gain_cell(each, at) for each in cells) + " |")
    yield f"{given.rounds} rounds, {given.wrong:.0%} of the labels wrong, at most {given.most} samples a set"
    yield from ("", *shares)
    for judge in given.judge:
        yield from ("", f"the threshold of {judge}:", "", *gains[judge])


def share_cell(cell: Cell | None) -> str:
    """Format bias, half width and coverage of the weighted share, and the bias of the unweighted one."""
    if cell is None:
        return "-"
    bias, width = float(np.mean(cell.errors)), float(np.mean(cell.widths))
    return f"{bias:+.3f} ± {width:.3f}, {np.mean(cell.held):.0%} ({np.mean(cell.bare):+.3f})"


def gain_cell(cell: Cell | None, judge: int) -> str:
    """Format a judge's gain on the test half, and the number of rounds that kept another threshold."""
    if cell is None:
        return "-"
    kept = cell.kept[judge]
    return f"{np.mean(cell.gains[judge]):+.3f}, kept {sum(kept)} of {len(kept)}"


def main(words: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--most", type=int, default=840)
    parser.add_argument("--wrong", type=float, default=0.05)
    parser.add_argument("--set", nargs="+", default=SETS)
    parser.add_argument("--judge", nargs="+", default=["novelty"])
    parser.add_argument("--policy", nargs="+", choices=POLICIES, default=DRAWN_BY)
    parser.add_argument("--cells", type=Path, default=CELLS)
    given = parser.parse_args(words)
    print(*tables(given, Cells(given.cells)), sep="\n")


if __name__ == "__main__":
    main()
