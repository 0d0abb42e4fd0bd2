"""Rows of a data source (file, line, values as JSON) and the problems of rows that cannot be read.

`Unread` reports how many rows could not be read, and why. `Tally` counts them and suggests how to fix them.
"""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Protocol
from uuid import UUID

from magistrate.datasets.fields import MEANINGS, label_word, plain
from magistrate.errors import DatasetError, SpecError


@dataclass(frozen=True, slots=True)
class Problem:
    """A row that could not become a sample. `line` counts from 1; it is None where there are no lines.

    `label` is the column and the unknown label value, if that is the reason.
    """

    file: str
    line: int | None
    reason: str
    label: tuple[str, str] | None = None

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.reason}" if self.line else f"{self.file}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a source: its position, the id to use if it has none, and its values."""

    file: str
    line: int | None
    id: str
    values: Mapping[str, Any]
    cells: bool = False

    @property
    def where(self) -> str:
        """The file and line of the row, for messages."""
        return f"{self.file}:{self.line}" if self.line else self.file

    def problem(self, reason: str, label: tuple[str, str] | None = None) -> Problem:
        """Return a `Problem` with the position of this row."""
        return Problem(self.file, self.line, reason, label)


class Source(Protocol):
    """A source that returns the same rows on every iteration."""

    def rows(self) -> Iterator[Row | Problem]: ...

    def digest(self) -> str:
        """Return the sha256 of the bytes that the rows come from."""
        ...

    def count(self) -> int | None:
        """Return the number of rows, unreadable ones included, or None if it is not cheap to find."""
        ...


class RowError(Exception):
    """A row cannot become a sample. The message is the reason only; the caller adds file and line.

    `label` is the column and the unknown label value, if that is the reason.
    """

    def __init__(self, message: str, label: tuple[str, str] | None = None) -> None:
        super().__init__(message)
        self.label = label


def kind_of(value: object) -> str:
    """Return the kind of a JSON value, in words."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "text"
    if isinstance(value, list | tuple):
        return "a list"
    return "an object" if isinstance(value, Mapping) else f"a {type(value).__name__}"


MISSING = ("NaTType", "NAType")  # names of the types that pandas uses for a missing value


