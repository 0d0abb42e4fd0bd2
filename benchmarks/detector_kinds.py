"""Which kinds of change a detector sees, in texts of a family that it has not learnt from.

Run: MAGISTRATE_DATA_DIR=DATA .venv/bin/python benchmarks/detector_kinds.py FOLDER SET [SET ...] --wordnet W
     [--originals 400]

Faithful outputs of each set are changed as for a training: every wrong one has a harmless one beside it that
is made of the same output and changes about as many words. Printed, kind by kind and the sets together: how
many such pairs there were, and in which share of them the detector doubts the wrong one more, with a 95 %
interval (Wilson); ties count half, so that .50 is chance. `novelty` stands beside it.
"""

from __future__ import annotations

import argparse
import asyncio
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from scipy.stats import binomtest

from magistrate.datasets import load
from magistrate.datasets.families import family_of
from magistrate.detectors.folder import read_manifest
from magistrate.detectors.model import Detector
from magistrate.engines.none import NONE
from magistrate.errors import SpecError
from magistrate.judges.novelty import Novelty
from magistrate.train.synthetic import Lexicon, perturb
from magistrate.types import FAITHFUL, HALLUCINATED, Sample, Verdict

SEED = 3
LEAST_WORDS = 5  # of an output that is changed
LEAST_PAIRS = 20  # of a kind that has a row of its own
Doubt = Callable[[Sample], float]
Pair = tuple[Sample, Sample]  # the wrong one, the harmless one


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("sets", nargs="+")
    parser.add_argument("--wordnet", type=Path, required=True)
    parser.add_argument("--originals", type=int, default=400)
    told = parser.parse_args()
    manifest = read_manifest(told.folder)
    families = {family_of(name) for name in told.sets}
    if seen := families & set(manifest.trained_on):
        raise SpecError(f"{manifest.name} has learnt from {', '.join(sorted(seen))}; name other sets")
    lexicon = Lexicon.read(told.wordnet)
    pairs = [pair for name in told.sets for pair in paired(name, told.originals, lexicon)]
    doubts = {manifest.name: detected(Detector(told.folder, manifest)), "novelty": novel(families)}
    print(table(pairs, doubts))


def paired(name: str, originals: int, lexicon: Lexicon) -> Iterator[Pair]:
    """Changed outputs of a set, each wrong one with its harmless mate."""
    clean = [
        each
        for each in load(name)
        if each.label != HALLUCINATED and len((each.output or "").split()) >= LEAST_WORDS
    ]
    taken = random.Random(SEED).sample(clean, min(originals, len(clean)))
    made = iter(perturb(taken, seed=SEED, lexicon=lexicon))
    for wrong, right in zip(made, made, strict=True):
        assert wrong.metadata["of"] == right.metadata["of"], "variants come in pairs of one original"
        assert (wrong.label, right.label) == (HALLUCINATED, FAITHFUL), "the wrong one comes first"
        yield wrong, right


def detected(detector: Detector) -> Doubt:
    """What a detector says of a whole output, as a logit."""

    def read(sample: Sample) -> float:
        found = detector.detect(sample)
        assert found is not None, f"{sample.id} has nothing to read"
        return found.logit

    return read


def novel(families: set[str]) -> Doubt:
    """What `novelty` says, by weights that have not seen the family where there is just one."""
    judge = Novelty(without=next(iter(families))) if len(families) == 1 else Novelty()

    def read(sample: Sample) -> float:
        found = asyncio.run(judge.judge(sample, NONE))
        return found.score if isinstance(found, Verdict) else 0.5

    return read


def table(pairs: list[Pair], doubts: Mapping[str, Doubt]) -> str:
    """A row a kind, the best seen first, and all together."""
    wins: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for wrong, right in pairs:
        for name, doubt in doubts.items():
            ours, theirs = doubt(wrong), doubt(right)
            won = 0.5 if ours == theirs else float(ours > theirs)
            wins[str(wrong.metadata["kind"])][name].append(won)
            wins["all"][name].append(won)
    lead = next(iter(doubts))
    rows = sorted(
        (kind for kind in wins if kind != "all" and len(wins[kind][lead]) >= LEAST_PAIRS),
        key=lambda kind: -sum(wins[kind][lead]) / len(wins[kind][lead]),
    )
    lines = [f"| kind of change | pairs | {' | '.join(doubts)} |", f"| --- | --- |{' --- |' * len(doubts)}"]
    for kind in [*rows, "all"]:
        found = wins[kind]
        lines.append(f"| {kind} | {len(found[lead])} | {' | '.join(share(found[name]) for name in doubts)} |")
    return "\n".join(lines)


def share(won: list[float]) -> str:
    """A share and its interval; halves are rounded to the even count for the interval."""
    interval = binomtest(round(sum(won)), len(won)).proportion_ci(method="wilson")
    return f"{sum(won) / len(won):.2f} [{interval.low:.2f}, {interval.high:.2f}]"


if __name__ == "__main__":
    main()
