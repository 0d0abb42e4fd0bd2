"""Measures judges on labelled sets: judges every sample once, and computes result rows.

Everything chosen (a threshold, a rule's direction) is chosen on the dev part. Results are of the test part.
An interrupted measurement is resumed, and one with the same recipe is not repeated.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.machine import Machine, load
from benchmarks.quality import rows as journal
from benchmarks.quality.baselines import AIM, Part, Ruled, ruled
from benchmarks.quality.protocol import PROTOCOL, SEED, SETS, QualitySet, Split, draw, here
from benchmarks.quality.rows import BASELINE, Figure, QualityRow
from magistrate import _async
from magistrate.analysis.columns import KNOWN, Columns, columns
from magistrate.api.evaluate import evaluate, resume
from magistrate.api.run import Run
from magistrate.datasets import load as load_data
from magistrate.datasets.named import shared
from magistrate.engines.base import Engine, Option
from magistrate.engines.none import NO_MODEL, NONE
from magistrate.errors import SpecError
from magistrate.judges import registry
from magistrate.metrics.classification import Estimate, classification
from magistrate.metrics.reliability import reliability
from magistrate.metrics.thresholds import best_cut
from magistrate.runs.limits import Limits
from magistrate.runs.prepare import recipe
from magistrate.runs.progress import ProgressListener
from magistrate.store import RunRecord, Store
from magistrate.types import HALLUCINATED, Abstention, Failure, Prompt, Recipe, Sample, Usage, Verdict

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

IN_FLIGHT = 32  # samples in flight
DEADLINE = 3600.0
WARMING = (Option("yes", ("Yes",)), Option("no", ("No",)))
FAMILY = "{family}"
LYING = re.compile(r"[^=(),:]*[/\\](?=[^/\\(),:=])")  # the folders before a name
COMMIT, LOAD = "commit=", "load="  # tags of a run: where and when it was made


@dataclass(frozen=True, slots=True)
class Measurement:
    """A measurement to make: a judge specification, a model, and the samples of a set.

    `{family}` in the specification stands for the family of the set.
    """

    split: Split
    model: str
    judge: str

    @property
    def words(self) -> str:
        """The judge specification for this set."""
        return self.judge.replace(FAMILY, self.split.family)

    @property
    def shown(self) -> str:
        """The judge's name in tables: the same for all sets and folders."""
        return LYING.sub("", self.judge)

    @property
    def seen(self) -> list[str]:
        """The data sets of this set's family that the judge was trained on."""
        return shared(self.split.family, registry.judge(self.words).info.trained_on)

    @property
    def key(self) -> str:
        """The tag of its run, the same for every repetition of this measurement."""
        drawn = f"{len(self.split.dev)}+{len(self.split.test)}"
        return f"quality/{PROTOCOL}/{self.split.name}/{drawn}/{self.model}/{self.shown}"


@dataclass(frozen=True, slots=True)
class Measured:
    """A finished run of a measurement, its commit, and the load of the machine."""

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
    """Judge every sample of both parts without the cache of calls, on a warm engine with an empty cache.

    Outcomes are stored as they arrive. A finished run of the same samples and recipe is reused, unless
    `again`. An interrupted one is resumed.
    """
    judge = registry.judge(what.words)
    alone = registry.asks_none([judge])
    engine = NONE if alone else opened(what.model)
    try:
        found = (
            None if again else stored_run(store, what.key, what.split.samples, recipe(judge, engine, SEED))
        )
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
    """Free an engine's resources, if it supports that."""
    close = getattr(engine, "close", None)
    if close is not None:
        close()


def _measured(what: Measurement, run: Run, tags: Iterable[str]) -> Measured:
    noted = {mark: tag.removeprefix(mark) for tag in tags for mark in (COMMIT, LOAD) if tag.startswith(mark)}
    busy = noted.get(LOAD)
    return Measured(what, run, noted.get(COMMIT) or None, float(busy) if busy else None)


