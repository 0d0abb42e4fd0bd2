"""Outcomes as data for other programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from math import isfinite
from typing import Any

from magistrate.types import Outcome


def outcome_data(outcome: Outcome, *, steps: bool) -> dict[str, Any]:
    """An outcome as plain values, headed by its `kind`: `verdict`, `failure` or `abstention`."""
    data = {"kind": type(outcome).__name__.lower(), **asdict(outcome)}
    if not steps:
        del data["steps"]
    return data


def json_values(value: Any) -> Any:
    """The same in what JSON has words for; everything else, infinite numbers too, becomes a text."""
    if isinstance(value, Mapping):
        return {str(key): json_values(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [json_values(each) for each in value]
    if isinstance(value, datetime):
        return value.isoformat()
    known = value is None or isinstance(value, str | int) or (isinstance(value, float) and isfinite(value))
    return value if known else str(value)
