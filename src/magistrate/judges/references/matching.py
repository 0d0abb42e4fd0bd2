"""What judges with a reference share: how texts are made alike before, and the verdict of a similarity."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from typing import Any

from magistrate.errors import InputError, SpecError
from magistrate.judges.base import NO_LIMIT, JudgeInfo
from magistrate.types import Sample, Verdict

MATCH, MISMATCH = "match", "mismatch"


@dataclass(frozen=True, kw_only=True)
class Alike:
    """Which differences between two texts do not count; by default each does.

    `ignore_whitespace` makes every run of it one space and trims the ends; `ignore_punctuation` drops
    punctuation and symbols; `ignore_case` folds case. Texts are compared in Unicode's composed form (NFC).
    """

    ignore_case: bool = False
    ignore_punctuation: bool = False
    ignore_whitespace: bool = False

    def normalized(self, text: str) -> str:
        """A text without what does not count."""
        text = unicodedata.normalize("NFC", text)
        if self.ignore_punctuation:
            text = "".join(each for each in text if unicodedata.category(each)[0] not in "PS")
        if self.ignore_case:
            text = unicodedata.normalize("NFC", text.casefold())
        return " ".join(text.split()) if self.ignore_whitespace else text

    def wanted(self, sample: Sample) -> str:
        """The expected text without what does not count. Raises `InputError` where nothing is left of it."""
        left = self.normalized(sample.expected or "")
        if not left:
            raise InputError("nothing is left of the expected text once what is ignored is taken away")
        return left


def check_threshold(threshold: float) -> None:
    """Raise `SpecError` for a threshold that no similarity, or every one, could reach."""
    if not 0 < threshold <= 1:
        raise SpecError(f"threshold must be in (0, 1], got {threshold}")


def reference_info(name: str, summary: str, version: int = 1, *, threshold: float = 1.0) -> JudgeInfo:
    """What a judge that holds the output against `expected` is; an empty output does not match."""
    return JudgeInfo(
        name=name,
        version=version,
        summary=summary,
        labels=(MATCH, MISMATCH),
        direction="maximize",
        threshold=threshold,
        reads=("output", "expected"),
        requires=("expected",),
        kind="code",
        long=NO_LIMIT,
    )


def matched(
    sample: Sample, judge: str, score: float, explanation: str, *, threshold: float = 1.0, **details: Any
) -> Verdict:
    """The verdict of a similarity in [0, 1]; no probability, since it is none."""
    return Verdict(
        sample_id=sample.id,
        judge=judge,
        label=MATCH if score >= threshold else MISMATCH,
        score=score,
        explanation=explanation,
        details={"threshold": threshold, **details},
    )
