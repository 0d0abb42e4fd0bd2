"""Whether two runs speak of the same sample, and why a sample has no verdict."""

from __future__ import annotations

from magistrate.types import Abstention, Failure, Outcome, Sample

READ = ("output", "context", "input", "messages", "expected", "alternatives")
"""What a judge may read of a sample besides its metadata."""


def unlike(first: Sample, second: Sample) -> str | None:
    """What differs between two samples of one id, in words; None where judges read the same."""
    if first is second:
        return None
    for name in READ:
        if getattr(first, name) != getattr(second, name):
            return f"another {name}"
    return None


def missing(outcome: Outcome | None) -> str:
    """Why there is no verdict."""
    match outcome:
        case Failure():
            return "failed"
        case Abstention():
            return "abstained"
    return "not judged"
