"""Resumes a run: restores its plan, and rejects it if something has changed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from magistrate._version import __version__
from magistrate.datasets import Dataset
from magistrate.engines.none import NO_MODEL
from magistrate.errors import SpecError
from magistrate.runs.limits import Limits
from magistrate.runs.prepare import Overrides, RunPlan, open_data, prepare_judges
from magistrate.runs.spec import RunSpec, spec_from
from magistrate.runs.writer import WorkList
from magistrate.store import RunRecord, Store
from magistrate.store.runs import SPEC
from magistrate.store.shares import Part, shares_of
from magistrate.types import Recipe, Sample, Scoring

DIFFERENCES_TOLD = 3
OBJECTS = "objects"  # the parts that came as Python objects, which no specification can bring back
IMPORTED = "imported"  # by judge, which file its verdicts came from, if it was asked elsewhere
STORED = "samples_stored"  # whether all samples were stored before the first was judged


def objects_of(record: RunRecord) -> Sequence[str]:
    """The parts of a run that were given as Python objects, and so are not in its specification."""
    return tuple(record.settings.get(OBJECTS, ()))


def imported_of(record: RunRecord) -> Mapping[str, Mapping[str, Any]]:
    """Return the origin of imported verdicts, by judge."""
    found: Mapping[str, Mapping[str, Any]] = record.settings.get(IMPORTED, {})
    return found


def spec_of(record: RunRecord) -> RunSpec:
    """Return the complete specification of a run, to run it again. Raises `SpecError` if there is none."""
    if missing := objects_of(record):
        raise SpecError(
            f"run {record.id} was started in Python, and its {' and '.join(missing)} cannot be written to a "
            "run file"
        )
    return stored_spec(record)


def stored_spec(record: RunRecord) -> RunSpec:
    """Return the specification stored with a run. Python objects have placeholders in it."""
    if SPEC not in record.settings and (imported := imported_of(record)):
        files = ", ".join(sorted({each["file"] for each in imported.values()}))
        raise SpecError(
            f"run {record.id} was imported from {files}, so its judges cannot be run here; import the file "
            "again"
        )
    if SPEC not in record.settings:
        raise SpecError(
            f"run {record.id} is from a version that did not store descriptions of runs; start a new run"
        )
    return spec_from(record.settings[SPEC])


def restore_plan(
    record: RunRecord,
    spec: RunSpec,
    overrides: Overrides,
    limits: Limits | None = None,
    price: str | None = None,
) -> RunPlan:
    """Return the plan of a stored run, without its data. `limits` and `price` replace those of `spec`.

    Raises `SpecError` if a part that was a Python object is not given again, or, with the difference, if
    anything that the figures depend on has changed.
    """
    objects = objects_of(record)
    for name in ("judges", "model", "task"):
        if name in objects and getattr(overrides, name) is None:
            raise SpecError(
                f"the {name} of run {record.id} came from Python and was not stored; pass it again: "
                f"magistrate.resume({record.id!r}, {name}=…), or the same for retry"
            )
    if overrides.task is not None and "task" not in objects:
        raise changed(record, ["its outputs were given, but now a task would produce them"])
    plan = prepare_judges(spec, overrides, limits=limits, price=price)
    check_unchanged(record, plan)
    return replace(plan, dataset=overrides.dataset)


def check_unchanged(record: RunRecord, plan: RunPlan) -> None:
    """Raise `SpecError` with the difference if the judges or the model of a run have changed."""
    elsewhere = imported_of(record)
    asked = {judge: recipe for judge, recipe in record.recipes.items() if judge not in elsewhere}
    found = [
        *recipe_differences(asked, plan.recipes),
        *scoring_differences(record.scoring, plan.scoring),
    ]
    if found:
        raise changed(record, found)


def remaining_work(store: Store, record: RunRecord, plan: RunPlan, part: Part | None = None) -> WorkList:
    """Return the work list of what is not judged yet, of all samples or of a part of them.

    Raises `SpecError` if the samples have changed.
    """
    done, stored = store.judged(record.id), store.sample_ids(record.id)
    dataset = _dataset(store, record, plan)
    size: int | None
    if part is not None:
        assert dataset is not None, "the data of a run in shares can be read again"
        size = sum(part.has(sample.id) for sample in dataset)
        done = {pair for pair in done if part.has(pair[0])}
        stored = [sample_id for sample_id in stored if part.has(sample_id)]
        mine = (sample for sample in dataset if part.has(sample.id))
        samples = _as_before(record, mine, frozenset(stored))
    elif dataset is None:
        samples, size = store.samples_by_page(record.id), len(stored)
    elif plan.task is None:
        samples, size = _as_before(record, dataset, frozenset(stored)), dataset.size
    else:
        kept = {sample.id: sample for sample in store.samples(record.id)}
        samples, size = _as_made(dataset, kept), dataset.size
    return WorkList(
        samples=samples,
        total=None if size is None else size * len(plan.judges),
        before=len(done),
        stored=frozenset(stored),
        made=_made(store, record) if plan.task is not None else frozenset(),
        done=done,
        part=part,
        problems=tuple if dataset is None else lambda: dataset.problems,
    )


def failed_work(store: Store, record: RunRecord, plan: RunPlan) -> WorkList:
    """Return the work list of a run's failures. Imported judges cannot be asked again."""
    elsewhere = imported_of(record)
    failed = {pair for pair in store.failed(record.id) if pair[1] not in elsewhere}
    ids = {sample_id for sample_id, _ in failed}
    return WorkList(
        samples=(sample for sample in store.samples_by_page(record.id) if sample.id in ids),
        total=len(failed),
        stored=ids,
        made=_made(store, record) if plan.task is not None else frozenset(),
        done=store.judged(record.id) - failed,
        again=True,
    )


