"""Sends the results in the outbox: leases a batch, sends it, and records the result.

A receiver that fails is paused with exponential backoff. No result is given up, except those that the
receiver refuses individually.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta

from magistrate import _logging
from magistrate.store import RunRecord, Store
from magistrate.store.outbox import Judgement, Parcel
from magistrate.watch.outputs import Form, SendPart
from magistrate.watch.results import (
    Result,
    Sender,
    SendError,
    Sent,
    as_annotations,
    as_logs,
    as_spans,
    encoded,
)

BATCH = 100
LEASE = 300.0  # seconds; a batch takes less, even if the receiver is slow and the batch is halved
FIRST_PAUSE, LONGEST_PAUSE = 2.0, 3600.0
MOST_REQUESTS = 20  # per destination in one step
BAD_CONTENT = (400, 413, 422)
"""Answers that may be about one of several results; others are about the request, or its key."""

_log = _logging.get("watch")


class Pause:
    """Exponential backoff for a receiver that fails."""

    def __init__(self, randomness: random.Random) -> None:
        self._randomness = randomness
        self._failures = 0
        self._until: datetime | None = None

    def is_over(self, now: datetime) -> bool:
        """Return whether the receiver may be tried again."""
        return self._until is None or now >= self._until

    def begin(self, now: datetime, asked: float | None = None) -> datetime:
        """Record a failure and return when to retry. `asked` is the requested wait in seconds."""
        seconds = min(FIRST_PAUSE * 2**self._failures, LONGEST_PAUSE) * self._randomness.uniform(0.75, 1)
        self._failures = min(self._failures + 1, 20)
        self._until = now + timedelta(seconds=max(seconds, min(asked or 0.0, LONGEST_PAUSE)))
        return self._until

    def end(self) -> None:
        """Record a success, which resets the backoff."""
        self._failures, self._until = 0, None


class ResultSender:
    """Sends waiting outcomes from a store's outbox to the servers of a rules file.

    Raises `SpecError` if an environment variable of a header is not set, and `MissingExtra` if the protobuf
    package is missing.
    """

    def __init__(
        self,
        store: Store,
        parts: Sequence[SendPart],
        *,
        clock: Callable[[], datetime],
        randomness: random.Random | None = None,
    ) -> None:
        self._store, self._clock = store, clock
        self._randomness = randomness or random.SystemRandom()
        self._routes: dict[str, tuple[Form, Sender, Pause]] = {}
        self._runs: dict[str, RunRecord] = {}
        for part in parts:
            encoded("logs", as_logs(()), part.encoding)  # fails early if the package is missing
            sender = Sender(
                part.endpoint,
                part.headers(),
                encoding=part.encoding,
                attempts=1,  # a failed send stays in the outbox and is retried from there
                clock=lambda: self._clock().timestamp(),
            )
            for destination, form in part.destinations.items():
                self._routes[destination] = form, sender, Pause(self._randomness)

    def step(self) -> int:
        """Send what is due. Return how many results were accepted."""
        return sum(map(self._send_all, self._routes))

    def _send_all(self, destination: str) -> int:
        taken, (_, _, pause) = 0, self._routes[destination]
        for _ in range(MOST_REQUESTS):
            now = self._clock()
            if not pause.is_over(now):
                break
            lease = f"{self._randomness.getrandbits(64):016x}"
            until = now + timedelta(seconds=LEASE)
            parcels = self._store.outbox.take(destination, lease, until, now, BATCH)
            if not parcels:
                break
            taken += self._send(destination, parcels)
        return taken

    def _send(self, destination: str, parcels: Sequence[Parcel]) -> int:
        found = self._store.outbox.judgements(parcels)
        results = {each.key: self._result(each, found[each.key]) for each in parcels if each.key in found}
        unread = [each for each in parcels if each.key not in results]
        if unread:  # deleted ones have left the outbox already
            self._store.outbox.end(unread, "refused", "what was judged cannot be read")
        return self._send_results(destination, [each for each in parcels if each.key in results], results)

    def _send_results(
        self, destination: str, parcels: Sequence[Parcel], results: Mapping[str, Result]
    ) -> int:
        """Send results in one request, and split it in halves if the receiver refuses the content."""
        if not parcels:
            return 0
        form, sender, pause = self._routes[destination]
        outbox, chosen = self._store.outbox, [results[each.key] for each in parcels]
        try:
            said = _sent(sender, form, chosen)
        except SendError as error:
            told = _logging.without_keys(str(error))
            if error.status not in BAD_CONTENT:
                again = pause.begin(self._clock(), error.wait)
                outbox.put_off(parcels, again, told)
                _log.warning("results.unsent", to=destination, error=told, again_at=again.isoformat())
                return 0
            pause.end()
            if len(parcels) == 1:
                outbox.end(parcels, "refused", told)
                return 0
            half = len(parcels) // 2
            return sum(
                self._send_results(destination, each, results) for each in (parcels[:half], parcels[half:])
            )
        pause.end()
        if said.rejected >= len(parcels):
            outbox.end(parcels, "refused", f"rejected: {said.message}")
        elif said.rejected:
            remark = f"of {len(parcels)} results in the request {said.rejected} were rejected: {said.message}"
            outbox.end(parcels, "partly", remark)
        else:
            outbox.end(parcels, "sent", said.message)
        return max(len(parcels) - said.rejected, 0)

    def _result(self, parcel: Parcel, judgement: Judgement) -> Result:
        """Build the result to send. It is identical each time."""
        run, outcome = self._run(judgement.run_id), judgement.outcome
        return Result(
            trace_id=judgement.trace_id,
            span_id=judgement.span_id,
            outcome=outcome,
            recipe=run.recipes[outcome.judge],
            scoring=run.scoring[outcome.judge],
            time_ns=round(parcel.made_at.timestamp() * 1_000_000) * 1_000,
            kind="code" if parcel.body["by"] == "code" else "llm",
            response_id=judgement.response_id,
        )

    def _run(self, run_id: str) -> RunRecord:
        """Return the run of an outcome, cached because its recipes and scoring do not change."""
        if run_id not in self._runs:
            self._runs[run_id] = self._store.find_run(run_id)
        return self._runs[run_id]


def _sent(sender: Sender, form: Form, results: Sequence[Result]) -> Sent:
    match form:
        case "events":
            return sender.send("logs", as_logs(results))
        case "spans":
            return sender.send("traces", as_spans(results))
        case "annotations":
            return sender.annotate(as_annotations(results))
