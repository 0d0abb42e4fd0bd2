"""Labelled data to a probe: read, asked for the states of a model, fitted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from magistrate import _async
from magistrate.datasets import Dataset, load
from magistrate.datasets.rows import MAX_UNREAD
from magistrate.engines.base import Engine, require
from magistrate.errors import DatasetError
from magistrate.features.hidden_states import Pooling
from magistrate.judges.probe import ProbeData
from magistrate.training.probe import FOLDS, STRENGTH, Activations, Probed, activations, fit_probe, kept_in
from magistrate.types import FAITHFUL, HALLUCINATED, Sample

NO_LABEL, NO_OUTPUT, TOO_LONG, BAD_ROW = "no label", "no output", "does not fit the model", "cannot be read"


@dataclass(frozen=True, slots=True)
class _Read:
    """The usable samples of one data set."""

    data: Dataset
    samples: list[Sample]


async def atrain_probe(
    data: Sequence[str],
    engine: Engine,
    *,
    sample: int | None = None,
    mapping: Mapping[str, str] | None = None,
    labels: Mapping[Any, str] | None = None,
    max_unread: float = MAX_UNREAD,
    layer: int | None = None,
    pooling: Pooling = "mean",
    strength: float = STRENGTH,
    folds: int = FOLDS,
    seed: int = 0,
    watcher: Callable[[int], None] = lambda done: None,
) -> tuple[Probed, dict[str, int]]:
    """A probe of `engine`'s model fitted to the labelled samples of `data`, and what was left out, by reason.

    `data` are names and files as `magistrate.datasets.load` takes them, read as `mapping`, `labels` and
    `max_unread` say; `sample` draws so many of each at random. The other options are those of `fit_probe`.
    Raises `CapabilityError` for an engine that shows no hidden states, `DatasetError` where nothing is
    labelled or too little can be read, and what `fit_probe` raises.
    """
    require(engine.info, frozenset({"likelihood", "capture", "hidden_states"}), "a probe")
    left_out = dict.fromkeys((NO_LABEL, NO_OUTPUT, TOO_LONG, BAD_ROW), 0)
    how: dict[str, Any] = {"mapping": mapping, "labels": labels, "max_unread": max_unread}
    read = [_usable(load(each, sample=sample, seed=seed, **how), left_out) for each in data]
    if not any(each.samples for each in read):
        raise DatasetError(
            f"none of the samples of {', '.join(data)} has a label that says {FAITHFUL} or {HALLUCINATED}"
        )
    found: list[Activations] = []
    listed: list[ProbeData] = []
    for each in read:
        states, too_long = await activations(each.samples, engine, folder=kept_in(), watcher=watcher)
        left_out[TOO_LONG] += too_long
        found += states
        listed.append(
            ProbeData(
                dataset=each.data.name,
                digest=each.data.digest,
                n=len(states),
                hallucinated=sum(one.sample.label == HALLUCINATED for one in states),
            )
        )
    made = fit_probe(
        found,
        engine.info,
        listed,
        layer=layer,
        pooling=pooling,
        strength=strength,
        folds=folds,
        seed=seed,
    )
    return made, {reason: n for reason, n in left_out.items() if n}


train_probe = _async.synchronous(atrain_probe)


def _usable(data: Dataset, left_out: dict[str, int]) -> _Read:
    kept = []
    for sample in data:
        if sample.label not in (FAITHFUL, HALLUCINATED):
            left_out[NO_LABEL] += 1
        elif not (sample.output or "").strip():
            left_out[NO_OUTPUT] += 1
        else:
            kept.append(sample)
    left_out[BAD_ROW] += len(data.problems)
    return _Read(data, kept)
