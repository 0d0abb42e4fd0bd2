"""How far a judge of a stored run agrees with people, or with another judge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from magistrate.analysis.agreement import (
    AgreementReport,
    Pair,
    agreement,
    disagreements,
    majority,
    order_of,
    pairs_of_judges,
    pairs_with,
    raters_of,
    remarks_of,
    slices_of,
)
from magistrate.appraisal.stored import Judged, RunRef, StorePlace, judged
from magistrate.datasets.annotations import Annotations, read_annotations
from magistrate.datasets.files import looks_like_path
from magistrate.datasets.selection import value_at
from magistrate.errors import SpecError
from magistrate.runs import Run
from magistrate.types import Sample, Verdict

GOLD = "the gold labels"


def agree(
    run: RunRef,
    reference: RunRef | Path | None = None,
    *,
    judge: str | None = None,
    reference_judge: str | None = None,
    by: str | None = None,
    order: Sequence[str] | None = None,
    mapping: Mapping[str, str] | None = None,
    store: StorePlace | None = None,
) -> AgreementReport:
    """How far a judge of a run gives the labels that `reference` gives, with intervals.

    `reference` is a file of labels by sample id (a path, or a text that looks like one), another run (or the
    same one, with `reference_judge`), or None for the gold labels of the run's samples. A file in which
    samples have several labels is compared by their majority. `by`, `label` or `metadata.NAME`, gives the
    figures of each value, too; `order` names the labels from least to most, for weighted kappa; `mapping`
    says which columns of the file give `id`, `label` or `annotator`. Raises `SpecError` and `DatasetError`
    for what is not known or cannot be read, `InputError` where nothing can be compared.
    """
    if by is not None and by != "label" and not by.startswith("metadata."):
        raise SpecError(f"--by takes label or metadata.NAME, got {by!r} (did you mean 'metadata.{by}'?)")
    own = judged(run, judge, store)
    if reference is None and reference_judge is not None:
        reference = run
    if mapping and not _is_file(reference):
        raise SpecError("--map goes with a file of labels: --with FILE")
    if reference is None:
        pairs, left_out = pairs_with(
            own.samples, own.outcomes, lambda sample: sample.label, lambda _: "no gold label"
        )
        return _report(own, GOLD, pairs, left_out, by, order)
    if isinstance(reference, Run) or not _is_file(reference):
        return _with_run(
            own,
            str(reference) if isinstance(reference, Path) else reference,
            reference_judge,
            by,
            order,
            run.store if isinstance(run, Run) else store,
        )
    if reference_judge is not None:
        raise SpecError("--with-judge goes with a run, not with a file of labels")
    return _with_file(own, Path(str(reference)), by, order, mapping)


def _is_file(reference: RunRef | Path | None) -> bool:
    return isinstance(reference, Path) or (isinstance(reference, str) and looks_like_path(reference))


def _with_run(
    own: Judged,
    reference: RunRef,
    reference_judge: str | None,
    by: str | None,
    order: Sequence[str] | None,
    store: StorePlace | None,
) -> AgreementReport:
    other = judged(reference, reference_judge, store)
    same = other.record.id == own.record.id
    if same and other.judge == own.judge:
        raise SpecError(f"a judge agrees with itself; name another one of {', '.join(own.record.judges)}")
    pairs, left_out = pairs_of_judges(own.samples, own.outcomes, other.samples, other.outcomes)
    name = other.judge if same else f"{other.judge} of {other.name}"
    return _report(own, name, pairs, left_out, by, order)


def _with_file(
    own: Judged,
    path: Path,
    by: str | None,
    order: Sequence[str] | None,
    mapping: Mapping[str, str] | None,
) -> AgreementReport:
    said = {each.label for each in own.outcomes.values() if isinstance(each, Verdict)}
    read = read_annotations(path, known={*said, *(order or ())}, mapping=mapping)
    votes = {sample_id: each for sample_id, each in read.votes.items() if sample_id in own.samples}
    if not votes:
        some = ", ".join(repr(each) for each in list(read.votes)[:3])
        here = ", ".join(repr(each) for each in list(own.samples)[:3])
        raise SpecError(f"no id in {path.name} is one of run {own.name}: the file has {some}, the run {here}")

    def lacking(sample: Sample) -> str:
        return "tied among people" if votes.get(sample.id) else f"no label in {path.name}"

    pairs, left_out = pairs_with(
        own.samples, own.outcomes, lambda sample: majority(votes.get(sample.id, ())), lacking
    )
    left_out |= _not_used(read, len(read.votes) - len(votes), path)
    several = any(len(each) > 1 for each in votes.values())
    reference = f"the majority of {path.name}" if several else path.name
    found = {label for each in votes.values() for label in each} | said
    labels, _ = order_of(found, order)
    raters = raters_of(own.samples, votes, read.n_raters, own.outcomes, labels) if several else None
    report = _report(own, reference, pairs, left_out, by, order, found)
    return replace(report, raters=raters, problems=tuple(map(str, read.problems)))


def _not_used(read: Annotations, strangers: int, path: Path) -> dict[str, int]:
    """What the file says that is not compared."""
    told = {
        f"only in {path.name}": strangers,
        f"without a label in {path.name}": read.unlabelled,
        f"unreadable in {path.name}": len(read.problems),
    }
    return {reason: count for reason, count in told.items() if count}


def _report(
    own: Judged,
    reference: str,
    pairs: list[Pair],
    left_out: Mapping[str, int],
    by: str | None,
    order: Sequence[str] | None,
    found: set[str] | None = None,
) -> AgreementReport:
    used = {label for pair in pairs for label in (pair.reference, pair.verdict.label)}
    labels, ordered = order_of(used | (found or set()), order)
    overall = agreement(pairs, labels, ordered)
    slices = {} if by is None else slices_of(pairs, lambda s: value_at(s, by), by, labels, ordered)
    return AgreementReport(
        run=own.name,
        judge=own.judge,
        reference=reference,
        n_total=own.n_total,
        left_out=left_out,
        labels=labels,
        ordered=ordered,
        overall=overall,
        by=by,
        slices=slices,
        disagreements=disagreements(pairs),
        remarks=remarks_of(overall, labels),
    )
