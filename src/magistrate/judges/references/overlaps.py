"""How much an output shares with an expected text: BLEU, ROUGE and chrF, one sample at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from magistrate._deadline import alone
from magistrate.engines.base import Engine
from magistrate.errors import SpecError, require_extra
from magistrate.features.overlap import words
from magistrate.judges.base import JudgeInfo
from magistrate.judges.references.matching import check_threshold, matched, reference_info
from magistrate.types import Outcome, Sample

LONGEST_RUN = 10  # words; chrF++ has 2
Kind = Literal["rouge1", "rouge2", "rougeL"]


@dataclass(frozen=True)
class Bleu:
    """Sentence BLEU (Papineni and others 2002) in [0, 1], of sacrebleu with its tokenizer `13a`.

    Smoothing is exponential and the order is at most the output's, as sacrebleu has it for sentences. Meant
    for whole corpora: of one sentence it says little.
    """

    name: str = "bleu"
    threshold: float = 0.3
    ignore_case: bool = False

    def __post_init__(self) -> None:
        check_threshold(self.threshold)

    @property
    def info(self) -> JudgeInfo:
        return reference_info(
            self.name, "BLEU of the output against the expected text", threshold=self.threshold
        )

    async def judge(self, sample: Sample, engine: Engine) -> Outcome:
        require_extra("reference", "sacrebleu")
        from sacrebleu.metrics.bleu import BLEU

        metric = BLEU(effective_order=True, lowercase=self.ignore_case)
        with alone():
            found = metric.sentence_score(sample.output or "", [sample.expected or ""]).score
        score = min(1.0, found / 100)
        return matched(sample, self.name, score, f"BLEU is {score:.3f}", threshold=self.threshold)


@dataclass(frozen=True)
class Chrf:
    """chrF (Popović 2015) in [0, 1], of sacrebleu: runs of 1 to 6 characters, recall `beta` times as weighty.

    `word_order` 2 makes it chrF++ (Popović 2017).
    """

    name: str = "chrf"
    threshold: float = 0.5
    beta: int = 2
    word_order: int = 0
    ignore_case: bool = False

    def __post_init__(self) -> None:
        check_threshold(self.threshold)
        if self.beta < 0 or self.word_order < 0:
            raise SpecError("beta and word_order must not be negative")
        if self.word_order > LONGEST_RUN:
            raise SpecError(f"word_order is at most {LONGEST_RUN}: every run of words is kept in memory")

    @property
    def info(self) -> JudgeInfo:
        return reference_info(
            self.name, "chrF of the output against the expected text", threshold=self.threshold
        )

    async def judge(self, sample: Sample, engine: Engine) -> Outcome:
        require_extra("reference", "sacrebleu")
        from sacrebleu.metrics.chrf import CHRF

        metric = CHRF(beta=self.beta, word_order=self.word_order, lowercase=self.ignore_case)
        with alone():
            found = metric.sentence_score(sample.output or "", [sample.expected or ""]).score
        score = min(1.0, found / 100)
        return matched(sample, self.name, score, f"chrF is {score:.3f}", threshold=self.threshold)


@dataclass(frozen=True)
class Rouge:
    """ROUGE (Lin 2004) in [0, 1]: F1 of the words, pairs of words or longest common subsequence of both.

    Words are compared without case and punctuation, and not stemmed. Precision and recall are in the details.
    """

    name: str = "rouge"
    of: Kind = "rougeL"
    threshold: float = 0.5

    def __post_init__(self) -> None:
        check_threshold(self.threshold)

    @property
    def info(self) -> JudgeInfo:
        return reference_info(
            self.name, f"{self.of} of the output against the expected text", threshold=self.threshold
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
    """Precision and recall in [0, 1]; 0 where there is nothing to count."""
    from rapidfuzz.distance import LCSseq

    if of == "rougeL":
        common, mine, theirs = int(LCSseq.similarity(output, expected)), len(output), len(expected)
    else:
        size = int(of[-1])
        said, wanted = (
            Counter(zip(*(each[at:] for at in range(size)), strict=False)) for each in (output, expected)
        )
        common, mine, theirs = (said & wanted).total(), said.total(), wanted.total()
    return common / mine if mine else 0.0, common / theirs if theirs else 0.0
