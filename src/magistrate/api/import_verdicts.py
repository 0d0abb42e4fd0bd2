"""`import_verdicts`: store the verdicts of another tool as a run, to analyse like any other run."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from magistrate._paths import default_store
from magistrate._text import shorten
from magistrate._version import __version__
from magistrate.api.run import Run
from magistrate.api.stored import RunRef, StorePlace, record_of
from magistrate.datasets import Dataset, Problem, load
from magistrate.datasets.fields import check_labels, check_mapping, plain
from magistrate.datasets.rows import SETTING as UNREAD
from magistrate.datasets.rows import RowError
from magistrate.datasets.samples import to_sample
from magistrate.datasets.verdicts import (
    RecordedVerdict,
    RecordedVerdicts,
    VerdictColumns,
    read_verdicts,
)
from magistrate.errors import DatasetError, SpecError
from magistrate.judges import registry
from magistrate.runs.prepare import open_data
from magistrate.runs.resume import IMPORTED, imported_of
from magistrate.runs.spec import DataPart
from magistrate.store import RunRecord, Store
from magistrate.store.connection import exists
from magistrate.types import Abstention, Failure, Outcome, Recipe, Sample, Verdict

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,59}")
RECORDED = "recorded"  # model name in the record if none is given
TOLD = 3


@dataclass(frozen=True, slots=True)
class Imported:
    """The run that holds the verdicts of a file; `new` is false if it existed already.

    `problems` are rows that could not be read. `strangers` lists the rows that match no sample.
    """

    run: Run
    judge: str
    new: bool
    problems: tuple[Problem, ...] = ()
    strangers: tuple[str, ...] = ()


def import_verdicts(
    path: str | Path,
    judge: str,
    columns: VerdictColumns,
    *,
    samples: str | Path | None = None,
    into: RunRef | None = None,
    mapping: Mapping[str, str] | None = None,
    labels: Mapping[Any, str] | None = None,
    max_unread: float = 0.0,
    model: str | None = None,
    name: str | None = None,
    tags: Sequence[str] = (),
    store: StorePlace | None = None,
) -> Imported:
    """Store the verdicts in a file as a run under the judge name `judge`, without judging anything.

    The rows are the samples, unless the samples come from the data set `samples` or from the finished run
    `into`. Then rows are matched by id, else by output and input. A sample without a verdict gets a failure
    with the reason. `mapping` maps columns to sample fields, `labels` maps label values to meanings, and
    `model` names the model for the record. Importing the same file in the same way again returns the
    existing run. Raises the errors of `read_verdicts`, and `SpecError` for a judge name that is invalid or
    taken.
    """
    _check_name(judge)
    if samples is not None and into is not None:
        raise SpecError("give either --into RUN or --samples DATA, not both")
    fields, meanings = check_mapping(mapping), check_labels(labels)
    found = read_verdicts(path, columns, labels=meanings, max_unread=max_unread)
    work = _Import(judge, found, fields, meanings, model)
    how = asdict(columns)
    if into is not None:
        record, place = record_of(into, store)
        with Store.open(place) as opened:
            return _into(opened, record, work, how)
    place = store or default_store()
    version, strangers = None, tuple[str, ...]()
    if samples is None:
        dataset, outcomes = work.own(max_unread)
    else:
        with Store.open(place) if exists(place) else nullcontext() as shelf:
            dataset, version = open_data(shelf, DataPart(source=str(samples), max_unread=max_unread))
            dataset.check(max_unread)
            outcomes, strangers = work.joined(list(dataset), dataset.name)
    note = work.note(how, dataset.digest)
    with Store.open(place) as opened:
        if known := _known(opened, dataset.name, judge, note):
            if name is not None:
                opened.rename(known.id, name)
            opened.tag(known.id, add=tags)
            return Imported(Run(known.id, opened.place), judge, False, found.problems, strangers)
        run_id = opened.create_run(
            dataset=dataset.name,
            dataset_digest=dataset.digest,
            dataset_version=version,
            model=model or RECORDED,
            engine_fingerprint="",
            recipes={},
            name=name,
            n_total=len(outcomes),
            tags=tags,
            settings={UNREAD: dataset.unread.to_dict(), IMPORTED: {judge: note}},
        )
        try:
            with opened.hold(run_id):
                opened.add_samples(run_id, dataset)
                work.write(opened, run_id, outcomes, {judge: note})
                opened.finish_run(run_id, "done")
        except BaseException:
            opened.delete(run_id)
            raise
        return Imported(Run(run_id, opened.place), judge, True, tuple(dataset.problems), strangers)


def _into(store: Store, record: RunRecord, work: _Import, how: Mapping[str, Any]) -> Imported:
    """Add the verdicts to a finished run, as one more judge."""
    run, imported, judge = Run(record.id, store.place), imported_of(record), work.judge
    note = work.note(how, record.dataset_digest)
    if imported.get(judge) == note:
        return Imported(run, judge, False, work.found.problems)
    if judge in record.judges:
        raise SpecError(f"run {record.id} already has a judge {judge!r}; choose another name: --judge")
    if record.status != "done":
        raise SpecError(f"run {record.id} is not finished; finish it first: magistrate resume {record.id}")
    outcomes, strangers = work.joined(list(store.samples(record.id)), f"run {record.id}")
    with store.hold(record.id):
        imported = imported_of(store.find_run(record.id))  # others may have imported meanwhile
        work.write(store, record.id, outcomes, {**imported, judge: note})
    return Imported(run, judge, True, work.found.problems, strangers)


def _known(store: Store, dataset: str, judge: str, note: Mapping[str, str]) -> RunRecord | None:
    """Return the run with exactly these verdicts, and delete one left by an interrupted import."""
    for record in store.runs(dataset=dataset):
        if imported_of(record).get(judge) != note:
            continue
        if record.status == "done":
            return record
        if not store.held(record.id):
            store.delete(record.id)
    return None


def _check_name(judge: str) -> None:
    """Raise `SpecError` for an invalid judge name, or the name of a judge of this package."""
    if not NAME.fullmatch(judge):
        raise SpecError(
            "a judge's name consists of letters, digits, '_', '.' and '-', at most 60; got "
            f"{shorten(repr(judge))}"
        )
    if judge in registry.judge_entries():
        raise SpecError(
            f"{judge!r} is a judge of Magistrate, but these verdicts are from another tool; name it after "
            f"the tool, such as ragas-{judge}"
        )


@dataclass(frozen=True, slots=True)
class _Import:
    judge: str
    found: RecordedVerdicts
    mapping: Mapping[str, str]
    labels: Mapping[str, str]
    model: str | None

    def own(self, max_unread: float) -> tuple[Dataset, list[Outcome]]:
        """Return the rows as samples, and the outcome of each."""
        items, outcomes = list[Sample | Problem](self.found.problems), list[Outcome]()
        seen: dict[str, str] = {}
        for each in self.found.verdicts:
            try:
                sample = self._sample(each, need_output=True)
            except RowError as error:
                advice = (
                    ""
                    if error.label
                    else ("; if the texts are in another file or run: --samples DATA or --into RUN")
                )
                items.append(each.row.problem(f"{error}{advice}", error.label))
                continue
            _check_twice(seen, sample.id, each)
            items.append(sample)
            outcomes.append(self._outcome(sample.id, each))
        dataset = load(items, max_unread=max_unread)
        dataset.name = self.found.source.stem
        dataset.check(max_unread)
        return dataset, outcomes

    def joined(self, samples: Sequence[Sample], of: str) -> tuple[list[Outcome], tuple[str, ...]]:
        """Return an outcome for each sample, and the rows that match no sample."""
        find = _finder(samples)
        said: dict[str, RecordedVerdict] = {}
        seen, strangers = dict[str, str](), list[str]()
        for each in self.found.verdicts:
            try:
                row = self._sample(each, need_output=False)
                sample = find(row)
            except RowError as error:
                raise DatasetError(str(each.row.problem(str(error)))) from None
            if sample is None:
                told = f" ({plain(row.id)!r})" if row.id else ""
                strangers.append(f"{each.row.where}{told}")
                continue
            _check_twice(seen, sample.id, each)
            said[sample.id] = each
        if not said:
            told = ", ".join(strangers[:TOLD])
            known = ", ".join(repr(plain(each.id)) for each in samples[:TOLD])
            raise DatasetError(
                f"no row of {self.found.source.shown} matches a sample of {of}: {told}; ids there look like "
                f"{known}; give the column of ids with --map id=COLUMN"
            )
        absent = f"no row of {self.found.source.shown} matches this sample"
        return [
            self._outcome(each.id, said[each.id])
            if each.id in said
            else Failure(each.id, self.judge, "not_recorded", absent)
            for each in samples
        ], tuple(strangers)

    def _sample(self, found: RecordedVerdict, *, need_output: bool) -> Sample:
        """Return the sample of a row. Without `need_output` its id is empty if the row has none."""
        return to_sample(
            found.rest,
            id=found.row.id if need_output else "",
            mapping=self.mapping,
            labels=self.labels,
            need_output=need_output,
            cells=found.row.cells,
        )

    def _outcome(self, sample_id: str, found: RecordedVerdict) -> Outcome:
        if found.missing is not None:
            because = f"{found.missing} ({found.row.where})"
            return Failure(sample_id, self.judge, "not_recorded", because)
        if found.unsure is not None or found.label is None or found.score is None:
            message = f"the verdict is {found.unsure!r}, which is neither label ({found.row.where})"
            return Abstention(sample_id, self.judge, "uncertain", message)
        details = {"recorded": {**found.given, "row": found.row.where}}
        return Verdict(sample_id, self.judge, found.label, found.score, None, found.reason, details=details)

    def note(self, how: Mapping[str, Any], dataset_digest: str) -> dict[str, str]:
        """Return the origin of the verdicts: the file name, and a digest of its bytes and of the options."""
        pinned = [how, self.mapping, self.labels, self.model, dataset_digest, self.found.source.digest()]
        digest = hashlib.sha256(json.dumps(pinned, sort_keys=True).encode()).hexdigest()
        return {"file": self.found.source.path.name, "digest": digest}

    def write(
        self, store: Store, run_id: str, outcomes: Sequence[Outcome], imported: Mapping[str, Any]
    ) -> None:
        """Store the judge and all its outcomes."""
        recipe = Recipe(
            judge=f"{self.judge}@{RECORDED}",
            model=self.model or RECORDED,
            fingerprint="",
            prompt="",
            constraint="",
            seed=0,
            n=0,
            package=__version__,
        )
        store.add_recorded(
            run_id, self.judge, recipe, self.found.scoring, outcomes, {IMPORTED: dict(imported)}
        )


def _check_twice(seen: dict[str, str], sample_id: str, found: RecordedVerdict) -> None:
    """Raise `DatasetError` if a sample has two verdicts."""
    if first := seen.get(sample_id):
        raise DatasetError(
            f"{found.row.where}: sample {plain(repr(sample_id))} already has a verdict ({first}); if the "
            "file has several metrics, choose one: --only COLUMN=VALUE"
        )
    seen[sample_id] = found.row.where


def _finder(samples: Iterable[Sample]) -> Callable[[Sample], Sample | None]:
    """Return a function that finds a row's sample by id, else by output and, if given, input."""
    by_id = {sample.id: sample for sample in samples}
    by_text: dict[tuple[str | None, str | None], list[Sample]] = {}
    for sample in by_id.values():
        for key in {(sample.output, sample.input), (sample.output, None)}:
            by_text.setdefault(key, []).append(sample)

    def find(row: Sample) -> Sample | None:
        if (own := by_id.get(row.id)) is not None:
            for name, theirs in _texts(row):
                if theirs != getattr(own, name):
                    raise RowError(f"its {name} differs from that of sample {plain(repr(own.id))}")
            return own
        if row.output is None:
            if not row.id:
                raise RowError("it cannot be matched to a sample: it has no id and no output")
            return None
        same = by_text.get((row.output, row.input)) or []
        if len(same) > 1:
            ids = ", ".join(plain(repr(each.id)) for each in same[:TOLD])
            raise RowError(f"{len(same)} samples have the same texts ({ids}); only ids can tell them apart")
        return same[0] if same else None

    return find


def _texts(row: Sample) -> Iterator[tuple[str, str]]:
    """Yield the texts of a row that must equal those of its sample."""
    for name in ("output", "input"):
        if (text := getattr(row, name)) is not None:
            yield name, text
