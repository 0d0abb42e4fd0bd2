"""Train detectors that have not seen a family of data sets, and measure them on it.

Run: MAGISTRATE_DATA_DIR=DATA .venv-train/bin/python benchmarks/train_detector.py FOLD --wordnet W --to FOLDER
     [--minutes M]; the same command goes on where it was stopped

Inputs: MiniLM-L6 and SmolLM2-135M from the package registry; WordNet 3.0 as in Debian's `wordnet-base`; the
labelled sets of `FOLDS`. Of HaluEval only what is clean is taken, and the labels of its summaries: its
questions and answers are told apart by length alone, and what its dialogues call hallucinated others call
faithful.

`halueval` learns from HaluEval and the glosses, and is measured on the other families as it is;
`without-halueval` learns from those others, and says what such a training is worth on HaluEval.
Each fold writes FOLDER/FOLD, a detector, and FOLDER/FOLD-weights, its weights as a base to train on.
"""

from __future__ import annotations

import argparse
import random
import time
from dataclasses import dataclass
from pathlib import Path

from magistrate.datasets import load
from magistrate.datasets.families import family_of
from magistrate.train.detector.bases import base
from magistrate.train.detector.loop import Schedule
from magistrate.train.detector.mixture import Portion, mixed
from magistrate.train.detector.training import Wish, train
from magistrate.train.detector.writer import Writer
from magistrate.train.synthetic import Lexicon
from magistrate.train.synthetic.glosses import glosses
from magistrate.types import Sample

SEED = 1
RATE = 2e-4
MEASURED = 400  # of each set that is left out
SETS = ("summedits:dev", "begin:dev", "halueval-dialogue:dev", "halueval-summarization:dev")
HALUEVAL = {
    "halueval-summarization:train": Portion(labelled=2500, originals=4200, variants=4, continued=1600),
    "halueval-dialogue:train": Portion(labelled=0, originals=1200, variants=4, continued=800),
}
OTHERS = {
    "summedits:dev": Portion(labelled=1000, originals=500, variants=4, continued=160),
    "begin:dev": Portion(labelled=1200, originals=500, variants=4, continued=160),
}


@dataclass(frozen=True)
class Fold:
    """What is learnt from besides `glosses` of WordNet, and how often."""

    sources: dict[str, Portion]
    glosses: int
    epochs: float = 1.0


FOLDS = {
    "halueval": Fold(HALUEVAL, glosses=2000),
    "without-halueval": Fold(OTHERS, glosses=2000),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("fold", choices=FOLDS)
    parser.add_argument("--wordnet", type=Path, required=True)
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--minutes", type=float)
    told = parser.parse_args()
    fold: Fold = FOLDS[told.fold]
    sources = {name: (list(load(name)), portion) for name, portion in fold.sources.items()}
    clean: list[Sample] = list(glosses(told.wordnet, fold.glosses, SEED))
    sources["WordNet glosses"] = (clean, Portion(0, fold.glosses, 4, fold.glosses // 16))
    lexicon = Lexicon.read(told.wordnet)
    families = {family_of(each) for each in fold.sources}
    wish = Wish(
        name=f"minilm-{told.fold}",
        base=base("minilm-l6"),
        schedule=Schedule(epochs=fold.epochs, rate=RATE, tokens=5000, seed=SEED),
        trained_on=tuple(sorted(families)),
        recipe={
            "script": "benchmarks/train_detector.py",
            "lexicon": lexicon.name,
            "writer": "smollm2-135m",
        },
        keep=told.to / f"{told.fold}-weights",
    )
    writer = Writer(base("smollm2-135m"), told.to)
    began = time.monotonic()

    def tell(step: int, steps: int, loss: float) -> None:
        if step % 20 == 0 or step == steps:
            print(f"{time.monotonic() - began:6.0f} s, step {step} of {steps}, loss {loss:.4f}", flush=True)

    found = train(
        wish,
        mixed(sources, lexicon, SEED, writer=writer),
        told.to / told.fold,
        left_out={name: some(name) for name in SETS if family_of(name) not in families},
        seconds=None if told.minutes is None else 60 * told.minutes,
        tell=tell,
    )
    for name, value in found.auroc.items():
        print(f"{told.fold}: {name}: AUROC {value:.3f}")


def some(name: str) -> list[Sample]:
    """Some samples of a set, the same ones every time."""
    every = list(load(name))
    return random.Random(SEED).sample(every, min(MEASURED, len(every)))


if __name__ == "__main__":
    main()
