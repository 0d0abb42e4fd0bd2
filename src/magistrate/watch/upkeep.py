"""Background work next to judging, in its own thread, so that a slow receiver does not block the judges."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta

from magistrate import _logging
from magistrate.store import Store
from magistrate.watch.alerts import Alerts
from magistrate.watch.delivery import ResultSender
from magistrate.watch.rules import RuleFile

POLL = 2.0  # seconds between steps
DELETE_EVERY = 600.0  # seconds between searches for traces that are too old
DELETED_AT_ONCE = 50
GRACE = 15.0  # seconds that work in progress has to finish

_log = _logging.get("watch")


def destinations(file: RuleFile) -> Sequence[str]:
    """Return the outbox destinations of the verdicts of a rules file."""
    return [name for part in file.send for name in part.destinations]


class Upkeep:
    """The background work of a rules file on one store: sending results, alerts, retention.

    Several processes may do this at once. Raises `SpecError` if a named environment variable is not set.
    """

    def __init__(
        self,
        store: Store,
        file: RuleFile,
        *,
        clock: Callable[[], datetime],
        randomness: random.Random | None = None,
    ) -> None:
        self._results = ResultSender(store, file.send, clock=clock, randomness=randomness)
        self._alerts = Alerts(store, file, clock=clock, randomness=randomness)
        self._parts: tuple[tuple[str, Callable[[], object]], ...] = (
            ("results", self._results.step),
            ("alerts", self._alerts.step),
            ("retention", self._delete_old),
        )
        self._store, self._clock, self._keep_days = store, clock, file.keep_days
        self._deleted: datetime | None = None

    def finish(self) -> None:
        """Do what is due until nothing is left, or until a receiver is paused after a failure."""
        self.step()
        while self._results.step():
            pass

    def step(self) -> None:
        """Do what is due now. A failing task is logged and does not stop the others."""
        for name, do in self._parts:
            try:
                do()
            except Exception as error:  # a locked store or a full disk may recover
                _log.warning("upkeep.failed", part=name, error=_logging.error_text(error))

    def _delete_old(self) -> None:
        """Delete a batch of the traces that are older than the rules file keeps them."""
        now = self._clock()
        waited = self._deleted is None or (now - self._deleted).total_seconds() >= DELETE_EVERY
        if self._keep_days is None or not waited:
            return
        before = now - timedelta(days=self._keep_days)
        done = self._store.trace_deletion.delete_before(before, now, DELETED_AT_ONCE)
        if done.traces:
            _log.info("traces.deleted", traces=done.traces, samples=done.samples)
        if done.traces < DELETED_AT_ONCE:
            self._deleted = now


class UpkeepThread:
    """A thread that runs `Upkeep` with its own connection to the store at `place`."""

    def __init__(self, place: str, file: RuleFile, *, poll: float = POLL) -> None:
        self._place, self._file, self._poll = place, file, poll
        self._end = threading.Event()
        self._began: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="magistrate-upkeep", daemon=True)

    def start(self) -> None:
        """Start the thread. Raises `SpecError` if an environment variable that the file names is not set."""
        self._thread.start()
        self._began.result()

    def stop(self) -> None:
        """Stop after the work in progress, waiting `GRACE` seconds at most."""
        self._end.set()
        self._thread.join(GRACE)

    def _run(self) -> None:
        try:
            with Store.open(self._place) as store:
                upkeep = Upkeep(store, self._file, clock=lambda: datetime.now(UTC))
                self._began.set_result(None)
                while not self._end.is_set():
                    upkeep.step()
                    self._end.wait(self._poll)
        except BaseException as error:
            if self._began.done():
                raise
            self._began.set_exception(error)
