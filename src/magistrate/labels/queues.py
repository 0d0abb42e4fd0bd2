"""Creates label queues from a run, from a stored or public data set, or from a file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from magistrate.analysis.columns import missing
from magistrate.datasets.selection import value_at
from magistrate.errors import InputError, SpecError
from magistrate.labels.drift import drift_of_run
from magistrate.labels.sampling import Candidate, Policy, Wanted, draw, share, wanted
from magistrate.store import RunRecord, Store
from magistrate.store.codec import sample_body, sample_key
from magistrate.store.labels import LONGEST_NAME, NewItem, Queue, checked_queue_name
from magistrate.types import Sample, Verdict

KINDS = ("evident_conflict", "subtle_conflict", "evident_baseless", "subtle_baseless")
"""Kinds of spans: those of RAGTruth."""
LEASE_MINUTES = 15
DOUBLE, WIDTH, USUAL_SIZE, MOST_KINDS = 0.2, 0.05, 200, 9
_UNNAMED = re.compile(r"[^\w .:@+=,~-]+|^[-. ]+|[ ]+$")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOptions:
    """Options of a new queue.

    `policy` None means mixed if there are verdicts, else uniform. `size` None means all samples for a
    uniform policy, else half of them, at most `USUAL_SIZE`. The share `double` of the items is labelled
    twice. `width` is the target half-width of the interval. With `blind`, an annotator sees the judge's
    verdict only after labelling. `judge` provides the scores for `threshold` and `stratified`. `by`
    (`label` or `metadata.NAME`) adds strata by that field's values. `reference` is the run or the time
    before which `drift` takes a run to be as it should be.
    """

    policy: Policy | None = None
    judge: str | None = None
    by: str | None = None
    reference: str | None = None
    size: int | None = None
    seed: int = 0
    double: float = DOUBLE
    width: float = WIDTH
    blind: bool = True
    kinds: tuple[str, ...] = KINDS
    instructions: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.double <= 1:
            raise SpecError(f"--double must be between 0 and 1, got {self.double:g}")
        if not 0 < self.width < 0.5:
            raise SpecError(f"--width must be between 0 and .5, got {self.width:g}")
        if self.by is not None and self.by != "label" and not self.by.startswith("metadata."):
            raise SpecError(f"--by must be label or metadata.NAME, got {self.by!r}")
        if self.by is not None and self.policy != "stratified":
            raise SpecError("--by needs --policy stratified")
        if (self.reference is None) == (self.policy == "drift"):
            raise SpecError("--reference and --policy drift go together: what a run is held against")
        if not 1 <= len(self.kinds) <= MOST_KINDS or len(set(self.kinds)) != len(self.kinds):
            raise SpecError(
                f"there must be 1 to {MOST_KINDS} different kinds of spans, got {len(self.kinds)}"
            )
        if not all(kind.strip() and kind.isprintable() and len(kind) <= 60 for kind in self.kinds):
            raise SpecError("the kind of a span must have 1 to 60 visible characters")


def queue_name(words: str) -> str:
    """Derive a valid queue name from the name of its source.

    >>> queue_name("data/my rows.jsonl")
    'data-my rows.jsonl'
    """
    return checked_queue_name(_UNNAMED.sub("-", words).strip("-. ")[:LONGEST_NAME].strip() or "queue")


def queue_of_run(store: Store, record: RunRecord, name: str, options: QueueOptions, now: datetime) -> Queue:
    """Create a queue of a run's samples, drawn by verdicts. Raises `SpecError` and `InputError`."""
    judges = record.judges
    if options.judge is not None:
        if options.judge not in judges:
            raise SpecError(f"the run has no judge {options.judge!r}; it has: {', '.join(judges) or 'none'}")
        judges = (options.judge, *(each for each in judges if each != options.judge))
    scored, threshold = [], None
    for judge in judges:
        scoring = record.scoring.get(judge)
        if scoring is not None:
            scored.append(judge)
            if judge == scored[0] and scoring.threshold is not None:
                threshold = 1 - scoring.threshold if scoring.turned else scoring.threshold
    with store.snapshot() as moment:
        samples = list(moment.samples(record.id))
        said = {
            judge: {each.sample_id: each for each in moment.bare_outcomes(record.id, judge)}
            for judge in judges
        }
    drifts: Sequence[Wanted | None] = [None] * len(samples)
    if options.reference is not None:
        drifts = drift_of_run(store, record, samples, said, options.reference, now)
    candidates = []
    for sample, drifted in zip(samples, drifts, strict=True):
        scores: list[float | None] = []
        lost: list[str] = []
        for judge in judges:
            outcome = said[judge].get(sample.id)
            verdict = outcome if isinstance(outcome, Verdict) else None
            if verdict is None:
                lost.append(f"{judge}: {missing(outcome)}")
            if judge in scored:
                turned = record.scoring[judge].turned
                scores.append(None if verdict is None else 1 - verdict.score if turned else verdict.score)
        candidates.append(_candidate(sample, options, tuple(scores), "; ".join(lost) or None, drifted))
    return _create(
        store,
        samples,
        candidates,
        options,
        threshold,
        {"name": name, "created_at": now, "source": f"run {record.name or record.id}", "run_id": record.id},
        record.dataset_digest,
    )


