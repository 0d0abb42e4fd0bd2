"""An open store: where it is, its clock, and its transactions for reading and for writing."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from types import TracebackType
from typing import Self, TypeVar

from sqlalchemy import Connection, Engine

from magistrate.errors import InputError, StoreError
from magistrate.store.connect import CLOSED, Place, explained, for_reading, for_writing

Value = TypeVar("Value")


class Transactions:
    """What the parts of a store share: one connection that writes, and one for every question that reads."""

    def __init__(
        self, place: Place, engine: Engine, clock: Callable[[], datetime], randomness: random.Random
    ) -> None:
        self._place = place
        self._engine = engine
        self._clock = clock
        self._randomness = randomness
        self._writer = for_writing(engine.connect())

    @property
    def place(self) -> str:
        """What opens this store again: a path, or a URL with the password if it has one."""
        return self._place.words

    @property
    def shown(self) -> str:
        """The place without a password, for people to read."""
        return self._place.shown

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.shown!r})"

    def close(self) -> None:
        """Let go of the file or the server; the store cannot be used any more."""
        self._writer.close()
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        with explained(self.shown), self._writer.begin():
            yield self._writer

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        """A connection whose answers are all of one moment's state."""
        with explained(self.shown):
            if self._writer.closed:
                raise StoreError(CLOSED)
            with self._engine.connect() as connection:
                try:
                    with for_reading(connection).begin():
                        yield connection
                finally:
                    if self._writer.closed:
                        # A stream that outlives its store has no pool to give its connection back to.
                        connection.invalidate()

    def _stream(self, question: Callable[[Connection], Iterator[Value]]) -> Iterator[Value]:
        with self._reading() as connection:
            yield from question(connection)

    def _now(self) -> datetime:
        now = self._clock()
        if now.tzinfo is None:
            raise InputError(
                f"the clock gave a time without a zone: {now.isoformat()}; use datetime.now(UTC)"
            )
        return now.astimezone(UTC)
