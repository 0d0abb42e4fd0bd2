"""A run for people: contenders side by side, then the machine's limits and how near each came."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from magistrate.bench.result import Result
from magistrate.bench.rows import KINDS, Row
from magistrate.report.formatting import plain

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text


def render(result: Result, console: Console) -> None:
    """Print everything that a run found."""
    from rich.text import Text

    # One that could not be started at all is a remark, not a column.
    shown = [engine for engine in result.engines if any(_has_value(row, engine) for row in result.rows)]
    console.print(Text.assemble(("Speed", "bold"), f"  {plain(result.model)}"))
    if shown:
        console.print()
        console.print(_figures(result, shown))
    for remark in _remarks(result):
        console.print(Text(plain(remark), style="yellow"))
    console.print()
    console.print(Text("Limits of this machine, measured between the rounds", style="bold"))
    console.print(Text(_limits(result)))
    if result.shares():
        console.print()
        console.print(_shares(result))
    if result.soak is not None:
        console.print()
        soak = result.soak
        console.print(
            Text(
                f"{soak.requests:,} mixed requests in {soak.seconds:.0f} s: {soak.early_mb:,.0f} MB after a "
                f"tenth of them, {soak.late_mb:,.0f} MB at the end, growth {soak.growth_mb:+,.1f} MB"
            )
        )
    console.print()
    for line in _recipe(result, shown):
        console.print(Text(plain(line), style="dim"))


def number(value: float) -> str:
    """Three digits that matter, as people write them.

    >>> number(1234.5), number(57.23), number(4.256), number(0.5512)
    ('1,234', '57.2', '4.26', '0.551')
    """
    if value >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.{1 if value >= 9.995 else 2 if value >= 0.9995 else 3}f}"


def _has_value(row: Row, engine: str) -> bool:
    return row.engine == engine and row.value is not None


def _frame(*columns: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(
        box=box.SIMPLE_HEAD, header_style="bold", padding=(0, 1, 0, 0), pad_edge=False, show_edge=False
    )
    for at, name in enumerate(columns):
        table.add_column(name, justify="right" if at else "left", overflow="fold")
    return table


def _figures(result: Result, shown: list[str]) -> Table:
    table = _frame("work", "at once", *(plain(engine) for engine in shown))
    for work in dict.fromkeys(work for work, _ in result.cells):
        levels = [level for each, level in result.cells if each == work]
        found = [[result.row(engine, work, level) for engine in shown] for level in levels]
        if not any(map(any, found)):
            continue  # of those that are no column
        unit = KINDS[work].unit
        titles = [f"{work}, {unit}"] if len(levels) == 1 else [work, f"  {unit}", *[""] * (len(levels) - 2)]
        for title, level, rows in zip(titles, levels, found, strict=True):
            table.add_row(title, str(level), *(_cell(result, row) for row in rows))
    _against_reasons(result, shown, table)
    return table


def _against_reasons(result: Result, shown: list[str], table: Table) -> None:
    """Our one-token verdict against a peer's whole answer, which is how verdicts are usually had."""
    title = "verdict_only : their verdict_with_reasons"
    peers = [engine for engine in shown if engine != result.engines[0]]
    for work, level in result.cells:
        ratios = {engine: result.ratio(engine, work, level, "verdict_with_reasons") for engine in peers}
        if work == "verdict_only" and any(ratios.values()):
            found = [ratios.get(engine) for engine in shown]
            table.add_row(title, str(level), *("" if ratio is None else _times(ratio) for ratio in found))
            title = ""


def _cell(result: Result, row: Row | None) -> Text:
    from rich.text import Text

    if row is None:
        return Text("–", "dim")
    if row.value is None:
        return Text("failed", "red")
    text = Text(number(row.value))
    if row.valid is not None and row.valid < 1:
        text.append(f" ({row.valid:.0%} valid)", "yellow")
    ratio = result.ratio(row.engine, row.work, row.in_flight)
    if ratio is not None and row.engine != result.engines[0]:
        text.append(f" {_times(ratio)}", "dim")
    return text


def _times(ratio: float) -> str:
    return f"×{number(ratio)}"


def _remarks(result: Result) -> Iterator[str]:
    for row in result.rows:
        if row.error is not None:
            never = not any(_has_value(each, row.engine) for each in result.rows)
            where = "not measured" if never else f"{row.work} at {row.in_flight}"
            yield f"{row.engine}: {where}: {row.error}"


def _limits(result: Result) -> str:
    limits = result.limits
    facts = [
        f"read {number(limits.read_gb_s)} GB/s",
        f"copy {number(limits.copy_gb_s)} GB/s (both ways counted)",
        f"f32 products {number(limits.f32_gflop_s)} GFLOP/s",
        "no int8 kernel" if limits.int8_gop_s is None else f"int8 products {number(limits.int8_gop_s)} GOP/s",
    ]
    return "  ·  ".join(facts)


def _shares(result: Result) -> Table:
    table = _frame("against the limits", "limit", "at once", "tokens/s", "at most", "share")
    for share in result.shares():
        row = result.row(share.engine, share.work, share.in_flight)
        assert row is not None and row.value is not None
        table.add_row(
            f"{plain(share.engine)} {share.work}",
            share.limit,
            str(share.in_flight),
            number(row.value),
            number(share.most),
            f"{share.share:.0%}",
        )
    return table


def _recipe(result: Result, shown: list[str]) -> Iterator[str]:
    rounds = max((row.rounds for row in result.rows), default=0)
    counted = "One round. " if rounds == 1 else f"Medians of up to {rounds} interleaved rounds. "
    times = f"×: how many times better {result.engines[0]} is. " if len(shown) > 1 else ""
    yield (
        f"{counted}{times}decode does not contain the reading of the prompts; memory is the largest resident "
        "set; cold_start begins with no process and files that the system has read before."
    )
    for engine in (each for each in shown if each in result.geometries):
        geometry = result.geometries[engine]
        yield (
            f"{engine}: {geometry.gflop:.3f} GFLOP a token read (products with weights, without the head), "
            f"{geometry.step_bytes / 1e6:,.0f} MB of weights a step (as stored, with the head)"
        )
    for engine in shown:
        if engine in result.versions:
            yield f"{engine}: {result.versions[engine]}"
    machine = result.machine
    load = "" if result.load is None else f", load {result.load:.1f} before"
    yield (
        f"commit {machine.commit or 'unknown'}  ·  {machine.cpu}, {machine.cores} cores{load}  ·  "
        f"{machine.system}, Python {machine.python}  ·  {result.date}"
    )
    yield f"again: {result.command}"
