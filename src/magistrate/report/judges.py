"""Describe judges (description, options, possible answers, measured quality) and installed extras."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from magistrate.engines.registry import KINDS
from magistrate.judges.base import AsksJudge, DescribesItself, FolderJudge, Judge, WritesUnderConstraint
from magistrate.judges.quality import measured
from magistrate.judges.registry import settable, spell


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
        "long": info.long,
        "options": options(judge),
        "prompt": info.prompt,
        "constraint": info.constraint,
        "lacks": info.lacks,
        "trained_on": sorted(info.trained_on),
        "card": card_of(judge),
        "measured": [dataclasses.asdict(each) for each in measured(judge)],
    }


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
    "reference": ("sacrebleu",),
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
