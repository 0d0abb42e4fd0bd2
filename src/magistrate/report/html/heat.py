"""A heat map over an output as a part of a page: classes of the page's style sheet, no style of its own."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup, escape

from magistrate._text import Heat, seen
from magistrate.errors import InputError
from magistrate.report.heat import heat_of
from magistrate.report.html.marking import LONGEST, gap
from magistrate.types import Sample, Verdict


@dataclass(frozen=True, slots=True)
class HeatMap:
    """`body` is the output; `legend` says what the colours mean, with `low` and `high` at its ends; `told`
    says the same in words. Where it cannot be shown, `told` says why and there is no body."""

    body: Markup
    legend: str
    low: str
    high: str
    told: str


def heat_map(sample: Sample, verdict: Verdict | None, longest: int = LONGEST) -> HeatMap | None:
    """The heat map among a verdict's details, None where there is none or nothing to lay it over.

    Of an output longer than `longest` only the beginning is painted.
    """
    if verdict is None or not sample.output:
        return None
    try:
        heat = heat_of(verdict.details)
    except InputError as error:
        return HeatMap(Markup(""), "", "", "", str(error))
    if heat is None:
        return None
    return HeatMap(
        _painted(sample.output, heat, longest),
        heat.name,
        f"{heat.low:g}",
        f"{heat.high:g} {heat.unit}",
        heat.told(sample.output),
    )


def _painted(text: str, heat: Heat, longest: int) -> Markup:
    parts: list[str] = []
    shown = text[:longest]
    unit = escape(seen(heat.unit))
    for start, end, value in heat.runs(shown):
        words = escape(seen(shown[start:end]))
        level = 0 if value is None else heat.level(value)
        if value is None or not level:
            parts.append(words)
            continue
        parts.append(f'<mark class="heat h{level}" title="{heat.figure(value)} {unit}">{words}</mark>')
    if len(text) > longest:
        parts.append(gap(len(text) - longest))
    return Markup("".join(parts))
