"""Is the server alive, and can it do its work? For whatever restarts it and sends it visitors."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable

from fastapi import APIRouter
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse

from magistrate import _logging
from magistrate.errors import MagistrateError, StoreError
from magistrate.server.stores import Stores
from magistrate.store.connection import exists, place_of

REMEMBERED = 1.0  # seconds: whoever asks more often hears the same, so that nobody can keep the store busy


class Readiness:
    """What `check`, which raises where the store cannot be read, said last: None, or why it cannot.

    One check is under way at a time; `clock` counts seconds.
    """

    def __init__(self, check: Callable[[], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._check = check
        self._clock = clock
        self._lock = asyncio.Lock()
        self._checked = float("-inf")
        self._reason: str | None = None

    async def reason(self) -> str | None:
        """Why the server is not ready; None where it is."""
        async with self._lock:
            if self._clock() - self._checked >= REMEMBERED:
                self._reason = await run_in_threadpool(self._look)
                self._checked = self._clock()
            return self._reason

    def _look(self) -> str | None:
        try:
            self._check()
        except MagistrateError as error:
            # The message names the store without a password; this is for what a driver may have quoted.
            return str(_logging.cleaned(str(error), _logging.secrets_of(os.environ)))
        return None


def readable(stores: Stores, place: str) -> Callable[[], None]:
    """A check that the store at `place` is there and answers."""

    def check() -> None:
        if not exists(place):  # opening it would make a new one
            raise StoreError(f"store {place_of(place).shown}: the file is gone")
        with stores.one() as store:
            store.runs(limit=1)

    return check


def router(check: Callable[[], None]) -> APIRouter:
    """The two addresses; `check` raises `MagistrateError` where the server can do nothing."""
    made = APIRouter()
    readiness = Readiness(check)

    @made.get("/healthz")
    async def healthz() -> JSONResponse:
        """The process is alive."""
        return JSONResponse({"status": "ok"})

    @made.get("/readyz")
    async def readyz() -> JSONResponse:
        """The store can be read; else 503 and why not."""
        reason = await readiness.reason()
        if reason is None:
            return JSONResponse({"status": "ready"})
        return JSONResponse({"status": "not ready", "reason": reason}, 503)

    return made
