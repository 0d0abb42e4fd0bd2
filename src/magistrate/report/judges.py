"""Describe judges (description, options, possible answers, measured quality) and installed extras."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from magistrate._text import counted, decimal
from magistrate.engines.none import NO_MODEL
from magistrate.engines.registry import KINDS
from magistrate.judges.base import AsksJudge, DescribesItself, FolderJudge, Judge, WritesUnderConstraint
from magistrate.judges.quality import Compared, compared, measured, summaries
from magistrate.judges.registry import settable, spell, usual_model


def listed(name: str, make: Callable[[str], Judge]) -> dict[str, Any]:
    """Return the facts of the judge that `make` returns for a name, or the error if it cannot be made."""
    try:
        return {**facts(make(name)), "name": name}
    except Exception as error:  # a plugin may raise anything
        return {"name": name, "error": f"{type(error).__name__}: {error}"}


def facts(judge: Any) -> dict[str, Any]:
    """Return a judge's description and its measured quality, as plain values."""
    info = judge.info
    return {
        **(judge if isinstance(judge, DescribesItself) else info).describe(),
        "summary": info.summary,
        "reads": list(info.reads),
        "requires": list(info.requires),
        "needs": sorted(info.needs),
        "model": usual_model([judge]) if info.asks else None,
        "long": info.long,
        "options": options(judge),
        "prompt": info.prompt,
        "constraint": info.constraint,
        "lacks": info.lacks,
        "trained_on": sorted(info.trained_on),
        "card": card_of(judge),
        "measured": [dataclasses.asdict(each) for each in measured(judge)],
        "compared": [dataclasses.asdict(each) for each in compared(judge)],
    }


def cost(judge: Any) -> str:
    """Return what a sample costs, as far as it was measured: milliseconds, or calls and tokens."""
    told = [f"{milliseconds(each.ms)} ms{_with(each.model)}" for each in summaries(measured(judge))]
    if panels := compared(judge):
        calls, tokens = ([getattr(each, name) for each in panels] for name in ("calls", "tokens"))
        told.append(f"{_between(calls, '{:g}'.format)} calls, {_between(tokens, '{:,}'.format)} tokens")
    return "; ".join(told)


def worth(judge: Any) -> str:
    """Return how well a judge was measured to judge, in a few words; empty if it was not."""
    told = [
        f"AUROC {decimal(each.auroc)} on {counted(each.sets, 'set')}{_with(each.model)}"
        for each in summaries(measured(judge))
    ]
    votes = [each for each in compared(judge) if each.ties is None]
    better = [each for each in votes if each.difference is not None and each.difference[1] > 0]
    if better:
        told.append(f"beats as many votes of one question on {_named(better)}")
    if rest := [each for each in votes if each not in better]:
        told.append(f"does not beat as many votes of one question on {_named(rest)}")
    pairs = [each for each in compared(judge) if each.right is not None]
    if shares := [each.right[0] for each in pairs if each.right is not None]:
        ties = _between([each.ties or 0 for each in pairs], str)
        n = _between([each.n for each in pairs], str)
        told.append(f"right on {_between(shares, decimal)} of {n} pairs, {ties} ties, on {_named(pairs)}")
    return "; ".join(told)


def _between(values: Sequence[float], form: Callable[[float], str]) -> str:
    """Return the least and the largest value, or the only one."""
    return " to ".join(dict.fromkeys(map(form, (min(values), max(values)))))


def _with(model: str) -> str:
    return "" if model == NO_MODEL else f" with {model}"


def _named(panels: Iterable[Compared]) -> str:
    """Return the sets, each with the models that were asked on it."""
    models: dict[str, dict[str, None]] = {}
    for each in panels:
        models.setdefault(each.set, {})[each.model] = None
    sets: dict[str, list[str]] = {}
    for name, several in models.items():
        sets.setdefault(" and ".join(sorted(several)), []).append(name)
    return ", ".join(f"{' and '.join(names)}{_with(asked)}" for asked, names in sets.items())


def card_of(judge: Any) -> str | None:
    """Return the model card of a trained judge: its own `card`, or that of the judge that it asks."""
    if isinstance(judge, FolderJudge) and judge.card is not None and judge.card.strip():
        return judge.card
    return card_of(judge.of) if isinstance(judge, AsksJudge) else None


