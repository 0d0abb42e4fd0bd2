"""What a judge quoted as wrong beside what people marked as hallucinated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from magistrate.analysis.columns import groups_of
from magistrate.metrics.spans import SpanScores, Stretch, span_scores
from magistrate.types import FAITHFUL, Sample, Verdict

AGAINST = ("contradiction", "unsupported")
"""The kinds of claims that speak against an output."""


def against(verdict: Verdict) -> list[Stretch]:
    """Where a verdict's claims say that the output is wrong."""
    return [
        (claim.output_quote.start, claim.output_quote.end)
        for claim in verdict.claims
        if claim.kind in AGAINST
    ]


def measured_spans(samples: Sequence[Sample], quoted: Mapping[str, Sequence[Stretch]]) -> SpanScores | None:
    """How well quotes cover what people marked, over labelled samples that have a verdict.

    `quoted` holds, by sample id, what was quoted as wrong in the samples that the judge made claims about. A
    faithful sample has nothing marked; a hallucinated one without marks is not counted. None where no sample
    is marked, or where the judge makes no claims.
    """
    if not quoted or not any(sample.spans for sample in samples):
        return None
    counted = [sample for sample in samples if sample.spans or sample.label == FAITHFUL]
    return span_scores(
        [[(span.start, span.end) for span in sample.spans] for sample in counted],
        [quoted.get(sample.id, ()) for sample in counted],
        groups_of(counted),
        len(samples) - len(counted),
    )
