"""The value of a jury: compared with each member alone, without each of them, and without any labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from magistrate._text import counted, decimal, shorten
from magistrate.analysis.columns import KNOWN, groups_of, missing
from magistrate.errors import InputError
from magistrate.metrics.classification import Estimate, PlainFields, classification, fields_of
from magistrate.metrics.jury import (
    NO_VOTE,
    POOLINGS,
    ErrorCorrelation,
    Pooling,
    dawid_skene,
    error_correlation,
    pooled,
)
from magistrate.metrics.paired import Figures
from magistrate.metrics.resampling import FEW_CONTEXTS, draws_of, interval_of
from magistrate.types import HALLUCINATED, Outcome, Sample, Verdict

SHOWN = ("balanced_accuracy", "auroc")
EXCERPT = 100  # characters of the output shown with a disputed sample


@dataclass(frozen=True, slots=True)
class Votes:
    """The votes of k members on n samples.

    `scores` `[n, k]` in [0, 1], 1 is the worst; `said` bool `[n, k]`, True is hallucinated; `given` bool
    `[n, k]`, False if a member gave no verdict, so that score and label are meaningless. `left_out` counts
    the samples that are not included, by reason.
    """

    members: tuple[str, ...]
    samples: tuple[Sample, ...]
    scores: NDArray[np.float64]
    said: NDArray[np.bool_]
    given: NDArray[np.bool_]
    left_out: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Pool(PlainFields):
    """How a jury pools scores into one. `weights` has one weight per member; None means equal weights."""

    aggregate: Pooling = "mean"
    weights: tuple[float, ...] | None = None
    least: int = 2
    threshold: float = 0.5


@dataclass(frozen=True, slots=True)
class Row(PlainFields):
    """The verdict count of a member, a jury or a part of one, and its figures on common labelled samples."""

    name: str
    verdicts: int
    metrics: Mapping[str, Estimate]


@dataclass(frozen=True, slots=True)
class Unlabelled(PlainFields):
    """The result of Dawid and Skene's method, from the votes alone.

    `fallback` is the reason why the probabilities are only the shares of the votes. `share` is the estimated
    share of hallucinated samples; `recall` and `specificity` are the estimates for each member from the votes
    of all. These three are None with a fallback. `probabilities` are those of hallucinated, by sample id.
    `row` has the figures on the samples that have labels, which the method did not use.
    """

    fallback: str | None
    share: float | None
    recall: Mapping[str, float] | None
    specificity: Mapping[str, float] | None
    rounds: int
    converged: bool
    probabilities: Mapping[str, float]
    row: Row


@dataclass(frozen=True, slots=True)
class Disputed:
    """A sample on which the members' scores differ widely, and so a good one to label next."""

    sample_id: str
    label: str | None
    spread: float
    scores: Mapping[str, float]
    excerpt: str

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain JSON values."""
        return fields_of(self, sample_id="sample")


@dataclass(frozen=True, slots=True)
class JuryReport:
    """A jury compared with its members, on the `n_common` of `n_total` samples with a label and all verdicts.

    `jury` is the jury as pooled. `without` is the jury without one member, for three members or more. `pools`
    are other ways to pool. `best` is the member with the highest balanced accuracy on these very samples
    (None without labels), and `gain` is the jury's balanced accuracy minus that member's.
    """

    run: str
    source: str
    pool: Pool
    n_total: int
    n_judged: int
    n_common: int
    n_contexts: int
    left_out: Mapping[str, int]
    jury: Row
    members: tuple[Row, ...]
    without: tuple[Row, ...]
    pools: tuple[Row, ...]
    best: str | None
    gain: Estimate
    errors: ErrorCorrelation
    unlabelled: Unlabelled
    disputed: tuple[Disputed, ...]
    remarks: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain JSON values, including every disputed sample."""
        return fields_of(self, errors="error_correlation", unlabelled="dawid_skene")


# --- votes of the members -------------------------------------------------------------------------


def votes_of_jury(samples: Mapping[str, Sample], outcomes: Mapping[str, Outcome], judge: str) -> Votes:
    """Return the votes of a jury's members, read from the details of its verdicts.

    Raises `InputError` if the judge was not a jury.
    """
    found, left_out, members = list[tuple[Sample, dict[str, Any]]](), Counter[str](), dict[str, None]()
    for sample in samples.values():
        outcome = outcomes.get(sample.id)
        if not isinstance(outcome, Verdict):
            left_out[missing(outcome)] += 1
            continue
        said = {each["judge"]: each for each in _members(outcome, judge)}
        members.update(dict.fromkeys(said))
        found.append((sample, said))
    names = tuple(members)

    def vote(at: int, name: str) -> tuple[float, bool] | None:
        each = found[at][1].get(name, {})
        return (float(each["score"]), each["label"] == HALLUCINATED) if "score" in each else None

    return _votes(names, [sample for sample, _ in found], vote, left_out)


