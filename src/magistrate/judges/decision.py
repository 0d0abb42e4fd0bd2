"""The decision from claims: a pure function, so that other flags can be applied without a model."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import get_args

from magistrate.errors import SpecError
from magistrate.types import FAITHFUL, HALLUCINATED, ClaimKind, Outcome, Verdict

KINDS: tuple[str, ...] = get_args(ClaimKind)
FLAG: frozenset[str] = frozenset({"contradiction", "unsupported"})
BELOW = 0.5 - 1e-9  # the highest score of a faithful output


def check_flag(flag: Collection[str]) -> None:
    """Raise `SpecError` for what is no kind of claim, and where nothing would be flagged."""
    if not flag or not set(flag) <= set(KINDS):
        raise SpecError(
            f"flag takes kinds of claims, at least one of {', '.join(KINDS)}; "
            f"got {', '.join(sorted(flag)) or 'none'}"
        )


def decided(verdict: Verdict, flag: Collection[str] = FLAG) -> Verdict:
    """`verdict` with the label, score, probability and explanation that its claims and `flag` give it.

    `hallucinated` as soon as one claim is of a flagged kind. The score is then the highest probability with
    which a flagged claim is of its kind, at least .5; else the highest doubt about a claim, always below .5;
    1 or 0 where the engine had no probabilities, 0 without claims. Raises `SpecError`.
    """
    check_flag(flag)
    flagged = [claim for claim in verdict.claims if claim.kind in flag]
    others = [claim for claim in verdict.claims if claim.kind not in flag]
    details = {**verdict.details, "flag": sorted(flag)}
    if flagged:
        share = _most([claim.probability for claim in flagged])
        score = 1.0 if share is None else max(0.5, share)
        because = max(flagged, key=lambda claim: claim.probability or 0.0)
        explanation = f"{because.kind}: {because.reasoning}"
        return replace(
            verdict,
            label=HALLUCINATED,
            score=score,
            probability=share,
            explanation=explanation,
            details=details,
        )
    doubt = _most([None if claim.probability is None else 1 - claim.probability for claim in others])
    return replace(
        verdict,
        label=FAITHFUL,
        score=0.0 if doubt is None else min(doubt, BELOW),
        probability=None if doubt is None else 1 - doubt,
        explanation="no disagreement remains" if others else "no disagreement was found",
        details=details,
    )


def reflagged(outcome: Outcome, flag: Collection[str]) -> Outcome:
    """`outcome` decided anew if its claims had decided it; any other as it is."""
    return decided(outcome, flag) if isinstance(outcome, Verdict) and by_claims(outcome) else outcome


def by_claims(outcome: Outcome) -> bool:
    """Whether an outcome is a verdict that its claims decided."""
    return isinstance(outcome, Verdict) and "flag" in outcome.details


def _most(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return max(known, default=None)
