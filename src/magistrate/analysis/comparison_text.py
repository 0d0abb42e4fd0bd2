"""The sentences and remarks of a comparison, which do not say more than it shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from magistrate._text import decimal, signed
from magistrate.analysis.columns import AGAIN, NOT_STORED
from magistrate.metrics.paired import ALPHA
from magistrate.metrics.resampling import FEW_CONTEXTS, LEAST_GROUPS, least_p

if TYPE_CHECKING:
    from magistrate.analysis.comparison import Comparison, Difference, PairResult, Side

NAMES = {
    "balanced_accuracy": "balanced accuracy",
    "f1": "F1",
    "auroc": "AUROC",
    "brier": "Brier score (lower is better)",
}


def name_of(metric: str) -> str:
    """A metric's name for people."""
    return NAMES.get(metric, metric)


def sentences_of(comparison: Comparison) -> tuple[str, ...]:
    """One sentence a pair and metric that was asked about."""
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
        return f"{pair.first} against {pair.second} by {name}: {signed(value.value)}, {value.undefined}."
    shown = f"{signed(value.value)} {bounds(value.low, value.high)}".rstrip()
    shown += f", p {p_of(each.corrected)}{corrected}"
    if value.low is None:
        shown += f" (by the sign test over contexts; {value.undefined})"
    if each.better:
        word = "better" if each.better > 0 else "worse"
        return f"{pair.first} is {word} than {pair.second} by {name}: {shown}."
    after = " after the correction" if corrected else ""
    could = f"; this n could have shown {decimal(each.detectable)} or more{after}" if each.detectable else ""
    alone = each.p is not None and each.p < ALPHA
    why = f" (p {p_of(each.p)} before the correction)" if alone else ""
    return f"No difference between {pair.first} and {pair.second} is shown by {name}: {shown}{why}{could}."


def bounds(low: float | None, high: float | None) -> str:
    """`[+.01, +.11]`; empty where there is none."""
    return "" if low is None else f"[{signed(low)}, {signed(high)}]"


def p_of(p: float | None) -> str:
    """A p value as people read it.

    >>> p_of(0.0004), p_of(0.03), p_of(None)
    ('<.001', '.030', '-')
    """
    if p is None:
        return "-"
    return "<.001" if p < 0.001 else f"{p:.3f}".removeprefix("0")


def remarks_of(comparison: Comparison, sides: Sequence[Side]) -> tuple[str, ...]:
    """What limits the comparison, the gravest first."""
    return tuple(_remarks(comparison, sides))


def _remarks(comparison: Comparison, sides: Sequence[Side]) -> Iterator[str]:
    if not comparison.gold:
        yield ("There are no gold labels to go by: who differs can be said, who is better or worse cannot.")
    silent = [side for side in comparison.sides if side.failures or side.abstentions]
    if silent:
        told = "; ".join(
            f"{side.name} failed on {side.failures} and abstained on {side.abstentions} of {side.n_total}"
            for side in silent
        )
        yield f"Left out, which may flatter whoever fails on what is hard: {told}."
    for run, unread in {each.run: each.unread for each in sides}.items():
        if unread is not None and unread.n:
            yield f"In run {run} {unread}; no figure counts them."
    for each in sides:
        if each.scoring is None and comparison.gold:
            yield f"AUROC and Brier score of {each.name} are left out: {NOT_STORED}. {AGAIN}."
        elif each.scoring is not None and each.scoring.turned:
            yield (
                f"A low score of {each.name} means hallucinated (its direction is maximize); its AUROC and "
                "Brier score are of 1 - score."
            )
    if comparison.gold and comparison.n_contexts < FEW_CONTEXTS:
        yield (
            f"Only {comparison.n_contexts} independent contexts: intervals are wide for that, and p values "
            "still rough."
        )
    if comparison.gold and comparison.n_contexts < comparison.n:
        yield (
            f"{comparison.n} samples share {comparison.n_contexts} contexts. Intervals take that into "
            "account, McNemar's test does not: it takes samples as independent."
        )
    if comparison.gold and comparison.n_contexts < LEAST_GROUPS:
        return
    least = least_p(comparison.n_contexts, comparison.draws)
    if comparison.gold and comparison.family and comparison.family * least >= ALPHA:
        yield (
            f"Nothing can be shown: of {comparison.n_contexts} contexts in {comparison.draws:,} draws no "
            f"bootstrap p value is below {p_of(least)}, which times {comparison.family} comparisons is not "
            f"below {ALPHA:g}; compare fewer judges or metrics at once, or judge more contexts."
        )
