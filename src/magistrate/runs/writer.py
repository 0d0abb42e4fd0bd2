"""Executes a run and writes every outcome to the store as soon as it is ready, however the run ends.

Outcomes that become ready together share a transaction. Nobody is told of an outcome before it is committed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence
from contextlib import aclosing, nullcontext, suppress
from dataclasses import dataclass, field
from typing import TypeVar

from magistrate import _logging
from magistrate._work import uncounted
from magistrate.datasets import Problem
from magistrate.errors import InputError, MagistrateError, SpecError, StoreError
from magistrate.runs.execute import GROUP, Judged, stream_groups
from magistrate.runs.limits import Budget
from magistrate.runs.prepare import RunPlan
from magistrate.runs.progress import ProgressListener
from magistrate.runs.workers import Workers
from magistrate.store import FinishedStatus, Store
from magistrate.store.runs import ROWS_AT_ONCE, SampleRow
from magistrate.store.shares import Part
from magistrate.types import Failure, Outcome, Sample, Usage

Item = TypeVar("Item")
Pair = tuple[str, str]  # a sample's id and a judge's name
SECONDS_BETWEEN_NOTES = 5.0

_log = _logging.get("runs")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkList:
    """The work of a run: its samples, and the (sample, judge) pairs that are already stored.

    `total` is the number of outcomes expected in all, None if unknown; `before` of them are already stored.
    With `store_first` all samples are stored before the first is judged, because they cannot be read again.
    `stored` are the ids of the samples that the run has, `made` the ids of those whose output the task has
    made. Pairs in `done` are not judged. With `again` an outcome may replace a failure, and the run's status
    stays as it is. `part` is set if these are only some shares of the run; then all of the above is about
    them. `problems` returns the rows that could not be read so far.
    """

    samples: Iterable[Sample]
    total: int | None
    before: int = 0
    store_first: bool = False
    stored: Collection[str] = ()
    made: Container[str] = frozenset()
    done: Container[Pair] = frozenset()
    again: bool = False
    part: Part | None = None
    problems: Callable[[], Sequence[Problem]] = tuple

    def n_samples(self, judges: int) -> int | None:
        """The number of samples left for so many judges, rounded up; None if unknown."""
        return None if self.total is None else -(-(self.total - self.before) // judges)


async def execute_run(
    store: Store,
    run_id: str,
    plan: RunPlan,
    work: WorkList,
    listener: ProgressListener | None = None,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Judge what is not done and store every outcome as it arrives, then set the status of the run.

    The status is `done` if nothing is left, `interrupted` if a limit was reached or the run was cancelled,
    and `failed` if an error ended it. That error, or CancelledError, is raised after the status is written.
    """
    spent = store.spent(run_id) if work.part is None else _spent(store, run_id, work.part)
    budget = Budget(plan.limits, plan.cost, spent, store.dearest(run_id))
    writer = OutcomeWriter(store, run_id, plan, work, budget, clock, listener)
    judges = [judge.info.name for judge in plan.judges]
    _log.info("run.started", run=run_id, judges=judges, total=work.total, before=work.before)
    reason = None
    try:
        if work.store_first:
            await writer.store_all()
        if listener is not None:
            listener.started(run_id, work.total, plan.engine, work.before)
        reason = await writer.judge_all()
        writer.finish("done" if reason is None else "interrupted", reason)
    except BaseException as error:
        stopped = isinstance(error, asyncio.CancelledError | KeyboardInterrupt)
        told = _logging.error_text(error) if isinstance(error, MagistrateError) else None
        with suppress(StoreError, SpecError):  # if the store itself failed, `error` says so
            if isinstance(error, InputError) and work.part is None and not writer.whole:
                store.delete(run_id)  # an unreadable source leaves no run
            else:
                writer.finish("interrupted" if stopped else "failed", told)
        raise
    finally:
        if listener is not None:
            listener.finished(work.problems(), reason)


