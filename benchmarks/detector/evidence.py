"""Measures the evidence of a detector on outputs of which it is known what is wrong with them.

Run: .venv/bin/python -m benchmarks.detector.evidence [--size large] [--most N]

Everyday cases, held-back statements, answers and reports come in pairs, whose wrong side says which of its
words are wrong. Two lines for each set, one for the evidence that is shown, one for what is read beside the
nearest passage alone:

- words: how well the words of a wrong output are ranked by the heat map (AUROC, the mean over outputs)
- marked: which share of the right outputs has a word at .5 or above in it
- twists: which share of changed values, names and relations is called a contradiction
- inventions: which share of invented facts is called a contradiction
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score

from benchmarks.detector.twins import ANSWERS, EVERYDAY, HELD, REPORTS, rows
from magistrate.detectors.detector import Detection, Detector
from magistrate.judges.detector import Detector as Judge
from magistrate.types import Sample, Span

HOT = 0.5
INVENTED = "unsupported"
UNCLEAR = ("abstention", "answer", "cause", "inference")  # kinds of error that may be either

Pieces = Iterable[tuple[int, int, float]]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", choices=["small", "large"], default="small")
    parser.add_argument("--most", type=int, help="outputs of each set, from its beginning")
    told = parser.parse_args()
    judge = Judge(size=told.size)
    manifest = judge.model.manifest.model_copy(update={"readings": ("pairs",)})
    beside = Detector(judge.model.folder, manifest)
    print(f"{'set':<16}{'n':>6}  {'evidence':<20}   words  marked  twists  inventions")
    for path in (EVERYDAY, HELD, ANSWERS, REPORTS):
        kinds, samples = zip(*map(sample_of, list(rows(path))[: told.most]), strict=True)
        shown, near = (list(map(model.read, samples)) for model in (judge.model, beside))
        heat = [heat_of(judge, *each) for each in zip(samples, shown, strict=True)]
        words = [[(w.start, w.end, w.probability) for s in each.sentences for w in s.words] for each in near]
        for name, found, pieces in (("shown", shown, heat), ("beside the passage", near, words)):
            figures = (*words_of(samples, pieces), *kinds_of(samples, kinds, found))
            print(
                f"{path.stem:<16}{len(samples):>6}  {name:<20}" + "".join(f"{each:>8.2f}" for each in figures)
            )


def sample_of(row: dict[str, Any]) -> tuple[str, Sample]:
    """Return the kind of error of a row of twins, and a sample with the spans of what is wrong."""
    spans = tuple(Span(*each) for each in row["spans"])
    sample = Sample(row["id"], row["output"], tuple(row["context"]), row["input"], spans=spans)
    return row["metadata"]["kind"], sample


def heat_of(judge: Judge, sample: Sample, found: Detection) -> Pieces:
    """Return start, end and value of each word in the heat map of an output."""
    shares = [judge.probability(each.logit) for each in found.sentences]
    pieces: Pieces = judge.details(sample, found, shares)["heat"]["pieces"]
    return pieces


def words_of(samples: Sequence[Sample], marked: Sequence[Pieces]) -> tuple[float, float]:
    """Return the mean AUROC of words in wrong outputs, and the share of right ones with a word at `HOT`."""
    ranks, hot = [], []
    for sample, pieces in zip(samples, marked, strict=True):
        starts, ends, values = map(np.array, zip(*pieces, strict=True))
        if not sample.spans:
            hot.append(values.max() >= HOT)
            continue
        wrong = np.any([(starts < each.end) & (ends > each.start) for each in sample.spans], axis=0)
        if wrong.any() and not wrong.all():
            ranks.append(roc_auc_score(wrong, values))
    return float(np.mean(ranks)), float(np.mean(hot))


def kinds_of(
    samples: Sequence[Sample], kinds: Sequence[str], found: Sequence[Detection]
) -> tuple[float, float]:
    """Return which shares of the twisted and of the invented sentences are called contradictions.

    NaN if there are none.
    """
    twisted, invented = list[bool](), list[bool]()
    for sample, kind, each in zip(samples, kinds, found, strict=True):
        for sentence in each.sentences:
            is_wrong = any(span.start < sentence.end and span.end > sentence.start for span in sample.spans)
            if is_wrong and kind not in UNCLEAR:
                (invented if kind == INVENTED else twisted).append(sentence.kind == "contradicted")
    return share_of(twisted), share_of(invented)


def share_of(flags: Sequence[bool]) -> float:
    """Return the share of flags that are set, NaN without any."""
    return sum(flags) / len(flags) if flags else np.nan


if __name__ == "__main__":
    main()
