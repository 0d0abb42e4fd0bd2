"""Helpers of judges that call several others: combine scores and descriptions, and wait for all of them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine, Iterable, Sequence
from statistics import fmean
from typing import Any, Literal, TypeVar

from magistrate.errors import SpecError
from magistrate.judges.base import LABELS, JudgeInfo
from magistrate.types import Verdict

Answer = TypeVar("Answer")

Aggregate = Literal["any", "all", "mean", "noisy_or"]


def aggregated(scores: Sequence[float], how: Aggregate) -> float:
    """Combine scores into one in [0, 1].

    `any` is the highest, `all` the lowest, `noisy_or` treats them as independent probabilities.

    >>> aggregated([0.5, 0.5], "noisy_or"), aggregated([0.2, 0.6], "any"), aggregated([0.2, 0.6], "all")
    (0.75, 0.6, 0.2)
    """
    if how == "any":
        return max(scores)
    if how == "all":
        return min(scores)
    return fmean(scores) if how == "mean" else 1 - math.prod(1 - score for score in scores)


def composite_info(infos: Sequence[JudgeInfo], *, name: str, summary: str, long: str) -> JudgeInfo:
    """Describe a faithfulness judge that calls several others: it reads and needs what any of them does.

    Raises `SpecError` if two of them were fitted to the answers of different models.
    """
    fitted = {info.fitted_to for info in infos if info.fitted_to is not None}
    if len(fitted) > 1:
        models = " and ".join(sorted(f"{model} ({mark[:12]})" for model, mark in fitted))
        raise SpecError(f"the judges of {name!r} were fitted to different models: {models}")
    return JudgeInfo(
        name=name,
        summary=summary,
        labels=LABELS,
        direction="minimize",
        reads=_all(info.reads for info in infos),
        requires=_all(info.requires for info in infos),
        needs=frozenset().union(*(info.needs for info in infos)),
        kind="llm" if any(info.kind == "llm" for info in infos) else "code",
        long=long,
        prompt="+".join(info.prompt for info in infos if info.prompt),
        constraint="+".join(info.constraint for info in infos if info.constraint),
        fitted_to=next(iter(fitted), None),
        lacks=next((f"uses {info.name!r}, which {info.lacks}" for info in infos if info.lacks), ""),
        trained_on=frozenset().union(*(info.trained_on for info in infos)),
        models=frozenset().union(*(info.models for info in infos if info.asks)),
    )


def suspicion(verdict: Verdict, info: JudgeInfo) -> float:
    """Return the score in [0, 1], oriented so that 1 means hallucinated."""
    return 1 - verdict.score if info.direction == "maximize" else verdict.score


def _all(several: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for names in several for name in names))


async def gather_or_cancel(asked: Iterable[Coroutine[Any, Any, Answer]]) -> list[Answer]:
    """Return all results in order. If one fails, cancel and await the others before raising its exception."""
    tasks = [asyncio.ensure_future(each) for each in asked]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
