"""From samples to the folder of a detector, in as many sittings as it takes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from magistrate.detectors.encoding import Encoder as Reader
from magistrate.detectors.folder import LONGEST_NAME, MANIFEST, Manifest
from magistrate.errors import InputError, ModelError, SpecError
from magistrate.train.detector.bases import Encoder
from magistrate.train.detector.card import card
from magistrate.train.detector.causal import ALPHA, RANK, Causal
from magistrate.train.detector.examples import examples
from magistrate.train.detector.export import write_folder
from magistrate.train.detector.loop import STATE, Schedule, Training
from magistrate.train.detector.mixture import Mixture
from magistrate.train.detector.network import PAD, Network, from_base, write_base
from magistrate.train.folders import WORK, check_free
from magistrate.types import FAITHFUL, HALLUCINATED, Sample
from magistrate.version import __version__

TOGETHER = 24  # windows read at once where nothing is learnt
TOKEN_THRESHOLD = 0.5
Tell = Callable[[int, int, float], None]


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to be trained: `window` in tokens while training, `reading` when judging.

    With `checkpoints` activations are computed again on the way back: less memory, a third more time. The
    weights as they are before they are made small go to `keep`, a folder that can be a base.
    """

    name: str
    base: Encoder
    schedule: Schedule
    window: int = 256
    reading: int = 384
    checkpoints: bool = False
    trained_on: tuple[str, ...] = ()
    recipe: Mapping[str, Any] | None = None
    keep: Path | None = None

    def __post_init__(self) -> None:
        if not 1 <= len(self.name) <= LONGEST_NAME:
            raise SpecError(
                f"a name has 1 to {LONGEST_NAME} characters, this one has {len(self.name)}: --name"
            )


@dataclass(frozen=True, slots=True)
class Trained:
    """A detector's manifest and where its AUROC was measured; None where more sittings are needed.

    `measured` says on how many samples, `left_out` how many of a set have no label or nothing to read.
    """

    manifest: Manifest | None
    step: int
    steps: int
    auroc: Mapping[str, float]
    measured: Mapping[str, int] = field(default_factory=dict)
    left_out: Mapping[str, int] = field(default_factory=dict)


def train(
    wish: Wish,
    mixture: Mixture,
    folder: Path,
    *,
    stop_on: Mapping[str, Sequence[Sample]] | None = None,
    left_out: Mapping[str, Sequence[Sample]] | None = None,
    seconds: float | None = None,
    device: str | None = None,
    tell: Tell | None = None,
    replace: bool = False,
) -> Trained:
    """Train for at most `seconds` from where it was left, and write the folder once it is done.

    Until then the folder holds the training itself. Where there are sets to `stop_on`, the weights are kept
    that rank them best, and training ends once they no longer get better; `left_out` sets are only measured.
    The map to probabilities is fitted to held-out contexts of the mixture (Platt 1999). `device` is `cpu` or
    `cuda`, by default what is there. With `replace` it begins anew, and a detector that is there is replaced
    once the new one is done. Raises `InputError` for samples that cannot be learnt from or measured on,
    `ModelError` where the loss is no number.
    """
    check_free(folder, MANIFEST, "detector", replace=replace)
    tokenizer = wish.base.folder / "tokenizer.json"
    every = list(examples(mixture.train, _reader(tokenizer, wish.window)))
    if len({answer.hallucinated for each in every for answer in each.answers}) < 2:
        raise InputError("training needs faithful and hallucinated samples; what was given has one kind only")
    given = {"held out": mixture.held_out, **(left_out or {})}
    reader = _reader(tokenizer, wish.reading)
    measured = {name: _readable(name, samples, reader) for name, samples in given.items()}
    stopping = {name: _readable(name, samples, reader) for name, samples in (stop_on or {}).items()}
    unread = _left_out(stop_on or {}, stopping) | _left_out(given, measured)
    if replace:
        (folder / WORK / STATE).unlink(missing_ok=True)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(wish.schedule.seed)
    network = from_base(wish.base.folder, checkpoints=wish.checkpoints)

    def ranked(samples: Sequence[Sample]) -> float:
        return auroc(of_samples(network, samples, tokenizer, wish.reading), samples)

    def look(_: Network) -> float:
        return sum(map(ranked, stopping.values())) / len(stopping)

    training = Training(
        network,
        every,
        wish.schedule,
        folder / WORK,
        device=device,
        base=wish.base.sha256,
        look=look if stopping else None,
    )
    if not training.run(seconds, tell):
        return Trained(None, training.step, training.steps, {}, left_out=unread)
    network.eval()
    told: dict[str, Any] = {
        "name": wish.name,
        "window": wish.reading,
        "token_threshold": TOKEN_THRESHOLD,
        "trained_on": wish.trained_on,
        "recipe": _recipe(wish, mixture, training),
    }
    held = measured["held out"]
    told["scale"], told["offset"] = platt(of_samples(network, held, tokenizer, wish.reading), held)
    found = {name: ranked(samples) for name, samples in measured.items()}
    told["recipe"]["auroc"] = {name: round(value, 4) for name, value in found.items()}
    counts = told["recipe"]["measured"] = {name: len(samples) for name, samples in measured.items()}
    if wish.keep is not None:
        write_base(network.cpu(), tokenizer, wish.keep)
    manifest = write_folder(network.cpu(), tokenizer, folder, told, card(wish.name, told))
    return Trained(manifest, training.step, training.steps, found, counts, unread)