def _dataset(store: Store, record: RunRecord, plan: RunPlan) -> Dataset | None:
    """Return the data of a run, opened again, or None if the store holds all of its samples."""
    if plan.dataset is not None:
        dataset = plan.dataset
    elif record.settings.get(STORED):
        if record.n_total is None or record.n_samples < record.n_total:
            raise SpecError(
                f"run {record.id} ended while its samples were being stored, and they cannot be read again; "
                "start a new run"
            )
        return None
    elif "dataset" in objects_of(record):
        raise SpecError(
            f"the samples of run {record.id} came from Python; pass them again: "
            f"magistrate.resume({record.id!r}, dataset=…)"
        )
    else:
        # The digest is not checked here: data that differ are compared sample by sample below.
        part = plan.spec.dataset.model_copy(update={"digest": None})
        dataset = open_data(store, part, need_output=plan.task is None)[0]
    if dataset.digest != record.dataset_digest:
        kept = {sample.id: sample for sample in store.samples(record.id)}
        raise changed(record, list(data_differences(kept, dataset, record, plan.task is not None)))
    return dataset


def _as_before(record: RunRecord, opened: Iterable[Sample], stored: Collection[str]) -> Iterator[Sample]:
    """Yield the samples in source order. The first ones must be those that the run has stored."""
    for number, sample in enumerate(opened):
        if number < len(stored) and sample.id not in stored:
            raise changed(record, [f"{sample.id!r} is not among its samples; they had other ids"])
        yield sample


def _as_made(opened: Dataset, kept: Mapping[str, Sample]) -> Iterator[Sample]:
    """Yield the samples in source order. Those that the run has stored are yielded with the task's output."""
    for sample in opened:
        yield kept.get(sample.id, sample)


def _made(store: Store, record: RunRecord) -> Collection[str]:
    """The ids of samples whose output was made: some judge has an outcome for it other than a task error."""
    failed = store.failed(record.id)
    return frozenset(pair[0] for pair in store.judged(record.id) if failed.get(pair) != "task_error")


def find_done(store: Store, plan: RunPlan) -> RunRecord | None:
    """Return the newest run of an identical plan that is done and in which nothing failed, or None."""
    assert plan.dataset is not None, "the plan has no data to compare"
    for record in store.runs(dataset=plan.dataset.name):
        complete = record.status == "done" and not record.n_failures
        made_of = (record.dataset_digest, record.package_version)
        if complete and made_of == (plan.dataset.digest, __version__) and is_same(record, plan):
            return record
    return None


def is_same(record: RunRecord, plan: RunPlan) -> bool:
    """Return whether the judges of a run and the model they ask are those of a plan."""
    return not list(recipe_differences(record.recipes, plan.recipes))