def options(judge: Any) -> dict[str, Any]:
    """Return a judge's current options as they are written on the command line; None for no value."""
    fields = settable(judge) if dataclasses.is_dataclass(judge) else []
    values = {field.name: getattr(judge, field.name) for field in fields}
    return {
        name: value if value is None or isinstance(value, bool | int | float | str) else spell(value)
        for name, value in values.items()
    }


def option_words(name: str, value: Any) -> str:
    """Return an option as it is written on the command line."""
    return name if value is None else f"{name}={spell(value)}"


def inputs_of(described: Mapping[str, Any]) -> str:
    """Return the fields that a judge reads. Optional fields are followed by `?`."""
    needed = described["requires"]
    return ", ".join(name if name in needed else f"{name}?" for name in described["reads"])


def milliseconds(value: float | None) -> str:
    """Format milliseconds in few characters."""
    return "–" if value is None else f"{value:.1f}" if value < 10 else f"{value:,.0f}"


@dataclasses.dataclass(frozen=True)
class Asks:
    """What a judge lets its model answer, as far as it is known without a sample.

    `labels` are the choices, with the words that count as each. Text is written under `schema`. `rule`
    states how a written object becomes a label.
    """

    labels: Sequence[Mapping[str, Any]] = ()
    categories: Sequence[str] = ()
    schema: Mapping[str, Any] | None = None
    rule: str = ""


def asks_of(judge: Any) -> Asks:
    """Return what a judge, or the judge that it asks, lets its model answer."""
    from magistrate.judges.classify import Classify
    from magistrate.judges.grade import Grade
    from magistrate.judges.question import Answers

    inner = judge
    while isinstance(inner, AsksJudge):
        inner = inner.of
    asked = inner.form if isinstance(inner, Grade) else inner
    shape = asked.constraint if isinstance(asked, WritesUnderConstraint) else None
    schema = shape.schema if shape is not None and shape.digest == judge.info.constraint else None
    if isinstance(inner, Grade):
        form, (low, high) = inner.form, inner.form.scale
        rule = (
            f"{form.label} if {form.score} is at least {form.at_least:g}, on a scale of {low:g} to {high:g}"
        )
        return Asks(schema=schema, rule=f"{rule}; else {form.otherwise}")
    if not isinstance(inner, Classify):
        return Asks(schema=schema)
    labels = []
    for label, option in zip(inner.criterion.labels, Answers(inner.criterion.labels).options, strict=True):
        words = list(dict.fromkeys(word.strip() for word in option.surfaces))
        known = {"label": label.name, "score": label.score, "answers": words, "means": label.description}
        labels.append(known)
    return Asks(labels, [name for name, _ in inner.criterion.categories], schema)


# --- optional dependencies -------------------------------------------------------------------------


EXTRAS = {
    **{kind.extra: kind.packages for kind in KINDS},
    "analysis": ("scikit-learn", "scipy"),
    "fsspec": ("fsspec",),
    "hub": ("huggingface-hub",),
    "otlp": ("opentelemetry-proto", "opentelemetry-sdk"),
    "otlp-grpc": ("grpcio", "googleapis-common-protos"),
    "pandas": ("pandas",),
    "parquet": ("pyarrow",),
    "postgres": ("psycopg",),
    "ray": ("ray",),
    "reference": ("rapidfuzz", "sacrebleu"),
    "server": ("fastapi", "uvicorn"),
    "zstd": () if sys.version_info >= (3, 14) else ("backports-zstd",),  # included in Python from then on
}


@dataclass(frozen=True, slots=True)
class Extra:
    """An extra of the package. `found` are its installed distributions with versions, `absent` the others."""

    name: str
    found: tuple[str, ...]
    absent: tuple[str, ...]

    @property
    def hint(self) -> str:
        """The command that installs the extra."""
        return f"pip install 'magistrate[{self.name}]'"


def extras() -> list[Extra]:
    """Return every extra with its installed and missing distributions."""
    return [_looked_up(name, packages) for name, packages in EXTRAS.items()]


def _looked_up(name: str, packages: tuple[str, ...]) -> Extra:
    found, absent = [], []
    for package in packages:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            absent.append(package)
    return Extra(name, tuple(found), tuple(absent))
