"""Trains a detector on labels or on a recipe, in one or more calls, and writes its folder."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tokenizers import Tokenizer

from magistrate._version import __version__
from magistrate.detectors.detector import Detector
from magistrate.detectors.folder import (
    BOTH,
    CARD,
    FILES,
    GRAPH,
    LONGEST_NAME,
    MANIFEST,
    TOKENIZER,
    UPDATE,
    WEIGHTS,
    Figure,
    Manifest,
    digest_of,
)
from magistrate.detectors.large import write_merged
from magistrate.detectors.weights import write_weights
from magistrate.detectors.windows import Reader
from magistrate.engines.models.updates import write_updates
from magistrate.errors import InputError, SpecError
from magistrate.judges.folders import WORK, check_free, whole
from magistrate.metrics.paired import Figures
from magistrate.metrics.resampling import difference_of, draws_of
from magistrate.training.detector.bases import Base
from magistrate.training.detector.examples import Example, examples
from magistrate.training.detector.graph import write_graph
from magistrate.training.detector.loop import STATE, Schedule, Training
from magistrate.training.detector.network import Network, from_base, smoothing
from magistrate.training.detector.recipe import Recipe, digest, pool
from magistrate.training.split import held_out
from magistrate.training.synthetic import Lexicon
from magistrate.types import FAITHFUL, HALLUCINATED, Sample

if TYPE_CHECKING:
    from magistrate.metrics.classification import Estimate

LOOKED_AT = 200  # examples of which it is seen how large the values in the network are
USE = "`magistrate run DATA --judge detector:FOLDER`"
LIMITS = """\
It was trained on English prose, tables and conversations; its verdicts on other languages and on program
code are meaningless. It knows only the texts that it is given, not the world beyond them. A score is a
probability at the assumed base rate, calibrated on its own data; check it on other data with
`magistrate calibrate`."""


def card(manifest: Manifest) -> str:
    """Return the model card as Markdown."""
    stages = list(stages_of(manifest.recipe))
    read = sum(stage["tokens"] for stage in stages)
    base = stages[0]["base"]
    mean = ""
    if (told := manifest.recipe.get("mean")) is not None:
        parts = [f"{weight:.2f} of {name}" for name, weight in zip(told["of"], told["weights"], strict=True)]
        mean = f" They are a mean of what two trainings learnt: {' and '.join(parts)}."
    pruned = ""
    for told in (stage["pruned"] for stage in stages if "pruned" in stage):
        heads, neurons = (sum(each[at] for each in told["kept"]) for at in (0, 1))
        pruned = (
            f" It was pruned, and then trained on:\n{heads:,} attention heads and {neurons:,} neurons of its "
            f"{len(told['kept'])} layers remained, and {told['pieces']:,} pieces of words."
        )
    return f"""\
# {manifest.name}

A detector for {USE}: an encoder that reads an
output together with its context. It says of each sentence whether the context supports it, contradicts it or
does not hold it, and of each word how probably it is unsupported.

It was made from {base["name"]} in {len(stages)} {"training" if len(stages) == 1 else "trainings"} of \
{read:,} tokens in all; its matrices are stored as integers.{mean}{pruned} The weights of
{base["name"]} have the sha256 `{base["sha256"]}`.

## Measured

{table(manifest.figures)}

## Limits

{LIMITS}

## Data

{chr(10).join(_data(stages[-1]["data"]))}

`detector.json` holds the recipe of every training, the digests of what it read, and its learning curve.
"""


def stages_of(recipe: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the trainings that led to a detector, the first one first."""
    if (before := recipe["base"].get("recipe")) is not None:
        yield from stages_of(before)
    yield recipe


def table(figures: tuple[Figure, ...]) -> str:
    """Return measured figures as a table in Markdown."""
    if not figures:
        return f"Nothing was measured yet: {USE} does."
    rows = (
        f"| {each.set} | {each.n:,} | {_interval(each.auroc)} | {_interval(each.balanced_accuracy)} | "
        f"{'no' if each.left_out else 'yes'} |"
        for each in figures
    )
    head = "| set | samples | AUROC | balanced accuracy | learnt from its family |"
    return "\n".join((head, "| --- " * 5 + "|", *rows))