@dataclass(slots=True)
class OutcomeWriter:
    """Writes the samples and outcomes of one run to the store.

    `unstored` samples are being judged and are stored with the next outcomes.
    """

    store: Store
    run_id: str
    plan: RunPlan
    work: WorkList
    budget: Budget
    clock: Callable[[], float]
    listener: ProgressListener | None
    kept: set[str] = field(default_factory=set)
    unmade: set[str] = field(default_factory=set)
    unstored: list[SampleRow] = field(default_factory=list)
    noted: float = 0.0

    @property
    def whole(self) -> bool:
        """Whether the run has samples and, if they are stored first, all of them."""
        record = self.store.find_run(self.run_id)
        return record.n_samples > 0 and not (self.work.store_first and record.n_total is None)

    async def store_all(self) -> None:
        """Store every sample, and then their number. A run without this number is missing some samples."""
        for chunk in _chunks(self.work.samples, ROWS_AT_ONCE):
            self._store(chunk)
            await asyncio.sleep(0)
        self.store.expect(self.run_id, len(self.kept))

    async def judge_all(self) -> str | None:
        """Judge all samples. Returns a message about the limit that ended it, None if nothing is left."""
        plan, work, limits, undelivered = self.plan, self.work, self.plan.limits, list[Judged]()
        self.kept.update(work.stored)
        if plan.task is not None:
            self.unmade = {sample_id for sample_id in work.stored if sample_id not in work.made}
        self.noted = self.clock()
        n = plan.n_workers(work.n_samples(len(plan.judges)))
        workers = Workers(plan, n, undelivered) if n > 1 else None
        groups = stream_groups(
            self._pulled(),
            plan.judges,
            plan.engine,
            task=plan.task,
            made=work.made,
            done=work.done,
            limits=limits if workers is None else workers.limits,
            gate=self.budget,
            ask=None if workers is None else workers.ask,
            undelivered=undelivered,
        )
        try:
            async with (
                asyncio.timeout(limits.max_seconds) as limit,
                nullcontext() if workers is None else workers,
                aclosing(groups),  # type: ignore[type-var]
            ):
                async for group in groups:
                    with uncounted():
                        self._take(group)
        except TimeoutError:
            if not limit.expired():
                raise
            return f"the time limit of {limits.max_seconds:,g} seconds is over (max_seconds)"
        finally:
            for group in _chunks(undelivered, GROUP):  # these calls are already paid for
                self._take(group)
            self._add([])
        return self.budget.reached if self.budget.refused else None

    def finish(self, status: FinishedStatus, reason: str | None) -> None:
        """Write the final status and its reason to the store and the log."""
        _log.info("run.ended", run=self.run_id, status=status, reason=reason)
        self._note()
        if self.work.part is not None:
            done = self.work.part.shares if status == "done" else ()
            self.store.shares.finish(self.run_id, done, status, reason)
        elif not self.work.again:
            n = len(self.kept) if status == "done" else None
            self.store.finish_run(self.run_id, status, n_total=n, reason=reason)

    def _pulled(self) -> Iterator[Sample]:
        if self.plan.task is not None:
            yield from self.work.samples  # they are stored once their output is known
            return
        for sample in self.work.samples:
            if sample.id not in self.kept:
                self.unstored.append(SampleRow.of(sample))
                self.kept.add(sample.id)
            yield sample  # before it is stored: that is done with the next outcomes

    def _store(self, samples: Sequence[Sample]) -> None:
        if samples:
            self.store.add_samples(self.run_id, samples)
            self.kept.update(sample.id for sample in samples)

    def _keep(self, samples: Iterable[Sample]) -> None:
        """Store samples that the run lacks, and those that it has without the task's output."""
        own = {sample.id: sample for sample in samples}
        self._store([sample for sample in own.values() if sample.id not in self.kept])
        for sample_id in self.unmade & own.keys():
            self.store.replace_sample(self.run_id, own[sample_id])
            self.unmade.remove(sample_id)

    def _take(self, group: Sequence[Judged]) -> None:
        """Store a group of outcomes, and then tell of each."""
        self._keep(judged.sample for judged in group)
        for judged, outcome in zip(group, self._add([each.outcome for each in group]), strict=True):
            self.budget.spend(outcome.usage)
            if isinstance(outcome, Failure):
                about = {"run": self.run_id, "sample": outcome.sample_id, "judge": outcome.judge}
                _log.info("outcome.failed", **about, code=outcome.code, message=outcome.message)
            if self.listener is not None:
                self.listener.judged(Judged(judged.sample, outcome))

    def _add(self, outcomes: list[Outcome]) -> list[Outcome]:
        """Store outcomes and what is `unstored` in one transaction, and return the outcomes that were stored.

        One that cannot be stored becomes a failure of its judge, not of the run. The others of its group are
        stored in smaller ones. Every few seconds the time worked is stored too, so that a crash loses little.
        """
        passed = self.clock() - self.noted
        seconds = passed if passed >= SECONDS_BETWEEN_NOTES else 0.0
        try:
            self.store.add_outcomes(
                self.run_id,
                outcomes,
                replace_failure=self.work.again,
                samples=self.unstored,
                seconds=seconds,
            )
            self.unstored.clear()
            self.noted += seconds
        except InputError as error:
            if not outcomes:
                raise
            self._add([])
            if half := len(outcomes) // 2:
                return self._add(outcomes[:half]) + self._add(outcomes[half:])
            return self._add([not_storable(outcomes[0], error)])
        return outcomes

    def _note(self) -> None:
        """Add the time worked since the last note to the run."""
        passed = self.clock() - self.noted
        self.noted += passed
        self.store.add_seconds(self.run_id, passed)


def _spent(store: Store, run_id: str, part: Part) -> Usage:
    """Return the usage of what is judged of a part of the run: limits hold for each process."""
    return sum((each.usage for each in store.outcomes(run_id) if part.has(each.sample_id)), Usage())


def not_storable(outcome: Outcome, error: InputError) -> Failure:
    """Return the failure to store in place of an outcome that cannot be stored."""
    message = f"the outcome cannot be stored: {error}"
    name, usage = outcome.judge, outcome.usage
    return Failure(outcome.sample_id, name, "invalid_output", message, (), usage, outcome.seconds)


def _chunks(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Yield the items in chunks of `size`. Items read before an error are yielded before it is raised."""
    chunk: list[Item] = []
    try:
        for item in items:
            chunk.append(item)
            if len(chunk) == size:
                yield chunk
                chunk = []
    except Exception:
        if chunk:
            yield chunk
        raise
    if chunk:
        yield chunk
