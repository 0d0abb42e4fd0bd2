"""Results of a speed benchmark, as rows and as tables.

A row is one contender, work and number in flight; a `Result` is a whole run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import IO, TYPE_CHECKING, Any

from benchmarks.contenders.base import Measured
from benchmarks.machine import Geometry, Limits, Machine
from magistrate.errors import SpecError
from magistrate.report.formatting import plain

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text


@dataclass(frozen=True, slots=True)
class Kind:
    """How a work is reported: its unit, whether more is better, and the value of one measurement."""

    unit: str
    more_is_better: bool
    value: Callable[[Measured], float]


def _per_second(measured: Measured) -> float:
    return measured.count / measured.seconds


def _tokens_per_second(measured: Measured) -> float:
    return measured.tokens / measured.seconds


KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "verdict_only": Kind("1/s", True, _per_second),
        "verdict_with_reasons": Kind("1/s", True, _per_second),
        "unconstrained": Kind("1/s", True, _per_second),
        "prefill": Kind("tokens/s", True, _tokens_per_second),
        "decode": Kind("tokens/s", True, _tokens_per_second),
        "mask": Kind("µs", False, lambda measured: 1e6 * measured.seconds / measured.count),
        "overhead": Kind("%", False, lambda measured: measured.extra["percent"]),
        "cold_start": Kind("s", False, lambda measured: measured.seconds),
        "memory": Kind("MB", False, lambda measured: measured.extra["peak"]),
        "soak": Kind("MB", False, lambda measured: measured.extra["growth"]),
    }
)


@dataclass(frozen=True, slots=True)
class Row:
    """One result: the median of `rounds` rounds with minimum and maximum, or `error` and no value.

    `tokens` is the mean length of an answer. `valid` is the share in [0, 1] of answers in the requested
    form. Both are None if they do not apply.
    """

    engine: str
    model: str
    work: str
    in_flight: int
    value: float | None
    unit: str
    rounds: int = 0
    low: float | None = None
    high: float | None = None
    tokens: float | None = None
    valid: float | None = None
    error: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, with `error` only if there is one."""
        named = {name: getattr(self, name) for name in self.__slots__}
        if self.error is None:
            del named["error"]
        return named


def summed_up(
    engine: str, model: str, work: str, in_flight: int, rounds: Sequence[Measured], error: str | None = None
) -> Row:
    """Return the row of at least one measurement in `rounds`; `error` is what ended them early."""
    kind = KINDS[work]
    values = [kind.value(measured) for measured in rounds]
    answers = sum(measured.count for measured in rounds)
    has_answers = kind.unit == "1/s"
    return Row(
        engine,
        model,
        work,
        in_flight,
        median(values),
        kind.unit,
        len(values),
        min(values),
        max(values),
        sum(measured.tokens for measured in rounds) / answers if has_answers else None,
        sum(measured.valid for measured in rounds) / answers if has_answers else None,
        error,
    )


def not_measured(engine: str, model: str, work: str, in_flight: int, error: str) -> Row:
    """Return the row of a work that could not be measured."""
    return Row(engine, model, work, in_flight, None, KINDS[work].unit, error=error)


SOAKED = "magistrate"  # the contender that is soaked
SOAK_IN_FLIGHT = 16


@dataclass(frozen=True, slots=True)
class Soak:
    """Resident set in MB after a tenth of `requests` and after all of them, which took `seconds`."""

    requests: int
    seconds: float
    early_mb: float
    late_mb: float

    @property
    def growth_mb(self) -> float:
        """The memory growth over the later nine tenths of the requests."""
        return self.late_mb - self.early_mb

    def to_dict(self, model: str) -> dict[str, Any]:
        """Return a row like those of the works, with the growth as its value."""
        row = {"engine": SOAKED, "model": model, "work": "soak", "in_flight": SOAK_IN_FLIGHT}
        return {**row, "value": self.growth_mb, "unit": "MB", **asdict(self)}


@dataclass(frozen=True, slots=True)
class Share:
    """A result as a share of the machine's limit `most`, in the same unit.

    `limit` names the bottleneck: `f32` or `int8` products (if a model's products are computed in 8 bits,
    the share of `f32` may exceed 1), or `bandwidth`, for reading the weights once per step.
    """

    engine: str
    work: str
    in_flight: int
    share: float
    most: float
    limit: str


