"""Renders rows as one table per set, with trivial rules and published results; also into a Markdown page."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.quality.protocol import SETS, QualitySet
from benchmarks.quality.rows import BASELINE, Figure, QualityRow
from magistrate._text import decimal, signed
from magistrate.engines.none import NO_MODEL
from magistrate.errors import SpecError

PUBLISHED = Path(__file__).with_name("published.toml")
HEAD = (
    *("judge", "n", "balanced accuracy", "F1", "precision", "recall", "AUROC"),
    *("tuned", "ECE (by chance)", "coverage", "ms (load)"),
)
PAIR = ("halubench", "ragtruth")
PAIR_HEAD = ("method", "HaluBench P / R / F1", "of", "RAGTruth P / R / F1", "of", "drop in F1")
NONE = "–"

READING = (
    "Balanced accuracy, F1, precision and recall are of the labels that a judge gives by a threshold fixed "
    "beforehand, measured on the test part, hallucinated being positive. The threshold of a trivial rule or "
    "a signal is the one with the best balanced accuracy on the dev parts of sets of other families. *tuned* "
    "is the balanced accuracy at the threshold that is best on the dev part of the same set. Brackets: 95 % "
    "intervals that take contexts whole. AUROC and ECE are of the scores as they come; *by chance* is the "
    "ECE that perfect scores would show. Figures are of verdicts, coverage says how many of the samples have "
    "one. *ms* is wall clock a sample, of a judge with 32 in flight, and *load* how many processes wanted "
    "the machine's cores when it began (not noted where it is missing): others were at work, and the time is "
    "longer than it need be."
)


@dataclass(frozen=True, slots=True)
class Published:
    """A result that somebody else reports; None where they do not."""

    method: str
    source: str
    precision: float | None = None
    recall: float | None = None
    f1: float | None = None
    balanced_accuracy: float | None = None


@cache
def published() -> Mapping[str, tuple[Published, ...]]:
    """Return the published results by set."""
    document = tomllib.loads(PUBLISHED.read_text(encoding="utf-8"))
    sources = document.pop("sources")
    return {
        name: tuple(Published(**{**entry, "source": sources[entry["source"]]}) for entry in entries)
        for name, entries in document.items()
    }


@dataclass(frozen=True, slots=True)
class Section:
    """One set: its heading, its remarks, and the rows of its table under `HEAD`."""

    name: str
    facts: str
    lines: tuple[tuple[str, ...], ...]
    sources: tuple[str, ...]


def sections(rows: Sequence[QualityRow]) -> Iterator[Section]:
    """Yield a section for every set that has rows, in protocol order."""
    for each in SETS:
        own = [row for row in rows if row.set == each.name]
        if own:
            yield _section(each, own)


def _section(each: QualitySet, rows: Sequence[QualityRow]) -> Section:
    lines: list[tuple[str, ...]] = []
    for size in sorted({row.n for row in rows}, reverse=True):
        lines += [_line(row) for row in _ordered([row for row in rows if row.n == size])]
    known = published().get(each.name, ())
    lines += [
        (
            f"{other.method} (published)",
            *(NONE, decimal(other.balanced_accuracy), decimal(other.f1)),
            *(decimal(other.precision), decimal(other.recall), NONE, NONE, NONE, NONE, NONE),
        )
        for other in known
    ]
    lines = [tuple(NONE if cell == "-" else cell for cell in line) for line in lines]
    largest = max(rows, key=lambda row: row.n)
    share = f"{largest.hallucinated:.0%} of {largest.n} hallucinated"
    facts = f"{each.task}; {share}; tuned on {largest.n_dev} others."
    return Section(
        each.name,
        f"{facts} {each.trap}".strip(),
        tuple(lines),
        tuple(dict.fromkeys(other.source for other in known)),
    )


def _ordered(rows: Sequence[QualityRow]) -> list[QualityRow]:
    """Return trivial rules first, then models with their judges, each in order of measurement."""
    models = list(dict.fromkeys(row.model for row in rows))
    models.sort(key=lambda model: model != BASELINE)
    return [row for model in models for row in rows if row.model == model]


def _line(row: QualityRow) -> tuple[str, ...]:
    return (
        _who(row),
        str(row.n),
        figure(row.own.get("balanced_accuracy")),
        *(decimal(_value(row.own.get(name))) for name in ("f1", "precision", "recall")),
        figure(row.auroc),
        decimal(_value(row.tuned.get("balanced_accuracy"))),
        _error(row),
        f"{row.n_ok}/{row.n}",
        _milliseconds(row),
    )


def _who(row: QualityRow) -> str:
    """Return the judge, and the model if it called one."""
    asked = "" if row.model in (BASELINE, NO_MODEL) else f", {row.model}"
    return f"{row.judge}{asked}" + (" (trained on this family)" if row.seen else "")


def _error(row: QualityRow) -> str:
    """Format the calibration error, and the expected one of perfect scores on as many samples."""
    return decimal(row.ece) + ("" if row.ece_by_chance is None else f" ({decimal(row.ece_by_chance)})")


def _milliseconds(row: QualityRow) -> str:
    if row.ms is None:
        return NONE
    return f"{row.ms:,.0f}" + ("" if row.load is None else f" ({row.load:.1f})")


def figure(value: Figure | None) -> str:
    """Format an estimate as `.62 [.55, .69]`, or a dash."""
    if value is None or value[0] is None:
        return NONE
    shown, low, high = map(decimal, value)
    return shown if low == "-" else f"{shown} [{low}, {high}]"


def _value(value: Figure | None) -> float | None:
    return None if value is None else value[0]


# --- the layout of Datadog's table ----------------------------------------------------------------


def pairs(rows: Sequence[QualityRow]) -> list[tuple[str, ...]]:
    """Return rows under `PAIR_HEAD`: every method with a result on one of the two sets, and the drop."""
    found: dict[str, dict[str, Any]] = {}
    for name in PAIR:
        for row in (row for row in rows if row.set == name):
            three = tuple(_value(row.own.get(metric)) for metric in ("precision", "recall", "f1"))
            found.setdefault(_who(row), {})[name] = (*three, f"{row.n_ok}/{row.n}")
        for other in published()[name]:
            found.setdefault(f"{other.method} (published)", {})[name] = (
                other.precision,
                other.recall,
                other.f1,
                NONE,
            )
    return [_pair(method, figures) for method, figures in found.items()]


def _pair(method: str, figures: Mapping[str, tuple[Any, ...]]) -> tuple[str, ...]:
    cells, f1 = list[str](), list[float | None]()
    for name in PAIR:
        *three, of = figures.get(name, (NONE,))
        cells += [" / ".join(decimal(each) for each in three).replace("-", NONE) if three else NONE, of]
        f1.append(three[-1] if three else None)
    known = [each for each in f1 if each is not None]
    return method, *cells, signed(known[0] - known[1]) if len(known) == 2 else NONE


BEGIN, END = "<!-- begin: quality -->", "<!-- end: quality -->"


def write(path: Path, rows: Sequence[QualityRow]) -> None:
    """Put the tables between the marks of a page. Raises `SpecError` if it has none."""
    before, after = around(path)
    try:
        path.write_text(f"{before}{BEGIN}\n{markdown(rows)}\n{END}{after}", encoding="utf-8")
    except OSError as error:
        raise SpecError(f"cannot write {path}: {error.strerror or error}") from error


def around(path: Path) -> tuple[str, str]:
    """Return the text before and after the marks of a page. Raises `SpecError` if it has none."""
    try:
        page = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"cannot read {path}: {error}") from error
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SpecError(f"{path} has no lines {BEGIN} and {END} to write between")
    return before, after


def markdown(rows: Sequence[QualityRow]) -> str:
    """Return a section per set, then the pair of sets that Datadog reports, then the provenance."""
    return "\n".join(_lines(rows))


def _lines(rows: Sequence[QualityRow]) -> Iterator[str]:
    yield READING
    for section in sections(rows):
        yield ""
        yield f"### {section.name}"
        yield ""
        yield section.facts
        yield ""
        yield from _table(HEAD, section.lines)
        if section.sources:
            yield ""
            yield f"Published: {'; '.join(section.sources)}. Their samples are not ours."
    yield ""
    yield "### HaluBench and RAGTruth"
    yield ""
    yield from _table(PAIR_HEAD, pairs(rows))
    missing = [name for name in ("halubench", "ragtruth") if not any(row.set == name for row in rows)]
    if missing:
        yield ""
        yield (
            f"Not measured yet: {' and '.join(missing)}; what fetches and measures them: "
            f"`python -m benchmarks.quality {' '.join(f'--set {name}' for name in missing)}`."
        )
    yield ""
    yield "### What made these figures"
    yield ""
    measured = [row for row in rows if row.model != BASELINE]
    where = "; ".join(dict.fromkeys(f"{row.cpu}, {row.cores} cores" for row in measured))
    when = "; ".join(
        f"{day} at {commit}" for commit, day in dict.fromkeys(row.measured_at for row in measured)
    )
    protocols = " and ".join(str(each) for each in sorted({row.protocol for row in rows}))
    yield f"Protocol {protocols}; {where}; {when} (a `+`: with changes that were not committed yet)."
    yield ""
    yield "```text"
    yield from dict.fromkeys(f"{row.recipe} protocol={row.protocol} run={row.run}" for row in measured)
    yield "```"


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> Iterator[str]:
    for cells in (head, ["---"] * len(head), *lines):
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
