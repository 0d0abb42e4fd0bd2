"""A heat map over an output in the terminal, with colours and without."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from magistrate._text import Heat
from magistrate.errors import InputError
from magistrate.report.plain import CLOSE, OPEN, around, plain

if TYPE_CHECKING:
    from rich.text import Text

LONGEST = 1_200  # characters of a text that are shown whole
AROUND = 60  # characters shown before and behind a hot place, in a text that is longer
WORST = 8  # places that are marked where there are no colours, and around which a long text is shown
# Ink and ground are both set, so that neither a light nor a dark terminal hides the words.
STYLES = (
    "",
    "black on #f8e2db",
    "black on #f2c3b5",
    "black on #e79a84",
    "white on #b04a33",
    "white on #7a2a15",
)


def heat_of(details: Mapping[str, Any]) -> Heat | None:
    """The heat map among a verdict's details, None where there is none. Raises `InputError` for no map."""
    return Heat.read(details["heat"]) if details.get("heat") is not None else None


def without_heat(details: Mapping[str, Any]) -> dict[str, Any]:
    """What is left to show of the details where the heat map is shown as such."""
    return {name: value for name, value in details.items() if name != "heat"}


def heat_text(text: str, heat: Heat, *, colour: bool) -> Text:
    """`text` with its hot places on coloured ground; without colour the worst between ⟦ ⟧ with their values.

    Of a long text only what is near the worst places is shown. Below stands what the values are.
    """
    from rich.text import Text

    runs = heat.runs(text)
    worst = {(start, end) for start, end, _ in heat.hottest(text, WORST)}
    shown = Text()
    for first, last in _shown(text, worst):
        shown.append("… " if first else "")
        for start, end, value in runs:
            words = plain(text[max(start, first) : min(end, last)])
            if not words:
                continue
            if value is None or not heat.level(value):
                shown.append(words)
            elif colour:
                shown.append(words, style=STYLES[heat.level(value)])
            elif (start, end) in worst:
                shown.append(f"{OPEN}{words} {heat.figure(value)}{CLOSE}")
            else:
                shown.append(words)
        shown.append(" …\n" if last < len(text) else "")
    below = f"({plain(heat.legend)}"
    below += f"; {plain(heat.told(text))})" if colour or not worst else "; in brackets the highest)"
    return shown.append(("" if shown.plain.endswith("\n") else "\n") + below, style="dim")


def heat_block(text: str, details: Mapping[str, Any], *, colour: bool) -> Text | None:
    """The heat map among a verdict's details over `text`; why it cannot be shown where it is none."""
    from rich.text import Text

    try:
        heat = heat_of(details)
    except InputError as error:
        return Text(plain(str(error)))
    return None if heat is None else heat_text(text, heat, colour=colour)


def _shown(text: str, worst: set[tuple[int, int]]) -> list[tuple[int, int]]:
    """The stretches that are shown, in order and apart from each other, cut at a space where one is near."""
    if len(text) <= LONGEST:
        return [(0, len(text))]
    joined: list[tuple[int, int]] = []
    for start, end in sorted(worst) or [(0, LONGEST)]:
        first, last = around(text, start, min(end, start + LONGEST), AROUND)
        if joined and first <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], last))
        else:
            joined.append((first, last))
    return joined
