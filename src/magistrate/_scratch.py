"""A cache for the duration of one judgement: values derived from a sample's texts are computed once.

A judge that calls another one for every sentence passes it the same context each time. Values derived from
the context are cached here until the outcome is known.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar, cast

T = TypeVar("T")

MOST = 8  # cached values at a time; each may take many times the memory of its text

_kept: ContextVar[OrderedDict[Hashable, Any] | None] = ContextVar("magistrate_scratch", default=None)


@contextmanager
def scratch() -> Iterator[None]:
    """Cache the results of `once` until the block ends. A nested block shares the outer one's cache."""
    if _kept.get() is not None:
        yield
        return
    token = _kept.set(OrderedDict())
    try:
        yield
    finally:
        _kept.reset(token)


def once(key: Hashable, make: Callable[[], T]) -> T:
    """Return the value of `make`, cached under `key` in this `scratch`; not cached outside of one."""
    kept = _kept.get()
    if kept is None:
        return make()
    if (found := kept.get(key)) is None:
        kept[key] = found = make()
        while len(kept) > MOST:
            kept.popitem(last=False)
    return cast("T", found)
