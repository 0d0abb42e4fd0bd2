"""Rows of a data source: their file and line, their values as JSON, and those that cannot be read.

`Unread` says how many rows of how many could not be read, why, and what to do about it; `Tally` counts them.
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


class RowError(Exception):
    """One row cannot be a sample; the message is the reason alone, its reader knows file and line.

    `label` is the column and the value that is no known label, where that is the reason.
    """

    def __init__(self, message: str, label: tuple[str, str] | None = None) -> None:
        super().__init__(message)
        self.label = label


def kind_of(value: object) -> str:
    """The kind of a JSON value, in words."""
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


MISSING = ("NaTType", "NAType")  # how pandas says that there is nothing, by the names of the types


def json_value(value: Any) -> Any:
    """`value` as None, bool, int, float, str, list or dict.

    NaN is None, as a missing number is in most tables; dates, times, decimals and UUIDs are texts, dates
    in ISO 8601. Raises ValueError with a short reason for what JSON has no word for, such as bytes.
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
        # Arrays and scalars, told by the module so that numpy need not be imported.
        return json_value(value.tolist())
    if isinstance(value, bytes | bytearray | memoryview):
        raise ValueError(f"holds {len(value)} bytes, which JSON has no word for; decode them first")
    raise ValueError(f"holds a {kind}, which JSON has no word for; make it a text first")


def _number(value: float) -> float | None:
    if math.isinf(value):
        raise ValueError("holds an infinite number, which JSON has no word for")
    return None if math.isnan(value) else value


def _key(key: Any) -> str:
    if isinstance(key, str):
        return key
    if isinstance(key, bool | int | float | Decimal | date | time):
        return str(key)
    raise ValueError(f"holds an object with a {type(key).__name__} for a key; make it a text first")


def json_row(values: Mapping[str, Any]) -> dict[str, Any]:
    """A row as JSON values; ValueError names the column of a value that cannot be one."""
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
"""The share of rows that may go unread before a run is refused; the default."""

SETTING = "unread"  # the setting of a stored run that holds what went unread
REASONS_TOLD = 3
ROWS_TOLD = 3
VALUES_TOLD = 8  # so many values of a label column are asked about one by one


@dataclass(frozen=True, slots=True)
class Blank:
    """Blank cells of a column that gives `field`: how many, and where the first of them are."""

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

    `rows` are those that were gone through; what a limit left out is not among them. `blanks` are cells
    that hold nothing in rows that were read.
    """

    n: int
    rows: int
    reasons: tuple[str, ...] = ()
    blanks: tuple[Blank, ...] = ()

    @property
    def share(self) -> float:
        """`n / rows`, in [0, 1]; 0 where there are no rows."""
        return self.n / self.rows if self.rows else 0.0

    def __str__(self) -> str:
        return f"{self.short}: {', '.join(self.reasons)}" if self.reasons else self.short

    @property
    def short(self) -> str:
        """How many, without the reasons."""
        return f"{self.n:,} of {self.rows:,} rows could not be read"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; `from_dict` reads them back."""
        blanks = [
            {"field": each.field, "column": each.column, "n": each.n, "rows": list(each.rows)}
            for each in self.blanks
        ]
        return {"n": self.n, "rows": self.rows, "reasons": list(self.reasons), "blanks": blanks}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Unread:
        """The `Unread` that `to_dict` has written."""
        blanks = [
            Blank(each["field"], each["column"], each["n"], tuple(each["rows"])) for each in values["blanks"]
        ]
        return cls(values["n"], values["rows"], tuple(values["reasons"]), tuple(blanks))


def unread_of(settings: Mapping[str, Any]) -> Unread | None:
    """The `Unread` in the settings of a stored run; None if it was not counted."""
    return None if SETTING not in settings else Unread.from_dict(settings[SETTING])


@dataclass(slots=True)
class Tally:
    """Counts rows as they pass by."""

    read: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    labels: dict[str, Counter[str]] = field(default_factory=dict)
    first: Problem | None = None
    blanks: Counter[tuple[str, str]] = field(default_factory=Counter)
    places: dict[tuple[str, str], list[str]] = field(default_factory=dict)  # of the first blank cells
    before: tuple[Blank, ...] = ()  # those that were counted before

    @property
    def unread(self) -> int:
        """How many rows could not be read so far."""
        return self.reasons.total() + sum(each.total() for each in self.labels.values())

    def problem(self, found: Problem) -> None:
        """One more row that cannot be read."""
        self.first = self.first or found
        if found.label is None:
            self.reasons[found.reason] += 1
        else:
            column, value = found.label
            self.labels.setdefault(column, Counter())[value] += 1

    def blank(self, where: str, field: str, column: str) -> None:
        """One more blank cell, in the row that is `where`."""
        self.blanks[field, column] += 1
        if len(places := self.places.setdefault((field, column), [])) < ROWS_TOLD:
            places.append(where)

    def found(self) -> Unread:
        """The counts so far."""
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
        """Advice on how to fix the rows that could not be read."""
        if not self.labels:
            return f"mend them or the mapping (--map FIELD=COLUMN); the first is {self.first}"
        asked = "; ".join(_asked(column, values) for column, values in self._values())
        other = f"; the other {_rows(n)}: {self.first}" if (n := self.reasons.total()) else ""
        return f"{asked}{other}"

    def refuse(self, name: str, most: float) -> None:
        """Raise `DatasetError` where a greater share than `most` could not be read."""
        found = self.found()
        if found.n and found.share > most:
            allowed = "" if most == 0 else f", more than --max-unread {most:g} allows"
            told = f"{found.n:,} of {found.rows:,} rows of {name} could not be read{allowed}: "
            raise DatasetError(f"{told}{', '.join(found.reasons)}; {self.mend()}")

    def _values(self) -> list[tuple[str, Counter[str]]]:
        """The values of each label column, those that differ in case or blanks alone taken together."""
        found = []
        for column, values in self.labels.items():
            first: dict[str, str] = {}
            counts: Counter[str] = Counter()
            for value, n in values.items():
                counts[first.setdefault(label_word(value), value)] += n
            found.append((column, counts))
        return found


def _asked(column: str, values: Mapping[str, int]) -> str:
    """The question what the values of a label column mean; it is never guessed."""
    if len(values) > VALUES_TOLD:
        return (
            f"column {plain(column)!r} holds {len(values)} values that are no known label; is another column "
            "the label (--map label=COLUMN)? If not, say what each value means: --labels VALUE=MEANING,…"
        )
    pairs = ",".join(f"{value.strip()}=MEANING" for value in values)
    meanings = f"{', '.join(MEANINGS[:-1])} or {MEANINGS[-1]}"
    return (
        f"say what each value means, {meanings} for each MEANING: --labels {plain(shlex.quote(pairs), 400)}"
    )


def _rows(n: int) -> str:
    return f"{n:,} row{'' if n == 1 else 's'}"


def check_max_unread(value: float) -> float:
    """`value`, or `SpecError` where it is no share."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise SpecError(f"max_unread must be a share from 0 to 1, got {value!r}")
    return value
