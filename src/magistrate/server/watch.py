"""The watch page and its JSON: traffic, flagged share, queue and funnel of every rule.

Shares come from `watch.rates` and are weighted by the probability with which each answer was judged.
Without judged answers the share is undefined, not 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Literal

from fastapi import APIRouter, Request, Response
from fastapi.exceptions import RequestValidationError

from magistrate.report.charts import Chart, counts_over_time, shares_over_time
from magistrate.report.formatting import decimal, interval
from magistrate.server.responses import error_responses, json_response, link, page, query_of
from magistrate.server.state import Finished, JobQueue, Pending, RequestStore, StorePool, jobs_of, stores_of
from magistrate.store import Snapshot, Store
from magistrate.store.decisions import DUE, SUPERSEDED
from magistrate.store.watch_figures import Bucket, Queue, TraceCounts, WatchedRule
from magistrate.types import HALLUCINATED
from magistrate.watch.rates import OUTSIDE, UNDRAWN, Rate, rates

MOST_COUNTED = 20_000  # most answers of a rule whose shares are computed within the request
COUNTED_EVERY = timedelta(minutes=10)  # how often those of more are computed, in the background
AGAIN = 0.8  # seconds until a page with pending shares reloads

Period = Literal["24h", "7d", "30d"]
PERIODS: Mapping[Period, tuple[Bucket, int]] = {"24h": ("hour", 24), "7d": ("day", 7), "30d": ("day", 30)}
STEPS: Mapping[Bucket, timedelta] = {"hour": timedelta(hours=1), "day": timedelta(days=1)}

WITHOUT_VERDICT = ("abstained", "failed", "shed", "expired")
DRAWN = ("judged", *DUE, *WITHOUT_VERDICT)
STAGES: Mapping[str, tuple[str, ...]] = {"about": (UNDRAWN, *DRAWN), "drawn": DRAWN, "queue": DUE}
"""States that are counted together, by the word that stands for them in an address."""
WORDS = {
    "waiting": "may still change",
    "filtered": "the rule does not apply",
    "no_output": "nothing to judge",
    "no_context": "no context to judge with",
    "loop": "from Magistrate itself",
    UNDRAWN: "not sampled",
    "queued": "waiting to be judged",
    "retrying": "waiting to be judged again after a failure",
    "budget_deferred": "postponed: the budget is spent",
    "judged": "have a verdict",
    "abstained": "the judge abstained",
    "failed": "could not be judged",
    "shed": "too many were waiting",
    "expired": "waited too long",
    SUPERSEDED: "replaced by a later answer",
}
STATES = tuple(WORDS)

router = APIRouter()
api = APIRouter(tags=["watching"])


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeShares:
    """How often a judge gives a label, over the whole period and in each part of it.

    `labels` are the judge's possible labels, empty if unknown. `unsure_only` is true if the judge is called
    only when the one before it is unsure, so that its shares describe only such answers.
    """

    judge: str
    label: str
    labels: tuple[str, ...]
    unsure_only: bool
    whole: Rate
    parts: tuple[Rate, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """The number of answers per state, seen from `begin` to `end`; None before the rule existed."""

    begin: datetime
    end: datetime
    states: dict[str, int] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleView:
    """A rule in a period: the number of answers per state, and the shares that its judges flag.

    `states` has the states that occur, including superseded. `pending` is true while the shares are being
    computed; `refused` is the reason if that failed.
    """

    name: str
    version: int
    since: datetime
    asks: tuple[str, ...]
    sample: float | None
    queue: Queue
    states: dict[str, int]
    traffic: tuple[Traffic, ...]
    shares: tuple[JudgeShares, ...]
    shares_until: datetime
    pending: bool
    refused: str | None

    @property
    def seen(self) -> int:
        """The number of answers that the rule decided on."""
        return sum(n for state, n in self.states.items() if state != SUPERSEDED)


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchView:
    """All rules from `since` until now, by hours or days in UTC."""

    period: Period
    bucket: Bucket
    since: datetime
    until: datetime
    traces: TraceCounts
    rules: tuple[RuleView, ...]

    @property
    def pending(self) -> bool:
        """Whether some shares are still being computed."""
        return any(rule.pending for rule in self.rules)


def watch_view(
    store: Store, stores: StorePool, jobs: JobQueue, now: datetime, period: Period, label: str | None = None
) -> WatchView:
    """Return the current state of all rules, with the shares of `label`, by default `hallucinated`."""
    bucket, n = PERIODS[period]
    since = _floor(now, bucket) - STEPS[bucket] * (n - 1)
    until = now + timedelta(microseconds=1)  # include answers seen at this moment
    with store.snapshot() as moment:
        rules = moment.watched_rules()
        counts = moment.state_counts(since, until, bucket)
        found = [
            (
                rule,
                moment.queue(rule.name, now),
                _traffic(rule, counts.get(rule.name, {}), since, until, bucket),
                _judges(moment, rule, since, until, label),
            )
            for rule in rules
        ]
        traces = moment.trace_counts()
    views = [
        _rule_view(store, stores, jobs, rule, queue, traffic, asked, since, until, bucket)
        for rule, queue, traffic, asked in found
    ]
    return WatchView(period=period, bucket=bucket, since=since, until=now, traces=traces, rules=tuple(views))


def _floor(now: datetime, bucket: Bucket) -> datetime:
    hour = now.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    return hour if bucket == "hour" else hour.replace(hour=0)


def _traffic(
    rule: WatchedRule, counts: Mapping[str, dict[str, int]], since: datetime, until: datetime, bucket: Bucket
) -> tuple[Traffic, ...]:
    found = []
    begin = since
    while begin < until:
        end = begin + STEPS[bucket]
        states = counts.get(begin.isoformat()[: 13 if bucket == "hour" else 10])
        known = states is not None or end > rule.since
        found.append(Traffic(begin=begin, end=min(end, until), states=(states or {}) if known else None))
        begin = end
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A judge of a rule, and the label whose share is computed."""

    judge: str
    label: str
    labels: tuple[str, ...]
    unsure_only: bool


