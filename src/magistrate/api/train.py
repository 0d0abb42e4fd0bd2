"""`train_probe` and `train_stack`: train a judge, saved in a folder, on labelled data or stored runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from magistrate import _async
from magistrate.analysis.columns import KNOWN, groups_of
from magistrate.api.run import Run
from magistrate.api.stored import RunRef, StorePlace, record_of
from magistrate.datasets import Dataset, load
from magistrate.datasets.named import family_of, shared
from magistrate.datasets.rows import MAX_UNREAD
from magistrate.engines.base import Engine, require
from magistrate.errors import DatasetError, InputError, SpecError
from magistrate.features.hidden_states import Pooling
from magistrate.judges import registry
from magistrate.judges.base import Judge, check_binary
from magistrate.judges.composite import suspicion
from magistrate.judges.probe import ProbeData
from magistrate.judges.stack_folder import Scale
from magistrate.runs.limits import UNLIMITED, Limits
from magistrate.runs.progress import ProgressListener
from magistrate.training.probe import FOLDS as PROBE_FOLDS
from magistrate.training.probe import STRENGTH, Activations, Probed, activations, fit_probe, kept_in
from magistrate.training.stack import EVEN, FOLDS, StackFit, Table, fit
from magistrate.types import FAITHFUL, HALLUCINATED, Outcome, Sample, Verdict

if TYPE_CHECKING:
    from magistrate.judges.stack_folder import StackFile


NO_LABEL, NO_OUTPUT, TOO_LONG, BAD_ROW = "no label", "no output", "does not fit the model", "cannot be read"


@dataclass(frozen=True, slots=True)
class _Read:
    """The usable samples of one data set."""

    data: Dataset
    samples: list[Sample]


async def atrain_probe(
    data: Sequence[str],
    engine: Engine,
    *,
    sample: int | None = None,
    mapping: Mapping[str, str] | None = None,
    labels: Mapping[Any, str] | None = None,
    max_unread: float = MAX_UNREAD,
    layer: int | None = None,
    pooling: Pooling = "mean",
    strength: float = STRENGTH,
    folds: int = PROBE_FOLDS,
    seed: int = 0,
    watcher: Callable[[int], None] = lambda done: None,
) -> tuple[Probed, dict[str, int]]:
    """Train a probe of `engine`'s model on the labelled samples of `data`; also return what was left out,
    by reason.

    `data` are names and files for `magistrate.datasets.load`, read with `mapping`, `labels` and
    `max_unread`. `sample` draws so many of each at random. The other options are those of `fit_probe`.
    Raises `CapabilityError` for an engine without hidden states, `DatasetError` if nothing is labelled or
    too little can be read, and what `fit_probe` raises.
    """
    require(engine.info, frozenset({"likelihood", "capture", "hidden_states"}), "a probe")
    left_out = dict.fromkeys((NO_LABEL, NO_OUTPUT, TOO_LONG, BAD_ROW), 0)
    how: dict[str, Any] = {"mapping": mapping, "labels": labels, "max_unread": max_unread}
    read = [_usable(load(each, sample=sample, seed=seed, **how), left_out) for each in data]
    if not any(each.samples for each in read):
        raise DatasetError(f"no sample of {', '.join(data)} has the label {FAITHFUL} or {HALLUCINATED}")
    found: list[Activations] = []
    listed: list[ProbeData] = []
    for each in read:
        states, too_long = await activations(each.samples, engine, folder=kept_in(), watcher=watcher)
        left_out[TOO_LONG] += too_long
        found += states
        listed.append(
            ProbeData(
                dataset=each.data.name,
                digest=each.data.digest,
                n=len(states),
                hallucinated=sum(one.sample.label == HALLUCINATED for one in states),
            )
        )
    made = fit_probe(
        found,
        engine.info,
        listed,
        layer=layer,
        pooling=pooling,
        strength=strength,
        folds=folds,
        seed=seed,
    )
    return made, {reason: n for reason, n in left_out.items() if n}


train_probe = _async.synchronous(atrain_probe)


def _usable(data: Dataset, left_out: dict[str, int]) -> _Read:
    kept = []
    for sample in data:
        if sample.label not in (FAITHFUL, HALLUCINATED):
            left_out[NO_LABEL] += 1
        elif not (sample.output or "").strip():
            left_out[NO_OUTPUT] += 1
        else:
            kept.append(sample)
    left_out[BAD_ROW] += len(data.problems)
    return _Read(data, kept)


# --- a stack's parts ------------------------------------------------------------------------------


SIGNAL = "signal:"
FAMILY = "{family}"
TAG = "train stack"
UNLABELLED = "no label faithful or hallucinated"


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a stack: a judge, or the text signal of this name (`judge` is None)."""

    words: str
    judge: Judge | None = None

    @property
    def name(self) -> str:
        """The name of the part in the stack."""
        return self.words if self.judge is None else self.judge.info.name

    @property
    def signal(self) -> str:
        """The name of the text signal."""
        return self.words.removeprefix(SIGNAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """How judges are run: on `sample` samples of each set (None: all), drawn with `seed`."""

    sample: int | None = None
    seed: int = 0
    mapping: Mapping[str, str] | None = None
    labels: Mapping[Any, str] | None = None
    max_unread: float = MAX_UNREAD
    model: str | Path | Engine | None = None
    base_url: str | None = None
    device: str | None = None
    threads: int | None = None
    timeout: float | None = None
    store: StorePlace | None = None
    limits: Limits = UNLIMITED
    watcher: ProgressListener | None = None


@dataclass(frozen=True, slots=True)
class Labelled:
    """The samples of one data set, and the outcomes of judges by part name and sample id."""

    dataset: str
    digest: str
    samples: Sequence[Sample]
    outcomes: Mapping[str, Mapping[str, Outcome]]
    model: tuple[str, str] | None = None


# --- the parts ------------------------------------------------------------------------------------


def parts_of(of: Sequence[str]) -> list[Part]:
    """Return the parts of these names. Raises `SpecError` for what cannot be a part."""
    from magistrate.features.signals import SIGNALS

    if not of:
        raise SpecError("a stack needs parts: give them with --of, such as --of novelty --of signal:numbers")
    found = []
    for words in of:
        if not words.startswith(SIGNAL):
            judge = registry.judge(words)
            check_binary(judge.info, "a stack")
            if judge.info.lacks:
                raise SpecError(f"judge {judge.info.name!r} {judge.info.lacks}")
            found.append(Part(words, judge))
            continue
        if words.removeprefix(SIGNAL) not in SIGNALS:
            raise SpecError(registry.unknown("text signal", words.removeprefix(SIGNAL), list(SIGNALS)))
        found.append(Part(words))
    twice = [name for name, n in Counter(part.name for part in found).items() if n > 1]
    if twice:
        raise SpecError(f"{twice[0]!r} is given twice; parts need different names")
    return found


def replacing(parts: Sequence[Part], instead: Mapping[str, str]) -> dict[str, str]:
    """Return the specification of the judge that replaces a part in training, by part name."""
    known = {
        words: part.name for part in parts if part.judge is not None for words in (part.words, part.name)
    }
    for words in instead:
        if words not in known:
            raise SpecError(registry.unknown("judge", words, list(known), of=" of this stack"))
    return {known[words]: other for words, other in instead.items()}


def check_seen(parts: Sequence[Part], replaced: Mapping[str, str], source: str, seen: bool) -> None:
    """Raise `SpecError` for a part that was trained on the data, since it knows the labels."""
    family = family_of(source)
    for part in parts:
        if part.judge is None:
            continue
        words = replaced.get(part.name, part.words).replace(FAMILY, family)
        info = registry.judge(words).info
        if not seen and (learnt := shared(family, info.trained_on)):
            raise SpecError(
                f"{words} was trained on {', '.join(learnt)}, so it has seen the labels of {source}, and the "
                "stack would trust it too much. Train a version without that family and use it for training: "
                f"--instead '{part.name}=NAME:folders/without-{FAMILY}'; to continue anyway: --seen"
            )


# --- reading outcomes -----------------------------------------------------------------------------


def asked_of(source: str | Path, parts: Sequence[Part], replaced: Mapping[str, str], how: Asking) -> Labelled:
    """Run all judges of the stack on one data set, or only read it if the stack has none."""
    from magistrate.api.evaluate import evaluate

    drawn: dict[str, Any] = {"mapping": dict(how.mapping or {}), "sample": how.sample, "seed": how.seed}
    drawn |= {"labels": how.labels, "max_unread": how.max_unread}
    read = load(source, **drawn)
    names = [part.name for part in parts if part.judge is not None]
    if not names:
        return Labelled(read.name, read.digest, list(read), {})
    words = [replaced.get(part.name, part.words) for part in parts if part.judge is not None]
    asked = [each.replace(FAMILY, family_of(read.name)) for each in words]
    run = evaluate(
        source,
        asked,
        model=how.model,
        base_url=how.base_url,
        device=how.device,
        threads=how.threads,
        timeout=how.timeout,
        store=how.store,
        limits=how.limits,
        name=f"{read.name}, for a stack",
        tags=[TAG],
        watcher=how.watcher,
        progress=False,
        **drawn,
    )
    judges = [registry.judge(each).info.name for each in asked]
    return _labelled(run, dict(zip(names, judges, strict=True)), parts)


def stored_of(run: RunRef, parts: Sequence[Part], store: StorePlace | None) -> Labelled:
    """Return the outcomes of a stored run's judges. Raises `SpecError` if a part is not among them."""
    record, place = record_of(run, store)
    names = [part.name for part in parts if part.judge is not None]
    if missing := [name for name in names if name not in record.judges]:
        raise SpecError(
            f"run {record.name or record.id} has no judge {missing[0]!r}; it has: {', '.join(record.judges)}"
        )
    return _labelled(Run(record.id, place), {name: name for name in names}, parts)


def _labelled(run: Run, judges: Mapping[str, str], parts: Sequence[Part]) -> Labelled:
    """Return the outcomes of a run's judges, under the names of the parts that they stand for."""
    record = run.record
    said: dict[str, dict[str, Outcome]] = {name: {} for name in judges}
    by_judge = {judge: name for name, judge in judges.items()}
    for outcome in run.outcomes():
        if outcome.judge in by_judge:
            said[by_judge[outcome.judge]][outcome.sample_id] = outcome
    asks = any(part.judge is not None and part.judge.info.asks for part in parts)
    model = (record.model, record.recipes[next(iter(by_judge))].fingerprint) if asks else None
    return Labelled(record.dataset, record.dataset_digest, run.samples(), said, model)


def table_of(
    parts: Sequence[Part], found: Sequence[Labelled]
) -> tuple[Table, list[list[Sample]], dict[str, int]]:
    """Return the samples with a label and all judges' values as a table, those of each set, and what is
    left out.
    """
    import numpy as np

    rows, used, left_out = list[list[float]](), list[list[Sample]](), Counter[str]()
    families, sets = list[str](), list[str]()
    for each in found:
        kept = list[Sample]()
        for sample in each.samples:
            row = _row(parts, each, sample)
            if isinstance(row, str):
                left_out[row] += 1
                continue
            rows.append(row)
            kept.append(sample)
        families += [family_of(each.dataset)] * len(kept)
        sets += [each.dataset] * len(kept)
        used.append(kept)
    if not rows:
        told = ", ".join(f"{n} {reason}" for reason, n in left_out.most_common())
        raise InputError(f"no sample can be used for training: {told or 'there are none'}")
    everything = [sample for kept in used for sample in kept]
    scales: list[Scale] = ["share" if part.judge is None else "log_odds" for part in parts]
    table = Table(
        tuple(part.name for part in parts),
        tuple(scales),
        np.array(rows, dtype=np.float64),
        np.array([sample.label == HALLUCINATED for sample in everything], dtype=np.bool_),
        groups_of(everything),
        np.array(families),
        np.array(sets),
    )
    return table, used, dict(left_out.most_common())


def _row(parts: Sequence[Part], each: Labelled, sample: Sample) -> list[float] | str:
    """Return the values of the parts for a sample, or the reason why it is left out."""
    from magistrate.features.signals import readings

    if sample.label not in KNOWN:
        return UNLABELLED
    names = [part.signal for part in parts if part.judge is None]
    if names and not any(text.strip() for text in sample.sources):
        return "no context"
    read = readings(sample, names=names) if names else {}
    found = list[float]()
    for part in parts:
        if part.judge is None:
            value = read[part.signal].value
            found.append(float("nan") if value is None else value)
            continue
        outcome = each.outcomes[part.name].get(sample.id)
        if not isinstance(outcome, Verdict):
            return f"{part.name}: no verdict"
        found.append(suspicion(outcome, part.judge.info))
    return found


# --- training a stack -----------------------------------------------------------------------------


ASKING = Asking()


@dataclass(frozen=True, slots=True)
class Stacked:
    """A fitted stack (`fit`), the content of its file (`file`), and what was left out, by reason."""

    fit: StackFit
    file: StackFile
    left_out: Mapping[str, int]
    folders: Mapping[str, Path]

    def save(self, folder: str | Path, *, replace: bool = False) -> Path:
        """Write the folder, for `--judge stack:FOLDER`, and return its path."""
        from magistrate.judges.stack_folder import write_stack
        from magistrate.report.training import card

        path = Path(folder)
        write_stack(self.file, card(self.fit, self.file), path, self.folders, replace=replace)
        return path

    def to_dict(self) -> dict[str, Any]:
        """Return the metrics as plain values; `stack` is the content of the folder's file."""
        return {
            **self.fit.to_dict(),
            "left_out_samples": dict(self.left_out),
            "stack": self.file.model_dump(),
        }

    def __str__(self) -> str:
        from magistrate.report.formatting import as_text
        from magistrate.report.training import render_stack

        return as_text(lambda console: render_stack(self.fit, self.file, self.left_out, console))


def train_stack(
    data: Sequence[str | Path] = (),
    of: Sequence[str] = (),
    *,
    runs: Sequence[RunRef] = (),
    instead: Mapping[str, str] | None = None,
    positive: bool = False,
    base_rate: float = EVEN,
    folds: int = FOLDS,
    seen: bool = False,
    how: Asking = ASKING,
) -> Stacked:
    """Fit weights of judges and text signals (`signal:NAME`) on labelled data and stored runs.

    `of` names the parts. `data` are files and sets; the judges are run on them as `how` states, and the
    runs are stored. `runs` are stored runs whose judges have the names of the parts. `instead` maps a part
    to the judge that computes its training values; `{family}` stands for the family of the data. A part
    that was itself trained must not be weighted on labels that it has seen, which is refused unless `seen`
    is set. `positive` allows no negative weights. `base_rate` is the share of hallucinated outputs assumed
    in use. Raises `InputError` for too few labels and `SpecError`.
    """
    if not 0 < base_rate < 1:
        raise SpecError(f"a base rate must be in (0, 1), got {base_rate}")
    if not data and not runs:
        raise SpecError("a stack needs labels: give data with --data, or a stored run with --run")
    parts = parts_of(of)
    replaced = replacing(parts, instead or {})
    for source in data:
        check_seen(parts, replaced, str(source), seen)
    found = [stored_of(run, parts, how.store) for run in runs]
    for each in found:
        check_seen(parts, {}, each.dataset, seen)
    found += [asked_of(source, parts, replaced, how) for source in data]
    table, used, left_out = table_of(parts, found)
    fitted = fit(table, positive=positive, folds=folds, seed=how.seed)
    return stacked(fitted, parts, found, used, left_out, base_rate)


def stacked(
    fitted: StackFit,
    parts: Sequence[Part],
    found: Sequence[Labelled],
    used: Sequence[Sequence[Sample]],
    left_out: Mapping[str, int],
    base_rate: float = EVEN,
) -> Stacked:
    """Return the stack fitted to the samples `used` of each set, with the file that describes it."""
    file, folders = _described(fitted, parts, found, used, base_rate)
    return Stacked(fitted, file, left_out, folders)


# --- saving a stack -------------------------------------------------------------------------------


def _described(
    fitted: StackFit,
    parts: Sequence[Part],
    found: Sequence[Labelled],
    used: Sequence[Sequence[Sample]],
    base_rate: float,
) -> tuple[StackFile, dict[str, Path]]:
    """Return the file of a stack, and the folders of parts to save with it."""
    from magistrate.judges.folders import ModelPart
    from magistrate.judges.stack_folder import DataFile, PartFile, StackFile

    models = {each.model for each in found if each.model is not None}
    if len(models) > 1:
        told = " and ".join(sorted(name for name, _ in models))
        raise SpecError(f"judges of a stack must ask the same model; these data were judged with {told}")
    weights, table = fitted.weights, fitted.table
    written, folders = list[PartFile](), dict[str, Path]()
    for at, part in enumerate(parts):
        words, folder = (part.signal, None) if part.judge is None else kept(part.words, at)
        if folder is not None:
            folders[str(at)] = folder
        info = None if part.judge is None else part.judge.info
        written.append(
            PartFile(
                name=part.name,
                kind="signal" if info is None else "judge",
                words=words,
                version=1 if info is None else info.version,
                prompt="" if info is None else info.prompt,
                constraint="" if info is None else info.constraint,
                scale=table.scales[at],
                mean=float(weights.means[at]),
                spread=float(weights.spreads[at]),
                weight=float(weights.weights[at]),
                low=_end(table.values[:, at], "nanmin"),
                high=_end(table.values[:, at], "nanmax"),
            )
        )
    learnt = {name for part in parts if part.judge is not None for name in part.judge.info.trained_on}
    model = next(iter(models), None)
    return (
        StackFile(
            parts=written,
            intercept=weights.intercept,
            base_rate=base_rate,
            metric=weights.metric.tolist(),
            limit=weights.limit,
            strength=weights.strength,
            positive=fitted.positive,
            model=None if model is None else ModelPart(name=model[0], fingerprint=model[1]),
            data=list(_data(found, used, DataFile)),
            trained_on=sorted(learnt | {each.dataset for each in found}),
            seed=fitted.seed,
            folds=fitted.folds,
            figures=_figures(fitted),
        ),
        folders,
    )


def _data(found: Sequence[Labelled], used: Sequence[Sequence[Sample]], kind: Any) -> Iterator[Any]:
    for each, samples in zip(found, used, strict=True):
        yield kind(
            dataset=each.dataset,
            family=family_of(each.dataset),
            digest=each.digest,
            n=len(samples),
            hallucinated=sum(sample.label == HALLUCINATED for sample in samples),
        )


def _figures(fitted: StackFit) -> dict[str, Any]:
    told = fitted.to_dict()
    return {name: told[name] for name in ("out_of_fold", "left_out", "alone", "remarks")}


def _end(values: Any, which: str) -> float:
    import numpy as np

    return float(getattr(np, which)(values))


def kept(words: str, number: int) -> tuple[str, Path | None]:
    """Return a judge's specification as a stack stores it, and the folder that is copied into the stack.

    Other paths become absolute; their targets are not copied.
    """
    from magistrate.judges.stack_folder import HERE, PARTS
    from magistrate.runs.spec import whole

    name, colon, options = words.partition(":")
    bare = registry.folder_option(name)
    folder, told = None, []
    for word in registry.split_options(options) if colon and bare is not None else ():
        key, value = registry.keyed(word, bare)
        if key in (None, bare):
            folder = Path(registry.unenclosed(value)).expanduser().absolute()
            value = f"({HERE}/{PARTS}/{number})"
        told.append(value if key is None else f"{key}={value}")
    return (f"{name}:{','.join(told)}", folder) if folder is not None else (whole(words), None)
