"""Agreement of one judge with human labels, or with another judge, on the same samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

import numpy as np

from magistrate._text import counted, decimal, shorten, table
from magistrate.analysis.columns import KNOWN, groups_of, missing, unlike
from magistrate.errors import InputError, SpecError
from magistrate.metrics.agreement import concordance, many_raters, two_raters
from magistrate.metrics.classification import Estimate, fields_of
from magistrate.metrics.resampling import FEW_CONTEXTS
from magistrate.types import HALLUCINATED, Outcome, Sample, Verdict

MOST_SLICES = 100
LOW_KAPPA, HIGH_AGREEMENT = 0.4, 0.8
EXCERPT = 100  # characters of the output shown with a disagreement


@dataclass(frozen=True, slots=True)
class Pair:
    """A sample with its two labels: the reference label and the judge's verdict."""

    sample: Sample
    reference: str
    verdict: Verdict
    reference_score: float | None = None


@dataclass(frozen=True, slots=True)
class Agreement:
    """The agreement of two sides on n samples.

    `table[i][j]` counts the samples with reference label i and judge label j, in the order of the report's
    labels. `figures` have the names of `metrics.agreement` and, if both sides are judges, `scores`, the
    concordance of their scores.
    """

    n: int
    n_contexts: int
    table: tuple[tuple[int, ...], ...]
    figures: Mapping[str, Estimate]

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain JSON values."""
        return {
            "n": self.n,
            "n_contexts": self.n_contexts,
            "table": [list(row) for row in self.table],
            **{name: estimate.to_dict() for name, estimate in self.figures.items()},
        }


@dataclass(frozen=True, slots=True)
class Raters:
    """The agreement of several human raters on n samples: `people` without, and `all_raters` with the judge.

    `ties` is the number of samples without a majority label; the judge is not compared on them.
    """

    n: int
    n_raters: int
    n_labels: int
    ties: int
    people: Mapping[str, Estimate]
    all_raters: Mapping[str, Estimate]

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain JSON values."""
        return fields_of(self, all_raters="with_the_judge")


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A sample to which the two sides give different labels."""

    sample_id: str
    reference: str
    said: str
    score: float
    probability: float | None
    excerpt: str

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain JSON values."""
        return fields_of(self, sample_id="sample", said="judge")


