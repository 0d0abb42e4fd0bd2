"""The judge `detector`: a small trained encoder that scores each sentence in milliseconds."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from magistrate.engines.base import Engine
from magistrate.errors import SpecError
from magistrate.features.language import strange
from magistrate.judges.base import FolderJudge, JudgeInfo
from magistrate.judges.verdicts import (
    LABELS,
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
ADVICE = "To count words all the same: novelty; to ask a model: faithfulness"
Size = Literal["small", "large"]
NOT_PULLED = "needs the large detector, which is not here yet; run: magistrate models pull detector-large"
NOTHING = "nothing in the output can be read"
MOST_CLAIMS = 12  # sentences for which a passage is looked up; the worst first
KINDS = ("supported", "contradicted", "absent")  # as a reading has their shares


@dataclass(frozen=True)
class Detector(FolderJudge):
    """Asks the detector in `folder`, as `magistrate train detector` writes one; without a folder that of
    `size`: the small one comes with the package, the large one by `magistrate models pull detector-large`.

    The score is the calibrated probability that the output is hallucinated where a share `base_rate` of
    outputs is; from `threshold` on the label is `hallucinated`. Each claim is a sentence that the context
    contradicts or does not contain, narrowed to the words that decide if some stand out, with its probability
    and the passage that contradicts it. `details` hold the scores of each sentence, and a heat map of the
    words. It abstains if nothing in the output can be read. Without a `folder` it also abstains on what
    these two were not trained for: languages other than English, and program code.
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
                raise SpecError("a detector is named by its folder or by its size, not by both")
            object.__setattr__(self, "folder", absolute(self.folder))
            _ = self.model

    @cached_property
    def model(self) -> Model:
        """What the folder holds; its network is loaded when it is first asked."""
        from magistrate.detectors.detector import detector
        from magistrate.detectors.folder import SHIPPED
        from magistrate.detectors.large import folder_of_large

        if self.size == "large":
            return detector(folder_of_large())
        return detector(self.folder or SHIPPED)

    @cached_property
    def manifest(self) -> Manifest:
        """What is told of it; of the large one also where that was not pulled yet."""
        from magistrate.detectors.large import manifest_of_large

        return manifest_of_large() if self.size == "large" else self.model.manifest

    @property
    def card(self) -> str:
        """What its folder says of how it was made and what it is worth."""
        from magistrate.detectors.large import LEARNT

        path = (LEARNT if self.size == "large" else self.model.folder) / CARD
        return path.read_text(encoding="utf-8") if path.is_file() else ""

    @property
    def info(self) -> JudgeInfo:
        from magistrate.detectors.large import is_pulled

        told = self.manifest
        return JudgeInfo(
            name=self.name,
            summary=SUMMARIES[self.size] if self.folder is None else f"{told.name}: {SUMMARY}",
            labels=LABELS,
            threshold=self.threshold,
            reads=("context", "messages", "input", "output"),
            requires=("context", "output"),
            kind="code",
            long="read in parts, each with the sentences of the context that cover it best",
            prompt=told.digest,
            trained_on=frozenset(told.trained_on),
            lacks=NOT_PULLED if self.size == "large" and not is_pulled() else "",
        )

    async def judge(self, sample: Sample, engine: Engine) -> Outcome:
        return await asyncio.to_thread(self.verdict, sample)

    def verdict(self, sample: Sample) -> Outcome:
        """What it says of one sample."""
        if self.folder is None and (what := strange(sample)):
            return Abstention(sample.id, self.name, "uncertain", f"{what}. {ADVICE}")
        found = self.model.detect(sample)
        if found is None:
            return Abstention(sample.id, self.name, "no_output", NOTHING)
        score = self.probability(found.logit)
        label = label_of(score, self.threshold)
        return Verdict(
            sample_id=sample.id,
            judge=self.name,
            label=label,
            score=score,
            probability=probability_of(label, score),
            claims=tuple(self.claims(sample, found)) if label == HALLUCINATED else (),
            details=self.details(sample, found),
        )

    def details(self, sample: Sample, found: Detection) -> dict[str, object]:
        """What was found of each sentence and word, as plain values."""
        return {
            "sentences": [
                {
                    "start": each.start,
                    "end": each.end,
                    "unsupported": round(self.probability(each.logit), 4),
                    **{name: round(share, 4) for name, share in zip(KINDS, each.shares, strict=True)},
                }
                for each in found.sentences
            ],
            "heat": heat_map(
                "not supported by the context",
                "probability",
                sample.output or "",
                [[word.start, word.end, round(word.probability, 4)] for word in found.words],
            ),
            "threshold": self.threshold,
            "base_rate": self.base_rate,
            "windows": found.windows,
            "tokens": found.tokens,
        }

    def probability(self, logit: float) -> float:
        """The calibrated probability, in [0, 1], that what has this logit is not supported."""
        return self.manifest.probability(logit, self.base_rate)

    def claims(self, sample: Sample, found: Detection) -> Iterator[Claim]:
        """A claim for each sentence that is more probably unsupported than not; the worst one always."""
        worst = sorted(found.sentences, key=lambda each: -each.logit)[:MOST_CLAIMS]
        said = [each for each in worst if self.probability(each.logit) >= self.threshold] or worst[:1]
        for each in sorted(said, key=lambda each: each.start):
            yield self._claim(sample, each)

    def _claim(self, sample: Sample, sentence: SentenceScores) -> Claim:
        output = sample.output or ""
        start, end = deciding(sentence, self.manifest.token_threshold)
        against = self.model.evidence(sample, sentence) if sentence.kind == "contradicted" else None
        share = self.probability(sentence.logit)
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
    """From the first to the last word of a sentence that stands out; the whole sentence where none does."""
    words = [word for word in sentence.words if word.probability >= least]
    return (words[0].start, words[-1].end) if words else (sentence.start, sentence.end)