def _data(data: Mapping[str, Any]) -> Iterator[str]:
    """Yield the number of examples per source of a mixture, or the number of labels."""
    if "examples" not in data:
        yield ", ".join(f"{value:g} {name}" for name, value in data.items())
        return
    yield from counted(data["examples"])


def counted(examples: Mapping[str, int]) -> Iterator[str]:
    """Yield the lines of a table of the examples of each source, named `SOURCE, LABEL`."""
    counts: dict[str, dict[str, int]] = {}
    for name, count in examples.items():
        source, _, label = name.rpartition(", ")
        counts.setdefault(source, {})[label] = count
    yield "| source | faithful | hallucinated |"
    yield "| --- | --- | --- |"
    for source, of in counts.items():
        yield f"| {source} | {of.get(FAITHFUL, 0):,} | {of.get(HALLUCINATED, 0):,} |"


def _interval(value: tuple[float, float, float]) -> str:
    return f"{value[0]:.3f} [{value[1]:.3f}, {value[2]:.3f}]"


TOKEN_THRESHOLD = 0.5
HELD_OUT = 0.25  # share of the contexts of your labels: they calibrate, and show whether training helped
EPOCHS = 4.0  # passes over your labels
LEAST_LABELS = 40
OWN = Schedule(tokens=0, batch=2048, rate=5e-5, warmup=10, cooldown=0.6, average=0.95)
LARGE = Schedule(
    tokens=0, batch=1536, rate=3e-4, warmup=60, cooldown=0.45, average=0.995, memory=0.98
)  # for training on a recipe
Tell = Callable[[Training, float], None]


@dataclass(frozen=True, slots=True)
class Trained:
    """The result of a training. `manifest` is None if the training is not finished.

    `auroc` has the AUROC on held-out contexts of the base detector and of the new one; `gain` is their
    difference with its 95 % interval. `n` samples of `contexts` contexts were held out.
    """

    manifest: Manifest | None
    share: float
    auroc: Mapping[str, float] = field(default_factory=dict)
    gain: Estimate | None = None
    n: int = 0
    contexts: int = 0

    @property
    def better(self) -> bool | None:
        """Whether it ranks held-out outputs better than before; None if no difference was shown."""
        if self.gain is None or self.gain.low is None or self.gain.high is None:
            return None
        return True if self.gain.low > 0 else False if self.gain.high < 0 else None


def train_on_labels(
    samples: Sequence[Sample],
    base: Base,
    folder: Path,
    *,
    name: str = "",
    trained_on: tuple[str, ...] = (),
    schedule: Schedule = OWN,
    epochs: float = EPOCHS,
    window: int = 384,
    seconds: float | None = None,
    device: str | None = None,
    tell: Tell | None = None,
    force: bool = False,
) -> Trained:
    """Continue the training of a detector on your own labels, and measure whether that improves it.

    A quarter of the contexts is held out to calibrate the new detector and to compare the two, paired by
    sample. Trains for at most `seconds`, resuming where it stopped. Raises `InputError` for too few labels or
    labels of one kind only.
    """
    _check_name(name or folder.name)
    check_free(folder, MANIFEST, "detector", replace=force)
    usable = [
        each for each in samples if each.label in (FAITHFUL, HALLUCINATED) and each.output and each.sources
    ]
    _check_labels(usable, "labelled samples with a context and an output", LEAST_LABELS)
    groups = ["\n".join(each.sources) for each in usable]
    apart = held_out(groups, HELD_OUT, schedule.seed)
    learnt = [each for each, out in zip(usable, apart, strict=True) if not out]
    held = [each for each, out in zip(usable, apart, strict=True) if out]
    _check_labels(learnt, "training samples", 2)
    _check_labels(held, "held-out samples", 2)
    every = list(examples(learnt, Reader(_tokenizer(base), window), ("windows", "pairs")))
    if len({each.hallucinated for each in every}) < 2:
        raise InputError(
            "all outputs with one label are too long for a window: add spans, or shorter outputs"
        )
    total = sum(each.length for each in every)
    network = from_base(base.folder, base.update, schedule.seed)
    training = Training(
        network,
        _All(every),
        f"{base.sha256} {_digest(every)}",
        replace(schedule, tokens=max(1, int(total * epochs))),
        _work(folder, force=force),
        device=_device(device),
    )
    if not training.run(seconds, tell):
        return Trained(None, training.tokens / training.schedule.tokens)
    told = {
        "name": name or folder.name,
        "window": window,
        "readings": base.detector.manifest.readings if base.detector is not None else BOTH,
        "trained_on": tuple(dict.fromkeys((*base.trained_on, *trained_on))),
        "recipe": recipe_of(base, training, {"labels": len(learnt), "epochs": epochs}),
    }
    before = base.detector.logits(held) if base.detector is not None else None
    manifest, after = write(training.averaged().cpu(), base, folder, told, held)
    return _compared(manifest, held, before, after)


