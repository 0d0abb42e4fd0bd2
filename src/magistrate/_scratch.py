"""A memory for the time of one judgement: what is computed from a sample's texts is computed once.

A judge that asks another one for every sentence gives it the same context each time. What is computed of the
context alone is kept here until the outcome is there, and then forgotten.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar, cast

T = TypeVar("T")

MOST = 8  # things that are kept at a time; each may take many times the memory of its text

_kept: ContextVar[OrderedDict[Hashable, Any] | None] = ContextVar("magistrate_scratch", default=None)


@contextmanager
def scratch() -> Iterator[None]:
    """Keep what `once` makes until the block ends; inside another such block that one decides."""
    if _kept.get() is not None:
        yield
        return
    token = _kept.set(OrderedDict())
    try:
        yield
    finally:
        _kept.reset(token)


def once(key: Hashable, make: Callable[[], T]) -> T:
    """What `make` makes, or made before in this `scratch` for the same key; made each time outside of one."""
    kept = _kept.get()
    if kept is None:
        return make()
    if (found := kept.get(key)) is None:
        kept[key] = found = make()
        while len(kept) > MOST:
            kept.popitem(last=False)
    return cast("T", found)
