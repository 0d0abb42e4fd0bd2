"""Prometheus gauges of watching, read from the store at collection.

Unknown values are absent: a share without verdicts has no sample, instead of 0.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily

from magistrate import _logging
from magistrate.errors import MagistrateError
from magistrate.server.state import StorePool
from magistrate.watch.status import WatchStatus, status

WINDOW = timedelta(hours=1)
REMEMBERED = 15.0  # seconds for which a status is cached
PREFIX = "magistrate_watch"

_log = _logging.get("server")


class WatchCollector:
    """Collects the gauges of a store's rules over the last hour. `clock` counts seconds."""

    def __init__(self, stores: StorePool, clock: Callable[[], float] = time.monotonic) -> None:
        self._stores, self._clock = stores, clock
        self._read_at = float("-inf")
        self._found: WatchStatus | None = None

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Return nothing, because the gauges depend on the store, which is not read at registration."""
        return ()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the current gauges, none if the store cannot be read."""
        if self._clock() - self._read_at >= REMEMBERED:
            try:
                with self._stores.one() as store:
                    self._found = status(store, datetime.now(UTC), WINDOW)
            except MagistrateError as error:
                self._found = None
                _log.warning("watch.unread", error=_logging.error_text(error))
            self._read_at = self._clock()
        if self._found is not None:
            yield from gauges(self._found)


def gauges(found: WatchStatus) -> Iterator[GaugeMetricFamily]:
    """Yield the gauges of a status."""
    decisions = _gauge("decisions", "Answers of the last hour, by decision.", "rule", "state")
    share = _gauge(
        "flag_rate", "Share of flagged answers in the last hour, with its interval.", "rule", "judge", "bound"
    )
    verdicts = _gauge("verdicts", "Verdicts on answers of the last hour.", "rule", "judge")
    coverage = _gauge("coverage", "Share of sampled answers that have a verdict.", "rule", "judge")
    waiting = _gauge("queue", "Answers waiting to be judged.", "rule")
    age = _gauge("queue_age_seconds", "Waiting time of the oldest of them.", "rule")
    spent = _gauge("spent_this_hour", "Amount spent in this hour.", "rule", "measure")
    for rule in found.rules:
        for state, n in rule.states.items():
            decisions.add_metric([rule.rule, state], n)
        for judge in rule.judges:
            rate = judge.rate
            verdicts.add_metric([rule.rule, judge.judge], rate.n)
            for bound, value in (
                ("value", rate.share.value),
                ("low", rate.share.low),
                ("high", rate.share.high),
            ):
                if value is not None:
                    share.add_metric([rule.rule, judge.judge, bound], value)
            if rate.coverage is not None:
                coverage.add_metric([rule.rule, judge.judge], rate.coverage)
        waiting.add_metric([rule.rule], rule.waiting)
        if rule.queue_age is not None:
            age.add_metric([rule.rule], rule.queue_age)
        for measure in ("calls", "tokens", "dollars"):
            amount = getattr(rule.hour.spent, measure)
            if amount is not None:
                spent.add_metric([rule.rule, measure], amount)
    unsent = _gauge("unsent", "Results and alerts not sent yet.", "destination")
    for queue in found.queues:
        unsent.add_metric([queue.destination], queue.waiting)
    alert = _gauge("alert", "1 while an alert fires.", "alert")
    for each in found.alerts:
        alert.add_metric([each.name], int(each.firing))
    yield from (decisions, share, verdicts, coverage, waiting, age, spent, unsent, alert)


def register(registry: CollectorRegistry, stores: StorePool) -> None:
    """Add the gauges to a server's metrics."""
    registry.register(WatchCollector(stores))


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"{PREFIX}_{name}", text, labels=labels)