def train_on_recipe(
    recipe: Recipe,
    data: Path,
    base: Base,
    folder: Path,
    *,
    schedule: Schedule,
    lexicon: Lexicon,
    calibrate_on: Sequence[Sample],
    window: int = 384,
    name: str = "",
    seconds: float | None = None,
    device: str | None = None,
    tell: Tell | None = None,
    force: bool = False,
) -> Trained:
    """Train a detector on a folder of labelled pairs, as the recipe says, for `schedule.tokens` tokens.

    `calibrate_on` are samples that were not trained on; the map to probabilities is fitted to them.
    """
    _check_name(name or folder.name)
    check_free(folder, MANIFEST, "detector", replace=force)
    _check_labels(calibrate_on, "samples to calibrate on", LEAST_LABELS)
    work = _work(folder, force=force)
    rounds = pool(recipe, data, base.folder / "tokenizer.json", lexicon, work / "examples")
    network = from_base(base.folder, base.update, schedule.seed)
    training = Training(
        network, rounds, f"{base.sha256} {recipe.model_dump_json()}", schedule, work, device=_device(device)
    )
    if not training.run(seconds, tell):
        return Trained(None, training.tokens / training.schedule.tokens)
    counts = {f"{source}, {label}": len(each) for (source, label), each in sorted(rounds.of.items())}
    digests = {source.name: digest(data, source, recipe) for source in recipe.sources}
    learnt = {"mixture": recipe.model_dump(mode="json"), "examples": counts, "digests": digests}
    told = {
        "name": name or folder.name,
        "window": window,
        "readings": (recipe.reading,) if recipe.reading == "pairs" else BOTH,
        "trained_on": tuple(dict.fromkeys((*base.trained_on, *(source.name for source in recipe.sources)))),
        "recipe": recipe_of(base, training, learnt),
    }
    manifest, after = write(training.averaged().cpu(), base, folder, told, calibrate_on)
    return _compared(manifest, calibrate_on, None, after)


def write(
    network: Network, base: Base, folder: Path, told: Mapping[str, Any], held: Sequence[Sample]
) -> tuple[Manifest, list[float]]:
    """Write a detector atomically, calibrated on `held`. Returns its manifest and its logits on `held`.

    Nothing is written if calibration fails because held-out samples are ranked the wrong way round.
    """
    heads = network.encoder.heads
    with whole(folder) as half:
        if network.low_rank:
            updates, others = network.update()
            write_updates(updates, half / UPDATE, others)
            write_merged(base.folder, half / UPDATE, half / WEIGHTS)
        else:
            reader = Reader(_tokenizer(base), told["window"])
            some = islice(examples(held, reader, BOTH), LOOKED_AT)
            weights = {**network.weights(), **smoothing(network, some)}
            write_weights(weights, half / WEIGHTS, network.encoder.bits)
        write_graph(half / WEIGHTS, heads, half / GRAPH)
        shutil.copyfile(base.folder / "tokenizer.json", half / TOKENIZER)
        files = {name: digest_of(half / name) for name in FILES}
        update_of = base.sha256 if network.low_rank else ""
        values = {**told, "heads": heads, "token_threshold": TOKEN_THRESHOLD, "files": files}
        values["update_of"] = update_of
        raw = Manifest.model_validate({**values, "scale": 1.0, "offset": 0.0}, strict=False)
        logits = Detector(half, raw).logits(held)
        scale, offset = platt(logits, held)
        manifest = raw.model_copy(update={"scale": scale, "offset": offset})
        (half / MANIFEST).write_text(manifest.text(), encoding="utf-8")
        (half / CARD).write_text(card(manifest), encoding="utf-8")
    return manifest, logits


