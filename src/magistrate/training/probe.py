"""A linear probe: predicts from a model's hidden states, as it reads an output, whether that is hallucinated.

`activations` computes the hidden states once and caches them in `$MAGISTRATE_HOME`. `fit_probe` is logistic
regression on standardized states of one layer, fixed beforehand. Its figures come from held-out folds that
share no context with the training data. A probe seldom transfers to another kind of task, and never to
another model.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

from magistrate._paths import home
from magistrate._text import counted
from magistrate.analysis.columns import groups_of
from magistrate.engines.base import Capture, Engine, EngineInfo
from magistrate.errors import InputError, OverLength, SpecError, require_extra
from magistrate.features.hidden_states import POOLINGS, Pooling, pooled
from magistrate.judges.composite import gather_or_cancel
from magistrate.judges.folders import EstimatePart, ModelPart
from magistrate.judges.likelihood import prompts
from magistrate.judges.probe import ProbeData, ProbeFile
from magistrate.judges.template import builtin_prompt
from magistrate.metrics.classification import Classification, classification
from magistrate.metrics.distributions import expit, grouped_folds
from magistrate.types import HALLUCINATED, Sample

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from magistrate.types import Prompt

    Floats = NDArray[np.float64]

AT_ONCE = 8
"""Number of samples processed at the same time."""


@dataclass(frozen=True, eq=False, slots=True)
class Activations:
    """The states of one output by pooling: float32 `[1 + layers, width]` each."""

    sample: Sample
    states: dict[Pooling, np.ndarray]


def kept_in() -> Path:
    """Return the cache folder of activations. Its files may be deleted; they are computed again."""
    return home() / "activations"


async def activations(
    samples: Iterable[Sample],
    engine: Engine,
    *,
    folder: Path,
    watcher: Callable[[int], None] = lambda done: None,
) -> tuple[list[Activations], int]:
    """Return the states of every sample's output, and the number of samples that did not fit the model.

    States are read from `folder` if present, else computed and written there. `watcher` is called with the
    number of samples done. Raises what the engine raises.
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
    """Return the states of one sample; None if it does not fit."""
    prompt, output = prompts(sample)[0], sample.output or ""
    path = folder / engine.info.fingerprint[:16] / f"{digest_of(prompt, output)}.npz"
    if (known := _read(path)) is not None:
        return known
    try:
        answer = await engine.likelihood(prompt, output, capture=Capture(hidden=True))
    except OverLength:
        return None
    assert answer.captured is not None  # it was requested; an engine without support has raised
    states = {how: pooled(answer.captured, how) for how in POOLINGS}
    _write(path, states)
    return states


