"""The newest rows as the generated part of a Markdown page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from magistrate.bench.quality.rows import BASELINE, QualityRow
from magistrate.bench.quality.tables import HEAD, PAIR_HEAD, READING, pairs, sections
from magistrate.errors import SpecError

BEGIN, END = "<!-- begin: quality -->", "<!-- end: quality -->"


def write(path: Path, rows: Sequence[QualityRow]) -> None:
    """Put the tables between the marks of a page. Raises `SpecError` where it has none."""
    before, after = around(path)
    try:
        path.write_text(f"{before}{BEGIN}\n{markdown(rows)}\n{END}{after}", encoding="utf-8")
    except OSError as error:
        raise SpecError(f"cannot write {path}: {error.strerror or error}") from error


def around(path: Path) -> tuple[str, str]:
    """What stands before and behind the marks of a page. Raises `SpecError` where it has none."""
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
    """A section a set, then the pair of sets that Datadog reports, then what made it all."""
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
            f"`magistrate bench quality {' '.join(f'--set {name}' for name in missing)}`."
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
