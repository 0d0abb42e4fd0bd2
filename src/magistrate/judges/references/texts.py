"""The output against an expected text, character by character, or against a pattern."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from magistrate._deadline import alone
from magistrate.constraints.regex import compiled, searched
from magistrate.engines.base import Engine
from magistrate.errors import ConstraintError, SpecError
from magistrate.judges.base import JudgeInfo
from magistrate.judges.references.matching import Alike, check_threshold, matched, reference_info
from magistrate.types import Outcome, Sample

ANYTHING = Alike(ignore_case=True, ignore_punctuation=True, ignore_whitespace=True)


def compiled_pattern(pattern: str, *, ignore_case: bool = False) -> Any:
    """A pattern in the syntax of `regex`, for `searched`. Raises `SpecError` for what is none."""
    import regex  # type: ignore[import-untyped]

    try:
        return compiled(pattern, regex.IGNORECASE if ignore_case else 0)
    except ConstraintError as error:
        raise SpecError(str(error)) from None


@dataclass(frozen=True)
class Exact(Alike):
    """Whether the output is the expected text, but for the differences that are ignored."""

    name: str = "exact"

    @property
    def info(self) -> JudgeInfo:
        return reference_info(self.name, "the output is the expected text")

    async def judge(self, sample: Sample, engine: Engine) -> Outcome:
        output, expected = sample.output or "", sample.expected or ""
        if self.normalized(output) == self.wanted(sample):
            return matched(sample, self.name, 1.0, "it is the expected text")
        near = ANYTHING.normalized(output) == ANYTHING.normalized(expected) != ""
        hint = "; see ignore_case and its like" if near else ""
        return matched(sample, self.name, 0.0, f"it is not the expected text{hint}")


@dataclass(frozen=True)
class Contains(Alike):
    """Whether the expected text stands somewhere in the output, but for the differences that are ignored."""

    name: str = "contains"

    @property
    def info(self) -> JudgeInfo:
        return reference_info(self.name, "the expected text stands in the output")

    async def judge(self, sample: Sample, engine: Engine) -> Outcome:
        there = self.wanted(sample) in self.normalized(sample.output or "")
        told = "the expected text stands in it" if there else "the expected text does not stand in it"
        return matched(sample, self.name, float(there), told)


@dataclass(frozen=True)
class Regex:
    """Whether a regular expression is found in the output: `pattern`, or what each sample expects.

    `whole` wants it to be all of the output. The syntax is that of Python with the additions of the package
    `regex`, without recursion. A search that takes longer than half a second fails. Raises `SpecError` for
    what is no pattern and for one that is too large (`constraints.patterns` says how large one may be).
    """

    name: str = "regex"
    pattern: str = ""
    whole: bool = False
    ignore_case: bool = False

    def __post_init__(self) -> None:
        if self.pattern:
            compiled_pattern(self.pattern, ignore_case=self.ignore_case)

    @property
    def info(self) -> JudgeInfo:
        info = reference_info(self.name, "a regular expression is found in the output")
        return replace(info, reads=("output",), requires=()) if self.pattern else info

    async def judge(self, sample: Sample, engine: Engine) -> Outcome:
        pattern = compiled_pattern(self.pattern or sample.expected or "", ignore_case=self.ignore_case)
        found = searched(pattern, sample.output or "", whole=self.whole)
        if found is None:
            return matched(sample, self.name, 0.0, "the pattern is not in it")
        return matched(sample, self.name, 1.0, "the pattern is in it", found=list(found.span()))


@dataclass(frozen=True)
class Levenshtein(Alike):
    """How alike the output and the expected text are: one less edits by the length of the longer of them.

    Edits put in, take out or exchange one character (Levenshtein 1966).
    """

    name: str = "levenshtein"
    threshold: float = 0.8

    def __post_init__(self) -> None:
        check_threshold(self.threshold)

    @property
    def info(self) -> JudgeInfo:
        return reference_info(
            self.name, "few edits lead from the output to the expected text", threshold=self.threshold
        )

    async def judge(self, sample: Sample, engine: Engine) -> Outcome:
        from rapidfuzz.distance import Levenshtein as Distance

        with alone():
            output, expected = self.normalized(sample.output or ""), self.wanted(sample)
            edits = Distance.distance(output, expected)
        longest = max(len(output), len(expected))
        score = 1 - edits / longest
        lead = "edit of {} characters leads" if edits == 1 else "edits of {} characters lead"
        told = f"{edits:,} {lead.format(f'{longest:,}')} to it"
        return matched(sample, self.name, score, told, threshold=self.threshold, edits=edits)
