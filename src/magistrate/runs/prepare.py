"""From the description of a run to who judges what, with which engine, within which limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from magistrate.datasets import Dataset, load
from magistrate.datasets.fields import check_labels
from magistrate.datasets.files import HUB, looks_like_path
from magistrate.engines.base import Engine
from magistrate.engines.cache import Cached, call_cache
from magistrate.engines.none import NONE
from magistrate.engines.prices import Price, price_of
from magistrate.errors import SpecError
from magistrate.judges import registry
from magistrate.judges.base import Judge
from magistrate.runs.execute import Task
from magistrate.runs.limits import Limits
from magistrate.runs.plan import Trial, Watcher
from magistrate.runs.spec import (
    DEFAULT,
    DataPart,
    RunSpec,
    anchored,
    engine_of,
    judges_of,
    spec_from,
)
from magistrate.store import Store
from magistrate.store.datasets import open_dataset

NAMES_TOLD = 5
FREE = Price(0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What is handed over as an object, in place of what a description says; None is what it says."""

    dataset: Dataset | None = None
    judges: Sequence[Judge] | None = None
    model: Engine | None = None
    task: Task | None = None

    @property
    def names(self) -> list[str]:
        """Which parts came as objects: no description can bring them back."""
        return [name for name in ("dataset", "judges", "model", "task") if getattr(self, name) is not None]


NOTHING = Given()


def described(
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
) -> tuple[RunSpec, Given]:
    """What Python was asked for as a description, and what of it only objects can say."""
    several = list(judges) if isinstance(judges, Sequence) and not isinstance(judges, str) else [judges]
    asked = registry.judges(judges)
    if not asked:
        raise SpecError("there is no judge; name one at least")
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
    return spec, Given(
        dataset=None if there else rows_of(dataset, spec.dataset, need_output=task is None),
        judges=None if all(words) else asked,
        model=engine,
        task=task,
    )


def rows_of(dataset: Any, part: DataPart, *, need_output: bool) -> Dataset:
    """Rows from memory, read as a description says."""
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
    """The samples that a description names and, where they are a stored set, its name and version: `N@2`.

    `store` is where stored sets are looked for, None where there is none.
    Raises `SpecError` where what is read is not what the description pins.
    """
    options: dict[str, Any] = {"mapping": part.map, "limit": part.limit, "sample": part.sample}
    options |= {"balance": part.balance, "seed": part.seed, "need_output": need_output}
    options |= {"labels": part.labels, "max_unread": part.max_unread}
    version = None if store is None else store.stored_dataset(part.source)
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
            f"{found.name} is not what was judged then: its sha256 is {found.digest[:12]}…, not "
            f"{part.digest[:12]}…; take the digest out of the description to judge what is there now"
        )
    return found, None if version is None else version.ref


def _stored(store: Store | None, source: str) -> str:
    """Which stored sets there are, for an error about a name that is none."""
    if store is None or looks_like_path(source):
        return ""
    names = list(dict.fromkeys(each.name for each in store.dataset_versions()))
    more = ", …" if len(names) > NAMES_TOLD else ""
    return f"; stored: {', '.join(names[:NAMES_TOLD])}{more}" if names else ""


def trial_of(
    spec: RunSpec, given: Given, limits: Limits, price: str | None, watcher: Watcher | None
) -> Trial:
    """Who judges with what. Raises `SpecError` and `CapabilityError` where that cannot be."""
    judges = judges_of(spec) if given.judges is None else given.judges
    if registry.asks_none(judges):
        engine: Engine = NONE
    else:
        states = registry.read_states(judges)
        engine = given.model or engine_of(spec.engine, hidden_states=states, concurrency=limits.concurrency)
    paid = FREE if engine is NONE else price_for(engine, price or spec.engine.price)
    trial = Trial(
        judges=judges,
        engine=remembering(engine) if spec.cache else engine,
        task=given.task,
        limits=limits,
        cost=None if paid is None else paid.cost,
        seed=spec.dataset.seed,
        watcher=watcher,
    )
    trial.check()
    return trial


def remembering(engine: Engine) -> Engine:
    """The engine with the cache of calls before it, where it promises the same answer to the same call."""
    return Cached(engine, call_cache()) if "repeatable" in engine.info.can else engine


def price_for(engine: Engine, price: str | None) -> Price | None:
    """The price that was named, or that is known; None where nobody knows."""
    return price_of(engine.info.model) if price is None else Price.parse(price)


def pinned(spec: RunSpec, dataset: Dataset, version: str | None) -> RunSpec:
    """The description with whole paths and the digest of what is read, so that it means this for good."""
    # The name of what came from a hub holds the commit, as that of a stored set holds its version.
    named = dataset.name if spec.dataset.source.startswith(HUB) else version
    spec = anchored(spec, Path.cwd())
    changes = {"source": named or spec.dataset.source, "digest": dataset.digest}
    return spec.model_copy(update={"dataset": spec.dataset.model_copy(update=changes)})


def _words(given: str | Judge, judge: Judge) -> str | None:
    """How a judge is written so that the very same one is made of it; None where that cannot be."""
    if isinstance(given, str):
        return given
    words = registry.spelled(judge)
    try:
        made = registry.judge(words)
    except SpecError:
        return None
    return words if made == judge else None
