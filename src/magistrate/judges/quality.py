"""The measured quality of judges, as the table `quality.toml` that comes with the package has it.

It is written from rows of `python -m benchmarks.quality` by `benchmarks/quality/publish.py`. A figure is
of a judge as it was then: one with other options, another prompt or other weights has no figures here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean, median
from typing import Any

from magistrate.judges.base import Judge
from magistrate.judges.registry import spelled

TABLE = Path(__file__).with_name("quality.toml")
Figure = tuple[float, float, float]
"""A figure and the ends of its 95 % interval."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One judge on `n` samples of the labelled `set`, none of whose family it was trained on.

    `auroc` and `balanced_accuracy` (at the judge's own threshold) are in [0, 1], .5 is a coin, None where
    undefined. `ms` is wall clock a sample, many under way at once. `model` is `none` for a judge of code.
    `folds` says that a judge trained without the set's family stood for this one, which was trained on all.
    """

    judge: str
    prompt: str
    model: str
    set: str
    n: int
    auroc: Figure | None
    balanced_accuracy: Figure | None
    ms: float | None
    folds: str = ""


def measured(judge: Judge) -> tuple[Measured, ...]:
    """What was measured of a judge as it is, by model and set; empty where nothing was."""
    words, prompt = f"{spelled(judge)}@{judge.info.version}", judge.info.prompt
    return tuple(each for each in table() if (each.judge, each.prompt) == (words, prompt))


@dataclass(frozen=True, slots=True)
class Summary:
    """One judge on one model over all sets: the mean of their AUROCs, all samples, the median time."""

    model: str
    sets: int
    n: int
    auroc: float | None
    ms: float | None


def summaries(found: Sequence[Measured]) -> list[Summary]:
    """What was measured, a model at a time, in the order in which the table has them."""
    return [
        _summary(model, [each for each in found if each.model == model])
        for model in dict.fromkeys(each.model for each in found)
    ]


def _summary(model: str, found: Sequence[Measured]) -> Summary:
    ranked = [each.auroc[0] for each in found if each.auroc is not None]
    times = [each.ms for each in found if each.ms is not None]
    return Summary(
        model,
        len(found),
        sum(each.n for each in found),
        fmean(ranked) if ranked else None,
        median(times) if times else None,
    )


@cache
def table() -> tuple[Measured, ...]:
    """Every row of the table."""
    import tomllib

    return read(tomllib.loads(TABLE.read_text(encoding="utf-8")))


def read(values: dict[str, Any]) -> tuple[Measured, ...]:
    """The rows that parsed TOML has."""
    return tuple(
        Measured(
            judge=each["judge"],
            prompt=each["prompt"],
            model=each["model"],
            set=name,
            n=figures["n"],
            auroc=_figure(figures.get("auroc")),
            balanced_accuracy=_figure(figures.get("balanced_accuracy")),
            ms=figures.get("ms"),
            folds=each.get("folds", ""),
        )
        for each in values.get("measured", ())
        for name, figures in each["sets"].items()
    )


def _figure(values: Sequence[float] | None) -> Figure | None:
    if values is None:
        return None
    value, low, high = values
    return float(value), float(low), float(high)
