"""A comparison of judges on the same samples: which is better and by how much, in figures and sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from magistrate._text import counted, decimal, p_of, signed, table
from magistrate.analysis.columns import AGAIN, KNOWN, NOT_STORED, groups_of, missing, unlike
from magistrate.errors import InputError
from magistrate.metrics.classification import LEAST_GROUPS, Estimate, fields_of
from magistrate.metrics.paired import (
    ALPHA,
    COMPARED,
    PRIMARY,
    Figures,
    exact_mcnemar,
    holm,
    smallest_difference,
)
from magistrate.metrics.resampling import (
    DRAWS,
    FEW_CONTEXTS,
    SEED,
    difference_of,
    draws_of,
    interval_of,
    least_p,
    standard_error,
)
from magistrate.types import HALLUCINATED, Abstention, Failure, Outcome, Sample, Scoring, Verdict

if TYPE_CHECKING:
    from magistrate.datasets.rows import Unread

HEADS = {"balanced_accuracy": "balanced accuracy", "f1": "F1", "auroc": "AUROC", "brier": "Brier score"}
"""Metrics as they are written in tables, where the name differs."""


@dataclass(frozen=True, slots=True)
class SideResult:
    """The result of one side of a comparison: its own coverage, and its figures on the shared samples."""

    name: str
    run: str
    judge: str
    n_total: int
    n_ok: int
    failures: int
    abstentions: int
    labels: Mapping[str, int]
    figures: Mapping[str, Estimate]

    @property
    def coverage(self) -> float | None:
        """`n_ok / n_total`; None for a run without samples."""
        return self.n_ok / self.n_total if self.n_total else None

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain JSON values. `labels` are those given to the shared samples."""
        return fields_of(self, figures="metrics") | {"coverage": self.coverage}


@dataclass(frozen=True, slots=True)
class Difference:
    """The first side's metric minus the second's, with its interval.

    `p` is the p value of no difference, None if the samples give none. Primary metrics are those that were
    requested: `corrected` is the p value corrected for all requested comparisons, and `detectable` the
    smallest true difference that as many samples would show with a power of 80 % in the first step of the
    correction, None if they cannot show any. Every other metric is `exploratory`: it has neither and shows
    nothing. `error` is the standard error of the difference.
    """

    metric: str
    value: Estimate
    p: float | None
    corrected: float | None
    detectable: float | None
    error: float | None = None
    exploratory: bool = False

    @property
    def better(self) -> int:
        """1 if the first side is shown to be better, -1 if the second is, 0 if neither is."""
        if self.exploratory or self.corrected is None or self.corrected >= ALPHA or not self.value.value:
            return 0
        return 1 if (self.value.value > 0) == (self.metric != "brier") else -1

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain JSON values."""
        return {
            **self.value.to_dict(),
            "p": self.p,
            "p_corrected": self.corrected,
            "exploratory": self.exploratory,
            "standard_error": self.error,
            "detectable": self.detectable,
            "better": {1: "first", -1: "second", 0: None}[self.better],
        }


def outcome_of(each: Difference) -> str:
    """Return a short text on what a difference shows about the first side."""
    if each.p is None:
        return "unknown"
    if each.exploratory:
        return "exploratory"
    return {1: "better", -1: "worse", 0: "not shown"}[each.better]


@dataclass(frozen=True, slots=True)
class Flip:
    """A sample to which two sides give different labels. `right` is the correct side, None if unknown."""

    sample_id: str
    gold: str | None
    first: str
    second: str
    first_score: float
    second_score: float
    right: str | None

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain JSON values."""
        return fields_of(self, sample_id="sample")


