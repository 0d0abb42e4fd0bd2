"""The share of hallucinated outputs, in the terminal and in a notebook, with its assumptions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from magistrate import _text
from magistrate._text import decimal
from magistrate.report.formatting import estimated, interval, lines, numbers, plain

if TYPE_CHECKING:
    from magistrate.metrics.prevalence import Prevalence

ROWS = {
    "corrected": "corrected (PPI++)",
    "labelled": "labels alone",
    "naive": "the judge alone",
    "rogan_gladen": "Rogan-Gladen",
}
ASSUMES = (
    "Assumed: the labelled samples are a random sample of the outputs that are asked about. Brackets: 95 % "
    "intervals, in which samples of one context count together; that of the judge alone knows nothing of its "
    "errors."
)


def render_prevalence(
    found: Prevalence,
    head: str,
    facts: tuple[tuple[str, str], ...],
    remarks: tuple[str, ...],
    console: Console,
) -> None:
    """Print the four estimates, what they rest on, and what limits them."""
    console.print(Text(plain(head), style="bold"))
    console.print()
    table = numbers("share that is hallucinated", "estimate")
    for name, words in ROWS.items():
        estimate = getattr(found, name)
        table.add_row(words, estimated(estimate) if estimate.value is not None else "-")
    console.print(table)
    console.print()
    console.print(lines(*facts, *_facts(found)))
    if remarks:
        console.print(lines(*(("remark", each) for each in remarks), style="yellow"))
    console.print()
    console.print(Text(ASSUMES, style="dim"))


def prevalence_html(
    found: Prevalence, head: str, facts: tuple[tuple[str, str], ...], remarks: tuple[str, ...]
) -> str:
    """The same as HTML, all of it escaped."""
    rows = [
        [words, decimal(getattr(found, name).value), interval(getattr(found, name))]
        for name, words in ROWS.items()
    ]
    told = [*facts, *_facts(found), *(("remark", each) for each in remarks), ("assumed", ASSUMES)]
    return _text.table([head, "share", "95 %"], rows) + _text.table(["", ""], told, left=2)


def _facts(found: Prevalence) -> Iterator[tuple[str, str]]:
    worth = ""
    if found.worth is not None and found.worth > found.n_labelled:
        worth = f"; the judge makes the {found.n_labelled} labels worth {found.worth:.0f}"
    yield "tuning", f"λ {decimal(found.tuning)}: 0 leaves the judge out, 1 takes all it says{worth}"
    for name, words in ROWS.items():
        if reason := getattr(found, name).undefined:
            yield "undefined" if getattr(found, name).value is None else "no interval", f"{words}: {reason}"
