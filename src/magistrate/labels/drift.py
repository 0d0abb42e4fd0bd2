"""How far each sample of a run lies from a reference period: in the words of its input, and in its scores.

What is more frequent now than in the reference counts. Of a word, or of scores within `BAND` of one score, n
samples have it now and m of the reference, which lets expect e = m · (size now) / (size of the reference).
The excess max(0, n - e) / (n + `SHRINK`) is near 1 for what is frequent and new, small for what occurs once,
and 0 for what is as frequent as before. An input differs by the mean excess of its `WORDS_COUNTED` words of
the largest excess, a score by its own. A sample differs as much as the part of it that differs most.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from magistrate._text import decimal
from magistrate.errors import SpecError
from magistrate.features.words import words
from magistrate.labels.sampling import Wanted
from magistrate.store import RunRecord, Store
from magistrate.types import Outcome, Sample, Verdict
from magistrate.watch.parts import DURATION, duration
from magistrate.watch.status import differing

LEAST_REFERENCE = 30
BAND = 0.05  # scores that are no further apart count as the same
SHRINK = 3.0  # samples: how many it takes until an excess is taken to be more than chance
WORDS_COUNTED = 3

Said = Mapping[str, Mapping[str, Outcome]]


@dataclass(frozen=True, slots=True)
class Part:
    """The samples of a period, with their judges' scores by judge and sample id."""

    samples: Sequence[Sample]
    scores: Mapping[str, Mapping[str, float]]


def drift_of_run(
    store: Store, record: RunRecord, samples: Sequence[Sample], said: Said, reference: str, now: datetime
) -> list[Wanted]:
    """Return for each sample how far it lies from the reference, in [0, 1], and why.

    `reference` is another run, or for the run of a rule a time such as `7d`: then the answers seen before
    that time are the reference, and lie 0 from it. Raises `SpecError` if the reference is too small.
    """
    scores = {judge: _scores(outcomes) for judge, outcomes in said.items()}
    if DURATION.fullmatch(reference):
        seen, begin = store.watched.seen_at(record.id), now - duration(reference)
        if not seen:
            raise SpecError(f"--reference {reference} is for the run of a rule: name a run as the reference")
        before = [each for each in samples if each.id in seen and seen[each.id] < begin]
        earlier = {each.id for each in before}
        after = [each for each in samples if each.id not in earlier]
        of, old = f"what was seen before {begin:%Y-%m-%d %H:%M} UTC", Part(before, scores)
    else:
        other = store.find_run(reference)
        if other.id == record.id:
            raise SpecError("a run is no reference for itself: name another one, or a time such as 7d")
        shared = [
            judge
            for judge in record.recipes.keys() & other.recipes.keys()
            if not differing(record.recipes[judge], other.recipes[judge])
        ]
        with store.snapshot() as moment:
            before = list(moment.samples(other.id))
            outcomes = {
                judge: {each.sample_id: each for each in moment.bare_outcomes(other.id, judge)}
                for judge in shared
            }
        earlier, after = set[str](), list(samples)
        scores = {judge: scores[judge] for judge in shared if judge in scores}
        of, old = f"run {other.name or other.id}", Part(before, {j: _scores(o) for j, o in outcomes.items()})
    if len(old.samples) < LEAST_REFERENCE:
        raise SpecError(
            f"a reference has at least {LEAST_REFERENCE} samples; {of} has {len(old.samples)}: name another "
            "one with --reference"
        )
    found = drift(Part(after, scores), old)
    unchanged = Wanted(0.0, "it is of the reference itself")
    return [unchanged if each.id in earlier else found[each.id] for each in samples]


def drift(current: Part, reference: Part) -> dict[str, Wanted]:
    """Return by sample id how far the samples of a period lie from a reference, in [0, 1], and why."""
    excess = _excess(len(current.samples), len(reference.samples))
    now, before = _frequencies(current.samples), _frequencies(reference.samples)
    tellers = {
        judge: _score_excess(scores, reference.scores.get(judge, {}), reference.samples, current.samples)
        for judge, scores in sorted(current.scores.items())
        if reference.scores.get(judge)
    }
    found = {}
    for sample in current.samples:
        by_word = sorted((excess(now[word], before[word]) for word in _words(sample)), reverse=True)
        most = by_word[:WORDS_COUNTED]
        parts = {"the words of the input": sum(most) / len(most) if most else 0.0}
        for judge, tell in tellers.items():
            if (score := current.scores[judge].get(sample.id)) is not None:
                parts[f"the score of {judge}"] = tell(score)
        told = ", ".join(f"{name} by {decimal(value)}" for name, value in parts.items())
        found[sample.id] = Wanted(max(parts.values()), f"differs from the reference: {told}")
    return found


def _excess(size: int, reference: int) -> Callable[[int, int], float]:
    return lambda n, m: max(0.0, n - m * size / reference) / (n + SHRINK)


def _score_excess(
    scores: Mapping[str, float],
    earlier: Mapping[str, float],
    reference: Sequence[Sample],
    current: Sequence[Sample],
) -> Callable[[float], float]:
    """Return a function from a score to its excess, among the samples that have one."""
    now = sorted(scores[each.id] for each in current if each.id in scores)
    before = sorted(earlier[each.id] for each in reference if each.id in earlier)
    if not before:
        return lambda score: 0.0
    excess = _excess(len(now), len(before))

    def near(values: Sequence[float], score: float) -> int:
        return bisect_right(values, score + BAND) - bisect_left(values, score - BAND)

    return lambda score: excess(near(now, score), near(before, score))


def _scores(outcomes: Mapping[str, Outcome]) -> dict[str, float]:
    return {name: each.score for name, each in outcomes.items() if isinstance(each, Verdict)}


def _words(sample: Sample) -> set[str]:
    """Return the different words of the input; of the output where there is no input."""
    return set(words(sample.input or sample.output or ""))


def _frequencies(samples: Sequence[Sample]) -> Counter[str]:
    return Counter(word for sample in samples for word in _words(sample))
