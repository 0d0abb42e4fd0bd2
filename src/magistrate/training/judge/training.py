"""Trains a judge: from labels or chats and a base model to a folder with a tuned model."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from magistrate.datasets import Dataset
from magistrate.engines.embedded.chat_tokenizer import ChatTokenizer
from magistrate.engines.embedded.cores import available_cores
from magistrate.engines.models import disk
from magistrate.errors import InputError, SpecError
from magistrate.judges.base import Judge
from magistrate.judges.calibrated import words_of
from magistrate.judges.folders import WORK
from magistrate.metrics.classification import classification
from magistrate.training.chats import answer_of, asked_of, read_chats
from magistrate.training.judge.bases import LIBRARIES, Base, base_of, check_libraries, quiet_transformers
from magistrate.training.judge.examples import Example, Examples, from_chats, from_samples, parted
from magistrate.training.judge.gguf import obstacle
from magistrate.training.judge.loop import STATE, Measured, Settings, Tell, Training, pinned
from magistrate.training.judge.model_folder import Figure, Recipe, Side, check_target, write_model
from magistrate.types import Sample

FIGURES = ("balanced_accuracy", "f1")


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result: `recipe` if the model is done, None if time was up; `update` of `updates` were made."""

    folder: Path
    update: int
    updates: int
    recipe: Recipe | None


def train_judge(
    target: Path,
    *,
    judge: Judge | None = None,
    data: Sequence[Dataset] = (),
    chats: Sequence[Path] = (),
    base: str | None = None,
    settings: Settings | None = None,
    seconds: float | None = None,
    force: bool = False,
    device: str | None = None,
    tell: Tell | None = None,
    clock: Callable[[], float] = time.monotonic,
    report: disk.Report = disk.quiet,
) -> Outcome:
    """Tune a model by LoRA and write it to the folder `target`.

    It learns the answers of `judge` on the labelled samples of `data`, or `chats` as
    `magistrate export --format sft` writes them. After `seconds` it stops; the same call continues from
    there, as after a crash. With `force` it starts again, and an existing model is replaced once the new one
    is written. `device` is `cpu` or `cuda` (default: `cuda` if available). Raises `MissingExtra` without the
    extra `train`, `InputError` if the data cannot be trained on or nothing was learnt, and `SpecError`.
    """
    settings = settings or Settings()
    if bool(data) == bool(chats):
        raise SpecError("give either labelled data or chats: --data FILE, or --sft FILE")
    if data and judge is None:
        raise SpecError("labelled data need a judge, whose answers are learnt: --judge faithfulness")
    if judge is not None:
        answer_of(judge)
    check_target(target, force=force)
    check_libraries()
    work = target / WORK
    work.mkdir(parents=True, exist_ok=True)
    found = base_of(base, work, report)
    read = _read(found, judge, data, chats, settings)
    if force:
        (work / STATE).unlink(missing_ok=True)
    return _trained(target, work, found, judge, read, settings, device or _device(), seconds, tell, clock)


def _trained(
    target: Path,
    work: Path,
    base: Base,
    judge: Judge | None,
    read: _Read,
    settings: Settings,
    device: str,
    seconds: float | None,
    tell: Tell | None,
    clock: Callable[[], float],
) -> Outcome:
    _prepare()
    pins = pinned(base=base.digest, lessons=read.examples.digest, settings=settings.pins)
    training = Training(base.load(), read.examples, settings, work, pins, clock=clock, device=device)
    if not training.run(seconds, tell):
        return Outcome(target, training.update, training.updates, None)
    if training.best_update == 0:
        raise InputError(
            f"the loss on held-out examples never fell below that of the base ({training.best_loss:.3f}), so "
            "no model was written. Add more labels, or try a lower or higher --rate"
        )
    recipe = _recipe(target.resolve().name, base, judge, read, settings, training, device)
    write_model(training.layers, base, target, recipe)
    return Outcome(target, training.update, training.updates, recipe)


@dataclass(frozen=True, slots=True)
class _Read:
    """The examples and their sources."""

    examples: Examples
    sources: tuple[dict[str, Any], ...]


def _read(
    base: Base, judge: Judge | None, data: Sequence[Dataset], chats: Sequence[Path], settings: Settings
) -> _Read:
    card = base.card()
    chat = ChatTokenizer(base.tokenizer, card)
    most = min(settings.most, card.context_length or settings.most)
    if judge is not None and data:
        samples, sources = _samples(data)
        found, left_out = from_samples(samples, judge, chat, most)
    else:
        found, left_out, sources = list[Example](), Counter[str](), list[dict[str, Any]]()
        for path in chats:
            some, reasons = from_chats(read_chats(path), chat, most)
            found += some
            left_out += reasons
            n = len(some) + reasons.total()
            sources.append({"name": path.name, "digest": disk.sha256(path), "n": n})
    return _Read(parted(found, left_out, settings.test, settings.seed), tuple(sources))


def _samples(data: Iterable[Dataset]) -> tuple[list[Sample], list[dict[str, Any]]]:
    """Return the samples of all data sets without duplicates, and a description of the sets."""
    found: dict[tuple[Any, ...], Sample] = {}
    sources = list[dict[str, Any]]()
    for each in data:
        count = 0
        for sample in each:
            count += 1
            found.setdefault((sample.sources, sample.input, sample.output), sample)
        sources.append({"name": each.name, "digest": each.digest, "n": count})
    return list(found.values()), sources


def _prepare() -> None:
    import torch

    quiet_transformers()
    torch.set_num_threads(available_cores())


def _device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _recipe(
    name: str,
    base: Base,
    judge: Judge | None,
    read: _Read,
    settings: Settings,
    training: Training,
    device: str,
) -> Recipe:
    examples = read.examples
    contexts = examples.contexts
    after = training.measure()
    before = training.measure(base=True)
    asked = None if judge is None else asked_of(judge)
    return Recipe(
        name=name,
        base={"name": base.name, "source": base.source, "sha256": base.digest, "licence": base.licence},
        judge=None if asked is None else {"words": words_of(asked), "prompt": asked.info.prompt},
        sources=read.sources,
        settings=asdict(settings),
        examples={
            "train": len(examples.train),
            "test": len(examples.test),
            "train_contexts": contexts[0],
            "test_contexts": contexts[1],
        },
        left_out=examples.left_out,
        lessons=examples.digest,
        device=device,
        updates=training.update,
        best_update=training.best_update,
        stopped_early=training.stopped,
        history=tuple((int(update), float(loss)) for update, loss in training.history),
        before=_side(before),
        after=_side(after),
        versions={each: version(each) for each in ("magistrate", *LIBRARIES)},
        no_gguf=obstacle(training.model.config, base.tokenizer),
    )


def _side(measured: Measured) -> Side:
    """Return the figures of held-out examples, if labels are distinguished by one token."""
    import numpy as np

    if not measured.said or len({wrong for _, wrong, _ in measured.said}) < 2:
        return Side(measured.loss)
    numbers: dict[str, int] = {}
    groups = [numbers.setdefault(group, len(numbers)) for group, _, _ in measured.said]
    truth, said = ([each[at] for each in measured.said] for at in (1, 2))
    found = classification(np.array(truth), np.array(said), groups=np.array(groups)).metrics
    shown = [Figure(found[name].value, found[name].low, found[name].high) for name in FIGURES]
    return Side(measured.loss, *shown)
