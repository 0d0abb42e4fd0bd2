"""The measured quality of judges, from the table `quality.toml` in the package.

`benchmarks/quality/publish.py` writes the table from rows of `python -m benchmarks.quality` and of
`python -m benchmarks.panels`. Figures hold for the judge as it was measured: there are none for another
prompt or other weights, and those of panels tell the options.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean, median
from typing import Any

from magistrate.judges.auto import Auto
from magistrate.judges.base import Judge
from magistrate.judges.registry import spelled

TABLE = Path(__file__).with_name("quality.toml")
Figure = tuple[float, float, float]
"""A figure and the ends of its 95 % interval."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Results of one judge on `n` samples of the labelled `set`, from a family that it was not trained on.

    `auroc` and `balanced_accuracy` (at the judge's own threshold) are in [0, 1]: .5 is chance, None is
    undefined. `ms` is wall-clock time per sample, with many samples in flight. `model` is `none` for a
    judge of code. `folds` is set if a judge trained without the set's family was measured in place of this
    one, which was trained on all.
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


@dataclass(frozen=True, slots=True)
class Compared:
    """What a judge of several calls is worth, on `n` samples of a `set`; `judge` has the options.

    `calls` and `tokens` are means of a sample. On a labelled set, `difference` is its balanced accuracy less
    that of as many votes of one question (`chainpoll`) as fit into its tokens. On pairs of answers, `right`
    is the share of pairs that it decides as people did, and `ties` the number of those that it does not
    decide. Figures are None if they do not apply or have no interval.
    """

    judge: str
    model: str
    set: str
    n: int
    calls: float
    tokens: int
    balanced_accuracy: Figure | None = None
    difference: Figure | None = None
    right: Figure | None = None
    ties: int | None = None


def compared(judge: Judge) -> tuple[Compared, ...]:
    """Return the comparisons of a kind of judge, with any options, by model and set; may be empty."""
    name = spelled(judge).partition(":")[0]
    return tuple(each for each in comparisons() if each.judge.partition(":")[0] == name)


def measured(judge: Judge) -> tuple[Measured, ...]:
    """Return the results for a judge in exactly this configuration, by model and set; may be empty.

    Those of `auto` are those of the judge that it stands for.
    """
    if isinstance(judge, Auto) and judge.explain == "never":
        judge = judge.of
    words, prompt = f"{spelled(judge)}@{judge.info.version}", judge.info.prompt
    return tuple(each for each in table() if (each.judge, each.prompt) == (words, prompt))


@dataclass(frozen=True, slots=True)
class Summary:
    """Results of one judge on one model over all sets: mean AUROC, number of samples, median time."""

    model: str
    sets: int
    n: int
    auroc: float | None
    ms: float | None


def summaries(found: Sequence[Measured]) -> list[Summary]:
    """Summarize results per model, in the order of the table."""
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
    """Return every row of the table."""
    return read(_parsed())


@cache
def comparisons() -> tuple[Compared, ...]:
    """Return what every measured panel is worth."""
    figures = ("balanced_accuracy", "difference", "right")
    return tuple(
        Compared(**{**each, **{name: _figure(each.get(name)) for name in figures}})
        for each in _parsed().get("compared", ())
    )


@cache
def _parsed() -> dict[str, Any]:
    import tomllib

    return tomllib.loads(TABLE.read_text(encoding="utf-8"))


def read(values: dict[str, Any]) -> tuple[Measured, ...]:
    """Return the rows in parsed TOML."""
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
