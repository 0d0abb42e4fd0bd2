"""Terminal output: consoles, JSON, and tables that keep names whole."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def print_json(value: Any) -> None:
    """Print one JSON document in ASCII. Values without a JSON equivalent become text."""
    from magistrate.report.export import json_values

    click.echo(json.dumps(json_values(value), indent=2, allow_nan=False))


def console(*, error: bool = False) -> Console:
    """Return a console that interprets neither markup nor emoji codes in the printed text.

    A closed pipe raises `BrokenPipeError`, which `main` handles.
    """
    from rich.console import Console

    class Terminal(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    return Terminal(stderr=error, markup=False, emoji=False, highlight=False)


def hush() -> None:
    """Redirect standard output to the null device after its reader has closed the pipe."""
    with Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


def write_file(path: Path, text: str, *, replace: bool) -> None:
    """Create a file. An existing symlink is never followed, so nothing is written elsewhere."""
    from magistrate.errors import SpecError

    try:
        if replace:
            path.unlink(missing_ok=True)
        with path.open("x", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except FileExistsError:
        raise SpecError(f"{path} already exists; use --force to replace it") from None
    except FileNotFoundError:
        raise SpecError(f"cannot write {path}: there is no folder {path.parent}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SpecError(f"cannot write {path}: {reason}") from None


PIPED = 100  # columns of long tables without a terminal
GAP = 2  # columns between two cells
EVERYTHING_WHOLE: Mapping[str, int] = MappingProxyType({})
NO_ROOM = "Columns hidden because the terminal is too narrow: {}. A wider terminal or --json shows all."
NO_ROOM_PIPED = "Columns hidden to keep lines short: {}. --json shows all."


def is_pipe(terminal: Console) -> bool:
    """Return whether the output has no terminal width. Tables then print one line per row."""
    return not terminal.is_terminal and "COLUMNS" not in os.environ


def print_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    wrapped: Mapping[str, int] = EVERYTHING_WHOLE,
    spare: Sequence[str] = (),
    piped: int | None = None,
) -> None:
    """Print rows of untrusted text under `columns`.

    Cells of the `wrapped` columns may wrap, down to the given width in characters; all others stay on one
    line. If the table still does not fit, the `spare` columns are left out one by one, with a note. Without
    a terminal every row is one line, so that it can be searched, unless `piped` gives a width for it too.
    Columns without any content are not shown.
    """
    from rich.cells import cell_len
    from rich.text import Text

    from magistrate.report.formatting import plain

    terminal = console()
    as_lines = is_pipe(terminal) and piped is None
    if is_pipe(terminal) and piped is not None:
        terminal.width = piped
    cells = [[" ".join(plain(cell).split()) for cell in row] for row in rows]
    natural = {
        name: max(map(cell_len, chain([name], (row[at] for row in cells)))) for at, name in enumerate(columns)
    }
    width = natural if as_lines else natural | {name: min(natural[name], wrapped[name]) for name in wrapped}
    kept = [name for at, name in enumerate(columns) if any(row[at] for row in cells)]

    def needed() -> int:
        return sum(width[name] for name in kept) + GAP * (len(kept) - 1)

    left_out = []
    for name in spare:
        if name in kept and not as_lines and needed() > terminal.width:
            kept.remove(name)
            left_out.append(name)
    for _ in range(terminal.width - needed()):
        # Give one more column of space to the text that wraps into the most lines.
        tightest = max(kept, key=lambda name: natural[name] / max(width[name], 1))
        width[tightest] += natural[tightest] > width[tightest]
    chosen = [columns.index(name) for name in kept]
    table = _frame(kept, width)
    for row in cells:
        table.add_row(*(Text(row[at]) for at in chosen))
    terminal.width = max(needed(), 1) if as_lines or needed() > terminal.width else terminal.width
    terminal.print(table)
    if left_out:
        told = NO_ROOM_PIPED if is_pipe(terminal) else NO_ROOM
        terminal.print(Text(told.format(", ".join(left_out)), "dim"))


def _frame(columns: Sequence[str], width: Mapping[str, int]) -> Table:
    from rich import box
    from rich.table import Table

    # The frame itself adds one column of space between two cells.
    padding = (0, GAP - 1, 0, 0)
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", show_edge=False, pad_edge=False, padding=padding)
    for name in columns:
        table.add_column(name, width=width[name], overflow="fold")
    return table
