"""Building blocks of a rules file: strict values, durations, names of environment variables."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from magistrate.errors import SpecError

UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
DURATION = re.compile(r"(\d{1,6})([smhdw])")
MOST_DAYS = 36_500  # of a time: dates that lie further back may not exist
MOST_SECONDS = MOST_DAYS * 86_400.0


def duration(words: str) -> timedelta:
    """Parse a duration such as `30s`, `5m`, `12h`, `7d` or `2w`, of at most `MOST_DAYS`.

    Raises `SpecError` for anything else.

    >>> duration("7d")
    datetime.timedelta(days=7)
    """
    found = DURATION.fullmatch(words.strip())
    if found is None:
        raise SpecError(f"a time must be a number and one of s, m, h, d, w, such as 7d; got {words!r:.40}")
    time = timedelta(**{UNITS[found[2]]: int(found[1])})
    if time > timedelta(days=MOST_DAYS):
        raise SpecError(f"a time must be at most {MOST_DAYS}d, got {words.strip()}")
    return time


def _seconds(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return duration(value).total_seconds()
    except SpecError as error:
        raise ValueError(str(error)) from None


Seconds = Annotated[
    float, Field(le=MOST_SECONDS), BeforeValidator(_seconds, json_schema_input_type=float | str)
]


def under(key: str, value: Any) -> Any:
    """Expand a bare value to a mapping with this one key."""
    return value if isinstance(value, Mapping | BaseModel) else {key: value}


class Part(BaseModel):
    """A mapping in a rules file. Values are not converted, and unknown keys are rejected."""

    model_config = ConfigDict(
        extra="forbid", strict=True, allow_inf_nan=False, frozen=True, populate_by_name=True
    )


NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")


def _variable(value: str) -> str:
    if NAME.fullmatch(value) is None:  # the value may be the key itself, so it is not quoted
        raise ValueError("must be the name of an environment variable with the value, such as OTLP_TOKEN")
    return value


Variable = Annotated[str, AfterValidator(_variable), Field(description="An environment variable.")]
"""The name of an environment variable, for values that must not be in a file."""


def read_variable(name: str, what: str) -> str:
    """Read an environment variable. Raises `SpecError` if it is not set or empty."""
    value = os.environ.get(name, "").strip()
    if not value:
        raise SpecError(f"{what} must be in the environment variable {name}, which is not set")
    return value