@dataclass(frozen=True, slots=True)
class PairResult:
    """The comparison of two sides: how often each alone was right, every difference, and the flips.

    The four counts and the p value of McNemar's test, which is exploratory, are None without gold labels.
    """

    first: str
    second: str
    both_right: int | None
    only_first: int | None
    only_second: int | None
    both_wrong: int | None
    mcnemar: float | None
    differences: Mapping[str, Difference]
    flips: tuple[Flip, ...]

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain JSON values, including every flip."""
        names = {"only_first": "only_first_right", "only_second": "only_second_right", "mcnemar": "mcnemar_p"}
        return fields_of(self, **names)


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison of judges on the `n` of `n_all` different samples that all judged and that match.

    `left_out` counts the other samples by reason. Of `metrics`, those in `primary` were requested; `family`
    is the number of their p values, which were corrected together. The others are exploratory. `gold` is
    whether the samples are labelled, so that a side can be better or worse.
    """

    n: int
    n_all: int
    n_contexts: int
    left_out: Mapping[str, int]
    gold: bool
    metrics: tuple[str, ...]
    primary: tuple[str, ...]
    family: int
    draws: int
    seed: int
    sides: tuple[SideResult, ...]
    pairs: tuple[PairResult, ...]
    sentences: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain JSON values."""
        return fields_of(self, family="corrected_together")

    def _repr_html_(self) -> str:
        sides = [
            (side.name, f"{side.n_ok}/{side.n_total}", *(str(each) for each in side.figures.values()))
            for side in self.sides
        ]
        title = f"{self.n} of {counted(self.n_all, 'sample')}, {counted(self.n_contexts, 'context')}"
        pages = [
            table(("judge", "ok", *(HEADS.get(each, each) for each in self.metrics)), sides, title=title)
        ]
        for pair in self.pairs:
            rows = [
                (
                    HEADS.get(name, name),
                    signed(each.value.value),
                    ""
                    if each.value.low is None
                    else f"[{signed(each.value.low)}, {signed(each.value.high)}]",
                    p_of(each.p),
                    p_of(each.corrected),
                    decimal(each.detectable),
                    outcome_of(each),
                )
                for name, each in pair.differences.items()
            ]
            if rows:
                head = ("metric", "difference", "95 % interval", "p", "p, corrected", "detectable", "")
                pages.append(table(head, rows, title=f"{pair.first} minus {pair.second}"))
        if told := [(each,) for each in (*self.sentences, *self.remarks)]:
            pages.append(table(("in words",), told))
        return "".join(pages)


# --- comparison -------------------------------------------------------------------------------------


MOST_DRAWS = 20_000
OF_SCORES = ("auroc", "brier")
UNDEFINED = "undefined on these samples"
MOST_WEIGHTS = 200_000_000
"""Samples times draws, beyond which no more draws are made than usual."""


@dataclass(frozen=True, slots=True)
class Side:
    """One judge of one run: its samples and outcomes by sample id. `n_total` samples were to be judged.

    Only labels, scores and codes of the outcomes are read. `scoring` defines how scores are read; if it is
    None (not known), metrics of scores are not compared. `unread` is the number of rows of its data that
    could not be read, None if they were not counted.
    """

    name: str
    run: str
    judge: str
    n_total: int
    samples: Mapping[str, Sample] = field(repr=False)
    outcomes: Mapping[str, Outcome] = field(repr=False)
    scoring: Scoring | None = None
    unread: Unread | None = None


@dataclass(frozen=True, slots=True)
class Shared:
    """The samples on which all sides have a verdict, and each side's verdicts in the same order."""

    samples: tuple[Sample, ...]
    verdicts: tuple[tuple[Verdict, ...], ...]
    left_out: Mapping[str, int]
    n_all: int
    gold: bool


# --- shared samples ------------------------------------------------------------------------------


