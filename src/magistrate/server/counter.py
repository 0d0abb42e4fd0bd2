"""Figures of runs that nobody has counted yet, counted aside: pages show what there is and look again."""

from __future__ import annotations

import threading
from collections import OrderedDict

from magistrate import _logging
from magistrate.errors import MagistrateError, SpecError
from magistrate.report.counts import MADE_BY, Counted, counted
from magistrate.server.preparing import prepare
from magistrate.server.stores import Stores

SECONDS = 5.0  # between two looks for runs that have stopped and were not counted
AT_ONCE = 20
KEPT = 50

_log = _logging.get("server")


class Counter:
    """One thread that counts: first the runs that were asked for, then whatever is not counted, newest first.

    What it counted of a run under way, which the store does not keep, is in `latest`.
    """

    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        self._asked: OrderedDict[str, None] = OrderedDict()
        self._latest: OrderedDict[str, Counted] = OrderedDict()
        self._refused: set[str] = set()
        self._lock = threading.Lock()
        self._woken = threading.Event()
        self._ended = False
        self._thread = threading.Thread(target=self._work, name="magistrate-counter", daemon=True)

    def start(self) -> None:
        """Begin to count."""
        self._thread.start()

    def stop(self) -> None:
        """Count nothing more; returns when the run that is being counted is done, or after a while."""
        self._ended = True
        self._woken.set()
        if self._thread.is_alive():
            self._thread.join(timeout=SECONDS)

    def ask(self, run_id: str) -> None:
        """Let this run be counted next."""
        with self._lock:
            self._asked[run_id] = None
            self._asked.move_to_end(run_id, last=False)
        self._woken.set()

    def latest(self, run_id: str) -> Counted | None:
        """What was counted of a run last, if that was not long ago."""
        with self._lock:
            return self._latest.get(run_id)

    def _work(self) -> None:
        prepare()
        while not self._ended:
            self._woken.clear()
            found = self._next()
            if found is None:
                self._woken.wait(SECONDS)
            else:
                self._count(found)

    def _next(self) -> str | None:
        with self._lock:
            if self._asked:
                return self._asked.popitem(last=False)[0]
        try:
            with self._stores.one() as store, store.snapshot() as moment:
                waiting = moment.uncounted(MADE_BY, AT_ONCE + len(self._refused))
        except MagistrateError as error:
            _log.warning("counter.waits", reason=str(error))
            return None
        return next((run_id for run_id in waiting if run_id not in self._refused), None)

    def _count(self, run_id: str) -> None:
        try:
            with self._stores.one() as store:
                found = counted(store, run_id)
                with store.snapshot() as moment:
                    kept, _ = moment.figures(run_id, MADE_BY)
        except SpecError:
            return  # it is gone
        except Exception as error:  # one run must not end the counting of all others
            _log.warning("counter.refused", run=run_id, reason=f"{type(error).__name__}: {error}")
            self._refused.add(run_id)
            return
        if kept < found.revision and found.report.run.status != "running":
            self._refused.add(run_id)  # a store that cannot be written to: do not count the same for ever
        with self._lock:
            self._latest[run_id] = found
            self._latest.move_to_end(run_id)
            while len(self._latest) > KEPT:
                self._latest.popitem(last=False)
