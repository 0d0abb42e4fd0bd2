"""`agree`: measure how far a judge of a stored run agrees with people, or with another judge."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from magistrate._text import shorten
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
from magistrate.api.run import Run
from magistrate.api.stored import Judged, RunRef, StorePlace, judged
from magistrate.datasets.annotations import Annotations, read_annotations
from magistrate.datasets.fields import check_labels
from magistrate.datasets.files import looks_like_path
from magistrate.datasets.rows import MAX_UNREAD, check_max_unread
from magistrate.datasets.selection import value_at
from magistrate.errors import InputError, SpecError
from magistrate.types import FAITHFUL, HALLUCINATED, Sample, Verdict

GOLD = "the gold labels"
MOST_WORDS = 5  # number of unknown label words in a remark


def agree(
    run: RunRef,
    reference: RunRef | Path | None = None,
    *,
    judge: str | None = None,
    reference_judge: str | None = None,
    by: str | None = None,
    order: Sequence[str] | None = None,
    mapping: Mapping[str, str] | None = None,
    labels: Mapping[Any, str] | None = None,
    max_unread: float = MAX_UNREAD,
    store: StorePlace | None = None,
) -> AgreementReport:
    """Measure how far a judge of a run gives the same labels as `reference`, with intervals.

    `reference` is a file of labels by sample id (a path, or text that looks like one), another run (or the
    same one, with `reference_judge`), or None for the gold labels of the run's samples. If samples have
    several labels in the file, the majority is used. `by`, `label` or `metadata.NAME`, adds the metrics for
    each of its values. `order` lists the labels from least to most, for weighted kappa. `mapping` names the
    columns of the file with `id`, `label` or `annotator`. `labels` maps its values to their meaning, if the
    judge answers faithful or hallucinated. Raises `SpecError` and `DatasetError` for unknown names and
    unreadable data, also if the share of unreadable rows exceeds `max_unread`, and `InputError` if nothing
    can be compared.
    """
    if by is not None and by != "label" and not by.startswith("metadata."):
        raise SpecError(f"--by must be label or metadata.NAME, got {by!r} (did you mean 'metadata.{by}'?)")
    own = judged(run, judge, store)
    if reference == "-":
        raise SpecError("labels cannot be read from standard input; give a file: --with FILE")
    if reference is None and reference_judge is not None:
        reference = run
    for option, given in (("--map", mapping), ("--labels", labels)):
        if given and not _is_file(reference):
            raise SpecError(f"{option} needs a file of labels: --with FILE")
    meanings, most = check_labels(labels), check_max_unread(max_unread)
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
        raise SpecError("--with-judge needs a run, not a file of labels")
    return _with_file(own, Path(str(reference)), by, order, mapping, meanings, most)


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
        raise SpecError(
            f"a judge cannot be compared with itself; choose another one of {', '.join(own.record.judges)}"
        )
    opposed = None
    if own.scoring is not None and other.scoring is not None:
        opposed = own.scoring.direction != other.scoring.direction
    pairs, left_out = pairs_of_judges(own.samples, own.outcomes, other.samples, other.outcomes, opposed)
    name = other.judge if same else f"{other.judge} of {other.name}"
    return _report(own, name, pairs, left_out, by, order)


def _with_file(
    own: Judged,
    path: Path,
    by: str | None,
    order: Sequence[str] | None,
    mapping: Mapping[str, str] | None,
    meanings: Mapping[str, str],
    max_unread: float,
) -> AgreementReport:
    said = {each.label for each in own.outcomes.values() if isinstance(each, Verdict)}
    known = {*said, *(order or ())}
    if meanings and not known <= {FAITHFUL, HALLUCINATED}:
        raise SpecError(
            f"--labels needs a judge with the labels {FAITHFUL} and {HALLUCINATED}; this one has "
            f"{', '.join(sorted(known))}, and labels of {path.name} are compared unchanged"
        )
    read = read_annotations(path, known=known, mapping=mapping, labels=meanings, max_unread=max_unread)
    votes = {sample_id: each for sample_id, each in read.votes.items() if sample_id in own.samples}
    if not votes:
        some = ", ".join(repr(each) for each in list(read.votes)[:3])
        here = ", ".join(repr(each) for each in list(own.samples)[:3])
        raise SpecError(f"no id in {path.name} is in run {own.name}: the file has {some}, the run {here}")

    unknown = {sample_id for sample_id, _ in read.unknown}

    def lacking(sample: Sample) -> str:
        if votes.get(sample.id):
            return "tied among people"
        if sample.id in unknown:
            return f"with an unknown label in {path.name}"
        return f"without a label in {path.name}" if sample.id in read.unlabelled else f"not in {path.name}"

    pairs, left_out = pairs_with(
        own.samples, own.outcomes, lambda sample: majority(votes.get(sample.id, ())), lacking
    )
    several = any(len(each) > 1 for each in votes.values())
    reference = f"the majority in {path.name}" if several else path.name
    found = {label for each in votes.values() for label in each} | said
    labels, _ = order_of(found, order)
    raters = raters_of(own.samples, votes, read.n_raters, own.outcomes, labels) if several else None
    report = _report(own, reference, pairs, left_out, by, order, found)
    remarks = (*_not_used(read, len(read.votes) - len(votes), path), *report.remarks)
    return replace(report, raters=raters, remarks=remarks, problems=tuple(map(str, read.problems)))


def _not_used(read: Annotations, strangers: int, path: Path) -> Iterator[str]:
    """Yield remarks on labels of the file that are not compared, besides samples that are left out."""
    if read.unknown:
        words = Counter(shorten(word, 40) for _, word in read.unknown)
        told = ", ".join(f"{word!r} {count}" for word, count in words.most_common(MOST_WORDS))
        more = f" and {len(words) - MOST_WORDS} more words" if len(words) > MOST_WORDS else ""
        yield (
            f"{len(read.unknown)} labels in {path.name} are unknown words and were ignored: {told}{more}. "
            "The figures cover only the other samples, which may be the easier ones. To compare these labels "
            "too, give all labels from least to most with --order."
        )
    if strangers:
        yield f"Ids in {path.name} that are not in this run: {strangers}."


def _report(
    own: Judged,
    reference: str,
    pairs: list[Pair],
    left_out: Mapping[str, int],
    by: str | None,
    order: Sequence[str] | None,
    found: set[str] | None = None,
) -> AgreementReport:
    if not pairs:
        why = ", ".join(f"{count} {reason}" for reason, count in left_out.items()) or "it has none"
        raise InputError(
            f"nothing can be compared: no sample of run {own.name} has both a verdict of {own.judge!r} and a "
            f"label ({reference}); its {own.n_total} samples: {why}"
        )
    used = {label for pair in pairs for label in (pair.reference, pair.verdict.label)}
    labels, places = order_of(used | (found or set()), order)
    overall = agreement(pairs, labels, places)
    slices = {} if by is None else slices_of(pairs, lambda s: value_at(s, by), by, labels, places)
    return AgreementReport(
        run=own.name,
        judge=own.judge,
        reference=reference,
        n_total=own.n_total,
        left_out=left_out,
        labels=labels,
        places=places,
        overall=overall,
        by=by,
        slices=slices,
        disagreements=disagreements(pairs),
        remarks=remarks_of(overall, labels),
    )
