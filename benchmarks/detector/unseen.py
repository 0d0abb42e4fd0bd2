"""Measures judges of code on labelled sources that none of them was trained on.

Run: .venv/bin/python -m benchmarks.detector.unseen DATA [--judge WORDS ...] [--most N]

DATA holds sources as NAME.jsonl.gz, like those that the recipes in `stages/` name. A source is measured if
no judge was trained on it and it has --most outputs, half of each label (drawn by a fixed seed). Prints the
AUROC of each judge, and in parentheses its balanced accuracy at .5. An abstention counts as .5, and so as
hallucinated.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.detector.fit import truth_of
from magistrate.engines.none import NONE
from magistrate.judges import registry
from magistrate.judges.base import Judge
from magistrate.metrics.classification import classification
from magistrate.types import FAITHFUL, HALLUCINATED, Sample, Verdict

JUDGES = ("novelty", "combined:size=large")
SUFFIX = ".jsonl.gz"
KINDS = {  # by the beginning of a source's name; the first that fits
    "claims against evidence": ("claims_", "contract_nli", "nli4ct", "attribution", "expertqa"),
    "outputs of models": ("fc_",),
    "sentences by people": ("nli_", "rw_nan_nli"),
    "rewrites": ("rw_",),
    "answers": ("qa_",),
    "tables": ("tables_",),
    "other": ("",),
}
LONGEST = 20_000  # characters of a context; longer ones are left out


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--judge", action="append", help=f"repeatable; default: {', '.join(JUDGES)}")
    parser.add_argument("--most", type=int, default=60)
    told = parser.parse_args()
    judges = {words: registry.judge(words) for words in told.judge or JUDGES}
    learnt = {name for judge in judges.values() for name in judge.info.trained_on}
    print(f"{'source':<36}{'n':>5}  " + "  ".join(f"{words:>20}" for words in judges))
    values: dict[str, list[list[tuple[float, float]]]] = {}
    for path in sorted(told.data.glob(f"*{SUFFIX}")):
        name = path.name.removesuffix(SUFFIX)
        if name not in learnt and (found := drawn(path, told.most)):
            figures = [measured(judge, found) for judge in judges.values()]
            values.setdefault(kind_of(name), []).append(figures)
            print(f"{name:<36}{len(found):>5}  " + "  ".join(map(shown, figures)), flush=True)
    values["all"] = [each for some in values.values() for each in some]
    for kind, some in values.items():
        told = f"mean of {len(some)}: {kind}"
        print(f"{told:<41}  " + "  ".join(map(shown, np.mean(some, axis=0))))


def kind_of(name: str) -> str:
    """Return the kind of a source."""
    return next(kind for kind, starts in KINDS.items() if name.startswith(starts))


def drawn(path: Path, most: int) -> list[Sample]:
    """Return as many faithful as hallucinated samples; none if there are too few of either."""
    found: dict[str, list[Sample]] = {FAITHFUL: [], HALLUCINATED: []}
    with gzip.open(path, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    random.Random(path.name).shuffle(rows)
    for row in rows:
        fits = row["label"] in found and row["output"] and 0 < sum(map(len, row["context"])) <= LONGEST
        if fits and not row["metadata"].get("overlap_dev") and len(found[row["label"]]) < most // 2:
            fields = {"input": row["input"], "context": tuple(row["context"]), "label": row["label"]}
            found[row["label"]].append(Sample(id=row["id"], output=row["output"], **fields))
    if min(map(len, found.values())) < most // 2:
        return []
    return [each for some in found.values() for each in some]


def measured(judge: Judge, samples: Sequence[Sample]) -> tuple[float, float]:
    """Return AUROC and balanced accuracy at .5."""
    outcomes = asyncio.run(_all(judge, samples))
    scores = np.array([each.score if isinstance(each, Verdict) else 0.5 for each in outcomes])
    found = classification(truth_of(samples), scores >= 0.5, scores).metrics
    values = found["auroc"].value, found["balanced_accuracy"].value
    assert values[0] is not None and values[1] is not None, "both labels are there"
    return values[0], values[1]


async def _all(judge: Judge, samples: Sequence[Sample]) -> list[object]:
    return [await judge.judge(each, NONE) for each in samples]


def shown(values: Sequence[float]) -> str:
    auroc, accuracy = values
    return f"{f'{auroc:.3f} ({accuracy:.2f})':>20}"


if __name__ == "__main__":
    main()
