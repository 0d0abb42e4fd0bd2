"""Shared parts of faithfulness judges: labels, thresholds, claims and heat maps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from magistrate.errors import SpecError
from magistrate.judges.base import JudgeInfo
from magistrate.types import FAITHFUL, HALLUCINATED, Claim, Span

LABELS = (FAITHFUL, HALLUCINATED)
READS = ("context", "messages", "input", "output")
"""The fields of a sample that a judge of faithfulness looks at."""


def check_threshold(threshold: float, *, one: bool = False) -> None:
    """Raise `SpecError` for a threshold outside (0, 1), or outside (0, 1] if `one` is allowed."""
    if not (0 < threshold < 1 or (one and threshold == 1)):
        raise SpecError(f"threshold must be in (0, 1{']' if one else ')'}, got {threshold}")


def label_of(score: float, threshold: float) -> str:
    """Return the label of a score; 1 is the worst score."""
    return HALLUCINATED if score >= threshold else FAITHFUL


def probability_of(label: str, score: float) -> float:
    """Return the probability of a label, given the probability of `hallucinated`."""
    return score if label == HALLUCINATED else 1 - score


def unsupported(text: str, start: int, end: int, reasoning: str, probability: float | None = None) -> Claim:
    """Return the claim that the context does not support characters `[start, end)` of an output."""
    return Claim(
        "unsupported",
        Span(start, end),
        reasoning=reasoning,
        probability=probability,
        output_text=text[start:end],
    )


def heat_map(
    name: str, unit: str, text: str, pieces: Sequence[Sequence[Any]], *, low: float = 0.0, high: float = 1.0
) -> dict[str, object]:
    """Return a heat map of a text, for `details["heat"]`; a piece is `[start, end, value]`.

    `low` and `high` are the ends of the colour scale.
    """
    return {"name": name, "unit": unit, "low": low, "high": high, "text": text, "pieces": list(pieces)}


def absolute(path: str | Path) -> Path:
    """Return an option's path as an absolute one, so that a change of the working directory has no effect."""
    return Path(path).expanduser().absolute()


def check_binary(info: JudgeInfo, who: str) -> None:
    """Raise `SpecError` for a judge whose labels are not faithful and hallucinated."""
    if set(info.labels) != {FAITHFUL, HALLUCINATED}:
        raise SpecError(
            f"{who} needs a judge with the labels {FAITHFUL!r} and {HALLUCINATED!r}; {info.name!r} has "
            f"{', '.join(info.labels) or 'none'}"
        )
