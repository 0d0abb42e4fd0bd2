"""Which judge options an HTTP client may set: none that could name a file, a folder or a model."""

from __future__ import annotations

from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from magistrate.errors import InputError
from magistrate.judges.base import Judge

HARMLESS = (bool, int, float, NoneType, Judge)
TEXTS = ("flag", "kinds", "language", "negative", "pattern", "personas", "positive", "unit", "without")
"""Options that are words or patterns and are never opened; those of other names may be files."""

LARGEST = 10_000
"""The largest whole number that may be set, because some options are numbers of model calls."""


class OptionPolicyError(InputError):
    """A client set an option that only people at this machine may set."""


def check_option(judge: str, option: str, hint: Any) -> None:
    """Raise `OptionPolicyError` for an option that could name a file, folder or model of this machine."""
    for kind in _kinds(hint):
        if kind not in HARMLESS and not (kind is str and option in TEXTS):
            raise OptionPolicyError(
                f"option {option!r} of judge {judge!r} cannot be set remotely, because it could name a file, "
                "a folder or a model on this machine; set it on the command line or in a run file"
            )


def check_amount(judge: str, option: str, value: Any) -> None:
    """Raise `OptionPolicyError` for an integer that is too large."""
    if isinstance(value, int) and abs(value) > LARGEST:
        raise OptionPolicyError(
            f"option {option!r} of judge {judge!r} can be set remotely to at most {LARGEST:,}"
        )


def _kinds(hint: Any) -> Iterator[Any]:
    """Yield the types that an option's values consist of; literals have none."""
    origin = get_origin(hint)
    if origin in (Union, UnionType, tuple, frozenset):
        for each in get_args(hint):
            if each is not Ellipsis:
                yield from _kinds(each)
    elif origin is not Literal:
        yield hint