def stored_run(store: Path, tag: str, samples: Sequence[Sample], wanted: Recipe) -> RunRecord | None:
    """Return the newest run with this tag, of these samples and recipe, that no process is working on."""
    if not store.is_file():
        return None
    digest = load_data(samples).digest
    with Store.open(store) as opened:
        for record in map(opened.seen, opened.runs(tag=tag)):
            same = [replace(each, n=0) for each in record.recipes.values()] == [wanted]
            if same and record.status != "running" and record.dataset_digest == digest:
                return record
    return None


UNDEFINED = "undefined"
TUNED = ("precision", "recall", "f1", "balanced_accuracy")


def row_of(measured: Measured, machine: Machine) -> QualityRow:
    """Return the results of a finished run of a measurement."""
    split, run = measured.what.split, measured.run
    outcomes = run.outcomes()
    record = run.record
    (judge,) = record.judges
    scoring = record.scoring.get(judge)
    dev, test = (
        columns(_by_id(part), _of(part, outcomes), judge, scoring) for part in (split.dev, split.test)
    )
    asked = {sample.id for sample in split.test}
    tested = [outcome for outcome in outcomes if outcome.sample_id in asked]
    usage = sum((outcome.usage for outcome in outcomes), Usage())
    seconds, n = run.record.seconds, len(split.samples)
    return _row(
        split,
        machine,
        _figures(_part(dev), _part(test), test.said, probable=True),
        date=run.record.created_at.astimezone(UTC),
        model=measured.what.model,
        judge=measured.what.shown,
        seen=tuple(measured.what.seen),
        recipe=run.summary().judges[0].recipe or "not recorded",
        run=run.id,
        commit=measured.commit,
        load=measured.load,
        n_ok=sum(isinstance(outcome, Verdict) for outcome in tested),
        n_dev_ok=dev.n,
        failures=Counter(each.code for each in tested if isinstance(each, Failure)),
        abstentions=Counter(each.reason for each in tested if isinstance(each, Abstention)),
        ms=None if seconds is None else 1000 * seconds / n,
        read=usage.prompt / n,
        written=usage.generated / n,
    )


def baseline_rows(split: Split, machine: Machine, others: Sequence[Split] = ()) -> list[QualityRow]:
    """Return the rows of the trivial rules and text signals; `others` are sets to fix thresholds on."""
    return [
        _row(
            split,
            machine,
            _figures(rule.dev, rule.test, rule.said, probable=False),
            date=datetime.now(UTC),
            model=BASELINE,
            judge=rule.name,
            recipe=_recipe(rule),
            run=None,
            commit=machine.commit,
            load=None,
            n_ok=rule.test.truth.size,
            n_dev_ok=rule.dev.truth.size,
            failures={},
            abstentions={UNDEFINED: missing} if (missing := len(split.test) - rule.test.truth.size) else {},
            ms=rule.ms,
            read=0.0,
            written=0.0,
            fixed_on=rule.fixed_on,
        )
        for rule in ruled(split, others)
    ]


def _recipe(rule: Ruled) -> str:
    fixed = f" at={rule.at:.6g} fixed_on={'+'.join(rule.fixed_on)}" if rule.at is not None else ""
    return f"rule={rule.name} protocol={PROTOCOL}{fixed}"


def _figures(dev: Part, test: Part, said: NDArray[np.bool_] | None, *, probable: bool) -> dict[str, Any]:
    """Compute results. `said` are fixed labels on the test part; `probable`: scores are probabilities."""
    cut = best_cut(dev.scores, dev.truth, AIM) if 0 < dev.truth.sum() < dev.truth.size else None
    tuned = (
        {}
        if cut is None
        else classification(test.truth, test.scores >= cut, test.scores, test.groups).metrics
    )
    own = {} if said is None else classification(test.truth, said, test.scores, test.groups).metrics
    ranked = classification(test.truth, test.scores >= 0.5, test.scores, test.groups).metrics
    found = reliability(test.truth, test.scores) if test.truth.size and probable else None
    return {
        "threshold": cut,
        "tuned": _chosen(tuned),
        "own": _chosen(own),
        "auroc": _figure(ranked["auroc"]),
        "ece": None if found is None else found.ece,
        "ece_by_chance": None if found is None else found.ece_by_chance,
        "brier": None if found is None else found.brier,
    }


