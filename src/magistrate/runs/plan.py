"""One run under way: every outcome goes into the store as it comes, whatever ends it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Protocol

from magistrate import _logging
from magistrate._version import __version__
from magistrate.datasets import Problem
from magistrate.engines.base import Engine
from magistrate.engines.none import NONE
from magistrate.errors import InputError, MagistrateError, SpecError, StoreError
from magistrate.judges import registry
from magistrate.judges.base import Judge
from magistrate.runs.execute import Judged, Task, check_stream, stream
from magistrate.runs.limits import UNLIMITED, Budget, Cost, Limits
from magistrate.store import FinishedStatus, Store
from magistrate.store.queries import ROWS_AT_ONCE
from magistrate.types import Failure, Outcome, Recipe, Sample, Scoring

Pair = tuple[str, str]  # a sample's id and a judge's name
SECONDS_A_NOTE = 5.0
AHEAD = 50  # samples that are stored together, before the first of them is judged

_log = _logging.get("runs")


class Watcher(Protocol):
    """Whoever wants to see a run as it goes."""

    def started(self, run_id: str, total: int | None, engine: Engine, done: int) -> None:
        """It begins; of `total` outcomes, None if nobody knows how many, `done` are there already."""
        ...

    def judged(self, judged: Judged) -> None: ...
    def finished(self, problems: Sequence[Problem], stopped: str | None) -> None:
        """Nothing more will come; these rows could not be read, and this limit ended it, if one did."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Who judges, with what, within which limits; `cost` says in dollars what usage costs."""

    judges: Sequence[Judge]
    engine: Engine
    task: Task | None = None
    limits: Limits = UNLIMITED
    cost: Cost | None = None
    seed: int = 0
    watcher: Watcher | None = None

    def check(self) -> None:
        """Refuse what could never be judged. Raises `SpecError` and `CapabilityError`."""
        check_stream(self.judges, self.engine.info)
        if self.limits.max_cost is not None and self.cost is None:
            raise SpecError(
                f"max_cost needs a price, and none is known for {self.engine.info.model!r}; "
                "say it in dollars a million tokens: --price IN/OUT"
            )

    @property
    def recipes(self) -> dict[str, Recipe]:
        """What pins each judge's figures, under the name that its outcomes bear."""
        return {judge.info.name: recipe(judge, self.engine, self.seed) for judge in self.judges}

    @property
    def scoring(self) -> dict[str, Scoring]:
        """How each judge's scores are read, under the name that its outcomes bear."""
        return {judge.info.name: judge.info.scoring for judge in self.judges}


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """What a trial goes through, and what of it is there already.

    `total` outcomes are expected in all, None if nobody knows how many, and `before` of them are there. With
    `first` all samples are stored before one is judged, for they cannot be read again. `stored` are the ids
    of samples that the run has, `made` of those whose output a task has made; pairs that are `done` are not
    judged. With `again` an outcome may replace a failure, and the run stays as finished, or not, as it was.
    `problems` answers the rows that could not be read so far.
    """

    coming: Iterable[Sample]
    total: int | None
    before: int = 0
    first: bool = False
    stored: Collection[str] = ()
    made: Container[str] = frozenset()
    done: Container[Pair] = frozenset()
    again: bool = False
    problems: Callable[[], Sequence[Problem]] = tuple


def recipe(judge: Judge, engine: Engine, seed: int, n: int = 0) -> Recipe:
    """What pins the figures of this judge on this engine; its options are part of the judge's name.

    A judge that asks no engine has `none` for its model, whatever engine others of its run ask.
    """
    info = judge.info
    asked = engine.info if info.asks else NONE.info
    return Recipe(
        judge=f"{registry.spelled(judge)}@{info.version}",
        model=asked.model,
        fingerprint=asked.fingerprint,
        prompt=info.prompt,
        constraint=info.constraint,
        seed=seed,
        n=n,
        package=__version__,
    )


