"""Judges beside each other on the same samples: who is better, by how much, and where they differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal

from magistrate._text import shorten
from magistrate.analysis.comparison import Comparison, Difference, Flip, PairResult, SideResult, compare
from magistrate.analysis.comparison_text import sentences_of
from magistrate.api.compare import sides_at
from magistrate.errors import InputError, SpecError
from magistrate.metrics.classification import Estimate
from magistrate.metrics.paired import COMPARED
from magistrate.server.preparing import prepare
from magistrate.server.views.choosing import Chosen
from magistrate.store import Store

AT_ONCE = 25
MOST_AT_ONCE = 500
EXCERPT = 240  # characters of an output

Who = Literal["first", "second"]


def check_metrics(names: Sequence[str]) -> tuple[str, ...]:
    """The metrics asked about, in the usual order; empty for the default. Raises `InputError` for others."""
    if unknown := [name for name in names if name not in COMPARED]:
        raise InputError(f"unknown metric {shorten(repr(unknown[0]))}; known: {', '.join(COMPARED)}")
    return tuple(name for name in COMPARED if name in names)


def compared(store: Store, sides: Sequence[Chosen], metrics: Sequence[str]) -> Comparison:
    """The comparison of these sides, as the store is now. Raises `InputError` where there is none."""
    prepare()
    with store.snapshot() as moment:
        records = {run: moment.record(run) for run in dict.fromkeys(side.run for side in sides)}
        read = sides_at(moment, [(records[side.run], side.judge) for side in sides])
    return compare(read, metrics)


@dataclass(frozen=True, slots=True, kw_only=True)
class SideView:
    """A side: its own coverage, and its figures on the samples that all sides share.

    `name` tells it from the others. `changed` says that its run is no longer as it was compared.
    """

    name: str
    run: str
    run_name: str | None
    judge: str
    status: str
    changed: bool
    n_total: int
    n_ok: int
    n_failures: int
    n_abstentions: int
    coverage: float | None
    labels: dict[str, int]
    figures: dict[str, Estimate]


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferenceView:
    """The first side's figure less the second's, with its 95 % interval; as `Difference` has them."""

    value: float | None
    low: float | None
    high: float | None
    undefined: str | None
    p: float | None
    p_corrected: float | None
    exploratory: bool
    detectable: float | None
    better: Who | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PairView:
    """Two of the sides, by their places among all: how often each was right, and what differs.

    Counts of who was right and the p value of McNemar's test are None without gold labels.
    """

    first: int
    second: int
    both_right: int | None
    only_first_right: int | None
    only_second_right: int | None
    both_wrong: int | None
    mcnemar_p: float | None
    differences: dict[str, DifferenceView]
    sentences: tuple[str, ...]
    n_flips: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FlipRow:
    """A sample that two sides call by different labels; `excerpt` is the beginning of its output."""

    sample_id: str
    gold: str | None
    first: str
    second: str
    first_score: float
    second_score: float
    right: Who | None
    excerpt: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FlipsView:
    """A stretch of the flips of one pair, those with the scores furthest apart first.

    They are the `n` on which `right` is right, or all. `previous` and `next` are where the stretches beside
    it start, None at an end.
    """

    pair: int
    right: Who | None
    n: int
    start: int
    previous: int | None
    next: int | None
    rows: tuple[FlipRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareView:
    """A comparison, as `magistrate.analysis.compared.Comparison` has it, with the flips of one pair."""

    n: int
    n_all: int
    n_contexts: int
    left_out: dict[str, int]
    gold: bool
    metrics: tuple[str, ...]
    primary: tuple[str, ...]
    corrected_together: int
    draws: int
    seed: int
    sides: tuple[SideView, ...]
    pairs: tuple[PairView, ...]
    remarks: tuple[str, ...]
    flips: FlipsView


def compare_view(
    store: Store,
    comparison: Comparison,
    sides: Sequence[Chosen],
    at: Sequence[int],
    *,
    pair: int = 0,
    right: Who | None = None,
    start: int = 0,
    limit: int = AT_ONCE,
) -> CompareView:
    """A comparison of these sides as they were at the revisions `at`, with flips from number `start` on.

    Raises `SpecError` where it has no pair of this number.
    """
    if pair >= len(comparison.pairs):
        raise SpecError(f"there are {len(comparison.pairs)} pairs, numbered from 0, and none is {pair}")
    numbers = list(combinations(range(len(sides)), 2))
    return CompareView(
        n=comparison.n,
        n_all=comparison.n_all,
        n_contexts=comparison.n_contexts,
        left_out=dict(comparison.left_out),
        gold=comparison.gold,
        metrics=comparison.metrics,
        primary=comparison.primary,
        corrected_together=comparison.family,
        draws=comparison.draws,
        seed=comparison.seed,
        sides=tuple(map(_side, comparison.sides, sides, at)),
        pairs=tuple(
            _pair(comparison, each, *both) for each, both in zip(comparison.pairs, numbers, strict=True)
        ),
        remarks=comparison.remarks,
        flips=_flips(store, comparison, sides[numbers[pair][0]].run, pair, right, start, limit),
    )


def _side(result: SideResult, chosen: Chosen, revision: int) -> SideView:
    return SideView(
        name=result.name,
        run=chosen.run,
        run_name=chosen.name,
        judge=chosen.judge,
        status=chosen.status,
        changed=chosen.revision != revision,
        n_total=result.n_total,
        n_ok=result.n_ok,
        n_failures=result.failures,
        n_abstentions=result.abstentions,
        coverage=result.coverage,
        labels=dict(result.labels),
        figures=dict(result.figures),
    )


def _pair(comparison: Comparison, pair: PairResult, first: int, second: int) -> PairView:
    return PairView(
        first=first,
        second=second,
        both_right=pair.both_right,
        only_first_right=pair.only_first,
        only_second_right=pair.only_second,
        both_wrong=pair.both_wrong,
        mcnemar_p=pair.mcnemar,
        differences={name: _difference(each) for name, each in pair.differences.items()},
        sentences=sentences_of(replace(comparison, pairs=(pair,))),
        n_flips=len(pair.flips),
    )


def _difference(each: Difference) -> DifferenceView:
    who: dict[int, Who | None] = {1: "first", -1: "second", 0: None}
    return DifferenceView(
        value=each.value.value,
        low=each.value.low,
        high=each.value.high,
        undefined=each.value.undefined,
        p=each.p,
        p_corrected=each.corrected,
        exploratory=each.exploratory,
        detectable=each.detectable,
        better=who[each.better],
    )


def _flips(
    store: Store, comparison: Comparison, run_id: str, number: int, right: Who | None, start: int, limit: int
) -> FlipsView:
    pair = comparison.pairs[number]
    who: dict[str | None, Who | None] = {pair.first: "first", pair.second: "second"}
    fit = [each for each in pair.flips if right is None or who.get(each.right) == right]
    shown = fit[start : start + limit]
    with store.snapshot() as moment:
        outputs = moment.outputs(run_id, [each.sample_id for each in shown])
    return FlipsView(
        pair=number,
        right=right,
        n=len(fit),
        start=start,
        previous=max(start - limit, 0) if start else None,
        next=start + limit if start + limit < len(fit) else None,
        rows=tuple(_row(each, who.get(each.right), outputs.get(each.sample_id)) for each in shown),
    )


def _row(flip: Flip, right: Who | None, output: str | None) -> FlipRow:
    return FlipRow(
        sample_id=flip.sample_id,
        gold=flip.gold,
        first=flip.first,
        second=flip.second,
        first_score=flip.first_score,
        second_score=flip.second_score,
        right=right,
        excerpt=None if output is None else shorten(output, EXCERPT),
    )
