"""Bounded numbers on a grid: a smallest and a largest multiple of a step, so that digits come to an end."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from magistrate.errors import ConstraintError

DECIMALS = 6  # of a number whose schema has no multipleOf
DIGITS = 15  # decimal digits that survive the compiler's doubles
NUMERIC = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")


def on_grid(node: Mapping[str, Any], at: str) -> dict[str, int | float]:
    """The numeric keywords of `node` as inclusive bounds on the multiples of a step; {} where it has none.

    The step is `multipleOf`; else 1 for integers, and for numbers six decimals, fewer where the bounds leave
    less than fifteen digits for them. The compiler is not handed exclusive bounds: it lets 0 through for
    `exclusiveMinimum: 0` where the maximum has more decimals than the step. Raises `ConstraintError` with
    the pointer `at` where no number is left, or bounds and step together need more than fifteen digits.
    """
    types = node.get("type", ())
    types = {types} if isinstance(types, str) else set(types)
    if not ("number" in types or any(keyword in node for keyword in NUMERIC)):
        return {}
    bounds = [abs(node[keyword]) for keyword in NUMERIC[:4] if keyword in node]
    if "multipleOf" in node:
        step = _exact(node["multipleOf"])
    elif "integer" in types and "number" not in types:
        step = Fraction(1)
    else:
        room = DIGITS - len(str(math.ceil(max(bounds, default=0))))
        step = Fraction(1, 10 ** max(0, min(DECIMALS, room)))
    if bounds and _exact(max(bounds)) / min(step, Fraction(1)) > 10**DIGITS:
        raise ConstraintError("the bounds and the last decimal together take more than 15 digits", at)
    low, high = _lowest(node, step), _highest(node, step)
    if low is not None and high is not None and low > high:
        raise ConstraintError(f"no multiple of {float(step)} lies between the bounds", at)
    found = {"minimum": low, "maximum": high, "multipleOf": step}
    if step == 1:
        del found["multipleOf"]
        if "number" in types:
            found["multipleOf"] = step
    return {keyword: _plain(value) for keyword, value in found.items() if value is not None}


def _lowest(node: Mapping[str, Any], step: Fraction) -> Fraction | None:
    candidates = []
    if "minimum" in node:
        candidates.append(math.ceil(_exact(node["minimum"]) / step))
    if "exclusiveMinimum" in node:
        candidates.append(math.floor(_exact(node["exclusiveMinimum"]) / step) + 1)
    return max(candidates) * step if candidates else None


def _highest(node: Mapping[str, Any], step: Fraction) -> Fraction | None:
    candidates = []
    if "maximum" in node:
        candidates.append(math.floor(_exact(node["maximum"]) / step))
    if "exclusiveMaximum" in node:
        candidates.append(math.ceil(_exact(node["exclusiveMaximum"]) / step) - 1)
    return min(candidates) * step if candidates else None


def _exact(value: int | float) -> Fraction:
    return Fraction(str(value))  # the decimal as written, not its double


def _plain(value: Fraction) -> int | float:
    return value.numerator if value.denominator == 1 else float(value)
