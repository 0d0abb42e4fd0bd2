"""Format numbers, untrusted text and tables for the terminal, and create the environment of HTML templates.

Judged text may contain escape sequences that move the cursor, rename the window or reorder text. Every such
character is replaced by one visible character, so offsets stay valid. Text is passed to rich as `Text`,
never as markup.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from magistrate._text import Heat, Marked, counted, seen, signed
from magistrate._text import decimal as decimal
from magistrate._text import plain as plain
from magistrate.metrics.classification import Estimate
from magistrate.metrics.spans import characters

if TYPE_CHECKING:
    from jinja2 import BaseLoader, Environment
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text


def interval(estimate: Estimate) -> str:
    """Return the 95 % interval of an estimate, `[.55, .69]`; empty if there is none."""
    if estimate.low is None:
        return ""
    return f"[{decimal(estimate.low)}, {decimal(estimate.high)}]"


def with_interval(estimate: Estimate) -> str:
    """Format an estimate as `.62 [.55, .69]`, or a dash."""
    return f"{decimal(estimate.value)} {interval(estimate)}".strip()


def change(difference: Estimate) -> str:
    """Format a difference as `+.03 [-.01, +.07]`, or a dash."""
    if difference.low is None:
        return signed(difference.value)
    return f"{signed(difference.value)} [{signed(difference.low)}, {signed(difference.high)}]"


def duration(seconds: float | None) -> str:
    """Format seconds for people.

    >>> duration(0.0421), duration(3.14), duration(200), duration(None)
    ('42 ms', '3.1 s', '3 min 20 s', '-')
    """
    if seconds is None:
        return "-"
    if seconds < 0.9995:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 99.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def tally(counts: Mapping[str, int]) -> str:
    """Format counts by name: `5 timeout, 1 budget`."""
    return ", ".join(f"{n} {name}" for name, n in counts.items())


# --- foreign text ---------------------------------------------------------------------------------


OPEN, CLOSE = "⟦", "⟧"


def marked(text: str, spans: Iterable[Marked], style: str) -> Text:
    """Return `text` with every span in `style` and between ⟦ ⟧, which also show without colour.

    Overlapping spans are merged. Spans are cut at the ends of the text.
    """
    from rich.text import Text

    shown, end = Text(), 0
    inside = ((max(span.start, 0), min(span.end, len(text))) for span in spans)
    for start, stop in characters(inside):
        shown.append(plain(text[end:start]))
        shown.append(f"{OPEN}{plain(text[start:stop])}{CLOSE}", style=style)
        end = stop
    return shown.append(plain(text[end:]))


def around(text: str, start: int, end: int, by: int) -> tuple[int, int]:
    """Return where to cut `text` so that about `by` characters are shown on each side of a stretch: at a
    space if there is one, and never more than twice as many characters away.
    """
    first = 0 if start <= by else max(text.rfind(" ", 0, start - by) + 1, start - 2 * by)
    stop = text.find(" ", end + by, end + 2 * by)
    return first, min(end + 2 * by, len(text)) if stop < 0 else stop


# --- tables ---------------------------------------------------------------------------------------


def numbers(*columns: str) -> Table:
    """Return a table without a frame. If space is short, its first column wraps; the numbers never do."""
    from rich import box
    from rich.table import Table

    table = Table(
        box=box.SIMPLE_HEAD, header_style="bold", padding=(0, 1, 0, 0), pad_edge=False, show_edge=False
    )
    table.add_column(plain(columns[0]), overflow="fold")
    for name in columns[1:]:
        table.add_column(plain(name), justify="right", no_wrap=True)
    return table


def estimated(estimate: Estimate) -> Text:
    """Format an estimate as `.62 [.55, .69]`, or a dash."""
    from rich.text import Text

    if estimate.low is None:
        return Text(decimal(estimate.value), "bold")
    return Text.assemble((decimal(estimate.value), "bold"), " ", (interval(estimate), "dim"))


def lines(*rows: tuple[str, str], style: str = "") -> Table:
    """Return a table with one row per fact: a dim name, and untrusted text beside it."""
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2, 0, 0), pad_edge=False)
    grid.add_column(no_wrap=True, style="dim")
    grid.add_column(overflow="fold")
    for name, words in rows:
        grid.add_row(plain(name), Text(plain(words), style=style))
    return grid


def first_remark(remarks: Sequence[str], *, alone: bool = False) -> Text | None:
    """Return the first remark, and unless `alone`, the number of those that `--full` shows."""
    from rich.text import Text

    if not remarks:
        return None
    others = len(remarks) - 1
    more = f" ({counted(others, 'more remark')}: --full)" if others and not alone else ""
    return Text.assemble(("remark  ", "dim"), (plain(remarks[0]), "yellow"), (more, "dim"))


def cut(text: str, width: int) -> str:
    """Return untrusted text on one line of at most `width` characters."""
    line = " ".join(plain(text).split())
    return line if len(line) <= width else line[: max(width - 1, 0)] + "…"


def distinct_names(names: Sequence[str], width: int) -> list[str]:
    """Shorten each name to at most `width` characters that tell it from the others, else number them.

    >>> distinct_names(["nightly, small", "nightly, large"], 8)
    ['…, small', '…, large']
    """
    whole = [" ".join(plain(name).split()) for name in names]
    heads = [cut(name, width) for name in whole]
    tails = [name if len(name) <= width else "…" + name[1 - width :] for name in whole]
    for shown in (heads, tails):
        if len(set(shown)) == len(set(whole)):
            return shown
    return [cut(f"{number} {name}", width) for number, name in enumerate(whole, 1)]


# --- templates ------------------------------------------------------------------------------------


LABELS = ("faithful", "hallucinated", "failed", "abstained")  # labels with a class in the style sheet


def template_environment(loader: BaseLoader) -> Environment:
    """Return the Jinja environment of reports and pages.

    Everything that a template prints is escaped, after control characters are made visible.
    """
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    made = Environment(
        loader=loader,
        autoescape=True,
        finalize=_visible,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals |= {"css": label_class, "decimal": decimal}
    made.filters["drawn"] = Markup  # charts are trusted markup, see `report.charts`
    return made


def _visible(value: Any) -> Any:
    """Make control characters visible in the value of a template expression, before it is escaped."""
    is_markup = hasattr(value, "__html__")
    return seen(value) if isinstance(value, str) and not is_markup else value


def label_class(label: str | None) -> str:
    """Return the CSS class of a label: `other` for an unknown label, never untrusted text."""
    return label if label in LABELS else "other"


# --- rendered as text and heat maps ---------------------------------------------------------------


PLAIN_WIDTH = 80


def as_text(render: Callable[[Console], None]) -> str:
    """Return what `render` prints, without colour and 80 columns wide."""
    from io import StringIO

    from rich.console import Console

    page = StringIO()
    render(
        Console(
            file=page,
            width=PLAIN_WIDTH,
            color_system=None,
            force_terminal=False,
            markup=False,
            emoji=False,
            highlight=False,
        )
    )
    return "\n".join(line.rstrip() for line in page.getvalue().splitlines())


def heat_of(details: Mapping[str, Any]) -> Heat | None:
    """Return the heat map in a verdict's details, or None. Raises `InputError` if it is malformed."""
    return Heat.read(details["heat"]) if details.get("heat") is not None else None


def without_heat(details: Mapping[str, Any]) -> dict[str, Any]:
    """Return the details without the heat map, for places that show it separately."""
    return {name: value for name, value in details.items() if name != "heat"}
