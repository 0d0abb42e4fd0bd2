"""A stack made of labelled data or of stored runs: its parts asked, weighed, measured and written down."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from magistrate.api.stack_data import (
    Asking,
    Labelled,
    Part,
    asked_of,
    check_seen,
    parts_of,
    replacing,
    stored_of,
    table_of,
)
from magistrate.api.stored import RunRef
from magistrate.datasets.named import family_of
from magistrate.errors import SpecError
from magistrate.judges import registry
from magistrate.training.stack import EVEN, FOLDS, StackFit, fit
from magistrate.types import HALLUCINATED, Sample

if TYPE_CHECKING:
    from magistrate.judges.stack_folder import StackFile

ASKING = Asking()


@dataclass(frozen=True, slots=True)
class Stacked:
    """A stack that was fitted (`fit`), as it is written down (`file`), and what was left out, by reason."""

    fit: StackFit
    file: StackFile
    left_out: Mapping[str, int]
    folders: Mapping[str, Path]

    def save(self, folder: str | Path, *, replace: bool = False) -> Path:
        """Write the folder, for `--judge stack:FOLDER`; answers its path."""
        from magistrate.judges.stack_folder import write_stack
        from magistrate.report.stack import card

        path = Path(folder)
        write_stack(self.file, card(self.fit, self.file), path, self.folders, replace=replace)
        return path

    def to_dict(self) -> dict[str, Any]:
        """The figures as plain values; `stack` is what the folder's file holds."""
        return {
            **self.fit.to_dict(),
            "left_out_samples": dict(self.left_out),
            "stack": self.file.model_dump(),
        }

    def __str__(self) -> str:
        from magistrate.report.stack import render_stack
        from magistrate.report.text import as_text

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
    """Weigh judges and text signals (`signal:NAME`) against each other on labelled data and stored runs.

    `of` names the parts. `data` are files and sets; judges are asked on them as `how` says, and the runs
    kept. `runs` are stored runs whose judges have the names of the parts. `instead` says for a part by which
    judge its training values are made, `{family}` standing for the family of the data: a part that was
    trained itself must not be weighed on labels that it has seen, which is refused unless `seen`. `positive`
    allows no weight below zero; `base_rate` is the share of the hallucinated that is assumed in use. Raises
    `InputError` for too few labels and `SpecError`.
    """
    if not 0 < base_rate < 1:
        raise SpecError(f"a base rate must be in (0, 1), got {base_rate}")
    if not data and not runs:
        raise SpecError("a stack is learnt on labels: name data with --data, or a stored run with --run")
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
    file, folders = _described(fitted, parts, found, used, base_rate)
    return Stacked(fitted, file, left_out, folders)


# --- what is written down -------------------------------------------------------------------------


def _described(
    fitted: StackFit,
    parts: Sequence[Part],
    found: Sequence[Labelled],
    used: Sequence[Sequence[Sample]],
    base_rate: float,
) -> tuple[StackFile, dict[str, Path]]:
    """The file of a stack, and the folders of its parts that go with it."""
    from magistrate.judges.folders import ModelPart
    from magistrate.judges.stack_folder import DataFile, PartFile, StackFile

    models = {each.model for each in found if each.model is not None}
    if len(models) > 1:
        told = " and ".join(sorted(name for name, _ in models))
        raise SpecError(f"judges of a stack ask one model; these data were judged with {told}")
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
    """A judge's words as a stack keeps them, and the folder that it lies in, which the stack takes along.

    Other paths become whole: what lies elsewhere stays there.
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
