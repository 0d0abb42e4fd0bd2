"""Prepares a run: creates its judges and engine, opens its data, each once, and returns a `RunPlan`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from magistrate._version import __version__
from magistrate.datasets import Dataset, load
from magistrate.datasets.fields import check_labels
from magistrate.datasets.files import HUB, looks_like_path, named_like_file
from magistrate.engines.base import DEFAULT, Engine, EngineInfo
from magistrate.engines.cache import Cached, call_cache
from magistrate.engines.embedded.cores import available_cores
from magistrate.engines.none import NONE
from magistrate.engines.prices import Price, price_of
from magistrate.errors import SpecError
from magistrate.judges import registry
from magistrate.judges.base import Judge
from magistrate.runs.execute import Task, check_stream
from magistrate.runs.limits import UNLIMITED, Cost, Limits
from magistrate.runs.spec import (
    STDIN,
    DataPart,
    RunSpec,
    anchored,
    engine_of,
    judges_of,
    spec_from,
)
from magistrate.store import Store
from magistrate.store.datasets import open_dataset
from magistrate.store.shares import Part
from magistrate.types import Recipe, Scoring

NAMES_TOLD = 5
MANY = 2_000  # samples above which judges of code use every core, unless told otherwise
EMBEDDED = "local"  # the name of the embedded engine
FREE = Price(0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    """Python objects that replace parts of a specification. None leaves a part as specified."""

    dataset: Dataset | None = None
    judges: Sequence[Judge] | None = None
    model: Engine | None = None
    task: Task | None = None

    @property
    def names(self) -> list[str]:
        """The names of the parts given as objects, which cannot be restored from a specification."""
        return [name for name in ("dataset", "judges", "model", "task") if getattr(self, name) is not None]


NO_OVERRIDES = Overrides()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """A run that is ready to be executed: its judges, engine, limits and data.

    `cost` returns the dollars that usage costs, None if no price is known. `objects` names the parts that
    were given as Python objects. `dataset` is None while the data of an earlier run have not been opened
    again. `dataset_version` is `NAME@2` for a stored data set.
    """

    spec: RunSpec
    judges: Sequence[Judge]
    engine: Engine
    task: Task | None = None
    limits: Limits = UNLIMITED
    cost: Cost | None = None
    objects: Sequence[str] = ()
    dataset: Dataset | None = None
    dataset_version: str | None = None

    def check(self) -> None:
        """Reject a plan that cannot be executed. Raises `SpecError` and `CapabilityError`."""
        check_stream(self.judges, self.engine.info)
        if self.limits.max_cost is not None and self.cost is None:
            raise SpecError(
                f"max_cost needs a price, but none is known for {self.engine.info.model!r}; give it in US "
                "dollars per million tokens: --price IN/OUT"
            )
        if (self.spec.workers or 1) > 1 and (why := self._one_process):
            raise SpecError(f"--workers must be 1, because {why}")
        if self.part is not None and (self.objects or self.spec.dataset.source == STDIN):
            raise SpecError(
                "--shard needs data and judges that every process can open by name; this run has "
                f"{' and '.join(self.objects) or 'data'} that only this process has"
            )

    @property
    def part(self) -> Part | None:
        """The share of the samples that this process judges, None for all of them."""
        return None if self.spec.shard is None else Part.parse(self.spec.shard)

    def n_workers(self, left: int | None) -> int:
        """Return the number of processes that judge `left` samples (None: unknown); 1 is this one alone.

        Without an explicit number, judges that ask no model use every core for more than `MANY` samples.
        """
        asks_none = registry.asks_none(self.judges)
        chosen = self.spec.workers
        if chosen is None:
            many = asks_none and left is not None and left > MANY and not self._one_process
            chosen = available_cores() if many else 1
        # Each process needs a sample, and a server must not get more requests at once than allowed.
        return max(
            1, min(chosen, chosen if left is None else left, chosen if asks_none else self.limits.concurrency)
        )

    @property
    def _one_process(self) -> str:
        """Why only one process can judge; empty if several can."""
        given = [name for name in self.objects if name != "dataset"]
        if given:
            return f"the {' and '.join(given)} given as a Python object cannot be sent to other processes"
        if any(info.name == EMBEDDED for info in (self.engine.info, *_engines_of(self.judges))):
            return (
                "the embedded model already uses all cores in one process; use more with a model on a server "
                "(--model openai:MODEL) or with judges that ask no model"
            )
        return ""

    @property
    def recipes(self) -> dict[str, Recipe]:
        """The recipe of each judge by its name: everything that its figures depend on."""
        seed = self.spec.dataset.seed
        return {judge.info.name: recipe(judge, self.engine, seed) for judge in self.judges}

    @property
    def scoring(self) -> dict[str, Scoring]:
        """The scoring of each judge by its name: how its scores are read."""
        return {judge.info.name: judge.info.scoring for judge in self.judges}


def _engines_of(part: object) -> Iterator[EngineInfo]:
    """Yield the info of every engine that is set in a judge, or in a judge that is a part of it."""
    if isinstance(part, Mapping):
        part = list(part.values())
    if isinstance(part, list | tuple):
        for each in part:
            yield from _engines_of(each)
    elif is_dataclass(part) and not isinstance(part, type):
        yield from _engines_of([getattr(part, each.name) for each in fields(part)])
    elif isinstance(info := getattr(part, "info", None), EngineInfo):
        yield info


def recipe(judge: Judge, engine: Engine, seed: int, n: int = 0) -> Recipe:
    """Return the recipe of this judge on this engine: everything that its figures depend on.

    The judge's options are part of its name. The model of a judge that calls no engine is `none`, also if
    other judges of the run call one.
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


