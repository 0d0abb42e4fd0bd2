"""What a jury of different methods is worth beside its best member, on sets of families it knows nothing of.

Run: .venv/bin/python -m benchmarks.jury [--judge SPEC …] [--model NAME] [--samples N]

Members are judges of different kinds: by default what counts words, a trained detector, the likelihood of
the output, and the embedded model's answer. `{family}` in a SPEC is the family of the set, for judges that
can leave it out; it is empty if they know nothing of it. Sets are those of `benchmarks.quality`, read from
MAGISTRATE_DATA_DIR. On the test part of each, members decide by their own thresholds, and two juries are
asked: *mean* is `jury` as it is; *weighted* adds up the members' log odds, with weights fitted to the dev
parts of the other families. The best member is the one with the highest balanced accuracy on those dev parts,
so it is chosen as blindly as the weights are. Gains are of the same samples, with 95 % intervals by whole
contexts. Votes are how many independent members these are worth, by the correlation of their errors.

Every member is a stored run: what is done is not asked again.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.detector.fit import Part, contexts_of, fitted, known, truth_of
from benchmarks.judges import markdown
from benchmarks.machine import machine
from benchmarks.panels import Judged, estimate, judged
from benchmarks.quality.protocol import SETS, draw, here
from magistrate._paths import home
from magistrate.engines.base import Engine
from magistrate.engines.embedded.cores import available_cores
from magistrate.engines.embedded.engine import LocalEngine
from magistrate.engines.models import default
from magistrate.engines.none import NONE
from magistrate.judges import registry
from magistrate.metrics.calibration import log_odds
from magistrate.metrics.classification import Estimate
from magistrate.metrics.jury import error_correlation, pooled
from magistrate.metrics.paired import Figures
from magistrate.metrics.resampling import draws_of, interval_of
from magistrate.report.formatting import decimal
from magistrate.types import HALLUCINATED, Sample, Verdict

MEMBERS = ("novelty:without={family}", "detector", "likelihood", "faithfulness")
METRICS = ("balanced_accuracy", "auroc")
JURIES = 2  # mean and weighted


@dataclass(frozen=True)
class Votes:
    """Members' votes on the samples of a set that all have judged: `odds` and `said` `[samples, members]`.

    `odds` are log odds of hallucinated, `said` is True for it. `truth` and `groups` are those of a `Part`.
    `n` counts all samples.
    """

    name: str
    family: str
    odds: np.ndarray
    said: np.ndarray
    truth: np.ndarray
    groups: np.ndarray
    n: int

    @property
    def part(self) -> Part:
        """The votes as a set to fit weights to: each output is one sentence."""
        return Part(self.name, self.family, self.odds, np.arange(len(self.odds)), self.truth, self.groups)

    def accuracies(self) -> np.ndarray:
        """Return each member's balanced accuracy."""
        rates = [(self.said[self.truth == kind] == kind).mean(axis=0) for kind in (True, False)]
        return np.asarray(np.mean(rates, axis=0))


def votes(name: str, family: str, samples: Sequence[Sample], members: Sequence[Judged]) -> Votes:
    """Return the votes on the samples that every member has a verdict of."""
    kept, odds, said = [], [], []
    for each in samples:
        verdicts = [member.outcomes.get(each.id) for member in members]
        given = [one for one in verdicts if isinstance(one, Verdict)]
        if len(given) < len(members):
            continue
        scores = [
            1 - one.score if member.judge.info.scoring.turned else one.score
            for one, member in zip(given, members, strict=True)
        ]
        kept.append(each)
        odds.append([log_odds(score) for score in scores])
        said.append([one.label == HALLUCINATED for one in given])
    truth, groups = truth_of(kept), contexts_of(kept)
    return Votes(name, family, np.array(odds), np.array(said), truth, groups, len(samples))


def best_of(dev: Sequence[Votes]) -> int:
    """Return the member with the highest mean balanced accuracy; each family has the same weight."""
    of_family: dict[str, list[np.ndarray]] = {}
    for each in dev:
        of_family.setdefault(each.family, []).append(each.accuracies())
    return int(np.argmax(np.mean([np.mean(some, axis=0) for some in of_family.values()], axis=0)))


def mean_jury(found: Votes) -> np.ndarray:
    """Return the scores of `jury` with equal weights, less its threshold."""
    scores = 1 / (1 + np.exp(-found.odds))
    equal = [1.0] * scores.shape[1]
    rows = zip(scores.tolist(), found.said.tolist(), strict=True)
    return np.array([pooled(row, said, "mean", equal) for row, said in rows]) - 0.5


