"""The same judge asked in another form: what should not matter to its verdicts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, cast

from magistrate.errors import SpecError
from magistrate.judges.base import Judge
from magistrate.judges.classify import Classify

ORDERS: Mapping[str, str] = {
    "reasons_first": "score_first",
    "reason_first": "quote_first",
    "reasoning_first": "quotes_first",
}
"""What an option `order` is called where reasons come first, and where they come last."""


def options_swapped(judge: Judge) -> Judge | str:
    """The judge with its labels in the opposite order, or in words why it has none to swap."""
    inner = _inner(judge)
    if not isinstance(inner, Classify):
        return f"{judge.info.name} offers the model no list of answers whose order could be swapped"
    criterion = dataclasses.replace(inner.criterion, labels=inner.criterion.labels[::-1])
    swapped = _forms(judge, dataclasses.replace(inner, criterion=criterion))
    return swapped if isinstance(swapped, str) else swapped[0]


def reasons_moved(judge: Judge) -> tuple[Judge, Judge] | str:
    """The judge with its reasons written after the decision and before it, or in words why it cannot be.

    A classifier's sentence after the label changes neither label nor score, so that it is left out.
    """
    inner: Any = _inner(judge)
    try:
        if isinstance(inner, Classify):
            option, values = "explain", ("none", "before")
        else:
            order = getattr(inner, "order", None)
            first = next((name for name, last in ORDERS.items() if order in (name, last)), None)
            if first is None:
                return f"{judge.info.name} has no option that says when its reasons are written"
            option, values = "order", (ORDERS[first], first)
        after, before = (dataclasses.replace(inner, **{option: value}) for value in values)
    except SpecError as error:
        return str(error)
    forms = _forms(judge, after, before)
    return forms if isinstance(forms, str) else (forms[0], forms[1])


def _forms(judge: Judge, *inner: Any) -> tuple[Judge, ...] | str:
    """The same wrappers around each of these, or in words why a wrapper does not take another prompt."""
    try:
        return tuple(_with_inner(judge, each) for each in inner)
    except SpecError as error:
        if judge.info.fitted_to is not None:
            return f"it changes the prompt, and a calibration is for one prompt ({judge.info.name} has one)"
        return str(error)


def _inner(judge: Judge) -> Judge:
    """The judge that asks, inside those that wrap it."""
    of = getattr(judge, "of", None)
    return judge if of is None else _inner(of)


def _with_inner(judge: Judge, inner: Any) -> Judge:
    """The same wrappers around another judge."""
    of, wrapper = getattr(judge, "of", None), cast(Any, judge)
    return cast(Judge, inner if of is None else dataclasses.replace(wrapper, of=_with_inner(of, inner)))