def _reader(tokenizer: Path, window: int) -> Reader:
    try:
        found = Tokenizer.from_file(str(tokenizer))
    except Exception as error:  # the package raises nothing more specific
        raise ModelError(f"{tokenizer} cannot be read as a tokenizer: {error}") from error
    return Reader(found, window)


def _readable(name: str, samples: Sequence[Sample], reader: Reader) -> list[Sample]:
    """Those with a label and an output that can be read. Raises `InputError` where either label has none."""
    found = [each for each in samples if each.label in (FAITHFUL, HALLUCINATED) and reader.windows(each)]
    if not found:
        raise InputError(
            f"{name}: none of {len(samples)} samples has a label, faithful or hallucinated, and an output "
            "that can be read"
        )
    if len({each.label for each in found}) < 2:
        raise InputError(
            f"{name}: all of {len(found)} samples are {found[0].label}, and calibrating and measuring need "
            "both labels; give more contexts, or do without this set"
        )
    return found


def _left_out(given: Mapping[str, Sequence[Sample]], kept: Mapping[str, Sequence[Sample]]) -> dict[str, int]:
    """How many samples are not kept, of the sets of which some are not."""
    return {name: n for name, some in kept.items() if (n := len(given[name]) - len(some))}


def of_samples(network: Network, samples: Sequence[Sample], tokenizer: Path, window: int) -> list[float]:
    """The logit of every sample: that of its worst window. Raises `ModelError` for what is no number."""
    reader = _reader(tokenizer, window)
    device = next(network.parameters()).device
    windows = [(at, each.text) for at, sample in enumerate(samples) for each in reader.windows(sample)]
    windows.sort(key=lambda pair: len(pair[1].ids))
    found = [float("-inf")] * len(samples)
    for begin in range(0, len(windows), TOGETHER):
        batch = windows[begin : begin + TOGETHER]
        longest = max(len(text.ids) for _, text in batch)
        ids = torch.tensor([[*text.ids, *[PAD] * (longest - len(text.ids))] for _, text in batch])
        types = torch.tensor([[*text.types, *[0] * (longest - len(text.ids))] for _, text in batch])
        with torch.no_grad():
            _, whole = network(ids.to(device), types.to(device))
        if not torch.isfinite(whole[:, 0]).all():
            raise ModelError("the network answers what is no number: lower --rate; to begin anew: --force")
        for (at, _), logit in zip(batch, whole[:, 0].tolist(), strict=True):
            found[at] = max(found[at], logit)
    return found


def platt(logits: Sequence[float], samples: Sequence[Sample]) -> tuple[float, float]:
    """Scale and offset of the map from logits to probabilities, both classes weighing the same."""
    from sklearn.linear_model import LogisticRegression

    truth = [sample.label == HALLUCINATED for sample in samples]
    fit = LogisticRegression(class_weight="balanced").fit([[each] for each in logits], truth)
    scale = float(fit.coef_[0][0])
    if scale <= 0:
        raise InputError(
            "the detector ranks held-out samples the wrong way round: it has learnt nothing of use. Give "
            "more labels or another --rate; to begin anew: --force"
        )
    return scale, float(fit.intercept_[0])


def auroc(logits: Sequence[float], samples: Sequence[Sample]) -> float:
    """How well logits rank the hallucinated above the faithful."""
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score([sample.label == HALLUCINATED for sample in samples], list(logits)))


def _recipe(wish: Wish, mixture: Mixture, training: Training) -> dict[str, Any]:
    causal = isinstance(training.network.encoder, Causal)
    return {
        "package": __version__,
        "base": {"name": wish.base.name, "sha256": wish.base.sha256},
        **({"lora": {"rank": RANK, "alpha": ALPHA}} if causal else {}),
        "schedule": asdict(wish.schedule),
        "window": wish.window,
        "steps": training.step,
        "stopped_on": [round(each, 4) for each in training.seen],
        "data": dict(mixture.counts),
        **json.loads(json.dumps(dict(wish.recipe or {}))),
    }
