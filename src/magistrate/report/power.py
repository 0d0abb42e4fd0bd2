"""How many samples a comparison needs, in the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from magistrate.analysis.planning import Plan
from magistrate.analysis.saying import name_of
from magistrate.report.tables import lines, numbers

if TYPE_CHECKING:
    from rich.console import Console


def render_plan(plan: Plan, console: Console) -> None:
    """Print the number, what it rests on, and the numbers for other differences."""
    from rich.text import Text

    needed = plan.n_clustered if plan.n_clustered is not None else plan.n
    chance = f"with a power of {plan.power:g} at a level of {plan.alpha:g}"
    if plan.comparisons > 1:
        chance += f" / {plan.comparisons}"
    chance += ", two-sided"
    console.print(
        Text.assemble(
            (f"{needed:,} labelled samples", "bold"),
            f", each judged by both, show a difference of {plan.difference:g} in {name_of(plan.metric)} ",
            f"{chance}.",
        )
    )
    if plan.design is not None and plan.design > 1:
        console.print(
            Text(
                f"{plan.n:,} if every sample had a context of its own; times {plan.design:.2f}, because in "
                "the pilot samples share contexts."
            )
        )
    console.print()
    clustered = plan.design is not None and plan.design > 1
    table = numbers("difference", "samples", *(["own contexts"] if clustered else []))
    for difference, n in plan.others.items():
        own = "-" if n is None else f"{n:,}"
        shown = f"{n * (plan.design or 1):,.0f}" if n is not None and clustered else own
        style = "bold" if difference == plan.difference else ""
        table.add_row(f"{difference:g}", shown, *([own] if clustered else []), style=style)
    console.print(table)
    console.print()
    console.print(lines(*(("rests on" if not at else "", each) for at, each in enumerate(plan.assumptions))))
