"""What the parts of a stack say of labelled samples: judges are asked, signals read, sets put together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from magistrate.analysis.columns import KNOWN, groups_of
from magistrate.api.run import Run
from magistrate.api.stored import RunRef, StorePlace, record_of
from magistrate.datasets import load
from magistrate.datasets.named import family_of, shared
from magistrate.datasets.rows import MAX_UNREAD
from magistrate.engines.base import Engine
from magistrate.errors import InputError, SpecError
from magistrate.judges import registry
from magistrate.judges.base import Judge
from magistrate.judges.composite import check_binary, suspicion
from magistrate.judges.stack_folder import Scale
from magistrate.runs.limits import UNLIMITED, Limits
from magistrate.runs.progress import ProgressListener
from magistrate.training.stack import Table
from magistrate.types import HALLUCINATED, Outcome, Sample, Verdict

SIGNAL = "signal:"
FAMILY = "{family}"
TAG = "train stack"
UNLABELLED = "no label faithful or hallucinated"


@dataclass(frozen=True, slots=True)
class Part:
    """What is weighed: a judge, or the text signal of this name (`judge` is None)."""

    words: str
    judge: Judge | None = None

    @property
    def name(self) -> str:
        """What it is called in the stack."""
        return self.words if self.judge is None else self.judge.info.name

    @property
    def signal(self) -> str:
        """The name of the text signal."""
        return self.words.removeprefix(SIGNAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """How judges are asked: on `sample` samples of each set (None: all), drawn with `seed`."""

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
    """The samples of one data set and, by the names of parts and by sample ids, what judges said of them."""

    dataset: str
    digest: str
    samples: Sequence[Sample]
    outcomes: Mapping[str, Mapping[str, Outcome]]
    model: tuple[str, str] | None = None


# --- the parts ------------------------------------------------------------------------------------


def parts_of(of: Sequence[str]) -> list[Part]:
    """The parts of these names. Raises `SpecError` for what cannot be one."""
    from magistrate.features.catalog import SIGNALS

    if not of:
        raise SpecError("a stack has parts: name them with --of, such as --of novelty --of signal:numbers")
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
        raise SpecError(f"{twice[0]!r} is named twice: every part has a name of its own")
    return found


def replacing(parts: Sequence[Part], instead: Mapping[str, str]) -> dict[str, str]:
    """By the names of parts, whose values are taken in training."""
    known = {
        words: part.name for part in parts if part.judge is not None for words in (part.words, part.name)
    }
    for words in instead:
        if words not in known:
            raise SpecError(registry.unknown("judge", words, list(known), of=" of this stack"))
    return {known[words]: other for words, other in instead.items()}


def check_seen(parts: Sequence[Part], replaced: Mapping[str, str], source: str, seen: bool) -> None:
    """Refuse a part that was trained on the data: what it says of labels it has seen is no measure of it."""
    family = family_of(source)
    for part in parts:
        if part.judge is None:
            continue
        words = replaced.get(part.name, part.words).replace(FAMILY, family)
        info = registry.judge(words).info
        if not seen and (learnt := shared(family, info.trained_on)):
            raise SpecError(
                f"{words} was trained on {', '.join(learnt)}, and so knows the labels of {source}: it would "
                f"be trusted too much. Train it without that family too, and name it for training: --instead "
                f"'{part.name}=NAME:folders/without-{FAMILY}'; to do it all the same: --seen"
            )


# --- what they say --------------------------------------------------------------------------------


def asked_of(source: str | Path, parts: Sequence[Part], replaced: Mapping[str, str], how: Asking) -> Labelled:
    """One data set judged by all judges of the stack, or only read where it has none."""
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
    """What the judges of a stored run said; raises `SpecError` where one of the parts is not among them."""
    record, place = record_of(run, store)
    names = [part.name for part in parts if part.judge is not None]
    if missing := [name for name in names if name not in record.judges]:
        raise SpecError(
            f"run {record.name or record.id} has no judge {missing[0]!r}; it has: {', '.join(record.judges)}"
        )
    return _labelled(Run(record.id, place), {name: name for name in names}, parts)


def _labelled(run: Run, judges: Mapping[str, str], parts: Sequence[Part]) -> Labelled:
    """What the judges of a run said, under the names of the parts that they stand for."""
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
    """All that has a label and a value of every judge; the samples of each set, and what is left out."""
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
        raise InputError(f"no sample can be learnt from: {told or 'there are none'}")
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
    """What the parts say of a sample, or why it is left out."""
    from magistrate.features.catalog import readings

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