def _row(
    split: Split, machine: Machine, figures: Mapping[str, Any], *, date: datetime, **others: Any
) -> QualityRow:
    return QualityRow(
        protocol=PROTOCOL,
        set=split.name,
        n_dev=len(split.dev),
        n=len(split.test),
        hallucinated=float(_truth(split.test).mean()),
        cpu=machine.cpu,
        cores=machine.cores,
        in_flight=IN_FLIGHT,
        date=date.isoformat(timespec="seconds"),
        **figures,
        **others,
    )


def _part(found: Columns) -> Part:
    return Part(found.truth, found.scores, found.groups)


def _chosen(metrics: Mapping[str, Estimate]) -> dict[str, Figure]:
    return {name: _figure(metrics[name]) for name in TUNED if name in metrics}


def _figure(estimate: Estimate) -> Figure:
    return estimate.value, estimate.low, estimate.high


def _truth(samples: Sequence[Sample]) -> NDArray[np.bool_]:
    import numpy as np

    return np.array([sample.label == HALLUCINATED for sample in samples], dtype=np.bool_)


def _by_id(samples: Sequence[Sample]) -> dict[str, Sample]:
    return {sample.id: sample for sample in samples}


def _of(part: Sequence[Sample], outcomes: Sequence[Any]) -> list[Any]:
    ids = {sample.id for sample in part}
    return [outcome for outcome in outcomes if outcome.sample_id in ids]


def faithfulness_judges(tell: Callable[[str], None]) -> list[str]:
    """Return every installed judge that decides faithful or hallucinated and needs no options.

    `tell` receives the judges that cannot be created, because they need an argument or do not load.
    """
    found = []
    for name in registry.judge_entries():
        try:
            judge = registry.judge(name)
        except SpecError as error:
            tell(f"left out: {error}")
            continue
        if set(judge.info.labels) == set(KNOWN) and not judge.info.lacks:
            found.append(name)
    return found


def refused(judge: str, each: QualitySet, learnt_from: Sequence[str]) -> str:
    """Explain why a judge is not measured on a set that it was trained on, and what to do."""
    return (
        f"{judge} was trained on {', '.join(learnt_from)}, and {each.name} is of that making. Train one "
        f"without it, one a family, and name them together: NAME:some/folders/without-{FAMILY}; to measure "
        "it all the same: --seen"
    )


def session(
    sets: Sequence[QualitySet],
    models: Sequence[str],
    judges: Sequence[str],
    samples: int,
    *,
    file: Path,
    store: Path,
    opened: Callable[[str], Engine],
    machine: Machine,
    again: bool = False,
    seen: bool = False,
    tell: Callable[[str], None],
    watching: Callable[[], ProgressListener | None],
) -> Iterator[QualityRow]:
    """Yield every row as it is measured and appended to `file`, unless it is there already.

    `{family}` in a judge specification stands for the family of the set. A judge trained on a set's family
    is not measured there, unless `seen`. `opened` loads a new model for every measurement, and none for
    code-based judges. `tell` receives messages, and `watching` creates the progress listener.
    """
    known = journal.read(file)
    runs = {row.run for row in known}
    rules = {(row.key, row.n_dev): (row.tuned, row.own) for row in known if row.run is None}
    others = [draw(each) for each in SETS if here(each)]
    for each in sets:
        split = draw(each, samples)
        for row in baseline_rows(split, machine, others):
            if rules.get((row.key, row.n_dev)) != (row.tuned, row.own):
                journal.append(file, [row])
            yield row
        for judge in judges:
            alone = registry.asks_none([registry.judge(judge.replace(FAMILY, each.family))])
            for model in [NO_MODEL] if alone else models:
                what = Measurement(split, model, judge)
                if what.seen and not seen:
                    tell(f"{each.name}: left out: {refused(judge, each, what.seen)}")
                    continue
                tell(f"{each.name}: {judge}" + ("" if alone else f" on {model}"))
                done = measure(what, store, opened, machine.commit, again=again, watcher=watching())
                row = row_of(done, machine)
                if row.run not in runs:
                    journal.append(file, [row])
                yield row