@dataclass(frozen=True)
class Row:
    """A set: balanced accuracy and AUROC of each member and jury `[members + 2, 2]`, and the juries' gains.

    `best` is the place of the best member, `votes` how many independent votes the members are worth.
    """

    found: Votes
    points: np.ndarray
    best: int
    gains: Sequence[Estimate]
    votes: Estimate


def row_of(found: Votes, dev: Sequence[Votes]) -> Row:
    """Measure members and juries on a set, with what is chosen on the dev parts of other families."""
    others = [each for each in dev if each.family != found.family]
    best, mean = best_of(others), mean_jury(found)
    weighted = found.part.odds(fitted([each.part for each in others]))
    sides = [(found.said[:, at], found.odds[:, at]) for at in range(found.said.shape[1])]
    sides += [(mean >= 0, mean), (weighted >= 0, weighted)]
    figures = [Figures(found.truth, said, scores, METRICS) for said, scores in sides]
    points = np.array([each(np.ones((1, len(found.truth))))[0] for each in figures])
    drawn = [draws_of(each, found.groups)[:, 0] for each in (figures[best], *figures[-JURIES:])]
    n_contexts = int(np.unique(found.groups).size)
    gains = [
        interval_of(float(point - points[best, 0]), draws - drawn[0], n_contexts)
        for point, draws in zip(points[-JURIES:, 0], drawn[1:], strict=True)
    ]
    votes = error_correlation(found.said != found.truth[:, None], found.groups).effective
    return Row(found, points, best, gains, votes)


def cells(row: Row, names: Sequence[str]) -> list[str]:
    """Return a row of the table."""
    told = [f"{decimal(float(accuracy))} ({decimal(float(auroc))})" for accuracy, auroc in row.points]
    gains = [estimate(each, signed=True) for each in row.gains]
    n = f"{len(row.found.truth)}/{row.found.n}"
    return [row.found.name, n, *told, names[row.best], *gains, estimate(row.votes)]


def means(rows: Sequence[Row]) -> list[str]:
    """Return the last row of the table."""
    points = np.mean([row.points for row in rows], axis=0)
    told = [f"{decimal(float(accuracy))} ({decimal(float(auroc))})" for accuracy, auroc in points]
    gains = [np.mean([row.gains[at].value for row in rows]) for at in range(JURIES)]
    votes = np.mean([row.votes.value for row in rows if row.votes.value is not None])
    return ["mean", "", *told, "", *(f"{gain:+.2f}" for gain in gains), f"{votes:.2f}"]


def measured(
    specs: Sequence[str], samples: int, engine: Engine, store: Path
) -> tuple[list[Votes], list[Votes]]:
    """Return the members' votes on the dev and the test parts of all sets at hand."""
    dev, test = [], []
    for each in filter(here, SETS):
        split = draw(each, samples)
        members = []
        for spec in specs:
            judge = registry.judge(spec.format(family=known(each.family)))
            asked = engine if judge.info.kind == "llm" else NONE
            members.append(judged(f"{spec} on {each.name}", judge, split.samples, asked, store))
        dev.append(votes(each.name, each.family, split.dev, members))
        test.append(votes(each.name, each.family, split.test, members))
    return dev, test


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--judge", dest="judges", action="append", metavar="SPEC")
    words.add_argument("--model", default=default().name)
    words.add_argument("--samples", type=int, default=120, help="of each set; half as many to fit weights to")
    words.add_argument("--store", type=Path, default=home() / "bench" / "jury.db")
    return words


def main() -> None:
    """Print the table."""
    asked = parser().parse_args()
    asked.store.parent.mkdir(parents=True, exist_ok=True)
    specs = asked.judges or list(MEMBERS)
    engine = LocalEngine(asked.model)
    try:
        dev, test = measured(specs, asked.samples, engine, asked.store)
    finally:
        engine.close()
    names = [f"`{spec.partition(':without')[0]}`" for spec in specs]
    rows = [row_of(each, dev) for each in test]
    print(f"\n`{asked.model}`, printed at {machine(available_cores()).commit}\n")
    head = ["set", "n", *names, "mean", "weighted", "best elsewhere", "gain, mean", "gain, weighted", "votes"]
    print(markdown(head, [*(cells(row, names) for row in rows), means(rows)]))
    print(f"\nAgain: `{shlex.join(['python', '-m', 'benchmarks.jury', *sys.argv[1:]])}`")


if __name__ == "__main__":
    main()