@dataclass(frozen=True, slots=True)
class Result:
    """The results of a run. `geometries` holds those of engines whose weights were counted.

    `command` reproduces the run. `date` is in UTC.
    """

    model: str
    rows: Sequence[Row]
    limits: Limits
    geometries: Mapping[str, Geometry]
    machine: Machine
    versions: Mapping[str, str]
    command: str
    date: str
    load: float | None
    soak: Soak | None = None

    def row(self, engine: str, work: str, in_flight: int) -> Row | None:
        """Return the row of this contender and work, if it was measured or tried."""
        wanted = (engine, work, in_flight)
        return next((row for row in self.rows if (row.engine, row.work, row.in_flight) == wanted), None)

    @property
    def engines(self) -> tuple[str, ...]:
        """The contenders in the order in which they were measured."""
        return tuple(dict.fromkeys(row.engine for row in self.rows))

    @property
    def cells(self) -> tuple[tuple[str, int], ...]:
        """The works with their numbers in flight."""
        return tuple(dict.fromkeys((row.work, row.in_flight) for row in self.rows))

    def ratio(self, peer: str, work: str, in_flight: int, of: str | None = None) -> float | None:
        """Return how many times better the first engine does `work` than `peer` does it, or `of` instead.

        None if one of the two has no value. `of` must have the same unit.
        """
        ours = self.row(self.engines[0], work, in_flight)
        theirs = self.row(peer, of or work, in_flight)
        if ours is None or theirs is None or not ours.value or not theirs.value:
            return None
        return ours.value / theirs.value if KINDS[work].more_is_better else theirs.value / ours.value

    def shares(self) -> list[Share]:
        """Return prompt reading relative to the products, and decoding relative to the memory bandwidth."""
        found = []
        for row in self.rows:
            geometry = self.geometries.get(row.engine)
            if geometry is None or row.value is None:
                continue
            if row.work == "prefill":
                found.append(_share(row, self.limits.f32_gflop_s / geometry.gflop, "f32"))
                if geometry.int8 and self.limits.int8_gop_s is not None:
                    found.append(_share(row, self.limits.int8_gop_s / geometry.gflop, "int8"))
            elif row.work == "decode":
                steps = self.limits.read_gb_s * 1e9 / geometry.step_bytes
                found.append(_share(row, steps * row.in_flight, "bandwidth"))
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return `rows`, and `limits` with each model's needs and the shares reached."""
        models = {
            engine: {"gflop_per_token": each.gflop, "bytes_per_step": each.step_bytes}
            for engine, each in self.geometries.items()
        }
        shares = [asdict(share) for share in self.shares()]
        return {"rows": self._rows(), "limits": {**asdict(self.limits), "models": models, "shares": shares}}

    def append(self, path: Path) -> None:
        """Append every row to a JSONL file, with the circumstances of the measurement."""
        circumstances = {
            "machine": asdict(self.machine),
            "versions": dict(self.versions),
            "command": self.command,
            "date": self.date,
            "load": self.load,
            "limits": asdict(self.limits),
        }
        with _appending(path) as file:
            file.write("".join(json.dumps({**row, **circumstances}) + "\n" for row in self._rows()))

    def _rows(self) -> list[dict[str, Any]]:
        soak = [] if self.soak is None else [self.soak.to_dict(self.model)]
        return [row.to_dict() for row in self.rows] + soak


def require_writable(path: Path) -> None:
    """Create `path` with its folder if needed. Raises `SpecError` if rows cannot be appended to it."""
    with _appending(path):
        pass


@contextmanager
def _appending(path: Path) -> Iterator[IO[str]]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            yield file
    except OSError as error:
        raise SpecError(
            f"cannot append to {path}: {error.strerror or error}; name another file with --append"
        ) from error


def _share(row: Row, most: float, limit: str) -> Share:
    assert row.value is not None
    return Share(row.engine, row.work, row.in_flight, row.value / most, most, limit)


# --- for people -----------------------------------------------------------------------------------


def render(result: Result, console: Console) -> None:
    """Print all results of a run."""
    from rich.text import Text

    # A contender that could not be started becomes a remark, not a column.
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
    """Format a number with three significant digits.

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
    """Add our one-token verdict compared with a peer's whole answer, the usual way to get verdicts."""
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
