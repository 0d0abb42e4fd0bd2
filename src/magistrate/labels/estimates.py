"""Statistics of a label queue: the hallucinated share, the number of labels still needed, and agreement.

A sample drawn with probability π represents 1/π samples. Where a policy draws hard samples more often, the
unweighted share of the labelled ones is biased and is refused. Items that are in conflict, unsure or
skipped have no label. They are counted separately and never enter an estimate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import ceil
from typing import Any

from magistrate._text import counted
from magistrate.analysis.agreement import Raters, raters_of
from magistrate.analysis.columns import groups_of
from magistrate.errors import InputError
from magistrate.labels.decisions import Finding
from magistrate.metrics.classification import Estimate, fields_of
from magistrate.metrics.distributions import wilson_interval
from magistrate.metrics.prevalence import weighted_share
from magistrate.metrics.spans import SpanScores, span_scores
from magistrate.store.labels import DECIDED, Queue
from magistrate.types import HALLUCINATED, Outcome, Sample, Verdict

NOTHING = "nothing is labelled yet"
LABELS = (HALLUCINATED, DECIDED[0])
MOST_MORE = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The progress of a queue, and the hallucinated share of all its samples.

    Of `n_items`, `n_decided` have a final label, `n_conflicts` need a decision, `n_unsure` were labelled
    unsure, and `n_open` are the rest. `n_waiting` of all items want another label. `more` is the number of
    further labels until the interval extends at most `width` to either side, None if it cannot be
    estimated.
    """

    n_items: int
    n_labels: int
    n_decided: int
    n_conflicts: int
    n_unsure: int
    n_open: int
    n_waiting: int
    share: Estimate
    width: float
    more: int | None
    annotators: Mapping[str, Mapping[str, int]]

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain JSON values."""
        return fields_of(self)

    @property
    def words(self) -> str:
        """One sentence: the share with its interval, and how many more labels are needed."""
        if self.share.value is None:
            return f"hallucinated: {self.share.undefined}"
        told = f"hallucinated {self.share} from {counted(self.n_decided, 'labelled sample')}"
        if self.share.low is None:
            return f"{told} ({self.share.undefined})"
        width = f"±{f'{self.width:g}'.lstrip('0')}"
        if self.more == 0:
            return f"{told}; the interval has the requested width ({width})"
        if self.more is None:
            return told
        left = self.n_items - self.n_decided
        few = f", and the queue has {counted(left, 'more item') if left else 'no more items'}"
        return (
            f"{told}; about {counted(self.more, 'more label')} for {width}{few if left < self.more else ''}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class People:
    """Agreement of annotators on the items that several of them labelled: labels and marked characters.

    `remark` says which samples the values describe, if not all.
    """

    n: int
    raters: Raters | None
    spans: SpanScores | None
    remark: str | None


def is_active(queue: Queue, findings: Sequence[Finding]) -> bool:
    """Return whether some samples were drawn more often than others, or could not be drawn."""
    chances = {each.item.inclusion for each in findings}
    return queue.covered < queue.population or (len(chances) > 1 and max(chances) - min(chances) > 1e-9)


def not_covered(queue: Queue) -> str | None:
    """Return why no estimate holds for all samples, if some could not be drawn; else None."""
    never = queue.population - queue.covered
    if not never:
        return None
    return (
        f"the policy {queue.policy} could not draw {never:,} of {queue.population:,} samples, so no figure "
        "represents them; label with --policy mixed or uniform"
    )


def hallucinated_share(
    queue: Queue, findings: Sequence[Finding], samples: Sequence[Sample], *, weighted: bool = True
) -> Estimate:
    """Estimate the hallucinated share of all samples, each label weighted by 1 / inclusion probability.

    `samples` belong to `findings`, in the same order. Raises `InputError` if `weighted` is false and the
    policy of the queue draws some samples more often than others.
    """
    if not weighted and is_active(queue, findings):
        raise InputError(
            f"queue {queue.name!r} was drawn by the policy {queue.policy}, which takes some samples more "
            "often than others: the plain share of its labels is only valid for drawn samples, not for all; "
            "use the weighted share"
        )
    if (reason := not_covered(queue)) is not None:
        return Estimate.none(reason)
    known = [(each, sample) for each, sample in zip(findings, samples, strict=True) if each.label is not None]
    if not known:
        return Estimate.none(NOTHING)
    hits = [each.label == HALLUCINATED for each, _ in known]
    chances = [each.item.inclusion if weighted else 1.0 for each, _ in known]
    return _share(hits, chances, [sample for _, sample in known])


def judge_right(
    queue: Queue,
    findings: Sequence[Finding],
    samples: Sequence[Sample],
    verdicts: Mapping[str, Outcome],
) -> Estimate:
    """Estimate the share of judged samples on which a judge agrees with people, with the same weights.

    Labels given after the verdict was shown are excluded, because they are not independent of it.
    """
    if queue.covered < queue.population:
        return Estimate.none("some samples could not be drawn")
    hits: list[bool] = []
    chances: list[float] = []
    kept: list[Sample] = []
    for each, sample in zip(findings, samples, strict=True):
        verdict = verdicts.get(sample.id)
        if each.label is None or not isinstance(verdict, Verdict) or any(one.shown for one in each.said):
            continue
        hits.append(verdict.label == each.label)
        chances.append(each.item.inclusion)
        kept.append(sample)
    return _share(hits, chances, kept) if kept else Estimate.none("no sample has both labels")


def _share(hits: Sequence[bool], chances: Sequence[float], samples: Sequence[Sample]) -> Estimate:
    groups = [str(number) for number in groups_of(samples)]
    found = weighted_share(hits, chances, groups)
    if found.low is None and found.value is not None:
        return Estimate(found.value, None, None, "no interval from one context")
    return found


def progress(
    queue: Queue, findings: Sequence[Finding], samples: Sequence[Sample], *, weighted: bool = True
) -> Progress:
    """Compute the progress of a queue. Raises the errors of `hallucinated_share`."""
    estimate = hallucinated_share(queue, findings, samples, weighted=weighted)
    states = Counter(each.state for each in findings)
    decided = states["decided"] + states["adjudicated"]
    width = float(queue.settings.get("width", 0.05))
    people: dict[str, Counter[str]] = {}
    for each in findings:
        for label in each.labels:
            people.setdefault(label.annotator, Counter())[label.label] += 1
    return Progress(
        n_items=len(findings),
        n_labels=sum(len(each.labels) for each in findings),
        n_decided=decided,
        n_conflicts=states["conflict"],
        n_unsure=states["unsure"],
        n_open=states["open"],
        n_waiting=sum(each.waits for each in findings),
        share=estimate,
        width=width,
        more=more_needed(estimate, decided, width),
        annotators={name: dict(counts) for name, counts in sorted(people.items())},
    )


def more_needed(estimate: Estimate, n: int, width: float) -> int | None:
    """Estimate how many labels beyond the present `n` bring the interval to at most `width` on either side.

    None without an interval. The effective sample size of the labels is the size at which a Wilson interval
    for the same share has the same length. Each further label is assumed to add as much as the present ones
    did on average.
    """
    if estimate.value is None or estimate.low is None or estimate.high is None or not n:
        return None
    if max(estimate.high - estimate.value, estimate.value - estimate.low) <= width:
        return 0
    share, length = estimate.value, estimate.high - estimate.low
    worth = _least(lambda size: _length(share, size) <= length + 1e-12)
    needed = _least(lambda size: _reach(share, size) <= width)
    return max(ceil(needed * n / max(worth, 1)) - n, 1)


def _length(share: float, n: float) -> float:
    low, high = wilson_interval(share, n)
    return high - low


def _reach(share: float, n: float) -> float:
    low, high = wilson_interval(share, n)
    return max(high - share, share - low)


def _least(holds: Any) -> int:
    """Return the least integer from 1 for which the monotone predicate `holds` is true."""
    low, high = 0, 1
    while not holds(high) and high < MOST_MORE:
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def people(queue: Queue, findings: Sequence[Finding], samples: Sequence[Sample]) -> People:
    """Compute the agreement of annotators of the same items, before any adjudication."""
    several = [(each, sample) for each, sample in zip(findings, samples, strict=True) if len(each.said) > 1]
    remark = None
    if is_active(queue, findings):
        remark = f"Drawn by the policy {queue.policy}: items are harder than average, so people agree less."
    if not several:
        return People(n=0, raters=None, spans=None, remark=remark)
    votes = {sample.id: [label.label for label in each.said] for each, sample in several}
    names = {label.annotator for each, _ in several for label in each.said}
    raters = raters_of({sample.id: sample for _, sample in several}, votes, len(names), {}, LABELS)
    pairs = [
        (one, other, sample)
        for each, sample in several
        for one, other in combinations(each.said, 2)
        if one.spans and other.spans
    ]
    spans = None
    if pairs:
        spans = span_scores(
            [[(span.start, span.end) for span in one.spans] for one, _, _ in pairs],
            [[(span.start, span.end) for span in other.spans] for _, other, _ in pairs],
            groups_of([sample for _, _, sample in pairs]),
        )
    return People(n=len(several), raters=raters, spans=spans, remark=remark)