@dataclass(frozen=True, slots=True)
class AgreementReport:
    """A judge of a run compared with a reference: overall, by slice, and each sample on which they differ.

    `n_total` is the number of samples of the run. `left_out` counts, by reason, those that could not be
    compared. `places` are the positions of the labels, from least to most, for weighted kappa: 0, 1, 2 and so
    on for a given order, the numbers themselves for numeric labels, None if labels have no order. `problems`
    are rows of a label file that could not be read.
    """

    run: str
    judge: str
    reference: str
    n_total: int
    left_out: Mapping[str, int]
    labels: tuple[str, ...]
    places: tuple[float, ...] | None
    overall: Agreement
    by: str | None = None
    slices: Mapping[str, Agreement] = field(default_factory=dict)
    raters: Raters | None = None
    disagreements: tuple[Disagreement, ...] = ()
    remarks: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def ordered(self) -> bool:
        """Whether the labels have a meaningful order."""
        return self.places is not None

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain JSON values, including every disagreement."""
        return fields_of(self) | {"ordered": self.ordered}

    def _repr_html_(self) -> str:
        overall, title = self.overall, f"{self.judge} against {self.reference}: {self.overall.n} samples"
        pages = [table(("figure", "value"), [(n, str(e)) for n, e in overall.figures.items()], title=title)]
        rows = zip(self.labels, overall.table, strict=True)
        head = (f"{self.reference} \\ {self.judge}", *self.labels)
        pages.append(table(head, [(label, *map(str, row)) for label, row in rows]))
        if self.slices:
            names = ("observed", "kappa", "alpha", "ac1")
            found = [
                (name, str(each.n), *(str(each.figures[figure]) for figure in names))
                for name, each in self.slices.items()
            ]
            pages.append(table((self.by or "", "n", *names), found))
        if self.remarks:
            pages.append(table(("remarks",), [(each,) for each in self.remarks]))
        return "".join(pages)


# --- samples with two labels ---------------------------------------------------------------------


def pairs_with(
    samples: Mapping[str, Sample],
    outcomes: Mapping[str, Outcome],
    reference: Callable[[Sample], str | None],
    lacking: Callable[[Sample], str],
) -> tuple[list[Pair], dict[str, int]]:
    """Pair verdicts with the label that `reference` returns for a sample. Count the other samples by reason.

    `lacking` returns the reason why a sample has no reference label.
    """
    pairs, left_out = list[Pair](), Counter[str]()
    for sample in samples.values():
        outcome, label = outcomes.get(sample.id), reference(sample)
        if not isinstance(outcome, Verdict):
            left_out[missing(outcome)] += 1
        elif label is None:
            left_out[lacking(sample)] += 1
        else:
            pairs.append(Pair(sample, label, outcome))
    return pairs, dict(left_out.most_common())


def pairs_of_judges(
    samples: Mapping[str, Sample],
    outcomes: Mapping[str, Outcome],
    other_samples: Mapping[str, Sample],
    other: Mapping[str, Outcome],
    opposed: bool | None = False,
) -> tuple[list[Pair], dict[str, int]]:
    """Pair the verdicts of two judges on samples with equal id and text. Count the other samples by reason.

    If `opposed`, a high score of one judge means what a low score of the other does, and the other's scores
    are inverted. If it is None (not known), they are omitted.
    """
    pairs, left_out = list[Pair](), Counter[str]()
    for sample in samples.values():
        twin = other_samples.get(sample.id)
        mine, theirs = outcomes.get(sample.id), other.get(sample.id)
        if twin is None:
            left_out["not in the other run"] += 1
        elif why := unlike(sample, twin):
            left_out[f"{why} in the other run"] += 1
        elif not isinstance(mine, Verdict):
            left_out[missing(mine)] += 1
        elif not isinstance(theirs, Verdict):
            left_out[f"{missing(theirs)} in the reference"] += 1
        else:
            beside = None if opposed is None else 1 - theirs.score if opposed else theirs.score
            pairs.append(Pair(sample, theirs.label, mine, beside))
    only = sum(each not in samples for each in other_samples)
    if only:
        left_out["only in the other run"] += only
    return pairs, dict(left_out.most_common())


# --- figures -------------------------------------------------------------------------------------


def order_of(
    found: Iterable[str], order: Sequence[str] | None = None
) -> tuple[tuple[str, ...], tuple[float, ...] | None]:
    """Return the labels in the order of tables, and their positions, None if the order has no meaning.

    `order` goes from least to most and must contain every label found; its positions are 0, 1, 2 and so on.
    Numeric labels are their own positions. If no other label is found, faithful and hallucinated are both
    listed.
    """
    labels = set(found)
    if order is not None:
        if len(set(order)) != len(order) or len(order) < 2:
            raise SpecError(f"--order needs two or more different labels, got {', '.join(order) or 'none'}")
        if lost := sorted(labels - set(order)):
            raise SpecError(
                f"--order must include the label {lost[0]!r}; labels in the data: {', '.join(sorted(labels))}"
            )
        return tuple(order), tuple(float(at) for at in range(len(order)))
    if labels <= set(KNOWN):
        return (HALLUCINATED, KNOWN[0]), None
    numbers = {label: value for label in labels if (value := _number(label)) is not None}
    if len(numbers) == len(labels):
        ranked = sorted(labels, key=lambda label: (numbers[label], label))
        return tuple(ranked), tuple(numbers[label] for label in ranked)
    return tuple(sorted(labels)), None


def _number(label: str) -> float | None:
    try:
        value = float(label)
    except ValueError:
        return None
    return value if isfinite(value) else None


def agreement(
    pairs: Sequence[Pair],
    labels: Sequence[str],
    places: Sequence[float] | None,
    groups: Sequence[int] | None = None,
) -> Agreement:
    """Return the table of the pairs and all its figures with intervals.

    `places` are the numeric positions of the labels, for weighted kappa; None if labels have no order.
    """
    place = {label: at for at, label in enumerate(labels)}
    first = np.array([place[pair.reference] for pair in pairs], dtype=np.int64)
    second = np.array([place[pair.verdict.label] for pair in pairs], dtype=np.int64)
    numbers = groups_of([pair.sample for pair in pairs]) if groups is None else np.asarray(groups)
    k = len(labels)
    figures = two_raters(first, second, k, numbers, places=places)
    scores = [pair.reference_score for pair in pairs if pair.reference_score is not None]
    if pairs and len(scores) == len(pairs):
        figures["scores"] = concordance(scores, [pair.verdict.score for pair in pairs], numbers)
    counts = np.bincount(first * k + second, minlength=k * k).reshape(k, k)
    table = tuple(tuple(row) for row in counts.tolist())
    return Agreement(len(pairs), int(np.unique(numbers).size), table, figures)


def slices_of(
    pairs: Sequence[Pair],
    value: Callable[[Sample], str | None],
    by: str,
    labels: Sequence[str],
    places: Sequence[float] | None,
) -> dict[str, Agreement]:
    """Return the agreement for each value, the most frequent first. Samples without a value are skipped."""
    found: dict[str, list[Pair]] = {}
    for pair in pairs:
        if (at := value(pair.sample)) is not None:
            found.setdefault(at, []).append(pair)
    if pairs and not found:
        raise InputError(f"no sample has {by}; --by must be label or metadata.NAME")
    if len(found) > MOST_SLICES:
        raise InputError(
            f"{by} has {len(found)} different values; --by needs a field with at most {MOST_SLICES}"
        )
    ranked = sorted(found.items(), key=lambda item: (-len(item[1]), item[0]))
    return {name: agreement(each, labels, places) for name, each in ranked}


def disagreements(pairs: Iterable[Pair]) -> tuple[Disagreement, ...]:
    """Return the pairs whose labels differ, the judge's most confident verdicts first."""
    found = [
        Disagreement(
            pair.sample.id,
            pair.reference,
            pair.verdict.label,
            pair.verdict.score,
            pair.verdict.probability,
            shorten(pair.sample.output or "", EXCERPT),
        )
        for pair in pairs
        if pair.reference != pair.verdict.label
    ]
    return tuple(sorted(found, key=lambda each: (-sureness(each.score, each.probability), each.sample_id)))


