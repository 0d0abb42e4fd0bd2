"""From samples to the folder of a detector, in as many sittings as it takes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from magistrate.detectors.encoding import Encoder as Reader
from magistrate.detectors.folder import Manifest
from magistrate.errors import InputError
from magistrate.train.detector.bases import Encoder
from magistrate.train.detector.card import card
from magistrate.train.detector.causal import ALPHA, RANK, Causal
from magistrate.train.detector.examples import examples
from magistrate.train.detector.export import write_folder
from magistrate.train.detector.loop import Schedule, Training
from magistrate.train.detector.mixture import Mixture
from magistrate.train.detector.network import PAD, Network, from_base, write_base
from magistrate.train.folders import WORK
from magistrate.types import HALLUCINATED, Sample
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


@dataclass(frozen=True, slots=True)
class Trained:
    """A detector's manifest and where its AUROC was measured; None where more sittings are needed."""

    manifest: Manifest | None
    step: int
    steps: int
    auroc: Mapping[str, float]


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
) -> Trained:
    """Train for at most `seconds` from where it was left, and write the folder once it is done.

    Until then the folder holds the training itself. Where there are sets to `stop_on`, the weights are kept
    that rank them best, and training ends once they no longer get better; `left_out` sets are only measured.
    The map to probabilities is fitted to held-out contexts of the mixture (Platt 1999). `device` is `cpu` or
    `cuda`, by default what is there.
    """
    tokenizer = wish.base.folder / "tokenizer.json"
    reader = Reader(Tokenizer.from_file(str(tokenizer)), wish.window)
    every = list(examples(mixture.train, reader))
    if len({answer.hallucinated for each in every for answer in each.answers}) < 2:
        raise InputError("training needs faithful and hallucinated samples; what was given has one kind only")
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(wish.schedule.seed)
    network = from_base(wish.base.folder, checkpoints=wish.checkpoints)

    def ranked(samples: Sequence[Sample]) -> float:
        return auroc(of_samples(network, samples, tokenizer, wish.reading), samples)

    def look(_: Network) -> float:
        return sum(map(ranked, (stop_on or {}).values())) / len(stop_on or {})

    training = Training(
        network,
        every,
        wish.schedule,
        folder / WORK,
        device=device,
        base=wish.base.sha256,
        look=look if stop_on else None,
    )
    if not training.run(seconds, tell):
        return Trained(None, training.step, training.steps, {})
    network.eval()
    told: dict[str, Any] = {
        "name": wish.name,
        "window": wish.reading,
        "token_threshold": TOKEN_THRESHOLD,
        "trained_on": wish.trained_on,
        "recipe": _recipe(wish, mixture, training),
    }
    told["scale"], told["offset"] = platt(
        of_samples(network, mixture.held_out, tokenizer, wish.reading), mixture.held_out
    )
    measured = {"held out": mixture.held_out, **(left_out or {})}
    found = {name: ranked(samples) for name, samples in measured.items()}
    told["recipe"]["auroc"] = {name: round(value, 4) for name, value in found.items()}
    if wish.keep is not None:
        write_base(network.cpu(), tokenizer, wish.keep)
    manifest = write_folder(network.cpu(), tokenizer, folder, told, card(wish.name, told))
    return Trained(manifest, training.step, training.steps, found)


def of_samples(network: Network, samples: Sequence[Sample], tokenizer: Path, window: int) -> list[float]:
    """The logit of every sample: that of its worst window."""
    reader = Reader(Tokenizer.from_file(str(tokenizer)), window)
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
        for (at, _), logit in zip(batch, whole[:, 0].tolist(), strict=True):
            found[at] = max(found[at], logit)
    return found


def platt(logits: Sequence[float], samples: Sequence[Sample]) -> tuple[float, float]:
    """Scale and offset of the map from logits to probabilities, both classes weighing the same."""
    from sklearn.linear_model import LogisticRegression

    truth = [sample.label == HALLUCINATED for sample in samples]
    if len(set(truth)) < 2:
        raise InputError(
            f"calibrating needs both labels in held-out contexts, and {len(truth)} samples have one"
        )
    fit = LogisticRegression(class_weight="balanced").fit([[each] for each in logits], truth)
    scale = float(fit.coef_[0][0])
    if scale <= 0:
        raise InputError(
            "the detector ranks held-out samples the wrong way round: it has learnt nothing of use"
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
