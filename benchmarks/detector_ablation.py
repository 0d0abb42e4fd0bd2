"""What a detector learns from what: trainings of one length on different data, measured on other families.

Run: MAGISTRATE_DATA_DIR=DATA .venv-train/bin/python benchmarks/detector_ablation.py --wordnet W --to FOLDER
     [--samples 8000] [--arm NAME ...] [--base minilm-l6]

Inputs are those of `benchmarks/train_detector.py` without the glosses. Every arm is trained on as many
samples: `labels` on HaluEval's labelled summaries alone, again and again; `changed` on faithful outputs that
were changed by rules; `likely` on the same with words that a language model finds likely; `written` on those
and on ends that it made up; `all` on labels, too. Printed is the AUROC on samples of families that no arm has
seen, and on held-out contexts of its own. `--base smollm2-135m` tunes a language model by low-rank updates,
which is for a machine with a graphics card.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from train_detector import RATE, SEED, some

from magistrate.datasets import load
from magistrate.errors import InputError
from magistrate.train.detector.bases import base
from magistrate.train.detector.loop import Schedule
from magistrate.train.detector.mixture import Mixture, Portion, mixed
from magistrate.train.detector.training import Wish, train
from magistrate.train.detector.writer import Writer
from magistrate.train.synthetic import Lexicon

SETS = ("summedits:dev", "begin:dev")
SUMMARIES, DIALOGUE = "halueval-summarization:train", "halueval-dialogue:train"
VARIANTS = 4
TOGETHER = {"minilm-l6": 5000, "smollm2-135m": 2000}  # tokens of a batch, by base


@dataclass(frozen=True)
class Arm:
    """What is learnt from: shares of the samples by where they come from, and whether a model writes."""

    labelled: float
    changed: float
    continued: float
    writes: bool


ARMS = {
    "labels": Arm(1.0, 0.0, 0.0, False),
    "changed": Arm(0.0, 1.0, 0.0, False),
    "likely": Arm(0.0, 1.0, 0.0, True),
    "written": Arm(0.0, 0.7, 0.3, True),
    "all": Arm(0.2, 0.6, 0.2, True),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--wordnet", type=Path, required=True)
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--samples", type=int, default=8000)
    parser.add_argument("--arm", action="append", choices=ARMS)
    parser.add_argument("--base", choices=TOGETHER, default="minilm-l6")
    told = parser.parse_args()
    lexicon = Lexicon.read(told.wordnet)
    writer = Writer(base("smollm2-135m"), told.to)
    print(f"{'arm':<10}{'samples':>9}{'steps':>7}{'held out':>10}" + "".join(f"{name:>16}" for name in SETS))
    for name in told.arm or ARMS:
        mixture = drawn(ARMS[name], told.samples, lexicon, writer)
        epochs = told.samples / len(mixture.train)
        wish = Wish(
            name=f"{told.base}-{name}",
            base=base(told.base),
            schedule=Schedule(epochs=epochs, rate=RATE, tokens=TOGETHER[told.base], seed=SEED),
            checkpoints=told.base != "minilm-l6",
            trained_on=("halueval",),
            recipe={"script": "benchmarks/detector_ablation.py"},
        )
        try:
            found = train(
                wish, mixture, told.to / told.base / name, left_out={each: some(each) for each in SETS}
            )
        except InputError as error:  # an arm that has learnt nothing is a finding
            print(f"{name:<10}{len(mixture.train):>9}  {error}", flush=True)
            continue
        figures = [found.auroc["held out"], *(found.auroc[each] for each in SETS)]
        print(
            f"{name:<10}{len(mixture.train):>9}{found.steps:>7}{figures[0]:>10.3f}"
            + "".join(f"{figure:>16.3f}" for figure in figures[1:]),
            flush=True,
        )


def drawn(arm: Arm, samples: int, lexicon: Lexicon, writer: Writer) -> Mixture:
    """At most so many samples, of summaries and dialogues alike but for labels, which only summaries have."""
    changed, continued = arm.changed * samples / VARIANTS / 2, arm.continued * samples / 2 / 2
    portion = Portion(0, round(changed), VARIANTS, round(continued))
    sources: Mapping[str, Portion] = {
        SUMMARIES: replace(portion, labelled=round(arm.labelled * samples)),
        DIALOGUE: portion,
    }
    read = {name: (list(load(name)), each) for name, each in sources.items() if each != Portion(0, 0)}
    made = mixed(read, lexicon, SEED, writer=writer if arm.writes else None)
    train = random.Random(SEED).sample(made.train, min(samples, len(made.train)))
    return replace(made, train=tuple(train))


if __name__ == "__main__":
    main()
