"""What is shown of one judge: what it says of itself, what it may answer, how well it was measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from magistrate._text import decimal
from magistrate.report.judges import asks_of, inputs_of, milliseconds, option_words

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from rich.console import RenderableType
    from rich.table import Table

    from magistrate.judges.quality import Figure, Measured


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


def grid(rows: Iterable[tuple[str, RenderableType]]) -> Table:
    """Names and, beside them, what they stand for."""
    from rich.table import Table
    from rich.text import Text

    from magistrate.report.formatting import plain

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

    from magistrate.report.formatting import plain

    table = Table.grid(padding=(0, 2, 0, 0), pad_edge=False)
    columns = 3 + any(each["means"] for each in labels)
    for each in labels:
        words = f"answered by {' '.join(each['answers'])}"
        cells = [each["label"], f"score {each['score']:g}", words, each["means"]]
        table.add_row(*(Text(plain(cell)) for cell in cells[:columns]))
    return table
