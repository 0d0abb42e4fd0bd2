"""From what a store says of a run back to the run itself, and what has changed under it since."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

from magistrate.datasets import Dataset
from magistrate.engines.none import NO_MODEL
from magistrate.errors import SpecError
from magistrate.runs.limits import Limits
from magistrate.runs.plan import Samples, Trial, Watcher
from magistrate.runs.prepare import Given, open_data, trial_of
from magistrate.runs.spec import RunSpec, spec_from
from magistrate.store import RunRecord, Store
from magistrate.types import Recipe, Sample, Scoring

DIFFERENCES_TOLD = 3
SPEC = "spec"  # the setting that holds the description of a run
OBJECTS = "objects"  # what of the run came as objects, which no description can bring back
STORED = "samples_stored"  # whether all samples were stored before the first was judged


def objects_of(record: RunRecord) -> Sequence[str]:
    """What of a run came as Python objects, and so cannot be had from its description."""
    return tuple(record.settings.get(OBJECTS, ()))


def spec_of(record: RunRecord) -> RunSpec:
    """The description of a run, to run it again. Raises `SpecError` where there is no whole one."""
    if missing := objects_of(record):
        raise SpecError(
            f"run {record.id} was made in Python, and its {' and '.join(missing)} cannot be written down"
        )
    return description(record)


def description(record: RunRecord) -> RunSpec:
    """What is written down of a run; what it was given as objects has stand-ins there."""
    if SPEC not in record.settings:
        raise SpecError(f"run {record.id} was made before runs were described; begin a new one")
    return spec_from(record.settings[SPEC])


def restored(
    record: RunRecord,
    spec: RunSpec,
    given: Given,
    limits: Limits | None,
    price: str | None,
    watcher: Watcher | None,
) -> Trial:
    """Who judged a run, by its description; `limits` and `price` replace those that this has.

    Raises `SpecError` where that is not known and not given, and where anything that its figures depend on
    is not as it was, with the difference.
    """
    objects = objects_of(record)
    for name in ("judges", "model", "task"):
        if name in objects and getattr(given, name) is None:
            raise SpecError(
                f"the {name} of run {record.id} came from Python and cannot be written down; "
                f"hand it over again: magistrate.resume({record.id!r}, {name}=…), or retry likewise"
            )
    if given.task is not None and "task" not in objects:
        raise changed(record, ["its outputs were there, and now a task is to make them"])
    trial = trial_of(spec, given, limits or spec.limits.limits(), price, watcher)
    found = [
        *recipe_differences(record.recipes, trial.recipes),
        *scoring_differences(record.scoring, trial.scoring),
    ]
    if found:
        raise changed(record, found)
    return trial


def to_resume(store: Store, record: RunRecord, spec: RunSpec, trial: Trial, given: Given) -> Samples:
    """What of a run is still to be judged. Raises `SpecError` where its samples are not as they were."""
    done, stored = store.judged(record.id), store.sample_ids(record.id)
    opened = _reopened(store, record, spec, trial, given)
    size: int | None
    if opened is None:
        coming, size = store.samples_by_page(record.id), len(stored)
    elif trial.task is None:
        coming, size = _as_before(record, opened, frozenset(stored)), opened.size
    else:
        coming, size = (
            _as_made(opened, {sample.id: sample for sample in store.samples(record.id)}),
            opened.size,
        )
    return Samples(
        coming=coming,
        total=None if size is None else size * len(trial.judges),
        before=len(done),
        stored=frozenset(stored),
        made=_made(store, record) if trial.task is not None else frozenset(),
        done=done,
        problems=tuple if opened is None else lambda: opened.problems,
    )


def to_retry(store: Store, record: RunRecord, trial: Trial) -> Samples:
    """The failures of a run, and nothing else of it."""
    failed = store.failed(record.id).keys()
    ids = {sample_id for sample_id, _ in failed}
    return Samples(
        coming=(sample for sample in store.samples_by_page(record.id) if sample.id in ids),
        total=len(failed),
        stored=ids,
        made=_made(store, record) if trial.task is not None else frozenset(),
        done=store.judged(record.id) - failed,
        again=True,
    )


def _reopened(store: Store, record: RunRecord, spec: RunSpec, trial: Trial, given: Given) -> Dataset | None:
    """The samples of a run where they came from; None where the store has all of them."""
    if given.dataset is not None:
        opened = given.dataset
    elif record.settings.get(STORED):
        if record.n_total is None or record.n_samples < record.n_total:
            raise SpecError(
                f"run {record.id} ended while its samples were being stored, and they cannot be read again; "
                "begin a new run"
            )
        return None
    elif "dataset" in objects_of(record):
        raise SpecError(
            f"the samples of run {record.id} came from Python; hand them over again: "
            f"magistrate.resume({record.id!r}, dataset=…)"
        )
    else:
        # What reads otherwise now is compared sample by sample, so that its digest is not held yet.
        part = spec.dataset.model_copy(update={"digest": None})
        opened = open_data(store, part, need_output=trial.task is None)[0]
    if opened.digest != record.dataset_digest:
        kept = {sample.id: sample for sample in store.samples(record.id)}
        raise changed(record, list(data_differences(kept, opened, record, trial.task is not None)))
    return opened


def _as_before(record: RunRecord, opened: Dataset, stored: Collection[str]) -> Iterator[Sample]:
    """Samples in the order of their source, of which the first ones must be those that the run has."""
    for number, sample in enumerate(opened):
        if number < len(stored) and sample.id not in stored:
            raise changed(record, [f"{sample.id!r} is not among its samples: their ids were others"])
        yield sample


def _as_made(opened: Dataset, kept: Mapping[str, Sample]) -> Iterator[Sample]:
    """Samples in the order of their source, as the task left those that the run has."""
    for sample in opened:
        yield kept.get(sample.id, sample)


def _made(store: Store, record: RunRecord) -> Collection[str]:
    """The ids of samples whose output is there: some judge has said of it more than that there is none."""
    failed = store.failed(record.id)
    return frozenset(pair[0] for pair in store.judged(record.id) if failed.get(pair) != "task_error")


def twin(store: Store, dataset: Dataset, trial: Trial) -> RunRecord | None:
    """The newest unfinished run that nobody is at and that would judge the very same."""
    if trial.task is not None:
        return None
    for record in store.unfinished(dataset.digest):
        same = SPEC in record.settings and not list(recipe_differences(record.recipes, trial.recipes))
        if same and not objects_of(record) and not store.held(record.id):
            return record
    return None


# --- what has changed ---------------------------------------------------------------------------


def changed(record: RunRecord, differences: Sequence[str]) -> SpecError:
    """What to say where going on would put two different things into one run."""
    return SpecError(
        f"run {record.id} cannot go on, because what it is made of has changed: {'; '.join(differences)}. "
        "Begin a new run: what has not changed comes out of the cache"
    )


def recipe_differences(then: Mapping[str, Recipe], now: Mapping[str, Recipe]) -> Iterator[str]:
    """In words, what pins the figures of judges and is not what it was."""
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
                continue  # it asks none now: which one stood there then made no difference
            # The model and the package are the same for all judges that ask: once is enough.
            what = (
                field.name if field.name in ("model", "fingerprint", "package") else f"{name}'s {field.name}"
            )
            if what not in seen:
                seen.add(what)
                yield f"{what} was {_short(was)}, is {_short(is_now)}"


def scoring_differences(then: Mapping[str, Scoring], now: Mapping[str, Scoring]) -> Iterator[str]:
    """In words, how scores are read otherwise than a run has stored; nothing where it has not stored it."""
    for name in then.keys() & now.keys():
        for field in ("direction", "labels", "threshold"):
            was, is_now = getattr(then[name], field), getattr(now[name], field)
            if was != is_now:
                yield f"{name}'s {field} was {_short(was)}, is {_short(is_now)}"


def data_differences(
    kept: Mapping[str, Sample], now: Dataset, record: RunRecord, with_task: bool
) -> Iterator[str]:
    """In words, how the samples that a run has differ from those that are there now."""
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
        yield f"its {len(kept)} samples are the same, what comes after them or how they are chosen is not"


def _fields_changed(then: Sample, now: Sample, made: Sequence[str]) -> list[str]:
    names = [field.name for field in fields(Sample) if field.name not in made]
    return [name for name in names if getattr(then, name) != getattr(now, name)]


def _listed(words: Sequence[str], *, quoted: bool = True) -> str:
    shown = [repr(word) if quoted else word for word in words[:DIFFERENCES_TOLD]]
    return ", ".join(shown) + (", …" if len(words) > DIFFERENCES_TOLD else "")


def _short(value: Any) -> str:
    text = str(value)
    return f"{text[:12]}…" if len(text) == 64 and text.isalnum() else repr(value)
