"""The view values of one run: its facts, its judges' figures, and one judge in detail."""

from __future__ import annotations

from dataclasses import dataclass, replace

from magistrate._text import shorten
from magistrate.errors import SpecError
from magistrate.report.counts import Counted, count, counted_before, facts_of
from magistrate.report.values import JudgeReport, Report
from magistrate.report.views import comparison, run_facts
from magistrate.server.run_cache import RunCache
from magistrate.server.views.figures import SlicesView
from magistrate.server.views.judge_detail import (
    MOST_AT_ONCE,
    CodeLine,
    CrossTable,
    Detail,
    FlagPart,
    JudgeReader,
    RunQuery,
    ThresholdPart,
    detail_of,
)
from magistrate.server.views.outcomes import ListView
from magistrate.store import RunRecord, Snapshot, Store
from magistrate.store.figures import RunLine

GROWN = 1.1  # a run under way is counted again when it has so many times the outcomes that were counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a run is, over all its judges; `n_expected` is None if nobody knows."""

    n_done: int
    n_failures: int
    n_expected: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeRow:
    """A judge in the table of several, in words: number of verdicts, three metrics, time per sample.

    `cells` is empty if nothing was counted yet.
    """

    judge: str
    cells: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """A run. `n_counted` outcomes are in its figures, None if nothing was counted.

    `progress` is None unless the run is under way. `detail` is of the judge that is shown, None in a run
    without judges. `pending` says that something is being computed, so that there will be more soon.
    """

    record: RunRecord
    facts: tuple[tuple[str, str], ...]
    progress: Progress | None
    n_counted: int | None
    judges: tuple[JudgeRow, ...]
    detail: Detail | None
    pending: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RunData:
    """A run and the figures of its judges, as they were at `counted_revision`; None if nobody counted them.

    `current` says that they are those of the run as it is now; if not, they will be soon.
    """

    record: RunRecord
    counted_revision: int | None
    current: bool
    judges: tuple[JudgeReport, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeData:
    """One judge's figures, at a threshold, with other kinds of claims flagged, and by slices, as asked for.

    `report` is None if nothing is counted yet; `pending` and `refused` are as in `Detail`.
    """

    judge: str
    report: JudgeReport | None
    threshold: ThresholdPart | None
    flags: FlagPart | None
    codes: tuple[CodeLine, ...]
    labels: CrossTable | None
    slices: SlicesView | None
    pending: bool
    refused: str | None


def run_view(store: Store, cache: RunCache, run_id: str, query: RunQuery) -> RunView:
    """A run as it is now. Raises `SpecError` if there is no such run or judge."""
    with store.snapshot() as moment:
        record = store.seen(moment.record(run_id))
        counted = _counted(moment, cache, record)
        judge = judge_of(record, query.judge)
        detail = None
        if judge is not None:
            detail = detail_of(JudgeReader(moment, cache, record, judge), counted, query)
        report = counted.report if counted else Report(facts_of(record), ())
        cells = {name: rest for name, *rest in comparison(report)}
        is_running = record.status == "running"
        return RunView(
            record=record,
            facts=tuple(run_facts(report, record)),
            progress=progress_of(record, record.n_outcomes, record.n_failures) if is_running else None,
            n_counted=_n_counted(counted) if counted else None,
            judges=tuple(JudgeRow(judge=each, cells=tuple(cells.get(each, ()))) for each in record.judges),
            detail=detail,
            pending=_is_old(counted, record) or (detail is not None and detail.pending),
        )


def run_data(store: Store, cache: RunCache, run_id: str) -> RunData:
    """A run and its figures. Raises `SpecError` if there is no such run."""
    with store.snapshot() as moment:
        record = store.seen(moment.record(run_id))
        counted = _counted(moment, cache, record)
        return RunData(
            record=record,
            counted_revision=counted.revision if counted else None,
            current=not _is_old(counted, record),
            judges=counted.report.judges if counted else (),
        )


def judge_data(store: Store, cache: RunCache, run_id: str, query: RunQuery) -> JudgeData:
    """One judge's figures. Raises `SpecError` if there is no such run or judge."""
    found = _detail(store, cache, run_id, query)
    return JudgeData(
        judge=found.judge,
        report=found.part.report if found.part else None,
        threshold=found.part.threshold if found.part else None,
        flags=found.flags,
        codes=found.codes,
        labels=found.table,
        slices=found.slices,
        pending=found.pending or found.part is None,
        refused=found.refused,
    )


def outcome_list(store: Store, cache: RunCache, run_id: str, query: RunQuery) -> ListView:
    """A part of the list of a judge's outcomes. Raises `SpecError` as `judge_data` does."""
    return _detail(store, cache, run_id, query).outcomes


def _detail(store: Store, cache: RunCache, run_id: str, query: RunQuery) -> Detail:
    with store.snapshot() as moment:
        record = store.seen(moment.record(run_id))
        judge = judge_of(record, query.judge)
        if judge is None:
            raise SpecError(f"run {run_id} has no judge")
        counted = _counted(moment, cache, record)
        return detail_of(JudgeReader(moment, cache, record, judge), counted, query)


def judge_of(record: RunRecord, named: str | None) -> str | None:
    """The named judge, or the first one; None in a run without judges."""
    if named is None:
        return next(iter(record.judges), None)
    if named not in record.judges:
        known = ", ".join(shorten(repr(each)) for each in record.judges[:20]) or "none"
        raise SpecError(f"run {record.id} has no judge {shorten(repr(named))}; it has: {known}")
    return named


def _counted(moment: Snapshot, cache: RunCache, record: RunRecord) -> Counted | None:
    """The run's figures as they are now, or the last ones that were counted while newer ones are counted."""

    def now() -> Counted | None:
        found = counted_before(moment, record)
        if found is not None and found.revision == record.revision:
            return found
        if record.n_outcomes > MOST_AT_ONCE:
            return None
        if record.status != "running":
            cache.counter.ask(record.id)  # the store keeps what it counts, also for the list of runs
        return count(moment, record)

    found = cache.get(("counted", record.id, record.revision), now)
    if found is None:
        known = [each for each in (cache.counter.latest(record.id), counted_before(moment, record)) if each]
        found = max(known, key=lambda each: each.revision, default=None)
        grown = found is None or record.n_outcomes >= GROWN * _n_counted(found)
        if _is_old(found, record) and (grown or record.status != "running"):
            cache.counter.ask(record.id)
    return found and replace(found, report=replace(found.report, run=facts_of(record)))


def _is_old(counted: Counted | None, record: RunRecord) -> bool:
    return counted is None or counted.revision != record.revision


def _n_counted(counted: Counted) -> int:
    return sum(each.n_judged for each in counted.report.judges)


def progress_of(run: RunRecord | RunLine, n_done: int, n_failures: int) -> Progress:
    """The progress of a run with so many outcomes, `n_failures` of them failures."""
    expected = None if run.n_total is None else run.n_total * max(len(run.judges), 1)
    return Progress(n_done=n_done, n_failures=n_failures, n_expected=expected)
