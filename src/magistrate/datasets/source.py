"""What every source of samples gives: rows, the problems among them, a digest and a count."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Problem:
    """A row that could not become a sample; `line` counts from 1, or is None where there are no lines.

    `label` is the column and the value that is no known label, where that is the reason.
    """

    file: str
    line: int | None
    reason: str
    label: tuple[str, str] | None = None

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.reason}" if self.line else f"{self.file}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a source: where it stands, the id it gets if it has none, and what it holds."""

    file: str
    line: int | None
    id: str
    values: Mapping[str, Any]
    cells: bool = False

    @property
    def where(self) -> str:
        """Its file and line, for messages."""
        return f"{self.file}:{self.line}" if self.line else self.file

    def problem(self, reason: str, label: tuple[str, str] | None = None) -> Problem:
        """A problem with this row."""
        return Problem(self.file, self.line, reason, label)


class Source(Protocol):
    """Something that gives the same rows each time it is asked."""

    def rows(self) -> Iterator[Row | Problem]: ...

    def digest(self) -> str:
        """sha256 of the bytes that the rows come from."""
        ...

    def count(self) -> int | None:
        """How many rows there are, bad ones included, where that is known or cheap to learn."""
        ...
