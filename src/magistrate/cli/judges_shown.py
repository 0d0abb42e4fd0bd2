"""What is shown of one judge: what it says of itself, what it may answer, how well it was measured."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from magistrate.display import decimal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from rich.console import RenderableType
    from rich.table import Table

    from magistrate.judges.quality import Figure, Measured


def facts(judge: Any) -> dict[str, Any]:
    """All that a judge says of itself and what was measured of it, as plain values."""
    from magistrate.judges.quality import measured

    info = judge.info
    return {
        **getattr(judge, "describe", info.describe)(),
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
    """What a trained judge says of how it was made: its `card`, or that of the judge that it asks."""
    while judge is not None:
        found = getattr(judge, "card", None)
        if isinstance(found, str) and found.strip():
            return found
        judge = getattr(judge, "of", None)
    return None


def options(judge: Any) -> dict[str, Any]:
    """A judge's options as they are, each as one writes it; None where it has no value."""
    from magistrate.resolve import settable, spell

    fields = settable(judge) if dataclasses.is_dataclass(judge) else []
    values = {field.name: getattr(judge, field.name) for field in fields}
    return {
        name: value if value is None or isinstance(value, bool | int | float | str) else spell(value)
        for name, value in values.items()
    }


def option_words(name: str, value: Any) -> str:
    from magistrate.resolve import spell

    return name if value is None else f"{name}={spell(value)}"


def inputs_of(described: Mapping[str, Any]) -> str:
    needed = described["requires"]
    return ", ".join(name if name in needed else f"{name}?" for name in described["reads"])


def shown(judge: Any, described: Mapping[str, Any]) -> Iterator[tuple[str, RenderableType]]:
    asks = asks_of(judge)
    yield "kind", "a model is asked" if described["kind"] == "llm" else "code decides, without a model"
    good = "low" if described["direction"] == "minimize" else "high"
    yield "direction", f"{described['direction']}: a {good} score is good"
    if asks.labels:
        yield "labels", labels_of(asks.labels)
    else:
        yield "labels", ", ".join(described["labels"])
    if asks.rule:
        yield "rule", asks.rule
    if asks.categories:
        yield "categories", ", ".join(asks.categories)
    optional = set(described["reads"]) - set(described["requires"])
    yield "inputs", inputs_of(described) + ("   (? may be missing)" if optional else "")
    yield "needs", ", ".join(described["needs"]) or "nothing"
    refuse = "refuse: a sample that does not fit the model is not judged"
    yield "long", refuse if described["long"] == "refuse" else described["long"]
    yield "options", "  ".join(option_words(*each) for each in described["options"].items()) or "none"
    yield "prompt", described["prompt"] or "none"
    yield "constraint", described["constraint"] or "none"
    if described["lacks"]:
        yield "lacks", described["lacks"]
    if described["trained_on"]:
        yield "trained on", ", ".join(described["trained_on"])
    if described["card"]:
        yield "card", described["card"].strip()


def figures_of(found: Sequence[Measured]) -> list[list[str]]:
    """A row for every set and model: both, how many samples, AUROC and balanced accuracy, the time."""
    return [
        [
            each.set,
            each.model,
            str(each.n),
            _figure(each.auroc),
            _figure(each.balanced_accuracy),
            milliseconds(each.ms),
        ]
        for each in found
    ]


def _figure(figure: Figure | None) -> str:
    if figure is None:
        return "–"
    value, low, high = map(decimal, figure)
    return f"{value} [{low}, {high}]"


def milliseconds(value: float | None) -> str:
    """A time as short as it can be told."""
    return "–" if value is None else f"{value:.1f}" if value < 10 else f"{value:,.0f}"


@dataclasses.dataclass(frozen=True)
class Asks:
    """What a judge lets its model answer, as far as it is known before there is a sample.

    `labels` may be chosen, by the words that count as each; a text is written under `schema`; `rule` says how
    a written object becomes a label.
    """

    labels: Sequence[Mapping[str, Any]] = ()
    categories: Sequence[str] = ()
    schema: Mapping[str, Any] | None = None
    rule: str = ""


def asks_of(judge: Any) -> Asks:
    from magistrate.judges.classify import Classify
    from magistrate.judges.grade import Grade
    from magistrate.judges.question import Answers

    inner = judge
    while hasattr(inner, "of"):
        inner = inner.of
    shape = inner.form.constraint if isinstance(inner, Grade) else getattr(inner, "constraint", None)
    schema = shape.schema if shape is not None and shape.digest == judge.info.constraint else None
    if isinstance(inner, Grade):
        form, (low, high) = inner.form, inner.form.scale
        rule = f"{form.label} from {form.score} {form.at_least:g} on, on a scale of {low:g} to {high:g}"
        return Asks(schema=schema, rule=f"{rule}; else {form.otherwise}")
    if not isinstance(inner, Classify):
        return Asks(schema=schema)
    labels = []
    for label, option in zip(inner.criterion.labels, Answers(inner.criterion.labels).options, strict=True):
        words = list(dict.fromkeys(word.strip() for word in option.surfaces))
        known = {"label": label.name, "score": label.score, "answers": words, "means": label.description}
        labels.append(known)
    return Asks(labels, [name for name, _ in inner.criterion.categories], schema)


def grid(rows: Iterable[tuple[str, RenderableType]]) -> Table:
    """Names and, beside them, what they stand for."""
    from rich.table import Table
    from rich.text import Text

    from magistrate.report.plain import plain

    table = Table.grid(padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, Text(plain(value)) if isinstance(value, str) else value)
    return table


def labels_of(labels: Sequence[Mapping[str, Any]]) -> Table:
    """A label a row: its score, the words that count as its answer, what it means."""
    from rich.table import Table
    from rich.text import Text

    from magistrate.report.plain import plain

    table = Table.grid(padding=(0, 2, 0, 0), pad_edge=False)
    columns = 3 + any(each["means"] for each in labels)
    for each in labels:
        words = f"answered by {' '.join(each['answers'])}"
        cells = [each["label"], f"score {each['score']:g}", words, each["means"]]
        table.add_row(*(Text(plain(cell)) for cell in cells[:columns]))
    return table
