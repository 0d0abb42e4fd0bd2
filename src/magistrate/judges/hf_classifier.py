"""The judge `hf_classifier`: your own Hugging Face classifier of text pairs or of tokens."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from magistrate.detectors.hf_classifier import ClassifierModel, Over, Pair, Scored
from magistrate.engines.base import Engine
from magistrate.errors import SpecError
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
from magistrate.types import Claim, Outcome, Sample, Verdict

SUMMARY = "your own classifier of pairs of texts or of tokens"
NO_FOLDER = (
    "needs a classifier: hf_classifier:FOLDER, where FOLDER contains config.json, tokenizer.json and "
    "openvino_model.xml, model.onnx or model.safetensors"
)


@dataclass(frozen=True)
class HFClassifier(FolderJudge):
    """Scores with your classifier in `folder`, a Hugging Face model of text pairs or of their tokens.

    `positive` are the labels that mean hallucinated, or `negative` those that mean faithful; you need
    neither if the label names make it clear. `pair` is the order of the two texts. `window` is in tokens, 0
    for the longest pair that the model reads. A context that does not fit is read in parts, and `over`
    combines their scores: `min` (one part that supports the output is enough), `mean` or `max`. At
    `threshold`, in (0, 1), and above the label is `hallucinated`. The sample's input is not read.
    """

    FOLDER_FILE: ClassVar[str | None] = "config.json"

    folder: Path | None = None
    positive: tuple[str, ...] = ()
    negative: tuple[str, ...] = ()
    pair: Pair = "context_output"
    over: Over = "min"
    window: int = 0
    threshold: float = 0.5
    name: str = "hf_classifier"

    def __post_init__(self) -> None:
        check_threshold(self.threshold)
        if self.folder is not None:
            object.__setattr__(self, "folder", absolute(self.folder))
            _ = self.classifier

    @cached_property
    def classifier(self) -> ClassifierModel:
        """The loaded folder; its network is loaded on first use."""
        if self.folder is None:
            raise SpecError(f"judge {self.name!r} {NO_FOLDER}")
        return ClassifierModel(
            self.folder,
            positive=self.positive,
            negative=self.negative,
            pair=self.pair,
            over=self.over,
            window=self.window,
        )

    @property
    def info(self) -> JudgeInfo:
        return JudgeInfo(
            name=self.name,
            summary=SUMMARY,
            labels=LABELS,
            threshold=self.threshold,
            reads=("context", "messages", "output"),
            requires=("context", "output"),
            kind="code",
            long=f"judged in parts; the {self.over} of their scores is used",
            prompt="" if self.folder is None else self.classifier.digest,
            lacks=NO_FOLDER if self.folder is None else "",
        )

    async def judge(self, sample: Sample, engine: Engine) -> Outcome:
        scored = await asyncio.to_thread(self.classifier.scores, sample)
        label = label_of(scored.score, self.threshold)
        output = sample.output or ""
        claims = _claims(output, scored, self.threshold)
        quoted = ", ".join(f'"{claim.output_text}"' for claim in claims[:3])
        return Verdict(
            sample_id=sample.id,
            judge=self.name,
            label=label,
            score=scored.score,
            probability=probability_of(label, scored.score),
            explanation=f"not supported: {quoted}{', …' if len(claims) > 3 else ''}" if claims else None,
            claims=claims,
            details={"method": "classifier", "windows": scored.windows, **_heat(output, scored)},
        )


def _claims(output: str, scored: Scored, threshold: float) -> tuple[Claim, ...]:
    """Return a claim for each run of tokens that the model flags."""
    return tuple(
        unsupported(output, start, end, "flagged by the classifier", share)
        for start, end, share in scored.spans(threshold)
    )


def _heat(output: str, scored: Scored) -> dict[str, object]:
    if not scored.tokens:
        return {}
    pieces = [list(token) for token in scored.tokens]
    return {"heat": heat_map("not supported by the context", "probability", output, pieces)}
