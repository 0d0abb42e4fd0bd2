"""The worker beside the server: judges by rules what has come over OTLP, in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from fastapi.concurrency import run_in_threadpool

from magistrate import _logging
from magistrate.server.settings import Settings
from magistrate.store import Store
from magistrate.watch.rules import Rule, RuleFile
from magistrate.watch.upkeep import UpkeepThread, destinations
from magistrate.watch.worker import Watcher

PAUSE = 10.0  # seconds after which it goes on when something failed that is nobody's verdict
GRACE = 10.0  # seconds that it has to put back what is under way

_log = _logging.get("watch")


@asynccontextmanager
async def watching(settings: Settings) -> AsyncIterator[None]:
    """While the block runs, traces of the store are judged by the rules of the settings, if there are any.

    Beside it goes what else their file asks for: results and alerts are sent, old traces deleted. Raises what
    keeps a judge or an engine of a rule from being made, or what is sent from being sent.
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
    """A watcher in a thread, with an event loop and a store of its own."""

    def __init__(self, place: str, rules: Sequence[Rule], send_to: Sequence[str]) -> None:
        self._place, self._rules, self._send_to = place, rules, send_to
        self._began: Future[asyncio.Task[None]] = Future()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="magistrate-watch", daemon=True)

    def start(self) -> None:
        """Begin, once all judges and engines are made."""
        self._thread.start()
        self._began.result()

    def stop(self) -> None:
        """End; what is under way is put back, to be judged when somebody watches again."""
        self._loop.call_soon_threadsafe(self._began.result().cancel)
        self._thread.join(GRACE)

    def _run(self) -> None:
        try:
            with Store.open(self._place) as store, asyncio.Runner(loop_factory=lambda: self._loop) as runner:
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
            except Exception as error:  # a locked store, a full disk: it may be well again in a while
                _log.warning("watch.interrupted", error=_logging.error_text(error), again_in=PAUSE)
                await asyncio.sleep(PAUSE)