def shared(sides: Sequence[Side]) -> Shared:
    """Return the samples with equal id and text in every run and a verdict of every judge.

    If any of them is labelled faithful or hallucinated and every judge uses these labels, only labelled
    samples are kept, because no judge can be right or wrong about the others.
    """
    everything = {sample_id: None for side in sides for sample_id in side.samples}
    left_out, kept = Counter[str](), list[tuple[Sample, tuple[Verdict, ...]]]()
    for sample_id in everything:
        reason, sample = _matched(sides, sample_id)
        verdicts = tuple(
            outcome for side in sides if isinstance(outcome := side.outcomes.get(sample_id), Verdict)
        )
        if reason is None and len(verdicts) < len(sides):
            lacking = next(s for s in sides if not isinstance(s.outcomes.get(sample_id), Verdict))
            reason = f"{missing(lacking.outcomes.get(sample_id))} ({lacking.name})"
        if reason is None and sample is not None:
            kept.append((sample, verdicts))
        else:
            left_out[str(reason)] += 1
    speaks = all(any(verdicts[at].label in KNOWN for _, verdicts in kept) for at in range(len(sides)))
    gold = speaks and any(sample.label in KNOWN for sample, _ in kept)
    if gold:
        left_out.update(why for each in kept if (why := _unlabelled(*each)))
        kept = [each for each in kept if not _unlabelled(*each)]
    columns = tuple(tuple(verdicts[at] for _, verdicts in kept) for at in range(len(sides)))
    samples = tuple(sample for sample, _ in kept)
    return Shared(samples, columns, dict(left_out.most_common()), len(everything), gold)


def _unlabelled(sample: Sample, verdicts: Iterable[Verdict]) -> str | None:
    """Return why no judge can be right or wrong about a sample, None if one can."""
    if sample.label is None:
        return "no gold label"
    if sample.label not in KNOWN:
        return "another gold label"
    return None if all(each.label in KNOWN for each in verdicts) else "verdict with another label"


def _matched(sides: Sequence[Side], sample_id: str) -> tuple[str | None, Sample | None]:
    """Return one sample with its gold label, or why the sides do not have the same sample."""
    first: Sample | None = None
    for side in sides:
        sample = side.samples.get(sample_id)
        if sample is None:
            return f"not in {side.name}", None
        if first is None:
            first = sample
            continue
        if why := unlike(first, sample):
            return f"{why} in {side.name}", None
        if first.label is not None and sample.label is not None and first.label != sample.label:
            return "labelled differently", None
        first = first if first.label is not None else replace(first, label=sample.label)
    return None, first


# --- the comparison ------------------------------------------------------------------------------


def compare(
    sides: Sequence[Side], primary: Sequence[str] = (), *, draws: int | None = None, seed: int = SEED
) -> Comparison:
    """Compare two or more judges on the samples that all of them share.

    `primary` are the metrics of interest: by default `PRIMARY`, or accuracy if all samples are of one class.
    Their p values over all pairs are corrected together (Holm), and only they can show that a side is better.
    All other metrics of `COMPARED` are exploratory. Raises `InputError` for fewer than two sides and if
    nothing can be compared.
    """
    if len(sides) < 2:
        raise InputError(f"a comparison needs at least two judges, got {len(sides)}")
    both = shared(sides)
    if not both.samples:
        told = ", ".join(f"{count} {reason}" for reason, count in both.left_out.items())
        raise InputError(f"no sample was judged by all {len(sides)} judges: {told or 'no samples'}")
    groups = groups_of(both.samples)
    n_groups = int(groups.max()) + 1
    asked = _asked(primary, both) if both.gold else ()
    names = COMPARED if both.gold else ()
    pairs = list(combinations(range(len(sides)), 2))
    family = len(pairs) * len(asked)
    draws = _draws(family, n_groups, len(both.samples)) if draws is None else draws
    measured = _Measured(both, sides, names, groups, draws, seed) if both.gold else None
    results = [_pair(sides, both, measured, one, two, n_groups, asked) for one, two in pairs]
    found = Comparison(
        n=len(both.samples),
        n_all=both.n_all,
        n_contexts=n_groups,
        left_out=both.left_out,
        gold=both.gold,
        metrics=names,
        primary=asked,
        family=sum(p is not None for p in _asked_p(results)),
        draws=draws,
        seed=seed,
        sides=tuple(_side(side, both, measured, at, n_groups) for at, side in enumerate(sides)),
        pairs=tuple(_corrected(results, n_groups, draws)),
    )
    return replace(found, sentences=sentences_of(found), remarks=remarks_of(found, sides))


