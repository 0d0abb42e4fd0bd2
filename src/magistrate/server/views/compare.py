"""The judges that are compared, and their comparison as view values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal
from urllib.parse import quote, unquote

from magistrate._text import shorten
from magistrate.analysis.comparison import Comparison, Difference, Flip, PairResult, SideResult, compare
from magistrate.analysis.comparison_text import sentences_of
from magistrate.api.compare import sides_at
from magistrate.errors import InputError, SpecError
from magistrate.metrics.classification import Estimate
from magistrate.metrics.paired import COMPARED
from magistrate.store import RunRecord, Store

MOST_SIDES = 6
"""Six sides are fifteen pairs; more take long, and their correction leaves little to be shown."""
_MOST_WORDS = 2 * MOST_SIDES
_MOST_UNKNOWN = 3  # the search for names similar to an unknown one goes through all runs


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenSide:
    """A judge of a run that is to be compared, with the run's revision; `word` names it in addresses."""

    word: str
    run: str
    name: str | None
    judge: str
    dataset: str
    status: str
    revision: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """The sides that an address names, and why they cannot be compared, None if they can.

    `unknown` says that the problem is an unknown run or judge.
    """

    sides: tuple[ChosenSide, ...]
    problem: str | None = None
    unknown: bool = False


def word_of(run_id: str, judge: str) -> str:
    """A judge of a run as one word of an address: the id of the run, a colon, the name of the judge.

    Characters that no page can hold are percent-encoded in it, and so is `%`.

    >>> word_of("20260102-1", "strict: 5 %"), word_of("20260102-1", "\\x1b")
    ('20260102-1:strict: 5 %25', '20260102-1:%1B')
    """
    letters = (
        letter if letter.isprintable() and letter != "%" else quote(letter, safe="", errors="surrogatepass")
        for letter in judge
    )
    return f"{run_id}:{''.join(letters)}"


def parsed(word: str) -> tuple[str, str | None]:
    """The run's id and the judge, None if the word names a run alone; ids of runs hold no colon."""
    run_id, colon, judge = word.partition(":")
    if not colon:
        return run_id, None
    try:
        return run_id, unquote(judge, errors="surrogatepass")
    except UnicodeDecodeError:
        return run_id, unquote(judge)  # no judge has such a name


def find_sides(store: Store, words: Sequence[str]) -> Sides:
    """The sides that these words name; a word names a judge of a run, or all judges of one."""
    found: list[ChosenSide] = []
    records: dict[str, RunRecord] = {}
    unknown: list[str] = []
    with store.snapshot() as moment:
        for word in words[:_MOST_WORDS]:
            run_id, judge = parsed(word)
            try:
                if run_id not in records:
                    records[run_id] = store.seen(moment.record(run_id))
                found += _chosen(records[run_id], judge)
            except SpecError as error:
                unknown.append(str(error))
                if len(unknown) == _MOST_UNKNOWN:
                    break
    sides = tuple({(each.run, each.judge): each for each in found}.values())
    return Sides(
        sides=sides[:_MOST_WORDS],
        problem=unknown[0] if unknown else _problem(found, sides, len(words)),
        unknown=bool(unknown),
    )


def _problem(found: Sequence[ChosenSide], sides: Sequence[ChosenSide], n_words: int) -> str | None:
    """Why these sides cannot be compared; None if they can."""
    if len(sides) < len(found):
        twice = next(each for at, each in enumerate(found) if each in found[:at])
        called = f"{shorten(twice.judge)} of run {shorten(twice.name or twice.run)}"
        return f"{called} is named twice; a judge and itself do not differ"
    if len(sides) > MOST_SIDES or n_words > _MOST_WORDS:
        return f"at most {MOST_SIDES} judges are compared at once; leave some out"
    return None


def _chosen(record: RunRecord, judge: str | None) -> list[ChosenSide]:
    if judge is not None and judge not in record.judges:
        known = ", ".join(map(shorten, record.judges[:5])) or "none"
        raise SpecError(f"run {record.id} has no judge {shorten(repr(judge))}; it has: {known}")
    if not record.judges:
        raise SpecError(f"run {record.id} has no judge yet")
    return [
        ChosenSide(
            word=word_of(record.id, each),
            run=record.id,
            name=record.name,
            judge=each,
            dataset=record.dataset,
            status=record.status,
            revision=record.revision,
        )
        for each in (record.judges if judge is None else (judge,))
    ]


AT_ONCE = 25
MOST_AT_ONCE = 500
EXCERPT = 240  # characters of an output

Who = Literal["first", "second"]


def check_metrics(names: Sequence[str]) -> tuple[str, ...]:
    """These metrics in the usual order; none stands for the default. Raises `InputError` for unknown ones."""
    if unknown := [name for name in names if name not in COMPARED]:
        raise InputError(f"unknown metric {shorten(repr(unknown[0]))}; known: {', '.join(COMPARED)}")
    return tuple(name for name in COMPARED if name in names)


def compared(store: Store, sides: Sequence[ChosenSide], metrics: Sequence[str]) -> Comparison:
    """The comparison of these sides as the store is now. Raises `InputError` if they cannot be compared."""
    with store.snapshot() as moment:
        records = {run: moment.record(run) for run in dict.fromkeys(side.run for side in sides)}
        read = sides_at(moment, [(records[side.run], side.judge) for side in sides])
    return compare(read, metrics)


@dataclass(frozen=True, slots=True, kw_only=True)
class SideView:
    """A side: its own coverage, and its figures on the samples that all sides share.

    `name` tells it from the others. `changed` says that its run has changed since it was compared.
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
    """The first side's figure minus the second's, with its 95 % interval; fields as in `Difference`."""

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
    """Two of the sides, by their numbers: how often each was right, and the differences of their metrics.

    The counts of who was right and the p value of McNemar's test are None without gold labels.
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
    """A sample to which two sides gave different labels; `excerpt` is the beginning of its output."""

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
    """A part of the flips of one pair, those with the scores furthest apart first.

    There are `n` flips, only those on which `right` is right unless that is None. `previous` and `next` are
    the starts of the parts before and after this one, None at an end.
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
    """A comparison, with fields as in `analysis.compared.Comparison`, and the flips of one pair."""

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
    sides: Sequence[ChosenSide],
    at: Sequence[int],
    *,
    pair: int = 0,
    right: Who | None = None,
    start: int = 0,
    limit: int = AT_ONCE,
) -> CompareView:
    """A comparison of these sides as they were at the revisions `at`, with flips from number `start` on.

    Raises `SpecError` if there is no pair of this number.
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


def _side(result: SideResult, chosen: ChosenSide, revision: int) -> SideView:
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