# --- from the arguments of a Python call to a specification -----------------------------------------


def spec_of_arguments(
    dataset: Any,
    judges: str | Judge | Sequence[str | Judge],
    *,
    model: str | Path | Engine | None,
    base_url: str | None,
    device: str | None,
    threads: int | None,
    timeout: float | None,
    task: Task | None,
    mapping: Mapping[str, str] | None,
    labels: Mapping[Any, str] | None,
    view: str | None,
    selection: Mapping[str, Any],
    limits: Limits,
    price: str | None,
    **others: Any,
) -> tuple[RunSpec, Overrides]:
    """Convert Python arguments to a specification and the objects that it cannot hold."""
    several = list(judges) if isinstance(judges, Sequence) and not isinstance(judges, str) else [judges]
    asked = registry.judges(judges)
    if not asked:
        raise SpecError("there is no judge; give at least one")
    words = [_words(given, judge) for given, judge in zip(several, asked, strict=True)]
    registry.warn_unasked(asked, model)
    model = None if registry.asks_none(asked) else model
    engine = None if model is None or isinstance(model, str | Path) else model
    named: dict[str, Any] = {"model": None if engine is not None or model is None else str(model)}
    named |= {"base_url": base_url, "device": device, "threads": threads, "timeout": timeout}
    named |= {"price": price}
    there = isinstance(dataset, str | Path)
    spec = spec_from(
        {
            "dataset": {
                "source": str(dataset) if there else "rows",
                "view": view,
                "map": dict(mapping or {}),
                "labels": check_labels(labels),
                **selection,
            },
            "judges": [word or registry.spelled(judge) for word, judge in zip(words, asked, strict=True)],
            "engines": {DEFAULT: named} if any(each is not None for each in named.values()) else {},
            "limits": asdict(limits),
            **others,
        }
    )
    return spec, Overrides(
        dataset=None if there else rows_of(dataset, spec.dataset, need_output=task is None),
        judges=None if all(words) else asked,
        model=engine,
        task=task,
    )


def rows_of(dataset: Any, part: DataPart, *, need_output: bool) -> Dataset:
    """Load rows from memory, with the options of a specification."""
    return load(
        dataset,
        mapping=part.map,
        labels=part.labels,
        max_unread=part.max_unread,
        view=part.view,
        limit=part.limit,
        sample=part.sample,
        balance=part.balance,
        seed=part.seed,
        need_output=need_output,
    )


