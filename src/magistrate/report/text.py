"""What is rendered for a terminal as a plain text."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

WIDTH = 80


def as_text(render: Callable[[Console], None]) -> str:
    """What `render` prints, without colour and 80 columns wide."""
    from io import StringIO

    from rich.console import Console

    page = StringIO()
    render(
        Console(
            file=page,
            width=WIDTH,
            color_system=None,
            force_terminal=False,
            markup=False,
            emoji=False,
            highlight=False,
        )
    )
    return "\n".join(line.rstrip() for line in page.getvalue().splitlines())