def queue_of_samples(
    store: Store,
    samples: Iterable[Sample],
    name: str,
    source: str,
    digest: str,
    options: QueueOptions,
    now: datetime,
) -> Queue:
    """Create a queue of samples without verdicts. Raises `SpecError` if the policy needs verdicts."""
    found = list(samples)
    candidates = [_candidate(sample, options, (), "not judged") for sample in found]
    about = {"name": name, "created_at": now, "source": source, "run_id": None}
    return _create(store, found, candidates, options, None, about, digest)


def _candidate(
    sample: Sample,
    options: QueueOptions,
    scores: tuple[float | None, ...],
    lost: str | None,
    drifted: Wanted | None = None,
) -> Candidate:
    group = None if options.by is None else value_at(sample, options.by)
    # Includes the id, so that samples with equal text are drawn independently.
    return Candidate(f"{sample_key(sample_body(sample))}:{sample.id}", scores, lost, group, drifted)


def _create(
    store: Store,
    samples: Sequence[Sample],
    candidates: Sequence[Candidate],
    options: QueueOptions,
    threshold: float | None,
    about: Mapping[str, Any],
    digest: str,
) -> Queue:
    kept = [at for at, sample in enumerate(samples) if sample.output]
    if not kept:
        raise InputError(f"{about['source']} has no output to label")
    open_to = [candidates[at] for at in kept]
    has_scores = any(score is not None for each in open_to for score in each.scores)
    policy: Policy = options.policy or ("mixed" if has_scores else "uniform")
    wants = wanted(policy, open_to, threshold=threshold)
    covered = sum(each.weight > 0 for each in wants)
    if not covered:
        raise InputError(f"the policy {policy} finds nothing to label in {about['source']}")
    usual = covered if policy in ("uniform", "failures") else min(USUAL_SIZE, -(-len(kept) // 2))
    size = min(usual if options.size is None else options.size, covered)
    items = [
        NewItem(
            sample=samples[kept[each.place]],
            policy=policy,
            priority=each.priority,
            inclusion=each.inclusion,
            reason=each.reason,
            wanted=1 + (share(options.seed, "double", open_to[each.place].key) < options.double),
        )
        for each in draw(open_to, wants, size, options.seed)
    ]
    settings = {
        "judge": options.judge,
        "by": options.by,
        "reference": options.reference,
        "size": size,
        "seed": options.seed,
        "double": options.double,
        "width": options.width,
        "blind": options.blind,
        "kinds": list(options.kinds),
        "instructions": options.instructions,
        "without_output": len(samples) - len(kept),
    }
    queue = Queue(
        **about,
        digest=digest,
        policy=policy,
        population=len(kept),
        covered=covered,
        settings=settings,
    )
    return store.labels.create(queue, items)
