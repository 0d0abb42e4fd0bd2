"""Asking many things with so many in flight, and how long that takes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

Asked = TypeVar("Asked")
Answered = TypeVar("Answered")


async def answered(
    items: Sequence[Asked], in_flight: int, answer: Callable[[Asked], Awaitable[Answered]]
) -> tuple[float, list[Answered]]:
    """Every item answered, `in_flight` at once, in order, and the seconds it took."""
    places = asyncio.Semaphore(in_flight)

    async def one(item: Asked) -> Answered:
        async with places:
            return await answer(item)

    start = time.perf_counter()
    answers = await asyncio.gather(*map(one, items))
    return time.perf_counter() - start, answers
