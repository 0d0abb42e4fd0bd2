"""The worker beside the server: judges traces received over OTLP by the rules, in its own thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime

from fastapi.concurrency import run_in_threadpool

from magistrate import _logging
from magistrate.server.settings import Settings
from magistrate.store import Store
from magistrate.watch.rules import Rule, RuleFile
from magistrate.watch.upkeep import UpkeepThread, destinations
from magistrate.watch.worker import Watcher

PAUSE = 10.0  # seconds to wait after an unexpected error
GRACE = 10.0  # seconds to release unfinished decisions

_log = _logging.get("watch")


@asynccontextmanager
async def watching(settings: Settings) -> AsyncIterator[None]:
    """Judge the store's traces by the rules of the settings, if any, while the block runs.

    Also sends results and alerts and deletes old traces, if the rule file asks for it. Raises the errors of
    creating a rule's judge or engine, or a destination.
    """
    if not settings.rules:
        yield
        return
    file = settings.rule_file or RuleFile(rules=list(settings.rules))
    worker = _WorkerThread(settings.store, settings.rules, destinations(file))
    await run_in_threadpool(worker.start)
    try:
        beside = UpkeepThread(settings.store, file)
        await run_in_threadpool(beside.start)
        try:
            yield
        finally:
            await run_in_threadpool(beside.stop)
    finally:
        await run_in_threadpool(worker.stop)


class _WorkerThread:
    """A watcher in a thread with its own event loop and store."""

    def __init__(self, place: str, rules: Sequence[Rule], send_to: Sequence[str]) -> None:
        self._place, self._rules, self._send_to = place, rules, send_to
        self._began: Future[asyncio.Task[None]] = Future()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="magistrate-watch", daemon=True)

    def start(self) -> None:
        """Start the thread, and wait until all judges and engines are created."""
        self._thread.start()
        self._began.result()

    def stop(self) -> None:
        """Stop. Unfinished decisions are released, to be judged by the next worker."""
        self._loop.call_soon_threadsafe(self._began.result().cancel)
        self._thread.join(GRACE)

    def _run(self) -> None:
        try:
            # A store that cannot be opened must not leave the loop open: no runner has it yet.
            with (
                closing(self._loop),
                Store.open(self._place) as store,
                asyncio.Runner(loop_factory=lambda: self._loop) as runner,
            ):
                runner.run(self._watch(store))
        except asyncio.CancelledError:
            pass
        except BaseException as error:
            if self._began.done():
                raise
            self._began.set_exception(error)

    async def _watch(self, store: Store) -> None:
        watcher = Watcher(store, self._rules, clock=lambda: datetime.now(UTC), send_to=self._send_to)
        await watcher.prepare()
        watcher.register()
        task = asyncio.current_task()
        assert task is not None
        self._began.set_result(task)
        while True:
            try:
                await watcher.run()
            except Exception as error:  # a locked store, a full disk: may be temporary
                _log.warning("watch.interrupted", error=_logging.error_text(error), again_in=PAUSE)
                await asyncio.sleep(PAUSE)
