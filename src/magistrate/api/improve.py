"""`improve`: learns from the labels of a run what is significantly better than the current judge."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from shlex import quote
from time import monotonic
from typing import TYPE_CHECKING, Any

import numpy as np

from magistrate.analysis.columns import KNOWN, Columns, columns, groups_of, known_scoring
from magistrate.analysis.improvement import (
    WAYS,
    Attempt,
    Current,
    HeldOut,
    Way,
    by_calibration,
    by_threshold,
    calibration_file,
    compared,
    current,
    settled,
)
from magistrate.api.run import Run
from magistrate.api.stored import RunRef, StorePlace, record_of
from magistrate.api.train import Part, Stacked, check_seen, parts_of, stacked, stored_of, table_of
from magistrate.datasets.named import family_of, shared
from magistrate.errors import InputError, MissingExtra, SpecError, require_extra
from magistrate.judges import registry
from magistrate.judges.detector import Detector
from magistrate.judges.folders import WORK
from magistrate.labels.of_run import RunLabels, labels_of
from magistrate.metrics.classification import Estimate
from magistrate.metrics.distributions import expit
from magistrate.metrics.paired import PRIMARY
from magistrate.metrics.thresholds import FOLDS
from magistrate.report.improvement import Improvement
from magistrate.runs.resume import stored_spec
from magistrate.store import RunRecord, Store
from magistrate.store.runs import SPEC
from magistrate.training.stack import check, fit, fitted
from magistrate.types import HALLUCINATED, Outcome, Sample, Verdict

if TYPE_CHECKING:
    from magistrate.training.detector.bases import Base

Tell = Callable[[str], None]
FILES: Mapping[Way, str] = {
    "threshold": "calibration.json",
    "calibration": "calibration.json",
    "stack": "stack",
    "detector": "detector",
}
"""What each way writes in the folder."""
LARGE = "detector-large"


def improve(
    run: RunRef,
    judge: str | None = None,
    *,
    labels: str | None = None,
    ways: Sequence[Way] = WAYS,
    metric: str = PRIMARY,
    folds: int = FOLDS,
    seed: int = 0,
    minutes: float | None = None,
    to: str | Path | None = None,
    store: StorePlace | None = None,
    tell: Tell = lambda words: None,
) -> Improvement:
    """Try to improve a judge with labels, and keep what was shown to be better.

    `judge` is the current judge, by default the run's first. `labels` names a queue, or is `data`. By
    default the labels are those of the run's only queue with labels, else of its data. Each of `ways` is
    compared with the judge on held-out contexts, by `metric` (f1, balanced_accuracy or accuracy), a
    calibration by its Brier score. What was shown to be better is fitted to all labels and written to the
    folder `to`. `minutes` limits the training time of detectors. `tell` receives progress messages.

    Raises `InputError` if there are no labels, too few, or only one kind. Raises `SpecError` for invalid
    arguments.
    """
    if unknown := [each for each in ways if each not in WAYS]:
        raise SpecError(registry.unknown("way", unknown[0], WAYS))
    folder = None if to is None else Path(to)
    if folder is not None and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SpecError(f"{folder} already exists; choose a new folder")
    record, place = record_of(run, store)
    chosen = _judge_of(record, judge)
    with Store.open(place) as opened:
        given = labels_of(opened, record, labels)
        with opened.snapshot() as moment:
            said = list(moment.bare_outcomes(record.id, chosen))
    found = columns(given.samples, said, chosen, known_scoring(record.scoring.get(chosen), chosen))
    now = current(found, _weights(given, found), metric=metric, folds=folds, seed=seed)
    desk = _Desk(record, place, given, now, said, folder, minutes, tell)
    attempts = settled([desk.attempt(way) for way in WAYS if way in ways], now)
    attempts, kept = (attempts, {}) if folder is None else desk.keep(attempts)
    return Improvement(
        run=record.name or record.id,
        judge=chosen,
        labels=given.source,
        weighted=given.active,
        metric=metric,
        n=found.n,
        hallucinated=int(found.truth.sum()),
        contexts=found.n_groups,
        left_out={**found.left_out, **given.left_out},
        attempts=attempts,
        kept=kept,
        lines={way: _command(way, path, _words(record, chosen)) for way, path in kept.items()},
    )


def _judge_of(record: RunRecord, named: str | None) -> str:
    known = [each for each in record.judges if each in record.recipes]
    if not known or (named is not None and named not in known):
        listed = ", ".join(known) or "none with a known recipe"
        raise SpecError(f"run {record.name or record.id} has no judge {named!r}; it has: {listed}")
    return named or known[0]


def _weights(given: RunLabels, found: Columns) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.array([1 / given.inclusion[each] for each in found.ids], dtype=np.float64)


def _words(record: RunRecord, judge: str) -> str:
    """Return the judge's specification as given on the command line, with absolute paths."""
    for words in () if SPEC not in record.settings else stored_spec(record).judges:
        try:
            if registry.judge(words).info.name == judge:
                return words
        except SpecError:  # its folder is gone, or it was a Python object: its name is all there is
            continue
    return record.recipes[judge].judge.rpartition("@")[0]