def _members(verdict: Verdict, judge: str) -> list[dict[str, Any]]:
    said = verdict.details.get("members")
    if not isinstance(said, list) or not all(isinstance(each, dict) and "judge" in each for each in said):
        raise InputError(
            f"{judge!r} is not a jury: its verdicts do not record what members said; use a run of "
            "jury:members=JUDGE+JUDGE, or a run of several judges"
        )
    return said


def votes_of_judges(
    samples: Mapping[str, Sample], outcomes: Mapping[str, Mapping[str, Outcome]], turned: Mapping[str, bool]
) -> Votes:
    """Return the votes of several judges of a run. `turned` is True for judges whose low scores are worst.

    Raises `InputError` if one uses labels other than faithful and hallucinated.
    """
    for judge, said in outcomes.items():
        labels = {each.label for each in said.values() if isinstance(each, Verdict)} - set(KNOWN)
        if labels:
            raise InputError(
                f"{judge!r} has the label {min(labels)!r}; a jury needs judges with the labels "
                f"{' and '.join(KNOWN)}"
            )
    kept, left_out = list[Sample](), Counter[str]()
    for sample in samples.values():
        if any(isinstance(said.get(sample.id), Verdict) for said in outcomes.values()):
            kept.append(sample)
        else:
            left_out["no verdict from any judge"] += 1

    def vote(at: int, name: str) -> tuple[float, bool] | None:
        each = outcomes[name].get(kept[at].id)
        if not isinstance(each, Verdict):
            return None
        return 1 - each.score if turned[name] else each.score, each.label == HALLUCINATED

    return _votes(tuple(outcomes), kept, vote, left_out)


def _votes(
    members: tuple[str, ...],
    samples: Sequence[Sample],
    vote: Callable[[int, str], tuple[float, bool] | None],
    left_out: Counter[str],
) -> Votes:
    size = len(samples), len(members)
    scores, said, given = np.zeros(size), np.zeros(size, dtype=np.bool_), np.zeros(size, dtype=np.bool_)
    for at in range(len(samples)):
        for place, name in enumerate(members):
            if (found := vote(at, name)) is not None:
                scores[at, place], said[at, place] = found
                given[at, place] = True
    return Votes(members, tuple(samples), scores, said, given, dict(left_out.most_common()))


# --- the report -----------------------------------------------------------------------------------


def jury_report(votes: Votes, pool: Pool, *, run: str, source: str, n_total: int) -> JuryReport:
    """Return the report on these votes. Figures are measured on the samples that every member has judged.

    Raises `InputError` for fewer than two members, and if no sample has a verdict.
    """
    k = len(votes.members)
    if k < 2 or not votes.samples:
        raise InputError(f"a jury needs two members and a sample, got {k} and {len(votes.samples)}")
    labelled = np.array([sample.label in KNOWN for sample in votes.samples])
    common = labelled & votes.given.all(1)
    truth = np.array([sample.label == HALLUCINATED for sample in votes.samples])[common]
    groups = groups_of([sample for sample, kept in zip(votes.samples, common, strict=True) if kept])

    def row(name: str, scores: NDArray[np.float64], said: NDArray[np.bool_], given: NDArray[np.bool_]) -> Row:
        figures = classification(truth, said[common], scores[common], groups if truth.size else None)
        return Row(name, int(given.sum()), {each: figures.metrics[each] for each in SHOWN})

    def pooled_row(name: str, places: Sequence[int], how: Pooling) -> Row:
        scores, given = _pooled(votes, replace(pool, aggregate=how), places)
        return row(name, scores, scores >= pool.threshold, given)

    everyone = range(k)
    scores, given = _pooled(votes, pool, everyone)
    jury = row(f"jury ({pool.aggregate})", scores, scores >= pool.threshold, given)
    members = tuple(
        row(name, votes.scores[:, at], votes.said[:, at], votes.given[:, at])
        for at, name in enumerate(votes.members)
    )
    without = tuple(
        pooled_row(f"without {name}", [each for each in everyone if each != at], pool.aggregate)
        for at, name in enumerate(votes.members)
        if k > 2
    )
    pools = tuple(pooled_row(how, everyone, how) for how in POOLINGS if how != pool.aggregate)
    best = _best(members)
    gain = Estimate.none("there are no labels of both kinds")
    if best is not None:
        at = votes.members.index(best)
        sides = [
            Figures(truth, (scores >= pool.threshold)[common], scores[common], SHOWN[:1]),
            Figures(truth, votes.said[common, at], votes.scores[common, at], SHOWN[:1]),
        ]
        gain = _difference(sides, groups)
    wrong = votes.said[common] != truth[:, None]
    report = JuryReport(
        run=run,
        source=source,
        pool=pool,
        n_total=n_total,
        n_judged=len(votes.samples),
        n_common=int(common.sum()),
        n_contexts=int(np.unique(groups).size),
        left_out=_left_out(votes, labelled),
        jury=jury,
        members=members,
        without=without,
        pools=pools,
        best=best,
        gain=gain,
        errors=error_correlation(wrong, groups),
        unlabelled=_unlabelled(votes, row),
        disputed=_disputed(votes),
    )
    return replace(report, remarks=_remarks(report))