def platt(logits: Sequence[float], samples: Sequence[Sample]) -> tuple[float, float]:
    """Return scale and offset from logits to probabilities (Platt 1999), with equal weight per label."""
    from sklearn.linear_model import LogisticRegression

    truth = [sample.label == HALLUCINATED for sample in samples]
    fit = LogisticRegression(class_weight="balanced").fit([[each] for each in logits], truth)
    scale = float(fit.coef_[0][0])
    if scale <= 0:
        raise InputError(
            "the detector ranks held-out samples in the wrong order, so it has learnt nothing useful. Add "
            "more labels or try another --rate; to start over: --force"
        )
    return scale, float(fit.intercept_[0])


def _compared(
    manifest: Manifest, held: Sequence[Sample], before: Sequence[float] | None, after: Sequence[float]
) -> Trained:
    """Return the AUROC on held-out samples and its gain, with a bootstrap interval over their contexts."""
    truth = np.array([each.label == HALLUCINATED for each in held])
    groups = np.unique(["\n".join(each.sources) for each in held], return_inverse=True)[1]
    contexts = int(groups.max()) + 1
    one = np.ones((1, len(held)))
    drawn, auroc = {}, {}
    for name, logits in (("before", before), ("after", after)):
        if logits is not None:
            scores = np.array(logits)
            figures = Figures(truth, scores > 0, scores, ("auroc",))
            auroc[name] = float(figures(one)[0, 0])
            drawn[name] = draws_of(figures, groups)[:, 0]
            support = figures.support("auroc", groups)
    gain = None
    if before is not None:
        value = auroc["after"] - auroc["before"]
        gain, _ = difference_of(value, drawn["after"] - drawn["before"], contexts, support)
    return Trained(manifest, 1.0, auroc, gain, len(held), contexts)


class _All:
    """The same examples in every round."""

    def __init__(self, every: Sequence[Example]) -> None:
        self._every = list(every)

    def round(self, number: int) -> list[Example]:
        """Return all examples."""
        return self._every


def _digest(every: Sequence[Example]) -> str:
    found = hashlib.sha256()
    for each in every:
        found.update(each.ids.tobytes() + repr((each.second, each.bounds, each.truths)).encode())
    return found.hexdigest()[:16]


def _tokenizer(base: Base) -> Tokenizer:
    return Tokenizer.from_file(str(base.folder / "tokenizer.json"))


def _device(name: str | None) -> str:
    return name or ("cuda" if torch.cuda.is_available() else "cpu")


def _work(folder: Path, *, force: bool) -> Path:
    """Return the folder for the training state. With `force` an old state is deleted."""
    if force:
        (folder / WORK / STATE).unlink(missing_ok=True)
    return folder / WORK


def _check_name(name: str) -> None:
    if not 1 <= len(name) <= LONGEST_NAME:
        raise SpecError(f"a name must have 1 to {LONGEST_NAME} characters, this one has {len(name)}: --name")


def _check_labels(samples: Sequence[Sample], what: str, least: int) -> None:
    kinds = {each.label for each in samples}
    if len(samples) < least or len(kinds) < 2:
        found = f"{len(samples)} {what}" + (f", all {kinds.pop()}" if len(kinds) == 1 else "")
        raise InputError(f"{found}: training needs at least {least}, of both labels")


def recipe_of(base: Base, training: Training, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return how a detector was trained, for its manifest."""
    before = {} if base.detector is None else {"recipe": base.detector.manifest.recipe}
    return {
        "package": __version__,
        "base": {"name": base.name, "sha256": base.sha256, **before},
        "schedule": asdict(training.schedule),
        "steps": training.step,
        "tokens": training.tokens,
        "curve": [list(each) for each in training.curve[:: max(1, len(training.curve) // 100)]],
        "data": dict(data),
    }
