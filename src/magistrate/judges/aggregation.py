"""Several scores of one output become one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Literal

from magistrate.errors import SpecError
from magistrate.judges.base import JudgeInfo
from magistrate.types import FAITHFUL, HALLUCINATED

Aggregate = Literal["any", "all", "mean", "noisy_or"]


def aggregated(scores: Sequence[float], how: Aggregate) -> float:
    """One score in [0, 1]: `any` the highest, `all` the lowest, `noisy_or` that of independent chances.

    >>> aggregated([0.5, 0.5], "noisy_or"), aggregated([0.2, 0.6], "any"), aggregated([0.2, 0.6], "all")
    (0.75, 0.6, 0.2)
    """
    if how == "any":
        return max(scores)
    if how == "all":
        return min(scores)
    return fmean(scores) if how == "mean" else 1 - math.prod(1 - score for score in scores)


def check_binary(info: JudgeInfo, who: str) -> None:
    """Refuse a judge whose scores do not say how likely it is that something is hallucinated."""
    if set(info.labels) != {FAITHFUL, HALLUCINATED}:
        raise SpecError(
            f"{who} takes a judge that says {FAITHFUL!r} or {HALLUCINATED!r}; {info.name!r} says "
            f"{', '.join(info.labels) or 'nothing of it'}"
        )
