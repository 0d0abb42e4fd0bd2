"""Judges that compare the output with an expected text or a pattern: exact, contains, BLEU, ROUGE …"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from magistrate._work import alone
from magistrate.constraints.regex import compiled, searched
from magistrate.engines.base import Engine
from magistrate.errors import ConstraintError, InputError, SpecError, require_extra
from magistrate.features.words import word_runs, words
from magistrate.judges.base import NO_LIMIT, JudgeInfo, check_threshold
from magistrate.types import Outcome, Sample, Verdict

MATCH, MISMATCH = "match", "mismatch"


@dataclass(frozen=True, kw_only=True)
class Alike:
    """Which differences between two texts to ignore; by default none.

    `ignore_whitespace` collapses white space to single spaces and trims the ends; `ignore_punctuation`
    drops punctuation and symbols; `ignore_case` folds case. Texts are compared in Unicode's composed form
    (NFC).
    """

    ignore_case: bool = False
    ignore_punctuation: bool = False
    ignore_whitespace: bool = False

    def normalized(self, text: str) -> str:
        """Return a text without the differences to ignore."""
        text = unicodedata.normalize("NFC", text)
        if self.ignore_punctuation:
            text = "".join(each for each in text if unicodedata.category(each)[0] not in "PS")
        if self.ignore_case:
            text = unicodedata.normalize("NFC", text.casefold())
        return " ".join(text.split()) if self.ignore_whitespace else text

    def wanted(self, sample: Sample) -> str:
        """Return the normalized expected text. Raises `InputError` if it is empty."""
        left = self.normalized(sample.expected or "")
        if not left:
            raise InputError("the expected text is empty after the ignored characters are removed")
        return left


def reference_info(name: str, summary: str, *, threshold: float = 1.0) -> JudgeInfo:
    """Describe a judge that compares the output with `expected`. An empty output does not match."""
    return JudgeInfo(
        name=name,
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
    """Return the verdict for a similarity in [0, 1]. It has no probability, since a similarity is none."""
    return Verdict(
        sample_id=sample.id,
        judge=judge,
        label=MATCH if score >= threshold else MISMATCH,
        score=score,
        explanation=explanation,
        details={"threshold": threshold, **details},
    )


LONGEST_RUN = 10  # words; chrF++ has 2
Kind = Literal["rouge1", "rouge2", "rougeL"]


@dataclass(frozen=True)
class Bleu:
    """Sentence BLEU (Papineni and others 2002) in [0, 1], from sacrebleu with its tokenizer `13a`.

    Uses exponential smoothing and an order of at most the output's length, as sacrebleu does for sentences.
    BLEU is meant for whole corpora: for single sentences it says little.
    """

    name: str = "bleu"
    threshold: float = 0.3
    ignore_case: bool = False

    def __post_init__(self) -> None:
        check_threshold(self.threshold, one=True)

    @property
    def info(self) -> JudgeInfo:
        return reference_info(
            self.name, "BLEU of the output with the expected text as reference", threshold=self.threshold
        )

    async def judge(self, sample: Sample, engine: Engine) -> Outcome:
        require_extra("reference", "sacrebleu")
        from sacrebleu.metrics.bleu import BLEU

        score = _sentence_score(BLEU(effective_order=True, lowercase=self.ignore_case), sample)
        return matched(sample, self.name, score, f"BLEU is {score:.3f}", threshold=self.threshold)


@dataclass(frozen=True)
class Chrf:
    """chrF (Popović 2015) in [0, 1], from sacrebleu: F-score of runs of 1 to 6 characters.

    Recall has `beta` times the weight of precision. With `word_order` 2 it is chrF++ (Popović 2017).
    """

    name: str = "chrf"
    threshold: float = 0.5
    beta: int = 2
    word_order: int = 0
    ignore_case: bool = False

    def __post_init__(self) -> None:
        check_threshold(self.threshold, one=True)
        if self.beta < 0 or self.word_order < 0:
            raise SpecError("beta and word_order must not be negative")
        if self.word_order > LONGEST_RUN:
            raise SpecError(
                f"word_order must be at most {LONGEST_RUN}, because all word sequences are kept in memory"
            )

    @property
    def info(self) -> JudgeInfo:
        return reference_info(
            self.name, "chrF of the output with the expected text as reference", threshold=self.threshold
        )

    async def judge(self, sample: Sample, engine: Engine) -> Outcome:
        require_extra("reference", "sacrebleu")
        from sacrebleu.metrics.chrf import CHRF

        metric = CHRF(beta=self.beta, word_order=self.word_order, lowercase=self.ignore_case)
        score = _sentence_score(metric, sample)
        return matched(sample, self.name, score, f"chrF is {score:.3f}", threshold=self.threshold)


def _sentence_score(metric: Any, sample: Sample) -> float:
    """Return the score in [0, 1] that a metric of sacrebleu gives the output."""
    with alone():
        found = metric.sentence_score(sample.output or "", [sample.expected or ""]).score
    return float(min(1.0, found / 100))


@dataclass(frozen=True)
class Rouge:
    """ROUGE (Lin 2004) in [0, 1]: F1 of the words, word pairs or longest common subsequence of both texts.

    Words are compared without case and punctuation, and not stemmed. Precision and recall are in the
    details.
    """

    name: str = "rouge"
    of: Kind = "rougeL"
    threshold: float = 0.5

    def __post_init__(self) -> None:
        check_threshold(self.threshold, one=True)

    @property
    def info(self) -> JudgeInfo:
        return reference_info(
            self.name,
            f"{self.of} of the output with the expected text as reference",
            threshold=self.threshold,
        )

    async def judge(self, sample: Sample, engine: Engine) -> Outcome:
        with alone():
            precision, recall = rouge(words(sample.output or ""), words(sample.expected or ""), self.of)
        score = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
        told = f"{self.of} is {score:.3f}: precision {precision:.3f}, recall {recall:.3f}"
        return matched(
            sample, self.name, score, told, threshold=self.threshold, precision=precision, recall=recall
        )


def rouge(output: Sequence[str], expected: Sequence[str], of: Kind) -> tuple[float, float]:
    """Return precision and recall in [0, 1]; 0 if there is nothing to count."""
    if of == "rougeL":
        require_extra("reference", "rapidfuzz")
        from rapidfuzz.distance import LCSseq

        common, mine, theirs = int(LCSseq.similarity(output, expected)), len(output), len(expected)
    else:
        size = int(of[-1])
        said, wanted = (Counter(word_runs(each, size)) for each in (output, expected))
        common, mine, theirs = (said & wanted).total(), said.total(), wanted.total()
    return common / mine if mine else 0.0, common / theirs if theirs else 0.0


ANYTHING = Alike(ignore_case=True, ignore_punctuation=True, ignore_whitespace=True)


def compiled_pattern(pattern: str, *, ignore_case: bool = False) -> Any:
    """Compile a pattern in the syntax of `regex`, for `searched`. Raises `SpecError` for an invalid one."""
    import regex  # type: ignore[import-untyped]

    try:
        return compiled(pattern, regex.IGNORECASE if ignore_case else 0)
    except ConstraintError as error:
        raise SpecError(str(error)) from None


@dataclass(frozen=True)
class Exact(Alike):
    """Checks whether the output equals the expected text, up to the ignored differences."""

    name: str = "exact"

    @property
    def info(self) -> JudgeInfo:
        return reference_info(self.name, "the output is the expected text")

    async def judge(self, sample: Sample, engine: Engine) -> Outcome:
        output, expected = sample.output or "", sample.expected or ""
        if self.normalized(output) == self.wanted(sample):
            return matched(sample, self.name, 1.0, "it is the expected text")
        near = ANYTHING.normalized(output) == ANYTHING.normalized(expected) != ""
        hint = "; see ignore_case and similar options" if near else ""
        return matched(sample, self.name, 0.0, f"it is not the expected text{hint}")


@dataclass(frozen=True)
class Contains(Alike):
    """Checks whether the output contains the expected text, up to the ignored differences."""

    name: str = "contains"

    @property
    def info(self) -> JudgeInfo:
        return reference_info(self.name, "the output contains the expected text")

    async def judge(self, sample: Sample, engine: Engine) -> Outcome:
        there = self.wanted(sample) in self.normalized(sample.output or "")
        told = "it contains the expected text" if there else "it does not contain the expected text"
        return matched(sample, self.name, float(there), told)


@dataclass(frozen=True)
class Regex:
    """Checks whether the output matches a regular expression: `pattern`, or the `expected` of each sample.

    With `whole` it must match all of the output. The syntax is that of Python with the additions of the
    package `regex`, without recursion. A search that takes longer than half a second fails. Raises
    `SpecError` for an invalid pattern and for one that is too large (the limit is in
    `constraints.patterns`).
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
        info = reference_info(self.name, "the output matches a regular expression")
        return replace(info, reads=("output",), requires=()) if self.pattern else info

    async def judge(self, sample: Sample, engine: Engine) -> Outcome:
        pattern = compiled_pattern(self.pattern or sample.expected or "", ignore_case=self.ignore_case)
        found = searched(pattern, sample.output or "", whole=self.whole)
        if found is None:
            return matched(sample, self.name, 0.0, "the pattern does not match")
        return matched(sample, self.name, 1.0, "the pattern matches", found=list(found.span()))


@dataclass(frozen=True)
class Levenshtein(Alike):
    """The similarity of the output and the expected text: 1 - edits / length of the longer text.

    An edit inserts, deletes or replaces one character (Levenshtein 1966).
    """

    name: str = "levenshtein"
    threshold: float = 0.8

    def __post_init__(self) -> None:
        check_threshold(self.threshold, one=True)

    @property
    def info(self) -> JudgeInfo:
        return reference_info(
            self.name, "the output differs from the expected text by few edits", threshold=self.threshold
        )

    async def judge(self, sample: Sample, engine: Engine) -> Outcome:
        require_extra("reference", "rapidfuzz")
        from rapidfuzz.distance import Levenshtein as Distance

        with alone():
            output, expected = self.normalized(sample.output or ""), self.wanted(sample)
            edits = Distance.distance(output, expected)
        longest = max(len(output), len(expected))
        score = 1 - edits / longest
        lead = "edit of {} characters leads" if edits == 1 else "edits of {} characters lead"
        told = f"{edits:,} {lead.format(f'{longest:,}')} to it"
        return matched(sample, self.name, score, told, threshold=self.threshold, edits=edits)