def has_shares_of(record: RunRecord, plan: RunPlan, of: int) -> bool:
    """Return whether a run is judged in so many shares, and is the same run as that of the plan."""
    return is_shared(record, plan.recipes, plan.scoring, of) and record.name == plan.spec.name


def is_shared(
    record: RunRecord, recipes: Mapping[str, Recipe], scoring: Mapping[str, Scoring], of: int
) -> bool:
    """Return whether a run is judged in so many shares, by judges of these recipes."""
    shares = shares_of(record)
    if shares is None or shares.of != of:
        return False
    differences = (recipe_differences(record.recipes, recipes), scoring_differences(record.scoring, scoring))
    return not any(list(each) for each in differences)


# --- differences --------------------------------------------------------------------------------


def changed(record: RunRecord, differences: Sequence[str]) -> SpecError:
    """Return the error for a run that cannot be resumed, because it would mix two different things."""
    return SpecError(
        f"run {record.id} cannot be resumed, because its parts have changed: {'; '.join(differences)}. Start "
        "a new run; unchanged calls are answered from the cache"
    )


def recipe_differences(then: Mapping[str, Recipe], now: Mapping[str, Recipe]) -> Iterator[str]:
    """Yield a message for each difference between two sets of recipes."""
    if gone := [name for name in then if name not in now]:
        yield f"judge {', '.join(gone)} is missing"
    if new := [name for name in now if name not in then]:
        yield f"judge {', '.join(new)} is new"
    seen = set()
    for name in then.keys() & now.keys():
        for field in fields(Recipe):
            was, is_now = getattr(then[name], field.name), getattr(now[name], field.name)
            if was == is_now or field.name == "n":
                continue
            if field.name in ("model", "fingerprint") and now[name].model == NO_MODEL:
                continue  # the judge calls no engine now, so the stored model made no difference
            # Judges that call an engine share the model and the package: one message is enough.
            what = (
                field.name if field.name in ("model", "fingerprint", "package") else f"{name}'s {field.name}"
            )
            if what not in seen:
                seen.add(what)
                yield f"{what} was {_short(was)}, is {_short(is_now)}"


def scoring_differences(then: Mapping[str, Scoring], now: Mapping[str, Scoring]) -> Iterator[str]:
    """Yield a message for each difference in how scores are read. Unstored scoring is skipped."""
    for name in then.keys() & now.keys():
        for field in ("direction", "labels", "threshold"):
            was, is_now = getattr(then[name], field), getattr(now[name], field)
            if was != is_now:
                yield f"{name}'s {field} was {_short(was)}, is {_short(is_now)}"


def data_differences(
    kept: Mapping[str, Sample], now: Dataset, record: RunRecord, with_task: bool
) -> Iterator[str]:
    """Yield messages that say how the stored samples of a run differ from those of `now`."""
    yield f"the data set {now.name} was {_short(record.dataset_digest)}, is {_short(now.digest)}"
    there = {sample.id: sample for sample in now}
    gone = [sample_id for sample_id in kept if sample_id not in there]
    if gone:
        yield f"{len(gone)} of its {len(kept)} samples are gone ({_listed(gone)})"
    made = ("output", "context", "label", "spans") if with_task else ()
    differing = {
        sample_id: names
        for sample_id, sample in kept.items()
        if sample_id in there and (names := _fields_changed(sample, there[sample_id], made))
    }
    if differing:
        told = [f"{sample_id!r} in {', '.join(names)}" for sample_id, names in differing.items()]
        yield f"{len(differing)} of its {len(kept)} samples differ ({_listed(told, quoted=False)})"
    if not gone and not differing:
        yield f"its {len(kept)} samples are the same, but later samples or the selection have changed"


def _fields_changed(then: Sample, now: Sample, made: Sequence[str]) -> list[str]:
    names = [field.name for field in fields(Sample) if field.name not in made]
    return [name for name in names if getattr(then, name) != getattr(now, name)]


def _listed(words: Sequence[str], *, quoted: bool = True) -> str:
    shown = [repr(word) if quoted else word for word in words[:DIFFERENCES_TOLD]]
    return ", ".join(shown) + (", …" if len(words) > DIFFERENCES_TOLD else "")


def _short(value: Any) -> str:
    text = str(value)
    return f"{text[:12]}…" if len(text) == 64 and text.isalnum() else repr(value)
