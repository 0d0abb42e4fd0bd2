"""The shipped list of words."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any


@cache
def table() -> Mapping[str, Any]:
    """All of `words.toml`."""
    return tomllib.loads(files(__package__).joinpath("words.toml").read_text("utf-8"))


def listed(name: str) -> list[Any]:
    """One of its lists: months, units, openers and so on."""
    found: list[Any] = table()["lists"][name]
    return found


def word_set(name: str) -> frozenset[str]:
    """One of its sets of words, written there as one text."""
    return frozenset(str(table()["sets"][name]).split())