def _asked(primary: Sequence[str], both: Shared) -> tuple[str, ...]:
    """Return the primary metrics in the usual order; by default the one that the gold labels allow."""
    if unknown := [name for name in primary if name not in COMPARED]:
        raise InputError(f"unknown metric {unknown[0]!r}; known: {', '.join(COMPARED)}")
    if primary:
        return tuple(name for name in COMPARED if name in primary)
    return (PRIMARY if len({sample.label for sample in both.samples}) > 1 else "accuracy",)


def _asked_p(results: Sequence[PairResult]) -> list[float | None]:
    """Return the p values of the primary metrics, pair by pair."""
    return [e.p for pair in results for e in pair.differences.values() if not e.exploratory]


def _draws(family: int, n_groups: int, n: int) -> int:
    """Return how many draws the correction of so many p values needs; more if contexts are few."""
    most = max(DRAWS, min(MOST_DRAWS, MOST_WEIGHTS // n))
    draws = min(DRAWS, most)
    while draws < most and n_groups > 1 and family * least_p(n_groups, draws) > ALPHA / 5:
        draws = min(2 * draws, most)
    return draws


class _Measured:
    """The figures of every side on the shared samples, also in every draw; `values` is `[side, metric]`."""

    def __init__(
        self,
        both: Shared,
        sides: Sequence[Side],
        names: Sequence[str],
        groups: NDArray[np.int64],
        draws: int,
        seed: int,
    ) -> None:
        truth = np.array([sample.label == HALLUCINATED for sample in both.samples], dtype=np.bool_)
        figures = [
            Figures(
                truth,
                np.array([verdict.label == HALLUCINATED for verdict in said], dtype=np.bool_),
                np.array([1 - v.score if _turned(side) else v.score for v in said], dtype=np.float64),
                names,
            )
            for said, side in zip(both.verdicts, sides, strict=True)
        ]

        def everything(weights: NDArray[np.float64]) -> NDArray[np.float64]:
            return np.concatenate([each(weights) for each in figures], axis=1)

        shape = (-1, len(figures), len(names))
        self.names = tuple(names)
        self.values = everything(np.ones((1, truth.size))).reshape(shape)[0]
        self.drawn = draws_of(everything, groups, draws=draws, seed=seed).reshape(shape)
        of_scores = np.array([name in OF_SCORES for name in names], dtype=np.bool_)
        for at, side in enumerate(sides):
            if side.scoring is None:
                self.values[at, of_scores] = np.nan
                self.drawn[:, at, of_scores] = np.nan
        self.support = np.array([[each.support(name, groups) for name in names] for each in figures])

        self._unread = [side.scoring is None for side in sides]

    def lacking(self, metric: str, *sides: int) -> str | None:
        """Return why one of these sides does not have the figure; None if all do."""
        if metric in OF_SCORES and any(self._unread[side] for side in sides):
            return NOT_STORED
        at = self.names.index(metric)
        return UNDEFINED if np.isnan(self.values[list(sides), at]).any() else None


def _turned(side: Side) -> bool:
    return side.scoring is not None and side.scoring.turned


def _side(side: Side, both: Shared, measured: _Measured | None, at: int, n_groups: int) -> SideResult:
    figures: dict[str, Estimate] = {}
    for number, name in enumerate(measured.names if measured else ()):
        assert measured is not None
        figures[name] = (
            Estimate.none(why)
            if (why := measured.lacking(name, at))
            else interval_of(float(measured.values[at, number]), measured.drawn[:, at, number], n_groups)
        )
    outcomes = list(side.outcomes.values())
    return SideResult(
        side.name,
        side.run,
        side.judge,
        side.n_total,
        sum(isinstance(each, Verdict) for each in outcomes),
        sum(isinstance(each, Failure) for each in outcomes),
        sum(isinstance(each, Abstention) for each in outcomes),
        dict(Counter(verdict.label for verdict in both.verdicts[at]).most_common()),
        figures,
    )


def _pair(
    sides: Sequence[Side],
    both: Shared,
    measured: _Measured | None,
    one: int,
    two: int,
    n_groups: int,
    asked: Sequence[str],
) -> PairResult:
    first, second = both.verdicts[one], both.verdicts[two]
    flips = _flips(sides, both, one, two)
    if measured is None:
        return PairResult(sides[one].name, sides[two].name, None, None, None, None, None, {}, flips)
    right = Counter(
        (a.label == sample.label, b.label == sample.label)
        for sample, a, b in zip(both.samples, first, second, strict=True)
    )
    return PairResult(
        sides[one].name,
        sides[two].name,
        right[True, True],
        right[True, False],
        right[False, True],
        right[False, False],
        exact_mcnemar(right[True, False], right[False, True]),
        {
            name: replace(_difference(measured, name, one, two, n_groups), exploratory=name not in asked)
            for name in (*asked, *(each for each in measured.names if each not in asked))
        },
        flips,
    )


def _difference(measured: _Measured, name: str, one: int, two: int, n_groups: int) -> Difference:
    if why := measured.lacking(name, one, two):
        return Difference(name, Estimate.none(why), None, None, None, None)
    at = measured.names.index(name)
    drawn = measured.drawn[:, one, at] - measured.drawn[:, two, at]
    support = min(int(measured.support[one, at]), int(measured.support[two, at]))
    apart = float(measured.values[one, at] - measured.values[two, at])
    value, p = difference_of(apart, drawn, n_groups, support)
    error = None if value.low is None else standard_error(drawn, n_groups)
    return Difference(name, value, p, None, None, error)


def _corrected(results: Sequence[PairResult], n_groups: int, draws: int) -> list[PairResult]:
    """Return the pairs with the p values of primary metrics corrected together. Others are unchanged.

    The detectable difference uses the level of the first step of the correction.
    """
    p_values = _asked_p(results)
    corrected, family = iter(holm(p_values)), sum(p is not None for p in p_values)
    able = family * least_p(n_groups, draws) < ALPHA

    def shown(each: Difference) -> Difference:
        if each.exploratory:
            return each
        detectable = smallest_difference(each.error, n_groups, family) if able else None
        return replace(each, corrected=next(corrected), detectable=detectable)

    return [
        replace(pair, differences={name: shown(each) for name, each in pair.differences.items()})
        for pair in results
    ]


def _flips(sides: Sequence[Side], both: Shared, one: int, two: int) -> tuple[Flip, ...]:
    """Return the samples to which the two give different labels, the greatest difference of scores first."""
    found = []
    for sample, a, b in zip(both.samples, both.verdicts[one], both.verdicts[two], strict=True):
        if a.label == b.label:
            continue
        right = None
        if both.gold:
            right = sides[one].name if a.label == sample.label else sides[two].name
        found.append(Flip(sample.id, sample.label, a.label, b.label, a.score, b.score, right))
    return tuple(sorted(found, key=lambda flip: (-abs(flip.first_score - flip.second_score), flip.sample_id)))


NAMES = {
    "balanced_accuracy": "balanced accuracy",
    "f1": "F1",
    "auroc": "AUROC",
    "brier": "Brier score (lower is better)",
}


def name_of(metric: str) -> str:
    """Return a metric's display name."""
    return NAMES.get(metric, metric)


def sentences_of(comparison: Comparison) -> tuple[str, ...]:
    """Return one sentence per pair and primary metric."""
    return tuple(
        _sentence(pair, each, " corrected" if comparison.family > 1 else "")
        for pair in comparison.pairs
        for each in pair.differences.values()
        if not each.exploratory
    )


def _sentence(pair: PairResult, each: Difference, corrected: str) -> str:
    value, name = each.value, name_of(each.metric)
    if value.value is None:
        return f"{pair.first} and {pair.second} cannot be compared by {name}: {value.undefined}."
    if value.low is None and each.p is None:
        return f"{pair.first} minus {pair.second} by {name}: {signed(value.value)}, {value.undefined}."
    shown = f"{signed(value.value)} {bounds(value.low, value.high)}".rstrip()
    shown += f", p {p_of(each.corrected)}{corrected}"
    if value.low is None:
        shown += f" (by the sign test over contexts; {value.undefined})"
    if each.better:
        word = "better" if each.better > 0 else "worse"
        return f"{pair.first} is {word} than {pair.second} by {name}: {shown}."
    after = " after correction" if corrected else ""
    could = (
        f"; these samples could have shown a difference of {decimal(each.detectable)} or more{after}"
        if each.detectable
        else ""
    )
    alone = each.p is not None and each.p < ALPHA
    why = f" (p {p_of(each.p)} before correction)" if alone else ""
    return f"No difference between {pair.first} and {pair.second} is shown by {name}: {shown}{why}{could}."


def bounds(low: float | None, high: float | None) -> str:
    """Format an interval as `[+.01, +.11]`; empty if there is none."""
    return "" if low is None else f"[{signed(low)}, {signed(high)}]"


def remarks_of(comparison: Comparison, sides: Sequence[Side]) -> tuple[str, ...]:
    """Return the limits of the comparison, the gravest first."""
    return tuple(_remarks(comparison, sides))


def _remarks(comparison: Comparison, sides: Sequence[Side]) -> Iterator[str]:
    if not comparison.gold:
        yield ("There are no gold labels: differences can be shown, but not which judge is better.")
    silent = [side for side in comparison.sides if side.failures or side.abstentions]
    if silent:
        told = "; ".join(
            f"{side.name} failed on {side.failures} and abstained on {side.abstentions} of {side.n_total}"
            for side in silent
        )
        yield f"Left out, which may favour a judge that fails on hard samples: {told}."
    for run, unread in {each.run: each.unread for each in sides}.items():
        if unread is not None and unread.n:
            yield f"In run {run} {unread}; no figure includes them."
    for each in sides:
        if each.scoring is None and comparison.gold:
            yield f"AUROC and Brier score of {each.name} are left out: {NOT_STORED}. {AGAIN}."
        elif each.scoring is not None and each.scoring.turned:
            yield (
                f"A low score of {each.name} means hallucinated (its direction is maximize); its AUROC and "
                "Brier score use 1 - score."
            )
    if comparison.gold and comparison.n_contexts < FEW_CONTEXTS:
        yield (
            f"Only {counted(comparison.n_contexts, 'independent context')}: intervals are wide, and p values "
            "only approximate."
        )
    if comparison.gold and comparison.n_contexts < comparison.n:
        yield (
            f"{comparison.n} samples share {comparison.n_contexts} contexts. Intervals take that into "
            "account; McNemar's test does not: it treats samples as independent."
        )
    if comparison.gold and comparison.n_contexts < LEAST_GROUPS:
        return
    least = least_p(comparison.n_contexts, comparison.draws)
    if comparison.gold and comparison.family and comparison.family * least >= ALPHA:
        yield (
            f"Nothing can be shown: with {comparison.n_contexts} contexts and {comparison.draws:,} draws, no "
            f"bootstrap p value can be below {p_of(least)}, and this times {comparison.family} comparisons "
            f"is not below {ALPHA:g}; compare fewer judges or metrics at once, or judge more contexts."
        )
