"""Checks the bounds of alerts and notifies the sinks when an alert starts firing and when it resolves.

An alert fires when its bound is passed in all its windows. It resolves when the short window is back behind
`clear`. If a window has no data, nothing changes: a firing alert keeps firing, a silent one stays silent
with the state `no data`. The firing state and the outbox messages are stored in one transaction, so a
restart or a second worker does not notify twice.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any

from magistrate import _logging
from magistrate._text import decimal
from magistrate.store import Store
from magistrate.store.decisions import Hour, RuleRecord
from magistrate.watch.alert_rules import AlertPart, Bound, SinkPart
from magistrate.watch.delivery import LEASE, Pause
from magistrate.watch.rates import rate_of
from magistrate.watch.rules import Rule, RuleFile
from magistrate.watch.sinks import SinkError, Tell, sink

CHECK_EVERY = 30.0  # seconds
AT_ONCE = 10  # messages per sink in one step
FAILED = ("failed", "retrying")

_log = _logging.get("watch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The value of an alert's metric in a window of `seconds`; None with a reason if there is no data."""

    seconds: float
    value: float | None
    why: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        plain: dict[str, Any] = {"seconds": self.seconds, "value": self.value}
        return plain if self.value is not None else plain | {"undefined": self.why}


def destination(name: str) -> str:
    """Return the outbox destination for the sink of this name."""
    return f"alerts to {name}"


class Alerts:
    """The alerts of a rules file over one store: `check` evaluates them, `send` notifies the sinks.

    Raises `SpecError` if an environment variable of a sink is not set.
    """

    def __init__(
        self,
        store: Store,
        file: RuleFile,
        *,
        clock: Callable[[], datetime],
        randomness: random.Random | None = None,
    ) -> None:
        self._store, self._alerts, self._clock = store, file.alerts, clock
        self._randomness = randomness or random.SystemRandom()
        self._default_rule = file.rules[0].name
        self._sinks: dict[str, tuple[Tell, Pause]] = {
            name: (sink(part), Pause(self._randomness)) for name, part in file.sinks.items()
        }
        self._checked: datetime | None = None

    def step(self) -> int:
        """Check the alerts if a check is due, then send waiting messages. Return how many were sent."""
        now = self._clock()
        if self._alerts and (self._checked is None or (now - self._checked).total_seconds() >= CHECK_EVERY):
            self._checked = now
            self.check()
        return self.send()

    def check(self) -> None:
        """Check all alerts now."""
        now = self._clock()
        known = {each.name: each for each in self._store.watched.rules()}
        firing = {each.name for each in self._store.watched.alerts() if each.firing}
        for alert in self._alerts:
            record = known.get(alert.rule or self._default_rule)
            if record is None:
                continue  # no worker has registered the rule yet
            seen = look(self._store, record, alert, now)
            before = alert.name in firing
            fires = decide(alert, seen, was_firing=before)
            no_data = any(each.value is None for each in seen)
            state = "firing" if fires else "no data" if no_data else "ok"
            told = {
                "state": state,
                "text": describe(alert, seen),
                "windows": [each.to_dict() for each in seen],
            }
            message = _message(alert, record.name, "firing" if fires else "resolved", told, now)
            names = list(self._sinks) if alert.to is None else alert.to
            to = [(destination(name), message) for name in names]
            if self._store.watched.note_alert(alert.name, before, fires, told, now, to):
                _log.warning("alert.turned", alert=alert.name, state=message["state"], seen=told["text"])

    def send(self) -> int:
        """Send waiting messages to the sinks. A sink that fails is tried again later."""
        return sum(self._send(name, *each) for name, each in self._sinks.items())

    def _send(self, name: str, tell: Tell, pause: Pause) -> int:
        sent, outbox = 0, self._store.outbox
        for _ in range(AT_ONCE):
            now = self._clock()
            if not pause.is_over(now):
                break
            lease = f"{self._randomness.getrandbits(64):016x}"
            waiting = outbox.take(destination(name), lease, now + timedelta(seconds=LEASE), now, 1)
            if not waiting:
                break
            try:
                tell(waiting[0].body)
            except SinkError as error:
                again = pause.begin(now)
                outbox.put_off(waiting, again, str(error))
                _log.warning("alert.unsent", sink=name, error=str(error), again_at=again.isoformat())
                break
            pause.end()
            sent += outbox.end(waiting, "sent")
        return sent


# --- metrics per window -------------------------------------------------------------------------------


def look(store: Store, record: RuleRecord, alert: AlertPart, now: datetime) -> list[Seen]:
    """Compute the alert's metric in each of its windows."""
    longest = now - timedelta(seconds=max(alert.windows))
    rows = store.traces.answers(record.name, longest, now + timedelta(microseconds=1))
    hours = store.traces.hours(record.name, now, longest - timedelta(hours=1))
    found = []
    for seconds in alert.windows:
        begin = now - timedelta(seconds=seconds)
        inside = [row for row in rows if row[0] >= begin]
        value, why = _figure(store, record, alert, begin, now, inside, hours)
        found.append(Seen(seconds=seconds, value=value, why=why))
    return found