def json_value(value: Any) -> Any:
    """Convert `value` to None, bool, int, float, str, list or dict.

    NaN becomes None, since it means a missing number in most tables. Dates, times, decimals and UUIDs
    become texts, dates in ISO 8601. Raises ValueError with a short reason for values that JSON cannot
    represent, such as bytes.
    """
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return _number(float(value))
    kind = type(value).__name__
    if kind in MISSING:
        return None
    if isinstance(value, Mapping):
        return {_key(key): json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [json_value(item) for item in value]
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return str(timedelta(value.days, value.seconds, value.microseconds))
    if isinstance(value, Decimal | UUID):
        return str(value)
    if type(value).__module__ == "numpy" and kind not in ("datetime64", "timedelta64"):
        # Arrays and scalars, recognized by their module so that numpy need not be imported.
        return json_value(value.tolist())
    if isinstance(value, bytes | bytearray | memoryview):
        raise ValueError(f"contains {len(value)} bytes, which JSON cannot represent; decode them first")
    raise ValueError(f"contains a {kind}, which JSON cannot represent; convert it to text first")


def _number(value: float) -> float | None:
    if math.isinf(value):
        raise ValueError("contains an infinite number, which JSON cannot represent")
    return None if math.isnan(value) else value


def _key(key: Any) -> str:
    if isinstance(key, str):
        return key
    if isinstance(key, bool | int | float | Decimal | date | time):
        return str(key)
    raise ValueError(f"contains an object with a {type(key).__name__} as key; convert it to text first")


def json_row(values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a row to JSON values. ValueError names the column of a value that cannot be converted."""
    row = {}
    for column, value in values.items():
        try:
            row[column] = json_value(value)
        except ValueError as error:
            raise ValueError(f"{column!r} {error}") from None
        except RecursionError:
            raise ValueError(f"{column!r} is nested too deep") from None
    return row


MAX_UNREAD = 0.1
"""The share of unreadable rows above which a run is refused, by default."""

SETTING = "unread"  # setting of a stored run under which its `Unread` is kept
REASONS_TOLD = 3
ROWS_TOLD = 3
VALUES_TOLD = 8  # up to so many unknown label values, the message lists each


@dataclass(frozen=True, slots=True)
class Blank:
    """Blank cells of a column that gives `field`: their number, and the position of the first ones."""

    field: str
    column: str
    n: int
    rows: tuple[str, ...]

    def __str__(self) -> str:
        more = f" and {self.n - len(self.rows)} more" if self.n > len(self.rows) else ""
        return f"column {plain(self.column)!r} ({self.field}) is blank in {', '.join(self.rows)}{more}"


@dataclass(frozen=True, slots=True)
class Unread:
    """`n` of `rows` rows could not be read, for these `reasons`, the most frequent first.

    `rows` counts the rows that were read or tried, not those that a limit left out. `blanks` are blank
    cells in rows that were read.
    """

    n: int
    rows: int
    reasons: tuple[str, ...] = ()
    blanks: tuple[Blank, ...] = ()

    @property
    def share(self) -> float:
        """The share `n / rows`, in [0, 1]; 0 if there are no rows."""
        return self.n / self.rows if self.rows else 0.0

    def __str__(self) -> str:
        return f"{self.short}: {', '.join(self.reasons)}" if self.reasons else self.short

    @property
    def short(self) -> str:
        """The count, without the reasons."""
        return f"{self.n:,} of {self.rows:,} rows could not be read"

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values. `from_dict` reads them back."""
        blanks = [
            {"field": each.field, "column": each.column, "n": each.n, "rows": list(each.rows)}
            for each in self.blanks
        ]
        return {"n": self.n, "rows": self.rows, "reasons": list(self.reasons), "blanks": blanks}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Unread:
        """Restore the `Unread` that `to_dict` wrote."""
        blanks = [
            Blank(each["field"], each["column"], each["n"], tuple(each["rows"])) for each in values["blanks"]
        ]
        return cls(values["n"], values["rows"], tuple(values["reasons"]), tuple(blanks))


def unread_of(settings: Mapping[str, Any]) -> Unread | None:
    """Return the `Unread` in the settings of a stored run, or None if it was not counted."""
    return None if SETTING not in settings else Unread.from_dict(settings[SETTING])


@dataclass(slots=True)
class Tally:
    """Counts rows that were read, rows that could not be read, and blank cells."""

    read: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    labels: dict[str, Counter[str]] = field(default_factory=dict)
    first: Problem | None = None
    blanks: Counter[tuple[str, str]] = field(default_factory=Counter)
    places: dict[tuple[str, str], list[str]] = field(default_factory=dict)  # of the first blank cells
    before: tuple[Blank, ...] = ()  # blank cells counted earlier

    @property
    def unread(self) -> int:
        """The number of rows that could not be read so far."""
        return self.reasons.total() + sum(each.total() for each in self.labels.values())

    def problem(self, found: Problem) -> None:
        """Count a row that cannot be read."""
        self.first = self.first or found
        if found.label is None:
            self.reasons[found.reason] += 1
        else:
            column, value = found.label
            self.labels.setdefault(column, Counter())[value] += 1

    def blank(self, where: str, field: str, column: str) -> None:
        """Count a blank cell in the row at `where`."""
        self.blanks[field, column] += 1
        if len(places := self.places.setdefault((field, column), [])) < ROWS_TOLD:
            places.append(where)

    def found(self) -> Unread:
        """Return the counts so far."""
        told = Counter(self.reasons)
        for column, values in self._values():
            for value, n in values.items():
                told[f"{plain(column)} {plain(repr(value))} is not a known label"] += n
        reasons = [f"{reason} ({_rows(n)})" for reason, n in told.most_common(REASONS_TOLD)]
        if rest := told.total() - sum(n for _, n in told.most_common(REASONS_TOLD)):
            reasons.append(f"other reasons ({_rows(rest)})")
        blanks = [Blank(*key, n, tuple(self.places[key])) for key, n in self.blanks.items()]
        return Unread(self.unread, self.read + self.unread, tuple(reasons), (*self.before, *blanks))

    def mend(self) -> str:
        """Return advice on how to fix the rows that could not be read."""
        if not self.labels:
            return f"fix them or the mapping (--map FIELD=COLUMN); the first is {self.first}"
        asked = "; ".join(_asked(column, values) for column, values in self._values())
        other = f"; the other {_rows(n)}: {self.first}" if (n := self.reasons.total()) else ""
        return f"{asked}{other}"

    def refuse(self, name: str, most: float) -> None:
        """Raise `DatasetError` if the share of unreadable rows exceeds `most`."""
        found = self.found()
        if found.n and found.share > most:
            allowed = "" if most == 0 else f", more than --max-unread {most:g} allows"
            told = f"{found.n:,} of {found.rows:,} rows of {name} could not be read{allowed}: "
            raise DatasetError(f"{told}{', '.join(found.reasons)}; {self.mend()}")

    def _values(self) -> list[tuple[str, Counter[str]]]:
        """Return the counts of values per label column; values that differ only in case or spaces are
        merged.
        """
        found = []
        for column, values in self.labels.items():
            first: dict[str, str] = {}
            counts: Counter[str] = Counter()
            for value, n in values.items():
                counts[first.setdefault(label_word(value), value)] += n
            found.append((column, counts))
        return found


def _asked(column: str, values: Mapping[str, int]) -> str:
    """Return the request to state what the values of a label column mean. The meaning is never guessed."""
    if len(values) > VALUES_TOLD:
        return (
            f"column {plain(column)!r} has {len(values)} values that are not known labels; if another column "
            "has the label: --map label=COLUMN; if not, give the meaning of each value: --labels "
            "VALUE=MEANING,…"
        )
    pairs = ",".join(f"{value.strip()}=MEANING" for value in values)
    meanings = f"{', '.join(MEANINGS[:-1])} or {MEANINGS[-1]}"
    return (
        f"give the meaning of each value, with {meanings} for each MEANING: --labels "
        f"{plain(shlex.quote(pairs), 400)}"
    )


def _rows(n: int) -> str:
    return f"{n:,} row{'' if n == 1 else 's'}"


def check_max_unread(value: float) -> float:
    """Return `value`, or raise `SpecError` if it is not a share in [0, 1]."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise SpecError(f"max_unread must be between 0 and 1, got {value!r}")
    return value
