"""Measures a detector by set and by kind of error, and writes the results into its manifest and card.

Run: MAGISTRATE_DATA_DIR=DATA .venv-train/bin/python -m benchmarks.detector.measure [--size large]

The sets are the test parts of `python -m benchmarks.quality`, the built-in set, and the everyday cases,
whose parts are the lines by kind. The detector was trained on none of them. The table marks a set whose
family it was trained on.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks.detector.twins import samples as twins
from benchmarks.quality.protocol import SETS, draw, here
from magistrate.datasets import load
from magistrate.datasets.named import shared
from magistrate.detectors.detector import Detector, detector
from magistrate.detectors.folder import CARD, MANIFEST, SHIPPED, WEIGHTS, Figure, Manifest, read_manifest
from magistrate.detectors.large import LEARNT, pull
from magistrate.metrics.classification import Estimate, classification
from magistrate.training.detector.training import card
from magistrate.types import HALLUCINATED, Sample

EVERYDAY = Path(__file__).parent.parent / "everyday.jsonl"
WORK = Path("build/measured")  # what was computed is kept there, so that a second run takes seconds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", choices=["small", "large"], default="small")
    parser.add_argument("--most", type=int, default=300, help="samples of a set of the protocol")
    told = parser.parse_args()
    shipped, folder = (LEARNT, pull()) if told.size == "large" else (SHIPPED, SHIPPED)
    model, manifest = detector(folder), read_manifest(shipped)
    figures = tuple(measured(model, manifest, told.most))
    made = manifest.model_copy(update={"figures": figures})
    (shipped / MANIFEST).write_text(made.text(), encoding="utf-8")
    (shipped / CARD).write_text(card(made), encoding="utf-8")


def measured(model: Detector, manifest: Manifest, most: int) -> Iterator[Figure]:
    """Yield the results of all available sets, printed as they are computed."""
    for each in SETS:
        if not here(each):
            print(f"{each.name:<28}not here: left out; MAGISTRATE_DATA_DIR names the folder of the sets")
            continue
        test = draw(each, most).test
        yield figure(
            each.name, test, logits_of(model, test), manifest, not shared(each.family, manifest.trained_on)
        )
    quickstart = list(load("quickstart"))
    yield figure("quickstart", quickstart, logits_of(model, quickstart), manifest)
    everyday = twins(EVERYDAY)
    logits = logits_of(model, everyday)
    yield figure("everyday", everyday, logits, manifest)
    for kind in sorted({str(each.metadata["kind"]) for each in everyday}):
        places = [at for at, each in enumerate(everyday) if each.metadata["kind"] == kind]
        some, said = [everyday[at] for at in places], [logits[at] for at in places]
        yield figure(f"everyday, {kind}", some, said, manifest)


def logits_of(model: Detector, samples: Sequence[Sample], work: Path = WORK) -> list[float]:
    """Return the logit of each sample by a detector; kept in `work` by the weights and the samples."""
    held = hashlib.sha256(model.manifest.files[WEIGHTS].encode())
    for each in samples:
        held.update(json.dumps([each.id, each.input, each.sources, each.output]).encode())
    kept = work / f"{held.hexdigest()[:16]}.json"
    if not kept.is_file():
        found = json.dumps(model.logits(samples))
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(found, encoding="utf-8")
    told: list[float] = json.loads(kept.read_text(encoding="utf-8"))
    return told


def figure(
    name: str, samples: Sequence[Sample], logits: Sequence[float], manifest: Manifest, left_out: bool = True
) -> Figure:
    """Return AUROC and balanced accuracy at .5, with intervals that resample whole contexts."""
    scores = np.array([manifest.probability(each) for each in logits])
    truth = np.array([each.label == HALLUCINATED for each in samples])
    groups = np.unique(["\n".join(each.sources) for each in samples], return_inverse=True)[1]
    metrics = classification(truth, scores >= 0.5, scores, groups=groups).metrics
    found = Figure(
        set=name,
        n=len(samples),
        left_out=left_out,
        auroc=values(metrics["auroc"]),
        balanced_accuracy=values(metrics["balanced_accuracy"]),
    )
    print(
        f"{name:<28}{found.n:>6}  AUROC {found.auroc}  balanced accuracy {found.balanced_accuracy}",
        flush=True,
    )
    return found


def values(found: Estimate) -> tuple[float, float, float]:
    """Return the value and its interval; never NaN, because all of these sets have both labels."""
    assert found.value is not None and found.low is not None and found.high is not None
    return round(found.value, 4), round(found.low, 4), round(found.high, 4)


if __name__ == "__main__":
    main()
