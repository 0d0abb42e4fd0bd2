"""A ranking of candidates from pairwise comparisons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from magistrate._text import percent
from magistrate.errors import InputError
from magistrate.metrics.bradley_terry import LOSS, TIE, WIN, PairCounts, components, elo, strengths
from magistrate.metrics.classification import LEAST_GROUPS, Estimate, PlainFields
from magistrate.metrics.resampling import FEW_CONTEXTS, draws_of, interval_of

Winner = Literal["first", "second", "tie"]
OUTCOMES: Mapping[Winner, int] = {"first": WIN, "second": LOSS, "tie": TIE}
DRAWS = 1000
MOST_CANDIDATES = 100


@dataclass(frozen=True, slots=True)
class Match:
    """One comparison: two candidates, the winner, and the question that both had answered."""

    first: str
    second: str
    winner: Winner
    question: str
    consistent: bool | None = None


@dataclass(frozen=True, slots=True)
class Candidate(PlainFields):
    """A candidate's place: `rating` on the Elo scale around 1,000, and its range of ranks in 95 % of draws.

    `rating` has no value, and the ranks are None, if the comparisons do not connect all candidates.
    """

    name: str
    rank: int | None
    best_rank: int | None
    worst_rank: int | None
    rating: Estimate
    wins: int
    losses: int
    ties: int


@dataclass(frozen=True, slots=True)
class Ranking(PlainFields):
    """Candidates from the best to the worst.

    `wins[i][j]` counts how often candidate i beat candidate j and `tied[i][j]` how often they tied, in the
    order of `candidates`. `undefined` is the reason why there are no ratings, None if there are. `consistent`
    is the share of comparisons in which both orders named the same answer, None if that was not recorded.
    `left_out` counts unusable comparisons by reason.
    """

    source: str
    n: int
    n_questions: int
    candidates: tuple[Candidate, ...]
    wins: tuple[tuple[int, ...], ...]
    tied: tuple[tuple[int, ...], ...]
    undefined: str | None
    consistent: float | None
    left_out: Mapping[str, int]
    remarks: tuple[str, ...] = ()


def ranking(
    matches: Sequence[Match], *, source: str, left_out: Mapping[str, int], seed: int = 0, draws: int = DRAWS
) -> Ranking:
    """Rank by Bradley-Terry with ties. Intervals are by a bootstrap of whole questions.

    Raises `InputError` without a comparison, for a comparison of a candidate with itself, and for too many
    candidates.
    """
    if not matches:
        told = "; ".join(f"{n} {reason}" for reason, n in left_out.items())
        raise InputError(f"there is no comparison to rank by{f' ({told})' if told else ''}")
    names = sorted({each.first for each in matches} | {each.second for each in matches})
    if len(names) > MOST_CANDIDATES:
        raise InputError(
            f"{len(names)} candidates are more than the limit of {MOST_CANDIDATES}; check the "
            "fields that name them"
        )
    if same := next((each for each in matches if each.first == each.second), None):
        raise InputError(f"{same.first!r} is compared with itself, on question {same.question!r}")
    place = {name: at for at, name in enumerate(names)}
    first = np.array([place[each.first] for each in matches])
    second = np.array([place[each.second] for each in matches])
    outcome = np.array([OUTCOMES[each.winner] for each in matches])
    questions: dict[str, int] = {}
    groups = np.array([questions.setdefault(each.question, len(questions)) for each in matches])
    counts = PairCounts(first, second, outcome, len(names))
    wins, tied = counts.wins(), counts.tied()
    undefined = _undefined(components(wins, tied), names, wins)
    ratings, ranks = _ratings(counts, groups, undefined, draws, seed)
    played = wins.sum(1) + wins.sum(0) + tied.sum(1)
    share = (wins.sum(1) + tied.sum(1) / 2) / played
    order = sorted(
        range(len(names)),
        key=lambda at: (-(share[at] if undefined else ratings[at].value or 0.0), names[at]),
    )
    known = [each.consistent for each in matches if each.consistent is not None]
    return Ranking(
        source=source,
        n=len(matches),
        n_questions=len(questions),
        candidates=tuple(
            Candidate(
                names[at],
                None if undefined else rank,
                ranks[at][0] if ranks else None,
                ranks[at][1] if ranks else None,
                ratings[at],
                int(wins[at].sum()),
                int(wins[:, at].sum()),
                int(tied[at].sum()),
            )
            for rank, at in enumerate(order, 1)
        ),
        wins=tuple(tuple(int(wins[at, to]) for to in order) for at in order),
        tied=tuple(tuple(int(tied[at, to]) for to in order) for at in order),
        undefined=undefined,
        consistent=sum(known) / len(known) if known else None,
        left_out=left_out,
        remarks=tuple(_remarks(matches, known, len(questions))),
    )


def _ratings(
    counts: PairCounts, groups: np.ndarray[Any, Any], undefined: str | None, draws: int, seed: int
) -> tuple[list[Estimate], list[tuple[int, int]]]:
    """Return ratings with intervals, and the range of ranks that contains 95 % of the draws, by candidate."""
    k = counts.k
    if undefined is not None:
        return [Estimate.none(undefined)] * k, []

    def points(weights: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        found = strengths(counts(weights), counts.low, counts.high, k, ties=counts.ties)
        return elo(found[:, :k])

    values = points(np.ones((1, groups.size)))[0]
    n_groups = len(set(groups.tolist()))
    drawn = draws_of(points, groups, draws=draws, seed=seed)
    estimates = [interval_of(float(values[at]), drawn[:, at], n_groups) for at in range(k)]
    if n_groups < LEAST_GROUPS:
        return estimates, []
    ranks = 1 + (drawn[:, None, :] > drawn[:, :, None]).sum(2)
    low, high = np.percentile(ranks, [2.5, 97.5], axis=0, method="nearest")
    return estimates, list(zip(low.astype(int).tolist(), high.astype(int).tolist(), strict=True))


def _undefined(groups: Sequence[Sequence[int]], names: Sequence[str], wins: Any) -> str | None:
    """Return why the comparisons give no ratings, None if they connect all candidates."""
    if len(groups) == 1:
        return None
    for group in sorted(groups, key=len):  # the smallest group is the best one to name
        others = [at for at in range(len(names)) if at not in group]
        won, lost = wins[np.ix_(group, others)].sum(), wins[np.ix_(others, group)].sum()
        who = _listed([names[at] for at in group])
        have = "has" if len(group) == 1 else "have"
        if not lost and won:
            return (
                f"{who} {have} never lost to or tied with any of the others, so their rating has no upper "
                "bound"
            )
        if not won and lost:
            return (
                f"{who} {have} never won against or tied with any of the others, so their rating has no "
                "lower bound"
            )
        if not won and not lost:
            return (
                f"{who} {have} never been compared with any of the others; add comparisons between both "
                "groups"
            )
    return "some candidates have only won, so their rating has no upper bound"


def _listed(names: Sequence[str], most: int = 5) -> str:
    shown = ", ".join(map(repr, names[:most]))
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def _remarks(matches: Sequence[Match], known: Sequence[bool], n_questions: int) -> Iterable[str]:
    """Yield warnings that a reader of the ranking must not miss."""
    ties = Counter(each.winner for each in matches)["tie"] / len(matches)
    if ties > 0.5:
        yield f"{percent(ties)} of the comparisons are ties: the judge rarely sees a difference."
    if known and sum(known) / len(known) < 0.8:
        yield (
            f"In {percent(1 - sum(known) / len(known))} of the comparisons the order of the answers decided: "
            "the judge has a position bias. These count as ties."
        )
    if n_questions < FEW_CONTEXTS:
        yield f"Only {n_questions} different questions: intervals are wide, and only approximate."
