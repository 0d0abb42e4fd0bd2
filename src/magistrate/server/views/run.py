"""A run: what judged what, how well, and the outcomes behind every figure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from magistrate._text import shorten
from magistrate.errors import SpecError
from magistrate.report.counts import Counted, count, counted_before, facts_of
from magistrate.report.values import JudgeReport, Report
from magistrate.report.views import comparison, run_facts
from magistrate.server.counter import Counter
from magistrate.server.memory import Memory
from magistrate.server.preparing import prepare
from magistrate.server.views.run_detail import MOST_AT_ONCE, Asked, Detail, Looking, detail_of
from magistrate.server.views.run_judge import CodeLine, CrossTable, FlagPart, ThresholdPart
from magistrate.server.views.run_list import ListView
from magistrate.server.views.run_slices import SlicesView
from magistrate.server.views.runs import Progress
from magistrate.store import RunRecord, Snapshot, Store

GROWN = 1.1  # times as many outcomes as were counted, before those of a run under way are counted again


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeRow:
    """A judge in the table of several, in words: how many verdicts, three metrics and the time a sample.

    `cells` is empty where nothing was counted yet.
    """

    judge: str
    cells: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """A run. `n_counted` outcomes are in its figures, None where nothing was counted.

    `progress` is that of a run under way. `detail` is of the judge that is looked at, None in a run without
    judges. `pending` says that something of it all is being worked out, so that there will be more soon.
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
    """A run and the figures of its judges, as they were at `counted_revision`; None where nobody counted.

    `current` says that they are those of the run as it is now; if not, they will be soon.
    """

    record: RunRecord
    counted_revision: int | None
    current: bool
    judges: tuple[JudgeReport, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeData:
    """One judge's figures with a threshold moved, kinds of claims flagged anew, and by slices, where wanted.

    `report` is None where nothing is counted yet; `pending` and `refused` are as in `Detail`.
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


def run_view(store: Store, memory: Memory, counter: Counter, run_id: str, asked: Asked) -> RunView:
    """A run as it is now. Raises `SpecError` where there is no such run or judge."""
    with store.snapshot() as moment:
        record = store.seen(moment.record(run_id))
        counted = _counted(moment, memory, counter, record)
        judge = judge_of(record, asked.judge)
        detail = None
        if judge is not None:
            detail = detail_of(Looking(moment, memory, record, judge), counted, asked)
        report = counted.report if counted else Report(facts_of(record), ())
        cells = {name: rest for name, *rest in comparison(report)}
        return RunView(
            record=record,
            facts=tuple(run_facts(report, record)),
            progress=_progress(record) if record.status == "running" else None,
            n_counted=_n_counted(counted) if counted else None,
            judges=tuple(JudgeRow(judge=each, cells=tuple(cells.get(each, ()))) for each in record.judges),
            detail=detail,
            pending=_is_old(counted, record) or (detail is not None and detail.pending),
        )


def run_data(store: Store, memory: Memory, counter: Counter, run_id: str) -> RunData:
    """A run and its figures. Raises `SpecError` where there is no such run."""
    with store.snapshot() as moment:
        record = store.seen(moment.record(run_id))
        counted = _counted(moment, memory, counter, record)
        return RunData(
            record=record,
            counted_revision=counted.revision if counted else None,
            current=not _is_old(counted, record),
            judges=counted.report.judges if counted else (),
        )


def judge_data(store: Store, memory: Memory, counter: Counter, run_id: str, asked: Asked) -> JudgeData:
    """One judge's figures. Raises `SpecError` where there is no such run or judge, or the run has none."""
    found = _detail(store, memory, counter, run_id, asked)
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


def outcome_list(store: Store, memory: Memory, counter: Counter, run_id: str, asked: Asked) -> ListView:
    """A stretch of a judge's outcomes. Raises `SpecError` as `judge_data` does."""
    return _detail(store, memory, counter, run_id, asked).outcomes


def _detail(store: Store, memory: Memory, counter: Counter, run_id: str, asked: Asked) -> Detail:
    with store.snapshot() as moment:
        record = store.seen(moment.record(run_id))
        judge = judge_of(record, asked.judge)
        if judge is None:
            raise SpecError(f"run {run_id} has no judge")
        counted = _counted(moment, memory, counter, record)
        return detail_of(Looking(moment, memory, record, judge), counted, asked)


def judge_of(record: RunRecord, named: str | None) -> str | None:
    """The judge that is meant, the first where none is named; None in a run without any."""
    if named is None:
        return next(iter(record.judges), None)
    if named not in record.judges:
        known = ", ".join(shorten(repr(each)) for each in record.judges[:20]) or "none"
        raise SpecError(f"run {record.id} has no judge {shorten(repr(named))}; it has: {known}")
    return named


def _counted(moment: Snapshot, memory: Memory, counter: Counter, record: RunRecord) -> Counted | None:
    """The run's figures as they are now, or the last ones there are; the counter is asked for newer ones."""
    prepare()

    def now() -> Counted | None:
        found = counted_before(moment, record)
        if found is not None and found.revision == record.revision:
            return found
        if record.n_outcomes > MOST_AT_ONCE:
            return None
        if record.status != "running":
            counter.ask(record.id)  # it keeps what it counts, for lists of runs too
        return count(moment, record)

    found = memory.known(("counted", record.id, record.revision), now)
    if found is None:
        known = [each for each in (counter.latest(record.id), counted_before(moment, record)) if each]
        found = max(known, key=lambda each: each.revision, default=None)
        grown = found is None or record.n_outcomes >= GROWN * _n_counted(found)
        if _is_old(found, record) and (grown or record.status != "running"):
            counter.ask(record.id)
    return found and replace(found, report=replace(found.report, run=facts_of(record)))


def _is_old(counted: Counted | None, record: RunRecord) -> bool:
    return counted is None or counted.revision != record.revision


def _n_counted(counted: Counted) -> int:
    return sum(each.n_judged for each in counted.report.judges)


def _progress(record: RunRecord) -> Progress:
    expected = None if record.n_total is None else record.n_total * max(len(record.judges), 1)
    return Progress(n_done=record.n_outcomes, n_failures=record.n_failures, n_expected=expected)
