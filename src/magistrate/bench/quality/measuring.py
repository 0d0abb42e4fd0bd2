"""One judge on one set with one model: judged once, kept, and gone on with where it was cut off."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from magistrate import _async
from magistrate.api.evaluate import evaluate, resume
from magistrate.api.run import Run
from magistrate.bench.machine import load
from magistrate.bench.quality.protocol import PROTOCOL, SEED, Split
from magistrate.datasets import load as load_data
from magistrate.datasets.families import shared
from magistrate.engines.base import Engine, Option
from magistrate.engines.none import NONE
from magistrate.judges import registry
from magistrate.runs.limits import Limits
from magistrate.runs.prepare import recipe
from magistrate.runs.progress import ProgressListener
from magistrate.store import RunRecord, Store
from magistrate.types import Prompt, Recipe

IN_FLIGHT = 32  # samples under way at once
DEADLINE = 3600.0
WARMING = (Option("yes", ("Yes",)), Option("no", ("No",)))
FAMILY = "{family}"
LYING = re.compile(r"[^=(),:]*[/\\](?=[^/\\(),:=])")  # the folders before a name
COMMIT, LOAD = "commit=", "load="  # tags of a run: where and when it was made


@dataclass(frozen=True, slots=True)
class Measurement:
    """What is measured: a judge as one writes it, a model, and the samples of a set.

    `{family}` in the judge's words stands for the family of the set.
    """

    split: Split
    model: str
    judge: str

    @property
    def words(self) -> str:
        """The judge for this set."""
        return self.judge.replace(FAMILY, self.split.family)

    @property
    def shown(self) -> str:
        """The judge as it is called in tables: the same for all sets, wherever its folder lies."""
        return LYING.sub("", self.judge)

    @property
    def seen(self) -> list[str]:
        """The data sets of this set's family that the judge was trained on."""
        return shared(self.split.family, registry.judge(self.words).info.trained_on)

    @property
    def key(self) -> str:
        """The tag of its run: the same measurement, whenever it is made, has the same."""
        drawn = f"{len(self.split.dev)}+{len(self.split.test)}"
        return f"quality/{PROTOCOL}/{self.split.name}/{drawn}/{self.model}/{self.shown}"


@dataclass(frozen=True, slots=True)
class Measured:
    """A finished run of a measurement, the commit it was made at, and how busy the machine was then."""

    what: Measurement
    run: Run
    commit: str | None
    load: float | None


def measure(
    what: Measurement,
    store: Path,
    opened: Callable[[str], Engine],
    commit: str | None,
    *,
    again: bool = False,
    watcher: ProgressListener | None = None,
) -> Measured:
    """Judge every sample of both parts, without the cache of calls, on an engine that is warm and empty.

    Every outcome is in `store` as it comes. A finished run of the same samples and recipe is taken as it is,
    unless `again`; one that was cut off is gone on with.
    """
    judge = registry.judge(what.words)
    alone = registry.asks_none([judge])
    engine = NONE if alone else opened(what.model)
    try:
        found = None if again else _found(store, what, recipe(judge, engine, SEED))
        if found is not None and found.status == "done":
            return _measured(what, Run(found.id, store), found.tags)
        busy = load()
        if not alone:
            _async.run(engine.choose(Prompt.of("Is it warm? Yes or No?"), WARMING))
        if found is not None:
            run = resume(Run(found.id, store), dataset=what.split.samples, model=engine, watcher=watcher)
            return _measured(what, run, found.tags)
        tags = [what.key, f"{COMMIT}{commit or ''}", f"{LOAD}{'' if busy is None else round(busy, 2)}"]
        run = evaluate(
            what.split.samples,
            judge,
            model=engine,
            store=store,
            seed=SEED,
            name=f"{what.split.name}, {what.shown}, {what.model}",
            tags=tags,
            limits=Limits(concurrency=IN_FLIGHT, deadline=DEADLINE),
            cache=False,
            watcher=watcher,
            progress=False,
        )
        return _measured(what, run, tags)
    finally:
        let_go(engine)


def let_go(engine: Engine) -> None:
    """Free what an engine holds, if it can be told to."""
    close = getattr(engine, "close", None)
    if close is not None:
        close()


def _measured(what: Measurement, run: Run, tags: Iterable[str]) -> Measured:
    noted = {mark: tag.removeprefix(mark) for tag in tags for mark in (COMMIT, LOAD) if tag.startswith(mark)}
    busy = noted.get(LOAD)
    return Measured(what, run, noted.get(COMMIT) or None, float(busy) if busy else None)


def _found(store: Path, what: Measurement, wanted: Recipe) -> RunRecord | None:
    """The newest run of the same measurement and recipe that nobody is at."""
    if not store.is_file():
        return None
    digest = load_data(what.split.samples).digest
    with Store.open(store) as opened:
        for record in map(opened.seen, opened.runs(tag=what.key)):
            same = [replace(each, n=0) for each in record.recipes.values()] == [wanted]
            if same and record.status != "running" and record.dataset_digest == digest:
                return record
    return None
