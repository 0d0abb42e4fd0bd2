"""Calibrates and measures a detector, by set and by kind of error, and writes its manifest and card.

Run: MAGISTRATE_DATA_DIR=DATA .venv-train/bin/python -m benchmarks.detector.measure [--size large]

The sets are the test parts of `python -m benchmarks.quality`, the built-in set, additions (statements that
the context supports in other words, and such that it is silent on), reports (summaries and answers about
longer texts), and the everyday cases, whose parts are the lines by kind. The detector was trained on none of
them. The table marks a set whose family it was trained on. Probabilities are fitted to the dev parts of these
sets, to the statements of `held.jsonl`, as twins and beside other texts, and to the answers of
`held-answers.jsonl`, also not trained on, with the same weight for each family.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks.detector.fit import Part, contexts_of, fitted, truth_of
from benchmarks.detector.twins import ADDITIONS, ANSWERS, EVERYDAY, HELD, REPORTS, elsewhere
from benchmarks.detector.twins import samples as twins
from benchmarks.quality.protocol import SETS, draw, here
from magistrate.datasets import load
from magistrate.datasets.named import shared
from magistrate.detectors import detector as network
from magistrate.detectors import windows
from magistrate.detectors.detector import Detector, detector
from magistrate.detectors.folder import CARD, MANIFEST, SHIPPED, Figure, Manifest, read_manifest
from magistrate.detectors.large import LEARNT, pull
from magistrate.features import splitting
from magistrate.metrics.calibration import joint_odds
from magistrate.metrics.classification import Estimate, classification
from magistrate.training.detector.training import card
from magistrate.types import Sample

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
    scale, offset = calibrated(model, told.most // 2)
    print(f"calibrated: scale {scale:.3f}, offset {offset:+.3f}")
    manifest = manifest.model_copy(update={"scale": scale, "offset": offset})
    for path in (HELD, ANSWERS):
        held = twins(path)
        figure(f"{path.stem} (calibrated on)", held, logits_of(model, held), manifest)
    figures = tuple(measured(model, manifest, told.most))
    made = manifest.model_copy(update={"figures": figures})
    (shipped / MANIFEST).write_text(made.text(), encoding="utf-8")
    (shipped / CARD).write_text(card(made), encoding="utf-8")


def calibrated(model: Detector, most: int) -> tuple[float, float]:
    """Return scale and offset of the map to probabilities, fitted to families that were not trained on."""
    sets = [("held", "held", twins(HELD)), ("elsewhere", "elsewhere", twins(HELD, elsewhere))]
    sets.append(("answers", "answers", twins(ANSWERS)))
    sets += [(each.name, each.family, list(draw(each, 2 * most).dev[:most])) for each in filter(here, SETS)]
    offset, scale = fitted([part(model, *each) for each in sets])
    return float(scale), float(offset)


def part(model: Detector, name: str, family: str, samples: Sequence[Sample]) -> Part:
    """Return a set with the detector's logits of outputs, as if each were one sentence."""
    values = np.array([logits_of(model, samples)]).T
    return Part(name, family, values, np.arange(len(samples)), truth_of(samples), contexts_of(samples))


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
    for name, path in (("additions", ADDITIONS), ("reports", REPORTS)):
        samples = twins(path)
        yield figure(name, samples, logits_of(model, samples), manifest)
    everyday = twins(EVERYDAY)
    logits = logits_of(model, everyday)
    yield figure("everyday", everyday, logits, manifest)
    for kind in sorted({str(each.metadata["kind"]) for each in everyday}):
        places = [at for at, each in enumerate(everyday) if each.metadata["kind"] == kind]
        some, said = [everyday[at] for at in places], [logits[at] for at in places]
        yield figure(f"everyday, {kind}", some, said, manifest)


def logits_of(model: Detector, samples: Sequence[Sample]) -> list[float]:
    """Return the logit of each sample by a detector."""
    return [joint_odds([logit for *_, logit in each]) for each in sentences_of(model, samples)]


def sentences_of(
    model: Detector, samples: Sequence[Sample], work: Path = WORK
) -> list[list[tuple[int, int, float]]]:
    """Return start, end and logit of each sentence of the samples; kept in `work`.

    The file is named after the network, how it reads, and the samples.
    """
    known = model.manifest.model_dump(include={"files", "readings", "window"})
    held = hashlib.sha256(json.dumps(known, sort_keys=True).encode())
    for module in (windows, splitting, network):  # how it reads decides as well
        held.update(Path(str(module.__file__)).read_bytes())
    for each in samples:
        held.update(json.dumps([each.id, each.input, each.sources, each.output]).encode())
    kept = work / f"{held.hexdigest()[:16]}.json"
    if not kept.is_file():
        found = [[(one.start, one.end, one.logit) for one in model.read(each).sentences] for each in samples]
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(found), encoding="utf-8")
    told = json.loads(kept.read_text(encoding="utf-8"))
    return [[(start, end, logit) for start, end, logit in each] for each in told]


def figure(
    name: str, samples: Sequence[Sample], logits: Sequence[float], manifest: Manifest, left_out: bool = True
) -> Figure:
    """Return AUROC and balanced accuracy at .5, with intervals that resample whole contexts."""
    scores = np.array([manifest.probability(each) for each in logits])
    metrics = classification(truth_of(samples), scores >= 0.5, scores, groups=contexts_of(samples)).metrics
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