def _judges(
    moment: Snapshot, rule: WatchedRule, since: datetime, until: datetime, label: str | None
) -> list[_Asked]:
    """Return the judges that the rule called in a period, in order."""
    scoring = {name: each for run_id in rule.run_ids for name, each in moment.record(run_id).scoring.items()}
    parts = rule.spec.get("judges") or [{}]
    found = []
    for place, judge in enumerate(moment.judges_asked(rule.name, since, until)):
        labels = scoring[judge].labels if judge in scoring else ()
        wanted = label if label in labels else HALLUCINATED
        if labels and wanted not in labels:
            wanted = labels[-1]
        floor = parts[min(place, len(parts) - 1)].get("floor")
        found.append(_Asked(judge, wanted, labels, unsure_only=place > 0 and not floor))
    return found


def _rule_view(
    store: Store,
    stores: StorePool,
    jobs: JobQueue,
    rule: WatchedRule,
    queue: Queue,
    traffic: tuple[Traffic, ...],
    asked: Sequence[_Asked],
    since: datetime,
    until: datetime,
    bucket: Bucket,
) -> RuleView:
    states: dict[str, int] = {}
    for part in traffic:
        for state, n in (part.states or {}).items():
            states[state] = states.get(state, 0) + n
    refused, pending = None, False
    if sum(states.values()) <= MOST_COUNTED:
        shares: tuple[JudgeShares, ...] = _shares(store, rule.name, asked, since, until, bucket)
    else:
        step = COUNTED_EVERY.total_seconds()
        until = datetime.fromtimestamp(until.timestamp() // step * step, UTC)
        work = partial(_shares_of, stores, rule.name, asked, since, until, bucket)
        made = jobs.submit(("watch", rule.name, tuple(asked), since, until, bucket), work)
        shares, pending = (), isinstance(made, Pending)
        if isinstance(made, Finished):
            shares = made.value
        elif not isinstance(made, Pending):
            refused = made.message
    sample = rule.spec.get("sample")
    return RuleView(
        name=rule.name,
        version=rule.version,
        since=rule.since,
        asks=tuple(str(each.get("judge")) for each in rule.spec.get("judges", ())),
        sample=sample.get("rate") if isinstance(sample, Mapping) else sample,
        queue=queue,
        states=states,
        traffic=traffic,
        shares=shares,
        shares_until=until,
        pending=pending,
        refused=refused,
    )


def _shares_of(stores: StorePool, *given: Any) -> tuple[JudgeShares, ...]:
    with stores.one() as store:
        return _shares(store, *given)


def _shares(
    store: Store, rule: str, asked: Sequence[_Asked], since: datetime, until: datetime, bucket: Bucket
) -> tuple[JudgeShares, ...]:
    found = []
    for each in asked:
        told: dict[str, Any] = {"since": since, "until": until, "label": each.label}
        (whole,) = rates(store, rule, each.judge, step=until - since, **told)
        parts = rates(store, rule, each.judge, step=STEPS[bucket], **told)
        found.append(JudgeShares(**_plain(each), whole=whole, parts=tuple(parts)))
    return tuple(found)


def _plain(asked: _Asked) -> dict[str, Any]:
    return {name: getattr(asked, name) for name in asked.__dataclass_fields__}


# --- the page -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class FunnelRow:
    """A row of the funnel. `share`, in [0, 1], is relative to all answers seen.

    A `stage` counts the answers that remain; the other rows count those that left.
    """

    words: str
    told: str
    n: int
    share: float
    stage: bool
    href: str


def funnel(rule: RuleView, since: datetime) -> tuple[FunnelRow, ...]:
    """Return how many answers reached each stage, from seen to flagged, without states that do not occur."""

    def row(words: str, told: str, n: int, *, stage: bool = False, **query: Any) -> FunnelRow:
        href = list_address(rule.name, since, **query)
        share = n / rule.seen if rule.seen else 0.0
        return FunnelRow(words=words, told=told, n=n, share=share, stage=stage, href=href)

    def left(states: Sequence[str]) -> Iterator[FunnelRow]:
        for state in states:
            if n := rule.states.get(state):
                yield row(state.replace("_", " "), WORDS[state], n, state=state)

    about, drawn = (sum(rule.states.get(each, 0) for each in STAGES[name]) for name in ("about", "drawn"))
    rows = [row("seen", "answers that the rule has decided on", rule.seen, stage=True), *left(OUTSIDE)]
    rows += [
        row("about", "answers that the rule applies to", about, stage=True, state="about"),
        *left((UNDRAWN,)),
    ]
    rows += [row("drawn", "answers to judge", drawn, stage=True, state="drawn")]
    rows += left((*DUE, *WITHOUT_VERDICT))
    rows += [row("judged", WORDS["judged"], rule.states.get("judged", 0), stage=True, state="judged")]
    for each in rule.shares:
        told = f"{each.judge} says {each.label}"
        rows.append(row("flagged", told, each.whole.flagged, judge=each.judge, label=each.label))
    return (*rows, *left((SUPERSEDED,)))


def list_address(
    rule: str, since: datetime | None = None, until: datetime | None = None, **query: Any
) -> str:
    """Return the URL of the list of a rule's answers."""
    times = {
        name: None if at is None else at.astimezone(UTC).isoformat(timespec="seconds").removesuffix("+00:00")
        for name, at in (("since", since), ("until", until))
    }
    return link("/watch/traces", rule=rule, **query, **times)


def pictures(rule: RuleView, bucket: Bucket) -> tuple[Chart, ...]:
    """Return charts of a rule's traffic and of the share that each of its judges flags."""
    times = [_time(part.begin, bucket) for part in rule.traffic]
    groups = {"judged": ("judged",), "queue": DUE, "no verdict": WITHOUT_VERDICT}
    groups |= {"not judged": (*OUTSIDE, UNDRAWN)}
    counts = {
        name: [
            None if part.states is None else sum(part.states.get(state, 0) for state in states)
            for part in rule.traffic
        ]
        for name, states in groups.items()
    }
    unknown = any(part.states is None for part in rule.traffic)
    words = f"Answers by the time when they were seen, per {bucket}. The last {bucket} is not over."
    words += " – stands for a time before the rule existed." if unknown else ""
    found = [counts_over_time("Answers", times, counts, words)]
    for each in rule.shares:
        words = (
            f"The share of answers that {each.judge} labels {each.label}, per {bucket}, with 95 % intervals; "
            "– if there is no data. A hollow point is based on one trace and has no interval."
        )
        named = [_time(part.begin, bucket) for part in each.parts]
        title = f"{each.label.capitalize()}, by {each.judge}"
        found.append(shares_over_time(title, named, [part.share for part in each.parts], words))
    return tuple(found)


def _time(at: datetime, bucket: Bucket) -> str:
    return f"{at:%H:%M}" if bucket == "hour" else f"{at:%d %b}"


def now_of(request: Request) -> datetime:
    """Return the time by the application's clock."""
    now: datetime = request.app.state.clock()
    return now


def _asked_for(request: Request) -> tuple[Period, str | None]:
    """Return the period and the label from the query."""
    query = query_of(request)
    given = query.get("period", [""])[-1] or "24h"
    for period in PERIODS:
        if given == period:
            return period, query.get("label", [""])[-1] or None
    known = ", ".join(PERIODS)
    raise RequestValidationError([{"loc": ("query", "period"), "msg": f"known are {known}"}])


@router.get("/watch")
def watch_page(request: Request, store: RequestStore) -> Response:
    """Show all rules."""
    period, label = _asked_for(request)
    view = watch_view(store, stores_of(request), jobs_of(request), now_of(request), period, label)
    rules = [
        (rule, funnel(rule, view.since), pictures(rule, view.bucket), _rows(rule, view.bucket))
        for rule in view.rules
    ]
    return page(
        request,
        "watch.html",
        view=view,
        rules=rules,
        periods=tuple(PERIODS),
        label=label,
        receives=request.app.state.settings.watch,
        again=round(1000 * AGAIN),
        here=link("/watch", period=period, label=label),
        answers=list_address,
        interval=interval,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """An hour or a day in the table beside the charts, formatted."""

    time: str
    href: str
    seen: str
    judged: str
    queue: str
    shares: tuple[str, ...]


def _rows(rule: RuleView, bucket: Bucket) -> list[_Row]:
    found = []
    for at, part in enumerate(rule.traffic):
        parts = [each.parts[at] for each in rule.shares if at < len(each.parts)]
        states = part.states
        counted = None if states is None else {k: n for k, n in states.items() if k != SUPERSEDED}
        found.append(
            _Row(
                time=f"{part.begin:%Y-%m-%d}" + (f" {part.begin:%H:%M}" if bucket == "hour" else ""),
                href=list_address(rule.name, part.begin, part.end),
                seen="no data" if counted is None else f"{sum(counted.values()):,}",
                judged="no data" if counted is None else f"{counted.get('judged', 0):,}",
                queue="no data" if counted is None else f"{sum(counted.get(s, 0) for s in DUE):,}",
                shares=tuple(_share_words(each) for each in parts),
            )
        )
    return found[::-1]


def _share_words(rate: Rate) -> str:
    if rate.share.value is None:
        return str(rate.share.undefined)
    return f"{decimal(rate.share.value)} {interval(rate.share)} of {rate.n:,}"


# --- as JSON --------------------------------------------------------------------------------------


@api.get("/watch", response_model=WatchView, responses=error_responses(422, 503))
def watching(request: Request, store: RequestStore, period: Period = "24h", label: str = "") -> Response:
    """All rules, by hours or days in UTC."""
    given, label_given = _asked_for(request)
    view = watch_view(store, stores_of(request), jobs_of(request), now_of(request), given, label_given)
    return json_response(asdict(view))