def digest_of(prompt: Prompt, output: str) -> str:
    """Return 32 hexadecimal digits of a digest of everything that the model reads."""
    parts = [(m.role, type(p).__name__, p.text) for m in prompt.messages for p in m.parts]
    return hashlib.sha256(repr((parts, output)).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _read(path: Path) -> dict[Pooling, np.ndarray] | None:
    """Return the states in a file; None if it is missing or damaged, so that they are computed again."""
    import numpy as np

    try:
        with np.load(path, allow_pickle=False) as kept:
            found = {how: np.asarray(kept[how]) for how in POOLINGS}
    except (OSError, ValueError, KeyError, EOFError, BadZipFile):
        return None
    fine = all(each.ndim == 2 and each.dtype == np.float32 for each in found.values())
    return found if fine else None


def _write(path: Path, states: dict[Pooling, np.ndarray]) -> None:
    """Write the states atomically."""
    import numpy as np

    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_name(f".{path.stem}.{os.getpid()}.npz")
    np.savez(half, allow_pickle=False, **{how: states[how] for how in POOLINGS})
    half.replace(path)


def _batches(samples: Iterable[Sample]) -> Iterator[Sequence[Sample]]:
    rest = iter(samples)
    while batch := list(islice(rest, AT_ONCE)):
        yield batch


FOLDS, MOST_FOLDS = 5, 20
LEAST, LEAST_OF_EITHER = 40, 15
STRENGTH = 0.01
"""scikit-learn's C: strong regularization, because states have more numbers than there are labels."""
SHOWN = ("auroc", "balanced_accuracy", "precision", "recall", "f1")


@dataclass(frozen=True, slots=True)
class Probed:
    """A probe ready to be written, with its out-of-fold figures."""

    file: ProbeFile
    figures: Classification

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain JSON values, without the weights."""
        values = self.file.model_dump()
        return {name: value for name, value in values.items() if name not in ("means", "spreads", "weights")}


def fit_probe(
    found: Sequence[Activations],
    engine: EngineInfo,
    data: Sequence[ProbeData],
    *,
    layer: int | None = None,
    pooling: Pooling = "mean",
    strength: float = STRENGTH,
    folds: int = FOLDS,
    seed: int = 0,
) -> Probed:
    """Fit a probe to the states of labelled samples, and measure it on held-out folds.

    `layer` counts from 0, the embedding; None is two thirds of the way up. Both classes have equal weight,
    whatever their frequencies. Raises `InputError` for too few samples and `SpecError` for invalid options.
    """
    import numpy as np

    if pooling not in POOLINGS:
        raise SpecError(f"the pooling must be {' or '.join(POOLINGS)}, got {pooling!r}")
    if not 2 <= folds <= MOST_FOLDS or not strength > 0:
        raise SpecError(f"folds must be 2 to {MOST_FOLDS} and strength above 0; got {folds} and {strength}")
    truth = np.array([each.sample.label == HALLUCINATED for each in found], dtype=np.bool_)
    groups = groups_of(each.sample for each in found)
    _check(truth, groups, folds)
    layers = len(found[0].states[pooling]) - 1
    chosen = round(layers * 2 / 3) if layer is None else layer
    if not 0 <= chosen <= layers:
        raise SpecError(f"layer must be 0 to {layers}, got {layer}")
    states = np.stack([each.states[pooling][chosen] for each in found]).astype(np.float64)
    scores = _held_out(states, truth, groups, strength, folds, seed)
    figures = classification(truth, scores >= 0.5, scores, groups)
    means, spreads, weights, intercept = _fitted(states, truth, strength)
    file = ProbeFile(
        model=ModelPart(name=engine.model, fingerprint=engine.fingerprint),
        layer=chosen,
        layers=layers,
        pooling=pooling,
        prompt=builtin_prompt("answer").digest,
        means=_short(means),
        spreads=_short(spreads),
        weights=_short(weights),
        intercept=_short(np.array([intercept]))[0],
        strength=strength,
        data=list(data),
        contexts=int(np.unique(groups).size),
        folds=folds,
        seed=seed,
        figures={name: EstimatePart.of(figures.metrics[name]) for name in SHOWN},
    )
    return Probed(file, figures)


def _fitted(states: Floats, truth: NDArray[np.bool_], strength: float) -> tuple[Any, Any, Any, float]:
    """Return means, spreads and weights, each `[width]`, and the intercept."""
    import numpy as np

    require_extra("analysis", "sklearn")
    from sklearn.linear_model import LogisticRegression

    means, spreads = states.mean(axis=0), states.std(axis=0)
    spreads = np.where(spreads > 1e-6, spreads, 1.0)  # a constant state carries no information
    model = LogisticRegression(C=strength, class_weight="balanced", max_iter=5000)
    model.fit((states - means) / spreads, truth)
    return means, spreads, model.coef_[0], float(model.intercept_[0])


def _held_out(
    states: Floats,
    truth: NDArray[np.bool_],
    groups: NDArray[np.int64],
    strength: float,
    folds: int,
    seed: int,
) -> Floats:
    """Return the score of every sample by a fit on other contexts."""
    import numpy as np

    scores = np.empty(truth.size)
    for train, test in grouped_folds(truth, groups, folds, seed):
        if truth[train].all() or not truth[train].any():
            raise InputError(
                f"with {folds} folds that share no context, one fold would contain all samples of one class: "
                "label samples of more contexts, or use fewer --folds"
            )
        means, spreads, weights, intercept = _fitted(states[train], truth[train], strength)
        scores[test] = expit(((states[test] - means) / spreads) @ weights + intercept)
    return scores


def _check(truth: NDArray[np.bool_], groups: NDArray[np.int64], folds: int) -> None:
    """Reject samples that are too few to split and to fit."""
    import numpy as np

    positives = int(truth.sum())
    negatives = truth.size - positives
    contexts = [int(np.unique(groups[each]).size) for each in (truth, ~truth)]
    if truth.size >= LEAST and min(positives, negatives) >= LEAST_OF_EITHER and min(contexts) >= folds:
        return
    raise InputError(
        f"a probe needs at least {LEAST} labelled samples that fit the model, {LEAST_OF_EITHER} of each "
        f"class in at least {folds} contexts (one per fold); there are {truth.size}: {positives} "
        f"hallucinated in {counted(contexts[0], 'context')}, {negatives} faithful in {contexts[1]}"
    )


def _short(values: NDArray[np.float64]) -> list[float]:
    """Round to seven digits, the precision of a float32."""
    return [float(f"{value:.7g}") for value in values]


def card_of(made: ProbeFile) -> str:
    """Return a model card: what the probe is, its data, its figures there, and its limits."""

    def told(figure: EstimatePart) -> str:
        if figure.value is None:
            return figure.undefined or "-"
        interval = "" if figure.low is None else f" [{figure.low:.3f}, {figure.high:.3f}]"
        return f"{figure.value:.3f}{interval}"

    listed = "\n".join(
        f"- {each.dataset}: {each.n} samples, {each.hallucinated} hallucinated, sha256 {each.digest[:12]}"
        for each in made.data
    )
    rows = "\n".join(f"| {name} | {told(figure)} |" for name, figure in made.figures.items())
    return f"""# A probe of hallucination

Logistic regression (C {made.strength:g}, both classes weighted alike) on the hidden states of layer
{made.layer} of {made.layers} of {made.model.name} (fingerprint {made.model.fingerprint[:12]}), pooled over
the output by {made.pooling}. Made by magistrate {made.package} with seed {made.seed}.

Fitted to:

{listed}

On {made.folds} folds that share none of the {made.contexts} contexts (95 % intervals):

| figure | held out |
| --- | --- |
{rows}

It works only with the states of this model and refuses any other. It may be useless on other kinds of text
than those above; measure it there before you rely on it. Its score is a probability if both labels are
equally likely; calibrate it for another share.

Use: `magistrate run DATA --judge probe:FOLDER`
"""
