"""Measures a detector or the tuned judge, by set and by kind of error, and writes its recipe and card.

Run: MAGISTRATE_DATA_DIR=DATA .venv-train/bin/python -m benchmarks.detector.measure [--size large|judge]

The sets are the test parts of `python -m benchmarks.quality`, the built-in set, additions (statements that
the context supports in other words, and such that it is silent on), reports (summaries and answers about
longer texts), and the everyday cases, whose parts are the lines by kind. None of them was trained on. The
table marks a set whose family was. A detector is calibrated first: its probabilities are fitted to the dev
parts of these sets, to the statements of `held.jsonl`, as twins and beside other texts, and to the answers of
`held-answers.jsonl`, also not trained on, with the same weight for each family. The judge, `faithfulness`
with the model tuned for it, is measured as it comes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.detector import make_judge
from benchmarks.detector.fit import Part, contexts_of, fitted, truth_of
from benchmarks.detector.twins import ADDITIONS, ANSWERS, EVERYDAY, HELD, REPORTS, elsewhere
from benchmarks.detector.twins import samples as twins
from benchmarks.panels import judged
from benchmarks.quality.protocol import SETS, draw, here
from magistrate._paths import home
from magistrate.datasets import load
from magistrate.datasets.named import shared
from magistrate.detectors import detector as network
from magistrate.detectors import windows
from magistrate.detectors.detector import Detector, detector
from magistrate.detectors.folder import CARD, MANIFEST, SHIPPED, Figure, Manifest, read_manifest
from magistrate.detectors.large import LEARNT, pull
from magistrate.engines.base import Engine
from magistrate.engines.embedded.engine import LocalEngine
from magistrate.engines.models import pull as pull_model
from magistrate.engines.models.catalogue import UPDATES
from magistrate.features import facts, prepared, splitting
from magistrate.judges import registry
from magistrate.judges.base import Judge
from magistrate.metrics.calibration import joint_odds
from magistrate.metrics.classification import Estimate, classification
from magistrate.training.detector.training import card
from magistrate.training.judge.model_folder import RECIPE
from magistrate.types import Sample, Verdict

WORK = Path("build/measured")  # what was computed is kept there, so that a second run takes seconds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", choices=["small", "large", "judge"], default="small")
    parser.add_argument("--most", type=int, default=300, help="samples of a set of the protocol")
    told = parser.parse_args()
    if told.size == "judge":
        measure_judge(told.most)
    else:
        measure_detector(told.size, told.most)


def measure_detector(size: str, most: int) -> None:
    """Calibrate and measure a detector, and write its manifest and card."""
    shipped, folder = (LEARNT, pull()) if size == "large" else (SHIPPED, SHIPPED)
    model, manifest = detector(folder), read_manifest(shipped)
    scale, offset = calibrated(model, most // 2)
    print(f"calibrated: scale {scale:.3f}, offset {offset:+.3f}")
    manifest = manifest.model_copy(update={"scale": scale, "offset": offset})
    for path in (HELD, ANSWERS):
        held = twins(path)
        figure(f"{path.stem} (calibrated on)", held, probabilities(model, manifest, held))
    figures = tuple(measured(partial(probabilities, model, manifest), manifest.trained_on, most))
    made = manifest.model_copy(update={"figures": figures})
    (shipped / MANIFEST).write_text(made.text(), encoding="utf-8")
    (shipped / CARD).write_text(card(made), encoding="utf-8")


def measure_judge(most: int) -> None:
    """Measure `faithfulness` with the model tuned for it, and write the model's recipe and card."""
    judge, folder = registry.judge("faithfulness"), UPDATES / make_judge.NAME
    store = home() / "bench" / "judge.db"
    store.parent.mkdir(parents=True, exist_ok=True)
    asked = partial(probabilities_of_judge, judge, LocalEngine(pull_model(make_judge.NAME)), store)
    recipe = json.loads((folder / RECIPE).read_text(encoding="utf-8"))
    figures = tuple(measured(asked, make_judge.learnt(recipe), most))
    make_judge.write_card({**recipe, "figures": [each.model_dump() for each in figures]}, folder)


def probabilities_of_judge(
    judge: Judge, engine: Engine, store: Path, samples: Sequence[Sample]
) -> list[float]:
    """Return the judge's scores, .5 without a verdict. What was asked before is read from the store."""
    outcomes = judged(f"judge-{len(samples)}", judge, samples, engine, store).outcomes
    found = [outcomes.get(each.id) for each in samples]
    if missing := sum(not isinstance(each, Verdict) for each in found):
        print(f"{missing} of {len(samples)} without a verdict, counted as .5")
    return [each.score if isinstance(each, Verdict) else 0.5 for each in found]


def probabilities(model: Detector, manifest: Manifest, samples: Sequence[Sample]) -> list[float]:
    """Return a detector's scores of the samples."""
    return [manifest.probability(each) for each in logits_of(model, samples)]


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


def measured(
    scores_of: Callable[[Sequence[Sample]], Sequence[float]], trained_on: Collection[str], most: int
) -> Iterator[Figure]:
    """Yield the results of all available sets, printed as they are computed."""
    for each in SETS:
        if not here(each):
            print(f"{each.name:<28}not here: left out; MAGISTRATE_DATA_DIR names the folder of the sets")
            continue
        test = draw(each, most).test
        yield figure(each.name, test, scores_of(test), left_out=not shared(each.family, trained_on))
    quickstart = list(load("quickstart"))
    yield figure("quickstart", quickstart, scores_of(quickstart))
    for name, path in (("additions", ADDITIONS), ("reports", REPORTS)):
        samples = twins(path)
        yield figure(name, samples, scores_of(samples))
    everyday = twins(EVERYDAY)
    scores = scores_of(everyday)
    yield figure("everyday", everyday, scores)
    for kind in sorted({str(each.metadata["kind"]) for each in everyday}):
        places = [at for at, each in enumerate(everyday) if each.metadata["kind"] == kind]
        some, said = [everyday[at] for at in places], [scores[at] for at in places]
        yield figure(f"everyday, {kind}", some, said)


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
    for module in (windows, splitting, prepared, facts, network):  # how it reads decides as well
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


def figure(name: str, samples: Sequence[Sample], told: Sequence[float], *, left_out: bool = True) -> Figure:
    """Return AUROC and balanced accuracy at .5, with intervals that resample whole contexts."""
    scores = np.array(told)
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