def _figure(
    store: Store,
    record: RuleRecord,
    alert: AlertPart,
    begin: datetime,
    now: datetime,
    rows: Sequence[Any],
    hours: Sequence[Hour],
) -> tuple[float | None, str]:
    """Return the metric, or None and the reason it is undefined."""
    bound = alert.bound
    if bound.figure == "queue_age":
        _, oldest = store.watched.waiting(record.name)
        return 0.0 if oldest is None else max((now - oldest).total_seconds(), 0.0), ""
    if bound.figure.startswith("spend."):
        return _spent(store, record, bound, begin, hours)
    if bound.figure == "failures":
        return float(sum(row[3] in FAILED for row in rows)), ""
    rule = Rule.model_validate(record.spec, strict=False)
    rate = rate_of(begin, now, rows, alert.judge or _last_judge(rule, rows))
    if bound.figure == "verdicts":
        return float(rate.n), ""
    if bound.figure == "coverage":
        return rate.coverage, "there was nothing to judge"
    if rate.n < alert.n:
        return None, f"{rate.n} verdicts, fewer than {alert.n}"
    share = rate.share
    ends = {None: share.value, "lower": share.low, "upper": share.high}
    return ends[bound.end], share.undefined or ""


def _last_judge(rule: Rule, rows: Sequence[Any]) -> str:
    """Return the name of the rule's last judge, also where the judges before it decided everything."""
    last = len(rule.judges) - 1
    asked = (row[5] for row in reversed(rows))  # the newest first: judges may have changed
    return next((each[last]["judge"] for each in asked if len(each) > last), rule.judges[last].judge)


def _spent(
    store: Store, record: RuleRecord, bound: Bound, begin: datetime, hours: Sequence[Hour]
) -> tuple[float | None, str]:
    """Return what was spent in the hours that overlap the window."""
    measure = bound.figure.partition(".")[2]
    if measure == "dollars" and not store.watched.has_price(record.name, begin):
        return None, "no price is known"
    first = begin.replace(minute=0, second=0, microsecond=0)
    return float(sum(getattr(each.spent, measure) or 0 for each in hours if each.at >= first)), ""


def decide(alert: AlertPart, seen: Sequence[Seen], *, was_firing: bool) -> bool:
    """Return whether an alert fires now, given its metric per window and whether it fired before."""
    if was_firing:
        short = seen[0].value
        return short is None or alert.bound.holds(short, alert.clear)
    return all(each.value is not None and alert.bound.holds(each.value) for each in seen)


def describe(alert: AlertPart, seen: Sequence[Seen]) -> str:
    """Return a readable summary: `lower(flag_rate) > 0.1: .14 in 1h, .12 in 6h`."""
    told = [f"{_shown(alert.bound, each)} in {_time(each.seconds)}" for each in seen]
    return f"{alert.when}: {', '.join(told)}"


def _shown(bound: Bound, seen: Seen) -> str:
    if seen.value is None:
        return f"no data ({seen.why})"
    if bound.figure == "queue_age":
        return _time(seen.value)
    return decimal(seen.value) if bound.figure in ("flag_rate", "coverage") else f"{seen.value:,.10g}"


def _time(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g}{unit}"
    return f"{seconds:,.0f}s"


def _message(
    alert: AlertPart, rule: str, state: str, told: Mapping[str, Any], now: datetime
) -> dict[str, Any]:
    of = f"{alert.name}\0{state}\0{now.isoformat()}".encode("utf-8", "surrogatepass")
    return {
        "id": sha256(of).hexdigest()[:32],
        "alert": alert.name,
        "state": state,
        "rule": rule,
        "when": alert.when,
        "at": now.isoformat(),
        "text": told["text"],
        "windows": told["windows"],
    }


def a_test(name: str, now: datetime) -> dict[str, Any]:
    """Return a message marked as a test."""
    of = f"test\0{name}\0{now.isoformat()}".encode("utf-8", "surrogatepass")
    return {
        "id": sha256(of).hexdigest()[:32],
        "alert": "test",
        "state": "test",
        "rule": None,
        "when": None,
        "at": now.isoformat(),
        "text": "A test message from Magistrate: alerts arrive here.",
        "windows": [],
    }


def send_tests(sinks: Mapping[str, SinkPart], now: datetime) -> dict[str, str]:
    """Send a test message to each sink. Return the error message per sink name, empty if it was sent."""
    found = {}
    for name, part in sinks.items():
        try:
            sink(part)(a_test(name, now))
        except SinkError as error:
            found[name] = str(error)
        else:
            found[name] = ""
    return found
