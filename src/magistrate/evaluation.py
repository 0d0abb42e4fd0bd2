"""The whole path: samples are judged, every outcome is stored as it comes, and a run is answered."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from magistrate import background, resolve
from magistrate.datasets import Dataset, load
from magistrate.datasets.rows import RowError, to_sample
from magistrate.engines.base import Engine
from magistrate.errors import DatasetError, InputError, StoreError
from magistrate.home import default_store
from magistrate.judges.base import Judge
from magistrate.running import CONCURRENCY, DEADLINE, Judged, Task, check_stream, judge_one, stream
from magistrate.types import Failure, Outcome, Recipe, Sample
from magistrate.version import __version__

if TYPE_CHECKING:
    import pandas

    from magistrate.report import Report
    from magistrate.store import RunRecord, Store

StorePlace = str | os.PathLike[str]
Source = str | Path | Dataset | Iterable[Any]


class Watcher(Protocol):
    """Whoever wants to see a run as it goes."""

    def started(self, run_id: str, total: int | None, engine: Engine) -> None: ...
    def judged(self, judged: Judged) -> None: ...
    def finished(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Run:
    """A stored run. Everything is read from the store when it is asked for."""

    id: str
    store: Path

    @property
    def record(self) -> RunRecord:
        """What the store says of the run as a whole."""
        with self._open() as store:
            return store.find_run(self.id)

    def samples(self) -> list[Sample]:
        """The samples that were judged, in their order."""
        with self._open() as store:
            return list(store.samples(self.id))

    def outcomes(self, *, with_steps: bool = False) -> list[Outcome]:
        """Every outcome; steps only if asked for, they are most of the bytes."""
        with self._open() as store:
            return list(store.outcomes(self.id, with_steps=with_steps))

    def table(self) -> list[dict[str, Any]]:
        """One plain mapping an outcome."""
        from magistrate.report import table

        return table({sample.id: sample for sample in self.samples()}, self.outcomes())

    def to_pandas(self) -> pandas.DataFrame:
        """One row an outcome; needs the extra `pandas`."""
        from magistrate.report import to_pandas

        return to_pandas({sample.id: sample for sample in self.samples()}, self.outcomes())

    def summary(self, *, flag: Collection[str] | None = None) -> Report:
        """Figures with intervals, baselines, counts and remarks; `print` shows it, `to_dict()` is data.

        `flag` decides the verdicts of a rubric anew, by these kinds of claims, without asking a model.
        """
        with self._open() as store:
            return report_of(store, self.id, flag)

    def __str__(self) -> str:
        return str(self.summary())

    def _repr_html_(self) -> str:
        from html import escape

        return f"<pre>{escape(str(self))}</pre>"

    def _open(self) -> Store:
        from magistrate.store import Store

        return Store.open(self.store)


def report_of(store: Store, run_id: str, flag: Collection[str] | None = None) -> Report:
    """The report of a stored run, finished or not.

    With `flag`, kinds of claims, verdicts that their claims had decided are decided anew; no model is asked.
    """
    from magistrate.judges.flagging import by_claims, check_flag, reflagged
    from magistrate.report import RunFacts, summarize

    record = store.find_run(run_id)
    samples = {sample.id: sample for sample in store.samples(run_id)}
    n_total = max(record.n_total or 0, len(samples))
    seconds = (record.finished_at - record.created_at).total_seconds() if record.finished_at else None
    if seconds is not None and seconds < 0:
        seconds = None  # somebody set the clock back meanwhile
    facts = RunFacts(
        id=record.id,
        name=record.name or record.id,
        dataset=record.dataset,
        status=record.status,
        n_total=n_total,
        seconds=seconds,
    )
    recipes = {judge: replace(recipe, n=n_total) for judge, recipe in record.recipes.items()}
    outcomes: Iterable[Outcome] = store.outcomes(run_id)
    if flag is not None:
        check_flag(flag)
        outcomes = [reflagged(outcome, flag) for outcome in outcomes]
        for judge in {outcome.judge for outcome in outcomes if by_claims(outcome)} & recipes.keys():
            told = f"{recipes[judge].judge}, flagged anew by {'+'.join(sorted(flag))}"
            recipes[judge] = replace(recipes[judge], judge=told)
    return summarize(facts, samples, outcomes, recipes)


async def aevaluate(
    dataset: Source,
    judges: str | Judge | Sequence[str | Judge] = resolve.DEFAULT_JUDGE,
    *,
    task: Task | None = None,
    model: str | Path | Engine | None = None,
    device: str | None = None,
    threads: int | None = None,
    mapping: Mapping[str, str] | None = None,
    view: str | None = None,
    limit: int | None = None,
    sample: int | None = None,
    balance: str | None = None,
    seed: int = 0,
    name: str | None = None,
    tags: Sequence[str] = (),
    store: StorePlace | None = None,
    concurrency: int = CONCURRENCY,
    deadline: float = DEADLINE,
    watcher: Watcher | None = None,
    progress: bool = True,
) -> Run:
    """Judge a dataset (a file, a named set, rows or samples) and answer the stored run.

    `judges` are names, such as `faithfulness:prior=empty_context`, or objects. With `task`, a callable
    of a sample, sync or async, that answers the output (or a mapping with `output` and `context`), the
    outputs are made first, as when an application is tested. `model` is a catalogue name, a path or an
    engine; `mapping`, `view`, `limit`, `sample`, `balance` and `seed` say what is read and how, as in
    `load`; `store` where the run is kept. At most `concurrency` samples are under way, and a verdict
    may take `deadline` seconds. Every outcome is committed as it comes; a cancelled run, or Ctrl-C in
    `evaluate`, stops cleanly and keeps what is done. `progress` shows a bar on a terminal, unless
    `watcher` is told instead. `evaluate` is the same without `await`, also inside a running event loop.
    """
    from magistrate.store import Store

    if not isinstance(dataset, Dataset):
        dataset = load(
            dataset,
            mapping=mapping,
            view=view,
            limit=limit,
            sample=sample,
            balance=balance,
            seed=seed,
            need_output=task is None,
        )
    asked = resolve.judges(judges)
    engine = await background.in_thread(resolve.engine, model, device=device, threads=threads)
    check_stream(asked, engine.info, concurrency, deadline)
    if watcher is None and progress:
        from magistrate.report.progress import ProgressBar

        watcher = ProgressBar()
    total = dataset.size
    recipes = {judge.info.name: recipe(judge, engine, seed) for judge in asked}
    with Store.open(store or default_store()) as opened:
        run_id = opened.create_run(
            dataset=dataset.name,
            dataset_digest=dataset.digest,
            model=engine.info.model,
            engine_fingerprint=engine.info.fingerprint,
            recipes=recipes,
            name=name,
            n_total=total,
            tags=tags,
            settings={"concurrency": concurrency, "deadline": deadline, "judges": list(recipes)},
        )
        try:
            if watcher is not None:
                watcher.started(run_id, None if total is None else total * len(asked), engine)
            n = await _judge_all(opened, run_id, dataset, asked, engine, task, concurrency, deadline, watcher)
        except BaseException as error:
            stopped = isinstance(error, asyncio.CancelledError | KeyboardInterrupt)
            with suppress(StoreError):  # where the store itself is what failed, the first error says so
                if isinstance(error, InputError) and not opened.find_run(run_id).n_samples:
                    opened.delete(run_id)  # a source of which nothing can be read makes no run
                else:
                    opened.finish_run(run_id, "interrupted" if stopped else "failed")
            raise
        finally:
            if watcher is not None:
                watcher.finished()
        opened.finish_run(run_id, "done", n_total=n)
        return Run(run_id, opened.path)


evaluate = background.synchronous(aevaluate)


async def _judge_all(
    store: Store,
    run_id: str,
    dataset: Dataset,
    judges: Sequence[Judge],
    engine: Engine,
    task: Task | None,
    concurrency: int,
    deadline: float,
    watcher: Watcher | None,
) -> int:
    """Stream every outcome into the store; answers how many samples there were."""
    stored: set[str] = set()

    def keep(sample: Sample) -> None:
        if sample.id not in stored:
            store.add_samples(run_id, [sample])
            stored.add(sample.id)

    def pulled() -> Iterator[Sample]:
        for sample in dataset:
            if task is None:
                keep(sample)  # in the order of the source; with a task, when its output is known
            yield sample

    outcomes = stream(pulled(), judges, engine, task=task, concurrency=concurrency, deadline=deadline)
    async with aclosing(outcomes):  # type: ignore[type-var]
        async for judged in outcomes:
            keep(judged.sample)
            _add(store, run_id, judged.outcome)
            if watcher is not None:
                watcher.judged(judged)
    return len(stored)


def _add(store: Store, run_id: str, outcome: Outcome) -> None:
    """Store an outcome; one whose values cannot be stored is a failure of its judge, not of the run."""
    try:
        store.add_outcome(run_id, outcome)
    except InputError as error:
        message = f"the outcome cannot be stored: {error}"
        store.add_outcome(run_id, Failure(outcome.sample_id, outcome.judge, "invalid_output", message))


async def ajudge(
    *,
    output: str | None = None,
    context: str | Sequence[str] = (),
    input: str | None = None,
    messages: Sequence[Mapping[str, Any]] = (),
    judge: str | Judge = resolve.DEFAULT_JUDGE,
    model: str | Path | Engine | None = None,
    device: str | None = None,
    threads: int | None = None,
    deadline: float = DEADLINE,
    id: str = "sample",
) -> Outcome:
    """Judge one output: `judge(output=…, context=[…], input=…)`.

    With `messages`, a conversation of `{"role": …, "content": …}`, the output may rely on what was said too;
    without `output` it is the assistant's last message. The answer is a `Verdict`, a `Failure` or an
    `Abstention`. `judge` is a name or an object, `model` a catalogue name, a path or an engine; `deadline` is
    in seconds. `magistrate.judge` is the same without `await`, also inside a running event loop.
    """
    sample = sample_of(output=output, context=context, input=input, messages=messages, id=id)
    return await ajudge_sample(
        sample, judge=judge, model=model, device=device, threads=threads, deadline=deadline
    )


judge = background.synchronous(ajudge)


async def ajudge_sample(
    sample: Sample,
    *,
    judge: str | Judge = resolve.DEFAULT_JUDGE,
    model: str | Path | Engine | None = None,
    device: str | None = None,
    threads: int | None = None,
    deadline: float = DEADLINE,
) -> Outcome:
    """Judge one sample; the options are those of `ajudge`."""
    asked = resolve.judge(judge)
    engine = await background.in_thread(resolve.engine, model, device=device, threads=threads)
    check_stream([asked], engine.info, 1, deadline)
    return await judge_one(sample, asked, engine, deadline=deadline)


judge_sample = background.synchronous(ajudge_sample)


def sample_of(
    *,
    output: str | None,
    context: str | Sequence[str] = (),
    input: str | None = None,
    messages: Sequence[Mapping[str, Any]] = (),
    id: str = "sample",
) -> Sample:
    """A sample of texts and a conversation. Raises `DatasetError` where there is no output to judge."""
    row = {"output": output, "context": context, "input": input, "messages": list(messages)}
    try:
        return to_sample(row, id=id)
    except RowError as error:
        raise DatasetError(f"this cannot be judged: {error}") from None


def recipe(judge: Judge, engine: Engine, seed: int, n: int = 0) -> Recipe:
    """What pins the figures of this judge on this engine; its options are part of the judge's name."""
    info = judge.info
    return Recipe(
        judge=f"{resolve.spelled(judge)}@{info.version}",
        model=engine.info.model,
        fingerprint=engine.info.fingerprint,
        prompt=info.prompt,
        constraint=info.constraint,
        seed=seed,
        n=n,
        package=__version__,
    )