def sureness(score: float, probability: float | None) -> float:
    """Return the confidence of a verdict in [0, 1]: its probability, else that of its score."""
    return probability if probability is not None else max(score, 1 - score)


# --- several human raters ------------------------------------------------------------------------


def majority(votes: Sequence[str]) -> str | None:
    """Return the label with the most votes; None for a tie."""
    ranked = Counter(votes).most_common(2)
    return None if not ranked or (len(ranked) == 2 and ranked[0][1] == ranked[1][1]) else ranked[0][0]


def raters_of(
    samples: Mapping[str, Sample],
    votes: Mapping[str, Sequence[str]],
    n_raters: int,
    outcomes: Mapping[str, Outcome],
    labels: Sequence[str],
) -> Raters:
    """Return the agreement among human raters, without and with the judge, on human-labelled samples."""
    place = {label: at for at, label in enumerate(labels)}
    rated = [sample for sample in samples.values() if votes.get(sample.id)]
    counts = np.zeros((len(rated), len(labels)))
    for at, sample in enumerate(rated):
        for vote in votes[sample.id]:
            counts[at, place[vote]] += 1
    with_judge = counts.copy()
    for at, sample in enumerate(rated):
        if isinstance(verdict := outcomes.get(sample.id), Verdict):
            with_judge[at, place[verdict.label]] += 1
    groups = groups_of(rated)
    ties = sum(majority(votes[sample.id]) is None for sample in rated)
    return Raters(
        len(rated),
        n_raters,
        int(counts.sum()),
        ties,
        many_raters(counts, groups),
        many_raters(with_judge, groups),
    )


# --- remarks -------------------------------------------------------------------------------------


def remarks_of(overall: Agreement, labels: Sequence[str]) -> tuple[str, ...]:
    """Return warnings that a reader of the figures must not miss."""
    found = []
    kappa, observed, ac1 = (overall.figures[name].value for name in ("kappa", "observed", "ac1"))
    if kappa is not None and observed is not None and kappa < LOW_KAPPA and observed >= HIGH_AGREEMENT:
        common = max(range(len(labels)), key=lambda at: overall.table[at][at])
        share = overall.table[common][common] / overall.n
        found.append(
            f"Agreement is high ({observed:.0%}) and kappa low ({decimal(kappa)}): both label {share:.0%} of "
            f"the samples {labels[common]!r}, so agreement by chance is already high, and kappa counts only "
            f"agreement beyond it. AC1 ({decimal(ac1)}) assumes less agreement by chance. Look at the table "
            "for what matters: how well the rarer label is found."
        )
    if overall.n and overall.n_contexts < FEW_CONTEXTS:
        found.append(
            f"Only {counted(overall.n_contexts, 'independent context')}: intervals are wide, and only "
            "approximate."
        )
    return tuple(found)