def open_data(store: Store | None, part: DataPart, *, need_output: bool = True) -> tuple[Dataset, str | None]:
    """Return the samples that a specification names and, for a stored data set, its `NAME@VERSION`.

    Stored data sets are looked up in `store`; None means no store. Raises `SpecError` if the digest of the
    data is not the one in the specification.
    """
    options: dict[str, Any] = {"mapping": part.map, "limit": part.limit, "sample": part.sample}
    options |= {"balance": part.balance, "seed": part.seed, "need_output": need_output}
    options |= {"labels": part.labels, "max_unread": part.max_unread}
    of_file = named_like_file(part.source)  # as no stored set is
    version = None if store is None or of_file else store.stored_dataset(part.source)
    if store is None or version is None:
        try:
            found = load(part.source, view=part.view, **options)
        except SpecError as error:
            raise SpecError(f"{error}{_stored(store, part.source)}") from None
    elif part.view is not None:
        raise SpecError(f"{part.source!r} is a stored set, which has no views; got {part.view!r}")
    else:
        found = open_dataset(store, version.ref, **options)
    if part.digest is not None and part.digest != found.digest:
        raise SpecError(
            f"{found.name} has changed: its sha256 is {found.digest[:12]}…, not {part.digest[:12]}…; remove "
            "the digest from the run file to judge the current data"
        )
    return found, None if version is None else version.ref


def _stored(store: Store | None, source: str) -> str:
    """A list of the stored data sets, for the error message about an unknown name."""
    if store is None or looks_like_path(source):
        return ""
    names = list(dict.fromkeys(each.name for each in store.dataset_versions()))
    more = ", …" if len(names) > NAMES_TOLD else ""
    return f"; stored: {', '.join(names[:NAMES_TOLD])}{more}" if names else ""


def prepare(
    spec: RunSpec,
    overrides: Overrides = NO_OVERRIDES,
    *,
    store: Store | None = None,
    judges: Sequence[Judge] | None = None,
) -> RunPlan:
    """Return the plan of the run that a specification and overrides describe, with its data opened.

    Stored data sets are looked up in `store`. `judges` are the specification's judges, if already created.
    Raises `SpecError` and `CapabilityError` if the run cannot be executed.
    """
    plan = prepare_judges(spec, overrides, judges=judges)
    dataset, version = overrides.dataset, None
    if dataset is None:
        dataset, version = open_data(store, spec.dataset, need_output=overrides.task is None)
    return replace(plan, dataset=dataset, dataset_version=version)


def prepare_judges(
    spec: RunSpec,
    overrides: Overrides = NO_OVERRIDES,
    *,
    judges: Sequence[Judge] | None = None,
    limits: Limits | None = None,
    price: str | None = None,
) -> RunPlan:
    """Return the plan without its data. `limits` and `price` replace those of the specification."""
    if overrides.judges is not None:
        judges = overrides.judges
    elif judges is None:
        judges = judges_of(spec)
    limits = limits or spec.limits.limits()
    if registry.asks_none(judges):
        engine: Engine = NONE
    else:
        states = registry.read_states(judges)
        part = spec.engine
        if overrides.model is None and part.model is None:
            part = part.model_copy(update={"model": registry.tuned_for(judges)})
        engine = overrides.model or engine_of(part, hidden_states=states, concurrency=limits.concurrency)
    paid = FREE if engine is NONE else price_for(engine, price or spec.engine.price)
    plan = RunPlan(
        spec=spec,
        judges=judges,
        engine=with_cache(engine) if spec.cache else engine,
        task=overrides.task,
        limits=limits,
        cost=None if paid is None else paid.cost,
        objects=overrides.names,
    )
    plan.check()
    return plan


def with_cache(engine: Engine) -> Engine:
    """Wrap the engine in the call cache, if it gives the same answer to the same call."""
    return Cached(engine, call_cache()) if "repeatable" in engine.info.can else engine


def price_for(engine: Engine, price: str | None) -> Price | None:
    """Return the given price, else the known price of the model, else None: a model here has no price."""
    if price is not None:
        return Price.parse(price)
    return None if engine.info.name == EMBEDDED else price_of(engine.info.model)


def pinned(spec: RunSpec, dataset: Dataset, version: str | None) -> RunSpec:
    """Return the specification with absolute paths and the data's digest, so that it stays valid later.

    It describes the whole run, also if this process judges a share of it.
    """
    # The name of a hub data set contains the commit, and that of a stored set its version.
    named = dataset.name if spec.dataset.source.startswith(HUB) else version
    spec = anchored(spec, Path.cwd())
    changes = {"source": named or spec.dataset.source, "digest": dataset.digest}
    return spec.model_copy(update={"dataset": spec.dataset.model_copy(update=changes), "shard": None})


def _words(given: str | Judge, judge: Judge) -> str | None:
    """The text from which the registry creates an equal judge, None if there is none."""
    if isinstance(given, str):
        return given
    words = registry.spelled(judge)
    try:
        made = registry.judge(words)
    except SpecError:
        return None
    return words if made == judge else None
