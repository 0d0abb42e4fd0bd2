"""A small encoder trained for the job: a verdict and the unsupported words in milliseconds."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from magistrate.engines.base import Engine
from magistrate.errors import SpecError
from magistrate.judges.base import JudgeInfo
from magistrate.stats.prior import EVEN, check_base_rate
from magistrate.types import FAITHFUL, HALLUCINATED, Abstention, Claim, Outcome, Sample, Span, Verdict

if TYPE_CHECKING:
    from magistrate.detectors.model import Detection, Word
    from magistrate.detectors.model import Detector as Model

MANIFEST = "detector.json"
NEEDED = ("openvino", "tokenizers")
SUMMARY = "a small encoder trained to tell which words the context does not support"
NO_FOLDER = (
    "has no detector to ask: detector:FOLDER, where FOLDER is what "
    "'magistrate train detector --data LABELLED --to FOLDER' wrote"
)


@dataclass(frozen=True)
class Detector:
    """Asks the detector in `folder`, as `magistrate train detector` writes one, or that which is shipped.

    Its score is the calibrated probability that the output is hallucinated where a share `base_rate` of
    outputs is; from `threshold` on the label says so. Each claim of a hallucinated output is a run of words
    that the context does not support, with the probability of the worst of them, and `details` hold the heat
    of every word. It abstains where nothing can be read in the output.
    """

    FOLDER_OPTION: ClassVar[str] = "folder"
    FOLDER_FILE: ClassVar[str] = MANIFEST

    folder: Path | None = None
    base_rate: float = EVEN
    threshold: float = 0.5
    name: str = "detector"

    def __post_init__(self) -> None:
        if not 0 < self.threshold < 1:
            raise SpecError(f"threshold must be in (0, 1), got {self.threshold}")
        check_base_rate(self.base_rate)
        if self.folder is not None:
            object.__setattr__(self, "folder", Path(self.folder).expanduser().absolute())
            _ = self.model

    @cached_property
    def model(self) -> Model:
        """What the folder holds; its network is loaded when it is first asked."""
        from magistrate.detectors.model import detector

        if self.folder is None:
            raise SpecError(f"judge {self.name!r} {NO_FOLDER}")
        return detector(self.folder)

    @property
    def info(self) -> JudgeInfo:
        known = JudgeInfo(
            name=self.name,
            summary=SUMMARY,
            labels=(FAITHFUL, HALLUCINATED),
            threshold=self.threshold,
            reads=("context", "messages", "input", "output"),
            requires=("context", "output"),
            kind="code",
            long="read in parts, each with the sentences of the context that cover it best",
            lacks=NO_FOLDER if self.folder is None else _missing(),
        )
        if self.folder is None:
            return known
        told = self.model.manifest
        summary = f"{told.name}: {SUMMARY}"
        return replace(known, summary=summary, prompt=told.digest, trained_on=frozenset(told.trained_on))

    async def judge(self, sample: Sample, engine: Engine) -> Outcome:
        found = await asyncio.to_thread(self.model.detect, sample)
        if found is None:
            return Abstention(sample.id, self.name, "no_output", "nothing in the output can be read")
        return self._verdict(sample, found)

    def _verdict(self, sample: Sample, found: Detection) -> Verdict:
        score = self.model.manifest.probability(found.logit, self.base_rate)
        wrong = score >= self.threshold
        label = HALLUCINATED if wrong else FAITHFUL
        output = sample.output or ""
        return Verdict(
            sample_id=sample.id,
            judge=self.name,
            label=label,
            score=score,
            probability=score if wrong else 1 - score,
            claims=tuple(claims(found.words, output, self.model.manifest.token_threshold)) if wrong else (),
            details={
                "heat": {
                    "name": "not supported by the context",
                    "unit": "probability",
                    "low": 0.0,
                    "high": 1.0,
                    "text": output,
                    "pieces": [[word.start, word.end, round(word.probability, 4)] for word in found.words],
                },
                "threshold": self.threshold,
                "base_rate": self.base_rate,
                "windows": found.windows,
                "tokens": found.tokens,
            },
        )


def _missing() -> str:
    """What is to be installed before a detector can be asked."""
    absent = [name for name in NEEDED if find_spec(name) is None]
    return f"needs {' and '.join(absent)}: pip install 'magistrate[local]'" if absent else ""


def claims(words: Sequence[Word], output: str, least: float) -> Iterator[Claim]:
    """A claim for every run of words of at least that probability; where none is, for the worst word."""
    runs: list[list[Word]] = []
    before = False
    for word in words:
        doubtful = word.probability >= least
        if doubtful and before:
            runs[-1].append(word)
        elif doubtful:
            runs.append([word])
        before = doubtful
    if not runs and words:
        runs = [[max(words, key=lambda each: each.probability)]]
    for run in runs:
        start, end = run[0].start, run[-1].end
        yield Claim(
            "unsupported",
            Span(start, end),
            reasoning="the context does not support these words",
            probability=max(word.probability for word in run),
            output_text=output[start:end],
        )
