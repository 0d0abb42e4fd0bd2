"""How a judge is written: its name and every option that is not as it would be anyway."""

from __future__ import annotations

import dataclasses
from pathlib import PurePath
from typing import Any

from magistrate.judges.base import Judge

NOT_OPTIONS = ("name", "criterion", "form", "mapping", "parts")  # what a judge is, not how it is set


def spelled(judge: Judge) -> str:
    """A judge as one writes it: its name with every option that differs from its default."""
    name = judge.info.name.partition(":")[0]
    if not dataclasses.is_dataclass(judge):
        return name
    options = [
        f"{field.name}={spell(value)}"
        for field in settable(judge)
        if (value := getattr(judge, field.name)) != default(field)
    ]
    return f"{name}:{','.join(options)}" if options else name


def settable(judge: Any) -> list[dataclasses.Field[Any]]:
    """The fields of a judge that are its options."""
    return [field for field in dataclasses.fields(judge) if field.name not in NOT_OPTIONS]


def default(field: dataclasses.Field[Any]) -> Any:
    """What an option is where it is not set; MISSING where it must be."""
    made = field.default_factory
    return field.default if made is dataclasses.MISSING else made()


def spell(value: Any) -> str:
    """An option's value as it is written."""
    if hasattr(value, "judge") and hasattr(value, "info"):
        name, colon, options = spelled(value).partition(":")
        pinned = f"{name}@{value.info.version}{colon}{options}"
        return f"({pinned})" if colon else pinned
    if hasattr(value, "generate") and hasattr(value, "info"):
        return f"{value.info.model}#{value.info.fingerprint[:12]}"
    if isinstance(value, PurePath):
        return value.name  # where it lies differs from machine to machine; what it holds has a digest
    if isinstance(value, frozenset | tuple):
        return "+".join(sorted(value) if isinstance(value, frozenset) else value)
    return str(value).lower() if isinstance(value, bool) else str(value)
