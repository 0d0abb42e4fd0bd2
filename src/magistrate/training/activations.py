"""What a model's hidden states were while it read outputs: asked once, kept in `$MAGISTRATE_HOME`."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING
from zipfile import BadZipFile

from magistrate._paths import home
from magistrate.engines.base import Capture, Engine
from magistrate.errors import OverLength
from magistrate.features.hidden_states import POOLINGS, Pooling, pooled
from magistrate.judges.composite import gather_or_cancel
from magistrate.judges.likelihood import prompts
from magistrate.types import Sample

if TYPE_CHECKING:
    import numpy as np

    from magistrate.types import Prompt

AT_ONCE = 8
"""Samples that are under way together."""


@dataclass(frozen=True, eq=False, slots=True)
class Activations:
    """States of one output by pooling: float32 `[1 + layers, width]` each."""

    sample: Sample
    states: dict[Pooling, np.ndarray]


def kept_in() -> Path:
    """The folder of activations. Whatever lies there may be deleted; it is asked for again."""
    return home() / "activations"


async def activations(
    samples: Iterable[Sample],
    engine: Engine,
    *,
    folder: Path,
    watcher: Callable[[int], None] = lambda done: None,
) -> tuple[list[Activations], int]:
    """The states of every sample's output, and how many samples did not fit the model.

    They are read from `folder` where they lie there already, else asked for and written there. `watcher` is
    told how many samples are done. Raises what the engine raises.
    """
    found: list[Activations] = []
    too_long = done = 0
    for batch in _batches(samples):
        for sample, states in zip(
            batch, await gather_or_cancel(_states(each, engine, folder) for each in batch), strict=True
        ):
            if states is None:
                too_long += 1
            else:
                found.append(Activations(sample, states))
        done += len(batch)
        watcher(done)
    return found, too_long


async def _states(sample: Sample, engine: Engine, folder: Path) -> dict[Pooling, np.ndarray] | None:
    """None where the sample does not fit."""
    prompt, output = prompts(sample)[0], sample.output or ""
    path = folder / engine.info.fingerprint[:16] / f"{digest_of(prompt, output)}.npz"
    if (known := _read(path)) is not None:
        return known
    try:
        answer = await engine.likelihood(prompt, output, capture=Capture(hidden=True))
    except OverLength:
        return None
    assert answer.captured is not None  # it was asked for, and an engine that cannot has raised
    states = {how: pooled(answer.captured, how) for how in POOLINGS}
    _write(path, states)
    return states


def digest_of(prompt: Prompt, output: str) -> str:
    """32 hexadecimal digits of all that the model reads."""
    parts = [(m.role, type(p).__name__, p.text) for m in prompt.messages for p in m.parts]
    return hashlib.sha256(repr((parts, output)).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _read(path: Path) -> dict[Pooling, np.ndarray] | None:
    """What lies there; None where nothing does, and where it is damaged: then it is asked for again."""
    import numpy as np

    try:
        with np.load(path, allow_pickle=False) as kept:
            found = {how: np.asarray(kept[how]) for how in POOLINGS}
    except (OSError, ValueError, KeyError, EOFError, BadZipFile):
        return None
    fine = all(each.ndim == 2 and each.dtype == np.float32 for each in found.values())
    return found if fine else None


def _write(path: Path, states: dict[Pooling, np.ndarray]) -> None:
    """At once or not at all."""
    import numpy as np

    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_name(f".{path.stem}.{os.getpid()}.npz")
    np.savez(half, allow_pickle=False, **{how: states[how] for how in POOLINGS})
    half.replace(path)


def _batches(samples: Iterable[Sample]) -> Iterator[Sequence[Sample]]:
    rest = iter(samples)
    while batch := list(islice(rest, AT_ONCE)):
        yield batch