def _command(way: Way, path: Path, words: str) -> str:
    if FILES[way].endswith(".json"):
        return f"magistrate run DATA --judge {quote(words)} --calibration {quote(str(path))}"
    return f"magistrate run DATA --judge {quote(f'{way}:{path}')}"


# --- the attempts ---------------------------------------------------------------------------------


class _CannotBe(Exception):
    """A way cannot be tried, with the reason."""


class _Desk:
    """Tries the ways to improve one judge, and writes those that were shown to be better."""

    def __init__(
        self,
        record: RunRecord,
        place: StorePlace,
        given: RunLabels,
        now: Current,
        said: Sequence[Outcome],
        folder: Path | None,
        minutes: float | None,
        tell: Tell,
    ) -> None:
        self._record, self._place, self._given = record, place, given
        self._now, self._said, self._folder = now, said, folder
        self._until = None if minutes is None else monotonic() + 60 * minutes
        self._tell = tell
        self._samples = [given.samples[each] for each in now.columns.ids]
        self._stack: Callable[[], Stacked] | None = None

    def attempt(self, way: Way) -> Attempt:
        """Compare one way with the current judge. The result has a reason if the way cannot be tried."""
        self._tell(way)
        make = {
            "threshold": lambda: by_threshold(self._now),
            "calibration": lambda: by_calibration(self._now),
            "stack": self._by_stack,
            "detector": self._by_detector,
        }[way]
        try:
            held = make()
        except (_CannotBe, InputError, MissingExtra, SpecError) as error:
            none = Estimate.none("not tried")
            return Attempt(name=way, now=none, then=none, gain=none, auroc=none, reason=str(error))
        return compared(way, held, self._now)

    def keep(self, attempts: tuple[Attempt, ...]) -> tuple[tuple[Attempt, ...], dict[Way, Path]]:
        """Fit what was shown to be better to all labels, write it, and return the paths.

        The attempts are returned with a reason for what could not be fitted in time.
        """
        shown: list[Way] = [each.name for each in attempts if each.shown]
        if self._folder is None or not shown:
            return attempts, {}
        self._folder.mkdir(parents=True, exist_ok=True)
        found: dict[Way, Path] = {}
        for way in shown:
            path = self._folder / FILES[way]
            if way == "stack" and self._stack is not None:
                self._stack().save(path)
            elif way == "detector":
                try:
                    self._train_on_all(path)
                except _CannotBe as error:
                    known = (
                        replace(each, reason=str(error)) if each.name == way else each for each in attempts
                    )
                    attempts = tuple(known)
                    continue
            elif not path.exists():
                self._save_calibration(path, attempts)
            found[way] = path
        return attempts, found

    def _train_on_all(self, path: Path) -> None:
        """Train the detector that is kept. It is written whole or not at all."""
        self._tell("detector, on all labels")
        with tempfile.TemporaryDirectory() as scratch:
            made = Path(scratch) / "detector"
            self._train(self._samples, self._base(Path(scratch) / "base"), made)
            shutil.copytree(made, path, ignore=shutil.ignore_patterns(WORK))

    def _save_calibration(self, path: Path, attempts: Sequence[Attempt]) -> None:
        from magistrate.judges.calibration_file import write_calibration

        verdicts = [each for each in self._said if isinstance(each, Verdict) and each.label in KNOWN]
        scores = np.array([each.score for each in verdicts], dtype=np.float64)
        groups = groups_of([self._given.samples[each.sample_id] for each in verdicts])
        turned = self._now.columns.turned
        made = calibration_file(self._now, attempts, self._record, 1 - scores if turned else scores, groups)
        if made is not None:
            write_calibration(made, path)

    # --- a stack ----------------------------------------------------------------------------------

    def _by_stack(self) -> HeldOut:
        """Return the held-out predictions of a stack of the run's judges, fitted to the other folds."""
        parts = self._parts()
        labelled = replace(
            stored_of(Run(self._record.id, self._place), parts, self._place), samples=self._samples
        )
        table, used, left_out = table_of(parts, [labelled])
        at = {name: place for place, name in enumerate(self._now.columns.ids)}
        places = np.array([at[sample.id] for sample in used[0]], dtype=np.int64)
        if self._given.active:
            table = replace(table, counts=self._now.weights[places])
        check(table)
        odds, near = np.zeros(table.n), np.zeros(table.n, dtype=np.bool_)
        folds, seed = len(self._now.folds), self._now.seed
        for train, test in self._now.folds:
            learnt, asked = np.flatnonzero(np.isin(places, train)), np.flatnonzero(np.isin(places, test))
            if asked.size:
                own = fitted(table.take(learnt), folds=folds, seed=seed)
                odds[asked] = own.log_odds(table.values[asked])
                near[asked] = own.distances(table.values[asked]) <= own.limit
        self._stack = lambda: stacked(fit(table, folds=folds, seed=seed), parts, [labelled], used, left_out)
        return HeldOut(places[near], expit(odds[near]), odds[near] >= 0)

    def _parts(self) -> list[Part]:
        words = [
            _words(self._record, name)
            for name, recipe in self._record.recipes.items()
            if set(self._record.scoring[name].labels) == set(KNOWN) and recipe.judge
        ]
        if len(words) < 2:
            raise _CannotBe(
                f"a stack needs two judges of faithfulness, but the run has {len(words)}: run the data with "
                "several, such as --judge novelty --judge detector"
            )
        parts = parts_of(words)
        check_seen(parts, {}, self._record.dataset, False)
        return parts

    # --- a detector -------------------------------------------------------------------------------

    def _by_detector(self) -> HeldOut:
        """Return the held-out predictions of a detector trained from the run's, else the shipped one."""
        require_extra("train", "torch", "transformers", "sklearn")
        found: list[tuple[int, Verdict]] = []
        with tempfile.TemporaryDirectory() as scratch:
            begun = self._base(Path(scratch) / "base")
            for number, (train, test) in enumerate(self._now.folds):
                self._tell(f"detector, fold {number + 1} of {len(self._now.folds)}")
                folder = Path(scratch) / f"fold-{number}"
                self._train([self._samples[at] for at in train], begun, folder)
                judge = Detector(folder=folder)
                for at in test:
                    outcome = judge.verdict(self._samples[at])
                    if isinstance(outcome, Verdict):
                        found.append((int(at), outcome))
        found.sort(key=lambda each: each[0])
        return HeldOut(
            np.array([at for at, _ in found], dtype=np.int64),
            np.array([each.score for _, each in found], dtype=np.float64),
            np.array([each.label == HALLUCINATED for _, each in found], dtype=np.bool_),
        )

    def _base(self, scratch: Path) -> Base:
        """Return the base model for training. Raises `_CannotBe` if it was trained on this data before."""
        from magistrate.training.detector.bases import base

        begun = base(self._base_words(), scratch)
        if learnt := shared(family_of(self._record.dataset), begun.trained_on):
            raise _CannotBe(
                f"the detector {begun.name} was trained on {', '.join(learnt)}, so it has seen these labels "
                "and cannot be measured on them"
            )
        return begun

    def _base_words(self) -> str:
        """Return the detector to train from: one of the run, the current judge first, or the shipped one."""
        first = self._now.columns.judge
        for name in sorted(self._record.recipes, key=lambda each: each != first):
            words = _words(self._record, name)
            if words.partition(":")[0] == "detector" and isinstance(own := registry.judge(words), Detector):
                return str(own.folder) if own.folder else "shipped" if own.size == "small" else LARGE
        return "shipped"

    def _train(self, samples: Sequence[Sample], begun: Base, folder: Path) -> None:
        from magistrate.training.detector.training import OWN, train_on_labels

        left = None if self._until is None else self._until - monotonic()
        done = None
        if left is None or left > 0:
            done = train_on_labels(
                samples,
                begun,
                folder,
                name="improved",
                trained_on=(family_of(self._record.dataset),),
                schedule=replace(OWN, seed=self._now.seed),
                seconds=left,
            )
        if done is None or done.manifest is None:
            raise _CannotBe("its training took longer than --minutes allows")
