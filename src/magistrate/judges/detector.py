"""The judge `detector`: a small trained encoder that scores each sentence in milliseconds."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from magistrate.engines.base import Engine
from magistrate.errors import SpecError
from magistrate.features.words import strange
from magistrate.judges.base import (
    LABELS,
    FolderJudge,
    JudgeInfo,
    absolute,
    check_threshold,
    heat_map,
    label_of,
    probability_of,
    unsupported,
)
from magistrate.metrics.calibration import EVEN, check_base_rate
from magistrate.types import HALLUCINATED, Abstention, Claim, Outcome, Sample, Span, Verdict

if TYPE_CHECKING:
    from magistrate.detectors.detector import Detection, SentenceScores
    from magistrate.detectors.detector import Detector as Model
    from magistrate.detectors.folder import Manifest

MANIFEST, CARD = "detector.json", "README.md"
SUMMARY = "a small trained encoder that compares each sentence with the context"
SUMMARIES = {"small": SUMMARY, "large": SUMMARY.replace("small", "larger")}
ADVICE = "To compare words without a model: novelty; to ask a model: faithfulness"
Size = Literal["small", "large"]
NOT_PULLED = "needs the large detector, which is not installed; run: magistrate models pull detector-large"
NOTHING = "the output has no text that the detector can read"
MOST_CLAIMS = 12  # sentences that get claims, the worst first
KINDS = ("supported", "contradicted", "absent")  # in the order of `shares`


@dataclass(frozen=True)
class Detector(FolderJudge):
    """Scores with a trained encoder: one in `folder`, from `magistrate train detector`, or a shipped one.

    Without a folder `size` selects a shipped one: the small one is part of the package, the large one comes
    by `magistrate models pull detector-large`.

    The score is the calibrated probability that the output is hallucinated, if a share `base_rate` of
    outputs is. At `threshold` and above the label is `hallucinated`. Each claim is a sentence that the
    context contradicts or does not contain, with its probability and the contradicting passage. It is
    narrowed to the deciding words if some stand out. `details` hold the scores of each sentence, and a heat
    map of the words. Abstains if the output has no readable text. Without a `folder` it also abstains on
    languages other than English and on program code, which the two were not trained on.
    """

    FOLDER_FILE: ClassVar[str | None] = MANIFEST

    folder: Path | None = None
    size: Size = "small"
    base_rate: float = EVEN
    threshold: float = 0.5
    name: str = "detector"

    def __post_init__(self) -> None:
        check_threshold(self.threshold)
        check_base_rate(self.base_rate)
        if self.folder is not None:
            if self.size != "small":
                raise SpecError("give either the folder of a detector or a size, not both")
            object.__setattr__(self, "folder", absolute(self.folder))
            _ = self.model

    @cached_property
    def model(self) -> Model:
        """The loaded folder; its network is loaded on first use."""
        from magistrate.detectors.detector import detector
        from magistrate.detectors.folder import SHIPPED
        from magistrate.detectors.large import folder_of_large

        if self.size == "large":
            return detector(folder_of_large())
        return detector(self.folder or SHIPPED)

    @cached_property
    def manifest(self) -> Manifest:
        """The manifest, for the large detector also before it is downloaded."""
        from magistrate.detectors.large import manifest_of_large

        return manifest_of_large() if self.size == "large" else self.model.manifest

    @property
    def card(self) -> str:
        """The folder's description of how it was made and how well it works."""
        from magistrate.detectors.large import LEARNT

        path = (LEARNT if self.size == "large" else self.model.folder) / CARD
        return path.read_text(encoding="utf-8") if path.is_file() else ""

    @property
    def info(self) -> JudgeInfo:
        from magistrate.detectors.large import is_pulled

        told = self.manifest
        return JudgeInfo(
            name=self.name,
            version=8,
            summary=SUMMARIES[self.size] if self.folder is None else f"{told.name}: {SUMMARY}",
            labels=LABELS,
            threshold=self.threshold,
            reads=("context", "messages", "input", "output"),
            requires=("context", "output"),
            kind="code",
            long="judged by the sentence, each with the passage of the context that is nearest to it",
            prompt=told.digest,
            trained_on=frozenset(told.trained_on),
            lacks=NOT_PULLED if self.size == "large" and not is_pulled() else "",
        )

    async def judge(self, sample: Sample, engine: Engine) -> Outcome:
        return await asyncio.to_thread(self.verdict, sample)

    def verdict(self, sample: Sample) -> Outcome:
        """Judge one sample."""
        if self.folder is None and (what := strange(sample)):
            return Abstention(sample.id, self.name, "uncertain", f"{what}. {ADVICE}")
        found = self.model.detect(sample)
        if found is None:
            return Abstention(sample.id, self.name, "no_output", NOTHING)
        score = self.probability(found.logit)
        label = label_of(score, self.threshold)
        shares = [self.probability(each.logit) for each in found.sentences]
        return Verdict(
            sample_id=sample.id,
            judge=self.name,
            label=label,
            score=score,
            probability=probability_of(label, score),
            claims=tuple(self.claims(sample, found, shares)) if label == HALLUCINATED else (),
            details=self.details(sample, found, shares),
        )

    def details(self, sample: Sample, found: Detection, shares: Sequence[float]) -> dict[str, Any]:
        """Return the scores of each sentence and word, as plain values.

        `shares` are the probabilities, in [0, 1], that the sentences are not supported. In the heat map the
        probability of a word is multiplied by its sentence's, so words of a supported one are not marked.
        """
        return {
            "sentences": [
                {
                    "start": each.start,
                    "end": each.end,
                    "unsupported": round(unsupported, 4),
                    **{name: round(share, 4) for name, share in zip(KINDS, each.shares, strict=True)},
                }
                for each, unsupported in zip(found.sentences, shares, strict=True)
            ],
            "heat": heat_map(
                "not supported by the context",
                "probability",
                sample.output or "",
                [
                    [word.start, word.end, round(word.probability * share, 4)]
                    for each, share in zip(found.sentences, shares, strict=True)
                    for word in each.words
                ],
            ),
            "threshold": self.threshold,
            "base_rate": self.base_rate,
            "windows": found.windows,
            "tokens": found.tokens,
        }

    def probability(self, logit: float) -> float:
        """Return the calibrated probability, in [0, 1], that a text with this logit is not supported."""
        return self.manifest.probability(logit, self.base_rate)

    def claims(self, sample: Sample, found: Detection, shares: Sequence[float]) -> Iterator[Claim]:
        """Yield a claim for each sentence with at least `threshold`, or else for the worst one.

        `shares` are the probabilities, in [0, 1], that the sentences are not supported.
        """
        worst = sorted(zip(found.sentences, shares, strict=True), key=lambda each: -each[1])[:MOST_CLAIMS]
        told = [each for each in worst if each[1] >= self.threshold] or worst[:1]
        for sentence, share in sorted(told, key=lambda each: each[0].start):
            yield self._claim(sample, sentence, share)

    def _claim(self, sample: Sample, sentence: SentenceScores, share: float) -> Claim:
        output = sample.output or ""
        start, end = deciding(sentence, self.manifest.token_threshold)
        against = sentence.against
        if against is None:
            return unsupported(output, start, end, "the context does not say this", share)
        return Claim(
            "contradiction",
            Span(start, end),
            context_quote=Span(against.start, against.end),
            context_index=against.index,
            reasoning="the context says otherwise",
            probability=share,
            output_text=output[start:end],
            context_text=sample.sources[against.index][against.start : against.end],
        )


def deciding(sentence: SentenceScores, least: float) -> tuple[int, int]:
    """Return the range from the first to the last word that stands out; without any, the whole sentence."""
    words = [word for word in sentence.words if word.probability >= least]
    return (words[0].start, words[-1].end) if words else (sentence.start, sentence.end)
