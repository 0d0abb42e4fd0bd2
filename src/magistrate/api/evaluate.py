"""Judge a data set and store every outcome: `evaluate`, `resume`, `retry` and their async forms."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from magistrate import _async
from magistrate._paths import default_store
from magistrate.api.run import INDEX, Run
from magistrate.datasets import Dataset
from magistrate.datasets.rows import MAX_UNREAD
from magistrate.datasets.rows import SETTING as UNREAD
from magistrate.engines.base import Engine
from magistrate.judges import registry
from magistrate.judges.base import Judge
from magistrate.runs.execute import Task
from magistrate.runs.limits import UNLIMITED, Limits
from magistrate.runs.prepare import (
    NO_OVERRIDES,
    Overrides,
    RunPlan,
    pinned,
    prepare,
    rows_of,
    spec_of_arguments,
)
from magistrate.runs.progress import ProgressBar, ProgressListener
from magistrate.runs.resume import (
    OBJECTS,
    STORED,
    check_unchanged,
    failed_work,
    has_shares_of,
    is_same,
    objects_of,
    remaining_work,
    restore_plan,
    stored_spec,
)
from magistrate.runs.spec import STDIN, RunSpec
from magistrate.runs.writer import WorkList, execute_run
from magistrate.store.runs import SPEC
from magistrate.store.shares import SHARES, Part, RunShares, shares_of

if TYPE_CHECKING:
    from magistrate.store import RunRecord, Store

StorePlace = str | os.PathLike[str]
Source = str | Path | Dataset | Iterable[Any]


async def aevaluate(
    dataset: Source,
    judges: str | Judge | Sequence[str | Judge] = registry.DEFAULT_JUDGE,
    *,
    task: Task | None = None,
    model: str | Path | Engine | None = None,
    base_url: str | None = None,
    device: str | None = None,
    threads: int | None = None,
    timeout: float | None = None,
    mapping: Mapping[str, str] | None = None,
    labels: Mapping[Any, str] | None = None,
    max_unread: float = MAX_UNREAD,
    view: str | None = None,
    limit: int | None = None,
    sample: int | None = None,
    balance: str | None = None,
    seed: int = 0,
    name: str | None = None,
    tags: Sequence[str] = (),
    store: StorePlace | None = None,
    limits: Limits = UNLIMITED,
    price: str | None = None,
    cache: bool = True,
    workers: int | None = None,
    shard: str | None = None,
    watcher: ProgressListener | None = None,
    progress: bool = True,
) -> Run:
    """Judge a data set (a file, a named or stored set, rows or samples) and return the stored run.

    `judges` are names, such as `faithfulness:prior=empty_context`, or objects. `task` is a callable, sync
    or async, that takes a sample and returns the output (or a mapping with `output` and `context`). With
    it, the outputs are generated first, to test an application. `model` is a catalogue name, a path, words
    such as `openai:gpt-4o-mini` (`base_url` is the address of its server) or an engine. It is not used if
    all judges are code. `mapping`, `labels`, `max_unread`, `view`, `limit`, `sample`, `balance` and `seed`
    select and parse the data, as in `load`. `store`, a path or a URL, is where the run is stored. Raises
    `DatasetError` before judging if the share of unreadable rows exceeds `max_unread`. `limits` bound
    concurrency and total spending; `price`, dollars per million tokens as `IN/OUT`, is the price of tokens.
    Calls that any run made before are answered from the cache if the engine guarantees the same answer;
    `cache=False` disables this. `workers` is the number of processes that judge: by default 1, and one per
    core if no judge asks a model and there are more than 2,000 samples. With `shard`, such as `2/8`, only
    that share of the samples is judged, and the run is done when all shares are. Every outcome is committed
    when it arrives. A cancelled run, or Ctrl-C in `evaluate`, stops cleanly, keeps its outcomes and can be
    resumed. `progress` shows a bar on a terminal, unless `watcher` receives the progress. `evaluate` is the
    same without `await`, also inside a running event loop.
    """
    spec, overrides = spec_of_arguments(
        dataset,
        judges,
        model=model,
        base_url=base_url,
        device=device,
        threads=threads,
        timeout=timeout,
        task=task,
        mapping=mapping,
        labels=labels,
        view=view,
        selection={
            "limit": limit,
            "sample": sample,
            "balance": balance,
            "seed": seed,
            "max_unread": max_unread,
        },
        limits=limits,
        price=price,
        name=name,
        tags=list(tags),
        cache=cache,
        workers=workers,
        shard=shard,
    )
    return await arun(spec, overrides, store=store, watcher=_listener(watcher, progress))


evaluate = _async.synchronous(aevaluate)


async def arun(
    spec: RunSpec,
    overrides: Overrides = NO_OVERRIDES,
    *,
    store: StorePlace | None = None,
    watcher: ProgressListener | None = None,
) -> Run:
    """Execute the run that a specification describes. `overrides` are objects that replace parts of it."""
    with RunSession(store) as session:
        plan = await _async.in_thread(session.prepare, spec, overrides)
        return await session.start(plan, watcher)


run = _async.synchronous(arun)


async def aresume(
    run: str | Run,
    *,
    dataset: Iterable[Any] | Dataset | None = None,
    judges: Judge | Sequence[Judge] | None = None,
    model: Engine | None = None,
    task: Task | None = None,
    limits: Limits | None = None,
    price: str | None = None,
    workers: int | None = None,
    spec: RunSpec | None = None,
    store: StorePlace | None = None,
    watcher: ProgressListener | None = None,
    progress: bool = True,
) -> Run:
    """Continue a run that was interrupted, killed or failed. Samples with an outcome are not judged again.

    `run` is an id, a prefix of one, a name or `last`. Parts that the run got as objects (rows, judges, an
    engine, a task) must be passed again. Everything else is stored with it, unless `spec` replaces it.
    `limits`, `price` and `workers` replace the earlier ones. A run that is done is not changed. Raises
    `SpecError` with the difference if the data, a judge, the model or a prompt has changed, and `StoreError`
    while another process executes the run.
    """
    with RunSession(run.store if isinstance(run, Run) else store) as session:
        return await session.resume_stored(
            run,
            _listener(watcher, progress),
            dataset=dataset,
            judges=judges,
            model=model,
            task=task,
            limits=limits,
            price=price,
            workers=workers,
            spec=spec,
        )


resume = _async.synchronous(aresume)


async def aretry(
    run: str | Run,
    *,
    judges: Judge | Sequence[Judge] | None = None,
    model: Engine | None = None,
    task: Task | None = None,
    limits: Limits | None = None,
    price: str | None = None,
    workers: int | None = None,
    store: StorePlace | None = None,
    watcher: ProgressListener | None = None,
    progress: bool = True,
) -> Run:
    """Judge again only what failed in a run. A new outcome replaces the failure.

    The options and errors are those of `aresume`. The status of the run does not change. A task is called
    again only if the task itself failed. The usage of an outcome sums all attempts.
    """
    with RunSession(run.store if isinstance(run, Run) else store) as session:
        return await session.retry(
            run,
            _listener(watcher, progress),
            judges=judges,
            model=model,
            task=task,
            limits=limits,
            price=price,
            workers=workers,
        )


retry = _async.synchronous(aretry)


class RunSession:
    """Prepares, starts and resumes runs in one store, which is opened once; a context manager.

    The store is created when the first run is started; preparing a run does not create it.
    """

    def __init__(self, place: StorePlace | None = None) -> None:
        self.place: StorePlace = place or default_store()
        self._store: Store | None = None

    @property
    def existing_store(self) -> Store | None:
        """The store, or None if there is none at this place yet."""
        from magistrate.store.connection import exists

        return self.store if self._store is not None or exists(self.place) else None

    @property
    def store(self) -> Store:
        """The store, created if there is none."""
        if self._store is None:
            from magistrate.store import Store

            self._store = Store.open(self.place)
        return self._store

    def find(self, run: str | Run) -> RunRecord:
        """Return the record of a run of this store."""
        return self.store.find_run(run.id if isinstance(run, Run) else run)

    def prepare(
        self,
        spec: RunSpec,
        overrides: Overrides = NO_OVERRIDES,
        *,
        judges: Sequence[Judge] | None = None,
    ) -> RunPlan:
        """Prepare a run like `runs.prepare.prepare`, with the stored data sets of this store."""
        return prepare(spec, overrides, store=self.existing_store, judges=judges)

    def unfinished(self, plan: RunPlan) -> RunRecord | None:
        """Return the newest unfinished run of an identical plan that no process is working on, or None."""
        store = self.existing_store
        if store is None or plan.dataset is None or plan.task is not None:
            return None
        if plan.spec.dataset.source == STDIN:
            return None
        for record in store.unfinished(plan.dataset.digest):
            whole = not objects_of(record) and SHARES not in record.settings
            if whole and SPEC in record.settings and is_same(record, plan) and not store.held(record.id):
                return record
        return None

    async def start(self, plan: RunPlan, listener: ProgressListener | None = None) -> Run:
        """Create a run and execute it. A share of a run is judged in the run of the other shares, if there is
        one in this store. Raises `DatasetError` if too many rows cannot be read.
        """
        spec, dataset = plan.spec, plan.dataset
        assert dataset is not None, "the plan has no data to start with"
        await _async.in_thread(_read_ahead, dataset, spec.dataset.max_unread)
        size, part = dataset.size, plan.part
        # Data that cannot be read again is stored first, so that the run can be resumed.
        store_first = plan.task is None and ("dataset" in plan.objects or spec.dataset.source == STDIN)
        run_id = self.store.create_run(
            dataset=dataset.name,
            dataset_digest=dataset.digest,
            dataset_version=plan.dataset_version,
            model=plan.engine.info.model,
            engine_fingerprint=plan.engine.info.fingerprint,
            recipes=plan.recipes,
            scoring=plan.scoring,
            name=spec.name,
            n_total=None if store_first else size,
            tags=spec.tags,
            settings={
                SPEC: pinned(spec, dataset, plan.dataset_version).plain(),
                OBJECTS: list(plan.objects),
                STORED: store_first,
                INDEX: None if dataset.index is None else dataset.index.plain(),
                UNREAD: dataset.unread.to_dict(),
                **({} if part is None else {SHARES: RunShares(of=part.of).plain()}),
            },
            joins=None if part is None else partial(_has_shares, plan=plan, of=part.of),
        )
        if part is not None:
            return await self._execute_share(run_id, plan, part, listener)
        work = WorkList(
            samples=dataset,
            total=None if size is None else size * len(plan.judges),
            store_first=store_first,
            problems=lambda: dataset.problems,
        )
        with self.store.hold(run_id):
            await execute_run(self.store, run_id, plan, work, listener)
        return Run(run_id, self.store.place)

    async def resume(self, record: RunRecord, plan: RunPlan, listener: ProgressListener | None = None) -> Run:
        """Execute the remaining work of a run that `unfinished` returned for this plan."""
        with self.store.hold(record.id):
            record = self.store.find_run(record.id)
            if record.status == "done":
                return Run(record.id, self.store.place)
            check_unchanged(record, plan)
            return await self._execute_rest(record, plan, listener)

    async def resume_stored(
        self,
        run: str | Run,
        listener: ProgressListener | None = None,
        *,
        dataset: Iterable[Any] | Dataset | None = None,
        judges: Judge | Sequence[Judge] | None = None,
        model: Engine | None = None,
        task: Task | None = None,
        limits: Limits | None = None,
        price: str | None = None,
        workers: int | None = None,
        spec: RunSpec | None = None,
    ) -> Run:
        """Execute the remaining work of a run by its stored specification, as `aresume` does."""
        record = self.find(run)
        with self.store.hold(record.id):
            record = self.store.find_run(record.id)
            if record.status == "done":
                return Run(record.id, self.store.place)
            spec = _with_workers(spec or stored_spec(record), workers)
            overrides = await _async.in_thread(_overrides, spec, dataset, judges, model, task)
            plan = await _async.in_thread(restore_plan, record, spec, overrides, limits, price)
            return await self._execute_rest(record, plan, listener)

    async def retry(
        self,
        run: str | Run,
        listener: ProgressListener | None = None,
        *,
        judges: Judge | Sequence[Judge] | None = None,
        model: Engine | None = None,
        task: Task | None = None,
        limits: Limits | None = None,
        price: str | None = None,
        workers: int | None = None,
    ) -> Run:
        """Judge again what failed in a run, as `aretry` does."""
        record = self.find(run)
        with self.store.hold(record.id):
            spec = _with_workers(stored_spec(record), workers)
            overrides = await _async.in_thread(_overrides, spec, None, judges, model, task)
            plan = await _async.in_thread(restore_plan, record, spec, overrides, limits, price)
            work = await _async.in_thread(failed_work, self.store, record, plan)
            if work.total:
                await execute_run(self.store, record.id, plan, work, listener)
        return Run(record.id, self.store.place)

    async def _execute_share(
        self, run_id: str, plan: RunPlan, part: Part, listener: ProgressListener | None
    ) -> Run:
        """Judge what is left of one share of a run, while other processes may judge other shares."""
        (share,) = part.shares
        with self.store.hold(run_id, share):
            record = self.store.find_run(run_id)
            if (shares := shares_of(record)) is not None and share not in shares.done:
                self.store.shares.begin(run_id, part.shares)
                work = await _async.in_thread(remaining_work, self.store, record, plan, part)
                await execute_run(self.store, run_id, plan, work, listener)
        return Run(run_id, self.store.place)

    async def _execute_rest(self, record: RunRecord, plan: RunPlan, listener: ProgressListener | None) -> Run:
        """Execute the remaining work of a run whose lock is held: of a run in shares, of those begun here."""
        shares = shares_of(record)
        part = None if shares is None else shares.left
        if part is not None and not part.shares:
            return Run(record.id, self.store.place)
        work = await _async.in_thread(remaining_work, self.store, record, plan, part)
        self.store.reopen_run(record.id)
        await execute_run(self.store, record.id, plan, work, listener)
        return Run(record.id, self.store.place)

    def close(self) -> None:
        """Close the store."""
        if self._store is not None:
            self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _read_ahead(dataset: Dataset, max_unread: float) -> None:
    """Compute properties that may need to read all of the data; their values are cached."""
    dataset.check(max_unread)
    _ = dataset.digest, dataset.size


def _has_shares(record: RunRecord, plan: RunPlan, of: int) -> bool:
    """Return whether a share of a plan belongs to this run. A run that is done is only found by its name."""
    return has_shares_of(record, plan, of) and (record.status != "done" or plan.spec.name is not None)


def _with_workers(spec: RunSpec, workers: int | None) -> RunSpec:
    return spec if workers is None else spec.model_copy(update={"workers": workers})


def _overrides(
    spec: RunSpec, dataset: Any, judges: Any, model: Engine | None, task: Task | None
) -> Overrides:
    return Overrides(
        dataset=None if dataset is None else rows_of(dataset, spec.dataset, need_output=task is None),
        judges=None if judges is None else registry.judges(judges),
        model=model,
        task=task,
    )


def _listener(listener: ProgressListener | None, progress: bool) -> ProgressListener | None:
    return ProgressBar() if listener is None and progress else listener
