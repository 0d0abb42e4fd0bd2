"""A judge for batches of rows on many machines: Ray Data, Spark, Daft, or a loop of your own.

    run = open_run("postgresql://USER@HOST/DATABASE", "answers of July")
    judge = BatchJudge(["detector"], run=run)  # in each process
    table = judge(table)  # a pyarrow table: the same rows in the same order, with new columns
    finish_run(run)

Each row that comes in goes out. With a run, an outcome that cost calls of a model is committed before the
next one is awaited, and what the run already has is read back instead of judged, so that a job that starts
again pays for nothing twice.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from magistrate import _async
from magistrate.api.run import Run
from magistrate.datasets.fields import check_labels, check_mapping
from magistrate.datasets.rows import RowError, json_row
from magistrate.datasets.samples import to_sample
from magistrate.engines.base import Engine, EngineSettings
from magistrate.errors import InputError, MissingExtra, SpecError, StoreError
from magistrate.judges import registry
from magistrate.judges.base import Judge
from magistrate.report.export import COLUMNS, KINDS, table
from magistrate.runs.execute import Judged, check_stream, stream
from magistrate.runs.limits import UNLIMITED, Limits
from magistrate.runs.prepare import recipe, with_cache
from magistrate.runs.resume import OBJECTS, changed, recipe_differences
from magistrate.runs.writer import not_storable
from magistrate.store import Store
from magistrate.store.codec import sample_body, sample_key
from magistrate.store.connection import exists
from magistrate.store.shared_runs import Pair, other_id
from magistrate.types import Failure, Outcome, Sample

if TYPE_CHECKING:
    import pyarrow

NAMES: tuple[str, ...] = (
    "kind",
    "label",
    "score",
    "probability",
    "direction",
    "threshold",
    "explanation",
    "reason",
    "message",
    "recipe",
)
"""What there is of each judge, in columns such as `detector.kind`."""

SAMPLE_ID = "sample_id"
UNREAD = "unread"  # the kind of a row that is no sample, beside `verdict`, `failure` and `abstention`
LONGEST_ID = 500  # characters; a database's index takes no more than about 2,700 bytes
JOB = "shared"  # the setting that marks a run as judged by several processes


def open_run(store: str | os.PathLike[str], name: str, *, dataset: str = "rows") -> Run:
    """Return the run of this name that several processes judge; it is created if there is none.

    `store` is a path or, for more than one machine, a URL of PostgreSQL. Raises `SpecError` if the newest run
    of this name was made in another way.
    """
    with Store.open(store) as opened:
        known = next((each for each in opened.runs() if each.name == name), None)
        if known is None:
            run_id = opened.create_run(
                dataset=dataset,
                dataset_digest="",
                model="",
                engine_fingerprint="",
                recipes={},
                name=name,
                settings={JOB: True, OBJECTS: ["dataset", "judges", "model"]},
            )
            return Run(run_id, opened.place)
        if not known.settings.get(JOB):
            raise SpecError(
                f"run {known.id} is named {name!r} and was not judged in batches; use another name"
            )
        if known.status != "running":
            opened.reopen_run(known.id)
        return Run(known.id, opened.place)


def finish_run(run: Run) -> Run:
    """Set a run that was judged in batches to `done`.

    Raises `SpecError` if some judge has no outcome for some sample: then the job is not finished.
    """
    with Store.open(run.store) as opened:
        record = opened.find_run(run.id)
        total = record.n_samples * len(record.judges)
        if missing := total - record.n_outcomes:
            raise SpecError(
                f"run {run.id} lacks {missing:,} of {total:,} outcomes; start the job again to judge them"
            )
        if not total:
            raise SpecError(f"run {run.id} has no samples yet; judge some with it first")
        opened.finish_run(run.id, "done", n_total=record.n_samples)
    return run


class BatchJudge:
    """Judges batches of rows: called with a pyarrow table, it returns the table with more columns.

    The new columns are `sample_id` and, for each judge, those of `NAMES` after its name and a dot. `kind` is
    `verdict`, `failure`, `abstention` or, for a row that is no sample, `unread`; `reason` and `message` say
    why there is no verdict. Rows of one id and content are judged once.

    `judges`, `model`, `base_url`, `device`, `mapping` and `labels` are those of `magistrate.evaluate`. `run`
    comes from `open_run`; without it nothing is stored. Failures that a run has are read back too, unless
    `retry_failures` is set. `limits` of a whole run cannot be kept by one of many processes and are refused.
    Create one in each process, since it holds a model and a connection. Raises what would end every
    judgement, such as `EngineGone` or `StoreError`, and `SpecError` if the run has a judge with another
    recipe.
    """

    def __init__(
        self,
        judges: str | Judge | Sequence[str | Judge] = registry.DEFAULT_JUDGE,
        model: str | Path | Engine | None = None,
        *,
        run: Run | None = None,
        base_url: str | None = None,
        device: str | None = None,
        mapping: Mapping[str, str] | None = None,
        labels: Mapping[Any, str] | None = None,
        limits: Limits = UNLIMITED,
        retry_failures: bool = False,
    ) -> None:
        for name in ("max_calls", "max_tokens", "max_seconds", "max_cost"):
            if getattr(limits, name) is not None:
                raise SpecError(f"{name} limits a whole run and cannot be kept by one of several processes")
        self.judges = registry.judges(judges)
        settings = EngineSettings(base_url=base_url, device=device)
        self.engine = with_cache(registry.engine_for(self.judges, model, settings))
        check_stream(self.judges, self.engine.info)
        self.mapping, self.labels = check_mapping(mapping), check_labels(labels)
        self.limits, self.retry_failures = limits, retry_failures
        self.scoring = {judge.info.name: judge.info.scoring for judge in self.judges}
        recipes = {judge.info.name: recipe(judge, self.engine, seed=0) for judge in self.judges}
        self.recipes = {name: json.dumps(asdict(each)) for name, each in recipes.items()}
        self.run, self.store = run, None
        if run is not None:
            if not exists(run.store):
                raise StoreError(
                    f"there is no file {run.store} on this machine; several machines need a store on "
                    "PostgreSQL: postgresql://USER@HOST/DATABASE"
                )
            self.store = Store.open(run.store)
            info = self.engine.info
            known = self.store.shared_runs.join(run.id, recipes, self.scoring, info.model, info.fingerprint)
            if found := list(recipe_differences(known, recipes)):
                raise changed(self.store.find_run(run.id), found)

    def close(self) -> None:
        """Close the connection to the store. A process that ends does so too."""
        if self.store is not None:
            self.store.close()

    def __call__(self, batch: pyarrow.Table) -> pyarrow.Table:
        """Return the table with the new columns."""
        pyarrow = _pyarrow()
        types = {SAMPLE_ID: pyarrow.string()}
        for judge in self.recipes:
            for name in NAMES:
                types[f"{judge}.{name}"] = getattr(pyarrow, KINDS[COLUMNS.get(name, "string")])()
        if taken := [name for name in types if name in batch.column_names]:
            raise SpecError(f"the rows already have a column {taken[0]!r}; rename it or leave it out")
        found = self.columns(batch.to_pylist())
        for name, kind in types.items():
            batch = batch.append_column(name, pyarrow.array([row[name] for row in found], kind))
        return batch

    def columns(self, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Judge rows and return the new columns of each, in the same order."""
        read = [self._sample(row) for row in rows]
        samples = [each for each in read if isinstance(each, Sample)]
        if self.store is not None and self.run is not None:
            ids = self.store.shared_runs.place(self.run.id, samples)
        else:
            ids = _distinct(samples)
        placed = {id: replace(sample, id=id) for id, sample in zip(ids, samples, strict=True)}
        outcomes = _async.run(self._judge(list(placed.values())))
        coming = iter(ids)
        return [
            self._columns(placed[next(coming)], outcomes) if isinstance(each, Sample) else self._unread(each)
            for each in read
        ]

    def _sample(self, row: Mapping[str, Any]) -> Sample | str:
        """Return the sample of a row, or why it is none. A row without an id is named by its content."""
        try:
            values = {name: value for name, value in json_row(row).items() if value is not None}
            sample = to_sample(values, id="", mapping=self.mapping, labels=self.labels)
            body = sample_body(sample)
        except (RowError, InputError, ValueError) as error:
            return str(error)
        if len(sample.id) > LONGEST_ID:
            return f"its id has {len(sample.id):,} characters; at most {LONGEST_ID} are possible"
        return sample if sample.id else replace(sample, id=f"row-{sample_key(body)[:20]}")

    async def _judge(self, samples: Sequence[Sample]) -> dict[Pair, Outcome]:
        """Return the outcomes of all pairs: read back from the run, or judged and stored."""
        found = self._stored(samples)
        left: list[Judged] = []
        free: list[Outcome] = []  # cost nothing but time, and are committed together
        work = stream(
            samples, self.judges, self.engine, done=found.keys(), limits=self.limits, undelivered=left
        )
        try:
            async with aclosing(work):  # type: ignore[type-var]
                async for judged in work:
                    outcome = judged.outcome
                    found[outcome.sample_id, outcome.judge] = outcome
                    if outcome.usage.calls:
                        self._keep([outcome], found)
                    else:
                        free.append(outcome)
        finally:
            self._keep([*free, *(judged.outcome for judged in left)], found)
        return found

    def _stored(self, samples: Sequence[Sample]) -> dict[Pair, Outcome]:
        if self.store is None or self.run is None:
            return {}
        ids = [sample.id for sample in samples]
        known = self.store.shared_runs.outcomes(self.run.id, ids, list(self.recipes))
        return {
            (each.sample_id, each.judge): each
            for each in known
            if not (self.retry_failures and isinstance(each, Failure))
        }

    def _keep(self, outcomes: Sequence[Outcome], found: dict[Pair, Outcome]) -> None:
        """Commit outcomes. Where another process was first, its outcome counts."""
        if self.store is None or self.run is None or not outcomes:
            return
        shared = self.store.shared_runs
        try:
            taken = shared.add(self.run.id, outcomes, replace_failures=self.retry_failures)
        except InputError as error:
            if len(outcomes) > 1:
                for each in outcomes:
                    self._keep([each], found)
                return
            failure = not_storable(outcomes[0], error)
            found[failure.sample_id, failure.judge] = failure
            taken = shared.add(self.run.id, [failure], replace_failures=self.retry_failures)
        if taken:
            ids = sorted({sample_id for sample_id, _ in taken})
            for each in shared.outcomes(self.run.id, ids, list(self.recipes)):
                found[each.sample_id, each.judge] = each

    def _columns(self, sample: Sample, outcomes: Mapping[Pair, Outcome]) -> dict[str, Any]:
        row: dict[str, Any] = {SAMPLE_ID: sample.id}
        for judge, line in self.recipes.items():
            (told,) = table({}, [outcomes[sample.id, judge]], self.scoring)
            told |= {"recipe": line}
            row |= {f"{judge}.{name}": _text(told[name]) for name in NAMES}
        return row

    def _unread(self, reason: str) -> dict[str, Any]:
        row: dict[str, Any] = {SAMPLE_ID: None}
        for judge, line in self.recipes.items():
            row |= {f"{judge}.{name}": None for name in NAMES}
            row |= {f"{judge}.kind": UNREAD, f"{judge}.reason": UNREAD, f"{judge}.message": _text(reason)}
            row[f"{judge}.recipe"] = line
        return row


def _distinct(samples: Sequence[Sample]) -> list[str]:
    """Return ids under which samples of different content differ."""
    kept: dict[str, str] = {}
    ids = []
    for sample in samples:
        mine, key = sample.id, sample_key(sample_body(sample))
        while kept.setdefault(mine, key) != key:
            mine = other_id(mine, key)
        ids.append(mine)
    return ids


def _text(value: Any) -> Any:
    """Replace what UTF-8 cannot encode in a text by its escape."""
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ModuleNotFoundError as error:
        raise MissingExtra("pyarrow", "parquet") from error
    return pyarrow
