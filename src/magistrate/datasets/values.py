"""Python values of tables and frames as JSON values, so that every row is what a JSONL file could hold."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

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