async def conduct(
    store: Store,
    run_id: str,
    trial: Trial,
    samples: Samples,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Judge what is not done and store every outcome as it comes; the run's status then says what ended it.

    `done` when nothing is left, `interrupted` when a limit was reached or this was cancelled, `failed` when
    an error ended it. Raises that error, and CancelledError, once the run is in order.
    """
    budget = Budget(trial.limits, trial.cost, store.spent(run_id), store.dearest(run_id))
    desk = _Desk(store, run_id, trial, samples, budget, clock)
    judges = [judge.info.name for judge in trial.judges]
    _log.info("run.started", run=run_id, judges=judges, total=samples.total, before=samples.before)
    reason = None
    try:
        if samples.first:
            await desk.store_all()
        if trial.watcher is not None:
            trial.watcher.started(run_id, samples.total, trial.engine, samples.before)
        reason = await desk.judge_all()
        desk.finish("done" if reason is None else "interrupted", reason)
    except BaseException as error:
        stopped = isinstance(error, asyncio.CancelledError | KeyboardInterrupt)
        told = _logging.error_text(error) if isinstance(error, MagistrateError) else None
        with suppress(StoreError, SpecError):  # where the store itself is what failed, the error says so
            if isinstance(error, InputError) and not desk.whole:
                store.delete(run_id)  # a source that cannot be read makes no run
            else:
                desk.finish("interrupted" if stopped else "failed", told)
        raise
    finally:
        if trial.watcher is not None:
            trial.watcher.finished(samples.problems(), reason)


@dataclass(slots=True)
class _Desk:
    """Takes samples and outcomes of one run and puts them into the store."""

    store: Store
    run_id: str
    trial: Trial
    samples: Samples
    budget: Budget
    clock: Callable[[], float]
    kept: set[str] = field(default_factory=set)
    unmade: set[str] = field(default_factory=set)
    noted: float = 0.0

    @property
    def whole(self) -> bool:
        """Whether the run has samples, and all of them where they are stored first."""
        record = self.store.find_run(self.run_id)
        return record.n_samples > 0 and not (self.samples.first and record.n_total is None)

    async def store_all(self) -> None:
        """Store every sample, and only then how many there are: until that is said, some are missing."""
        for chunk in _chunks(self.samples.coming, ROWS_AT_ONCE):
            self._store(chunk)
            await asyncio.sleep(0)
        self.store.expect(self.run_id, len(self.kept))

    async def judge_all(self) -> str | None:
        """Go through the samples; answers which limit ended it, in words, None where nothing is left."""
        trial, samples, undelivered = self.trial, self.samples, list[Judged]()
        self.kept.update(samples.stored)
        if trial.task is not None:
            self.unmade = {sample_id for sample_id in samples.stored if sample_id not in samples.made}
        self.noted = self.clock()
        outcomes = stream(
            self._pulled(),
            trial.judges,
            trial.engine,
            task=trial.task,
            made=samples.made,
            done=samples.done,
            limits=trial.limits,
            gate=self.budget,
            undelivered=undelivered,
        )
        try:
            async with asyncio.timeout(trial.limits.max_seconds) as limit, aclosing(outcomes):  # type: ignore[type-var]
                async for judged in outcomes:
                    self._take(judged)
        except TimeoutError:
            if not limit.expired():
                raise
            return f"{trial.limits.max_seconds:,g} seconds have passed (max_seconds)"
        finally:
            for judged in undelivered:  # it is paid for
                self._take(judged)
        return self.budget.reached if self.budget.refused else None

    def finish(self, status: FinishedStatus, reason: str | None) -> None:
        """Say in the store and in the log what ended the run."""
        _log.info("run.ended", run=self.run_id, status=status, reason=reason)
        self._note()
        if not self.samples.again:
            n = len(self.kept) if status == "done" else None
            self.store.finish_run(self.run_id, status, n_total=n, reason=reason)

    def _pulled(self) -> Iterator[Sample]:
        if self.trial.task is not None:
            yield from self.samples.coming  # they are stored when their output is known
            return
        for chunk in _chunks(self.samples.coming, AHEAD):
            self._store([sample for sample in chunk if sample.id not in self.kept])
            yield from chunk

    def _store(self, samples: Sequence[Sample]) -> None:
        if samples:
            self.store.add_samples(self.run_id, samples)
            self.kept.update(sample.id for sample in samples)

    def _keep(self, sample: Sample) -> None:
        if sample.id not in self.kept:
            self._store([sample])
        elif sample.id in self.unmade:
            self.store.replace_sample(self.run_id, sample)  # it was stored without what the task makes
            self.unmade.remove(sample.id)

    def _take(self, judged: Judged) -> None:
        self._keep(judged.sample)
        outcome = self._add(judged.outcome)
        self.budget.spend(outcome.usage)
        if isinstance(outcome, Failure):
            about = {"run": self.run_id, "sample": outcome.sample_id, "judge": outcome.judge}
            _log.info("outcome.failed", **about, code=outcome.code, message=outcome.message)
        if self.clock() - self.noted >= SECONDS_A_NOTE:
            self._note()
        if self.trial.watcher is not None:
            self.trial.watcher.judged(Judged(judged.sample, outcome))

    def _add(self, outcome: Outcome) -> Outcome:
        """Store an outcome; one whose values cannot be stored is a failure of its judge, not of the run."""
        again = self.samples.again
        try:
            self.store.add_outcome(self.run_id, outcome, replace_failure=again)
        except InputError as error:
            message = f"the outcome cannot be stored: {error}"
            outcome = Failure(
                outcome.sample_id,
                outcome.judge,
                "invalid_output",
                message,
                (),
                outcome.usage,
                outcome.seconds,
            )
            self.store.add_outcome(self.run_id, outcome, replace_failure=again)
        return outcome

    def _note(self) -> None:
        """Write down how long the run has been at work; now and then, so that little is lost with it."""
        passed = self.clock() - self.noted
        self.noted += passed
        self.store.add_seconds(self.run_id, passed)


def _chunks(samples: Iterable[Sample], size: int) -> Iterator[list[Sample]]:
    """Samples, so many at a time; what came before an error comes before it here too."""
    chunk: list[Sample] = []
    try:
        for sample in samples:
            chunk.append(sample)
            if len(chunk) == size:
                yield chunk
                chunk = []
    except Exception:
        if chunk:
            yield chunk
        raise
    if chunk:
        yield chunk
