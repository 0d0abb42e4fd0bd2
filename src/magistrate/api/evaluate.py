"""The whole path: samples are judged, every outcome is stored as it comes, and a run is answered."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from magistrate.runs.plan import Samples, Watcher, conduct
from magistrate.runs.prepare import NOTHING, Given, described, open_data, pinned, rows_of, trial_of
from magistrate.runs.resume import OBJECTS, SPEC, STORED, description, restored, to_resume, to_retry, twin
from magistrate.runs.spec import STDIN, RunSpec

if TYPE_CHECKING:
    from magistrate.api.estimate import Estimate
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
    watcher: Watcher | None = None,
    progress: bool = True,
) -> Run:
    """Judge a dataset (a file, a named or stored set, rows or samples) and answer the stored run.

    `judges` are names, such as `faithfulness:prior=empty_context`, or objects. With `task`, a callable
    of a sample, sync or async, that answers the output (or a mapping with `output` and `context`), the
    outputs are made first, as when an application is tested. `model` is a catalogue name, a path,
    words such as `openai:gpt-4o-mini` (`base_url` says where its server listens) or an engine, and is not
    asked where all judges decide by code; `mapping`, `labels`, `max_unread`, `view`, `limit`, `sample`,
    `balance` and `seed` say what is read and how, as in `load`; `store` where the run is kept: a path or a
    URL. Raises `DatasetError` before anything is judged where more rows than `max_unread` cannot be read.
    `limits` say how much is under way at once and how much is spent in all; `price`, dollars a million tokens
    as `IN/OUT`, what that costs. Calls that were made before, by any run, are answered from the cache where
    the engine promises the same answer twice; `cache=False` asks anew. Every outcome is committed as it
    comes; a cancelled run, or Ctrl-C in `evaluate`, stops cleanly, keeps what is done and can be resumed.
    `progress` shows a bar on a terminal, unless `watcher` is told instead. `evaluate` is the same without
    `await`, also inside a running event loop.
    """
    spec, given = described(
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
    )
    return await arun(spec, given, store=store, watcher=_watcher(watcher, progress))


evaluate = _async.synchronous(aevaluate)


async def arun(
    spec: RunSpec,
    given: Given = NOTHING,
    *,
    store: StorePlace | None = None,
    watcher: Watcher | None = None,
) -> Run:
    """Make the run that a description says; what is `given` as an object comes in its place."""
    dataset, version = await _async.in_thread(_opened_data, spec, given, store)
    trial = await _async.in_thread(trial_of, spec, given, spec.limits.limits(), None, watcher)
    # What cannot be read a second time is stored as a whole, so that the run can be resumed.
    first = given.task is None and (given.dataset is not None or spec.dataset.source == STDIN)
    size = dataset.size
    with _opened(store) as opened:
        run_id = opened.create_run(
            dataset=dataset.name,
            dataset_digest=dataset.digest,
            dataset_version=version,
            model=trial.engine.info.model,
            engine_fingerprint=trial.engine.info.fingerprint,
            recipes=trial.recipes,
            scoring=trial.scoring,
            name=spec.name,
            n_total=None if first else size,
            tags=spec.tags,
            settings={
                SPEC: pinned(spec, dataset, version).plain(),
                OBJECTS: given.names,
                STORED: first,
                INDEX: None if dataset.index is None else dataset.index.plain(),
                UNREAD: dataset.unread.to_dict(),
            },
        )
        samples = Samples(
            coming=dataset,
            total=None if size is None else size * len(trial.judges),
            first=first,
            problems=lambda: dataset.problems,
        )
        with opened.hold(run_id):
            await conduct(opened, run_id, trial, samples)
        return Run(run_id, opened.place)


run = _async.synchronous(arun)


def unfinished(spec: RunSpec, *, store: StorePlace | None = None) -> RunRecord | None:
    """The newest unfinished run that would judge the very same and that nobody is at, if there is one."""
    with _there(store) as opened:
        if opened is None or spec.dataset.source == STDIN:
            return None
        dataset, _ = open_data(opened, spec.dataset)
        return twin(opened, dataset, trial_of(spec, NOTHING, spec.limits.limits(), None, None))


async def aestimated(spec: RunSpec, *, store: StorePlace | None = None) -> Estimate:
    """What a run would take; no model is asked anything."""
    from magistrate.api.estimate import earlier_rates, estimate
    from magistrate.runs.prepare import price_for

    with _there(store) as opened:
        dataset, _ = open_data(opened, spec.dataset)
        trial = await _async.in_thread(trial_of, spec, NOTHING, spec.limits.limits(), None, None)
        rates = {
            judge: earlier_rates(opened, recipe.judge, recipe.fingerprint) if opened is not None else None
            for judge, recipe in trial.recipes.items()
        }
        return await estimate(
            dataset, trial.judges, trial.engine, price=price_for(trial.engine, spec.engine.price), rates=rates
        )


estimated = _async.synchronous(aestimated)


async def aresume(
    run: str | Run,
    *,
    dataset: Iterable[Any] | Dataset | None = None,
    judges: Judge | Sequence[Judge] | None = None,
    model: Engine | None = None,
    task: Task | None = None,
    limits: Limits | None = None,
    price: str | None = None,
    spec: RunSpec | None = None,
    store: StorePlace | None = None,
    watcher: Watcher | None = None,
    progress: bool = True,
) -> Run:
    """Go on with a run that was interrupted, killed or failed: what has an outcome is not judged again.

    `run` is an id, the beginning of one, a name or `last`. What the run was given as objects (rows, judges,
    an engine, a task) is given again; everything else is stored with it, unless `spec` says it anew.
    `limits` and `price` replace those it had. A run that is done stays as it is. Raises `SpecError` where
    the data, a judge, the model or a prompt is not what it was, with the difference, and `StoreError` while
    another process is at the run.
    """
    with _opened(run if isinstance(run, Run) else store) as opened:
        record = _found(opened, run)
        with opened.hold(record.id):
            record = opened.find_run(record.id)
            if record.status == "done":
                return Run(record.id, opened.place)
            spec = spec or description(record)
            given = await _async.in_thread(_given, spec, dataset, judges, model, task)
            told = _watcher(watcher, progress)
            trial = await _async.in_thread(restored, record, spec, given, limits, price, told)
            samples = await _async.in_thread(to_resume, opened, record, spec, trial, given)
            opened.reopen_run(record.id)
            await conduct(opened, record.id, trial, samples)
        return Run(record.id, opened.place)


resume = _async.synchronous(aresume)


async def aretry(
    run: str | Run,
    *,
    judges: Judge | Sequence[Judge] | None = None,
    model: Engine | None = None,
    task: Task | None = None,
    limits: Limits | None = None,
    price: str | None = None,
    store: StorePlace | None = None,
    watcher: Watcher | None = None,
    progress: bool = True,
) -> Run:
    """Judge again what failed in a run, and nothing else; a new outcome replaces the failure.

    The options and errors are those of `aresume`. Whether the run is done does not change. A task is called
    again only where it was the task that failed; an outcome's usage is that of all attempts.
    """
    with _opened(run if isinstance(run, Run) else store) as opened:
        record = _found(opened, run)
        with opened.hold(record.id):
            spec = description(record)
            given = await _async.in_thread(_given, spec, None, judges, model, task)
            told = _watcher(watcher, progress)
            trial = await _async.in_thread(restored, record, spec, given, limits, price, told)
            samples = await _async.in_thread(to_retry, opened, record, trial)
            if samples.total:
                await conduct(opened, record.id, trial, samples)
        return Run(record.id, opened.place)


retry = _async.synchronous(aretry)


def _opened_data(spec: RunSpec, given: Given, store: StorePlace | None) -> tuple[Dataset, str | None]:
    """The samples and their stored version, with all that takes time to learn of them."""
    dataset, version = given.dataset, None
    if dataset is None:
        with _there(store) as opened:
            dataset, version = open_data(opened, spec.dataset, need_output=given.task is None)
    dataset.check(spec.dataset.max_unread)  # refuses what has too many rows that cannot be read
    _ = dataset.digest, dataset.size  # both may read all of it, and are remembered
    return dataset, version


def _opened(place: Run | StorePlace | None) -> Store:
    from magistrate.store import Store

    return Store.open(place.store if isinstance(place, Run) else place or default_store())


@contextmanager
def _there(place: StorePlace | None) -> Iterator[Store | None]:
    """The store, if there is one already: looking makes none."""
    from magistrate.store import Store
    from magistrate.store.connect import exists

    place = place or default_store()
    if not exists(place):
        yield None
        return
    with Store.open(place) as opened:
        yield opened


def _found(store: Store, run: str | Run) -> RunRecord:
    return store.find_run(run.id if isinstance(run, Run) else run)


def _given(spec: RunSpec, dataset: Any, judges: Any, model: Engine | None, task: Task | None) -> Given:
    rows = None if dataset is None else rows_of(dataset, spec.dataset, need_output=task is None)
    return Given(
        dataset=rows, judges=None if judges is None else registry.judges(judges), model=model, task=task
    )


def _watcher(watcher: Watcher | None, progress: bool) -> Watcher | None:
    if watcher is not None or not progress:
        return watcher
    from magistrate.runs.progress import ProgressBar

    return ProgressBar()