def _pooled(votes: Votes, pool: Pool, places: Sequence[int]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return the pooled scores `[n]` of some members, and where enough of them gave a verdict."""
    weights = [1.0] * len(votes.members) if pool.weights is None else list(pool.weights)
    scores = np.zeros(len(votes.samples))
    given = votes.given[:, places].sum(1) >= min(pool.least, len(places))
    for at in np.flatnonzero(given):
        voted = [place for place in places if votes.given[at, place]]
        scores[at] = pooled(
            [float(votes.scores[at, place]) for place in voted],
            [bool(votes.said[at, place]) for place in voted],
            pool.aggregate,
            [weights[place] for place in voted],
        )
    return scores, given


def _best(members: Sequence[Row]) -> str | None:
    known = [
        (value, row.name) for row in members if (value := row.metrics["balanced_accuracy"].value) is not None
    ]
    return max(known, key=lambda each: each[0])[1] if known else None


def _difference(sides: Sequence[Figures], groups: NDArray[np.int64]) -> Estimate:
    """Return the first side's figure minus the second's, computed draw by draw."""
    whole = [float(side(np.ones((1, groups.size)))[0, 0]) for side in sides]
    drawn = draws_of(lambda weights: sides[0](weights) - sides[1](weights), groups)
    return interval_of(whole[0] - whole[1], drawn[:, 0], int(np.unique(groups).size))


def _left_out(votes: Votes, labelled: NDArray[np.bool_]) -> dict[str, int]:
    """Return why samples are not among the common ones."""
    found = Counter(votes.left_out)
    found["a member has no verdict"] += int((~votes.given.all(1)).sum())
    found["no gold label"] += int((votes.given.all(1) & ~labelled).sum())
    return {reason: n for reason, n in found.most_common() if n}


def _unlabelled(votes: Votes, row: Callable[..., Row]) -> Unlabelled:
    some: NDArray[np.bool_] = np.any(votes.given, axis=1)
    cast = np.where(votes.given, votes.said, NO_VOTE).astype(np.int64)
    found = dawid_skene(cast[some])
    scores = np.zeros(len(votes.samples))
    scores[some] = np.clip(found.posterior[:, 1], 0, 1)
    ids = [sample.id for sample, kept in zip(votes.samples, some, strict=True) if kept]
    right = None if found.confusion is None else np.diagonal(found.confusion, axis1=1, axis2=2)
    return Unlabelled(
        fallback=found.fallback,
        share=None if found.shares is None else float(found.shares[1]),
        recall=None if right is None else dict(zip(votes.members, right[:, 1].tolist(), strict=True)),
        specificity=None if right is None else dict(zip(votes.members, right[:, 0].tolist(), strict=True)),
        rounds=found.rounds,
        converged=found.converged,
        probabilities=dict(zip(ids, scores[some].tolist(), strict=True)),
        row=row("Dawid-Skene" if found.fallback is None else "share of votes", scores, scores >= 0.5, some),
    )


def _disputed(votes: Votes) -> tuple[Disputed, ...]:
    """Return the samples to which members give different labels, the widest spread of scores first."""
    found = []
    for at, sample in enumerate(votes.samples):
        places = np.flatnonzero(votes.given[at])
        if len(set(votes.said[at, places].tolist())) < 2:
            continue
        scores = {votes.members[place]: float(votes.scores[at, place]) for place in places}
        spread = max(scores.values()) - min(scores.values())
        found.append(Disputed(sample.id, sample.label, spread, scores, shorten(sample.output or "", EXCERPT)))
    return tuple(sorted(found, key=lambda each: (-each.spread, each.sample_id)))


def _remarks(report: JuryReport) -> tuple[str, ...]:
    """Return warnings that a reader of the figures must not miss."""
    found = []
    if not report.n_common:
        found.append(
            "No sample has a label and a verdict of every member, so the quality of the jury is unknown; "
            "label the disputed samples below first."
        )
    if report.gain.value is not None and report.best is not None:
        low, high = report.gain.low, report.gain.high
        if high is not None and high < 0:
            found.append(
                f"The jury is worse than {report.best} alone: its other members do more harm than good."
            )
        elif low is None or low <= 0:
            found.append(
                f"These samples do not show that the jury is better than {report.best} alone; the best "
                "member was chosen on the same samples, which favours it a little."
            )
    votes, k = report.errors.effective.value, len(report.members)
    if votes is not None and votes < 0.6 * k:
        found.append(
            f"The {k} members make similar errors: together they are worth {decimal(votes)} independent "
            "votes. Members of a different kind (other methods, other models) help more than more of the "
            "same kind."
        )
    if report.unlabelled.fallback is None and not report.unlabelled.converged:
        found.append("Dawid and Skene's method has not converged; its figures are only approximate.")
    if report.n_common and report.n_contexts < FEW_CONTEXTS:
        found.append(
            f"Only {counted(report.n_contexts, 'independent context')}: intervals are wide, and only "
            "approximate."
        )
    return tuple(found)
