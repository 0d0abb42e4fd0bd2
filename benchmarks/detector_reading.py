"""What a detector's way of reading is worth: how much at once, which part of a long context, which answer.

Run: MAGISTRATE_DATA_DIR=DATA .venv/bin/python benchmarks/detector_reading.py FOLDER SET [SET ...] [--n 300]

Printed, for each set and way of reading: AUROC of the answer for the whole output, of its most doubtful word,
and milliseconds a sample. `384` and the like are windows in tokens, filled with the sentences of the context
that cover the output best. `sliding` holds the output against every stretch of the context in turn, and
takes the answer of the stretch that supports it best, word by word.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from sklearn.metrics import roc_auc_score

from magistrate.datasets import load
from magistrate.detectors.folder import read_manifest
from magistrate.detectors.model import Detector
from magistrate.signals.splitting import sentences
from magistrate.types import HALLUCINATED, Sample

WINDOWS = (128, 256, 384, 512)
STRETCH = 900  # characters of context that are slid over, half of them shared with the stretch before

Answers = tuple[float, float]  # of the whole, a logit; of the most doubtful word, a probability


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("sets", nargs="+")
    parser.add_argument("--n", type=int, default=300)
    told = parser.parse_args()
    manifest = read_manifest(told.folder)
    ways: dict[str, Callable[[Sample], Answers]] = {}
    for window in WINDOWS:
        ways[str(window)] = _reader(Detector(told.folder, manifest.model_copy(update={"window": window})))
    ways["sliding"] = _sliding(Detector(told.folder, manifest))
    for name in told.sets:
        every = [each for each in load(name) if each.label and each.output]
        samples = random.Random(0).sample(every, min(told.n, len(every)))
        truth = [each.label == HALLUCINATED for each in samples]
        for way, read in ways.items():
            began = time.perf_counter()
            found = [read(each) for each in samples]
            spent = 1000 * (time.perf_counter() - began) / len(samples)
            whole, word = (roc_auc_score(truth, [each[at] for each in found]) for at in (0, 1))
            print(
                f"{name} n={len(samples)} {way:>8}: whole {whole:.3f}, worst word {word:.3f}, {spent:.0f} ms"
            )


def _reader(detector: Detector) -> Callable[[Sample], Answers]:
    def read(sample: Sample) -> Answers:
        found = detector.detect(sample)
        assert found is not None
        return found.logit, max(word.probability for word in found.words)

    return read


def _sliding(detector: Detector) -> Callable[[Sample], Answers]:
    def read(sample: Sample) -> Answers:
        every = [detector.detect(replace(sample, context=(part,))) for part in _stretches(sample)]
        found = [each for each in every if each is not None]
        words = zip(*([word.probability for word in each.words] for each in found), strict=True)
        return min(each.logit for each in found), max(min(each) for each in words)

    return read


def _stretches(sample: Sample) -> Iterator[str]:
    for text in sample.context:
        places = [*sentences(text)]
        begin = 0
        while begin < len(places):
            end = begin + 1
            while end < len(places) and places[end][1] - places[begin][0] <= STRETCH:
                end += 1
            yield text[places[begin][0] : places[end - 1][1]]
            if end == len(places):
                break
            begin = max(begin + 1, (begin + end) // 2)


if __name__ == "__main__":
    main()
