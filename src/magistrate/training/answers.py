"""What a judge should have said: its question about a sample, and the answer that a label calls for."""

from __future__ import annotations

import json
from collections.abc import Callable
from string import ascii_uppercase

from magistrate.errors import SpecError
from magistrate.judges.base import Judge
from magistrate.judges.calibrated import Calibrated
from magistrate.judges.classify import Classify
from magistrate.judges.hallucination import Hallucination
from magistrate.judges.preflight import planned_calls
from magistrate.judges.registry import spelled
from magistrate.types import FAITHFUL, HALLUCINATED, Prompt, Sample

LABELS = (FAITHFUL, HALLUCINATED)
SUPPORTED = "Nothing in it goes beyond the context."
UNSUPPORTED = "Not all of it is supported by the context."
TEACHABLE = "faithfulness, hallucination, or a judge of your own with the labels faithful and hallucinated"

Answer = Callable[[Sample, str], str]


def asked_of(judge: Judge) -> Judge:
    """The judge that puts the question: behind a calibration, the one that was calibrated."""
    return asked_of(judge.of) if isinstance(judge, Calibrated) else judge


def answer_of(judge: Judge) -> Answer:
    """How this judge's model answers, as a function of the sample and the right label.

    Raises `SpecError` for a judge whose answer a label alone cannot write.
    """
    asked = asked_of(judge)
    if isinstance(asked, Hallucination):
        return _scored(asked)
    if isinstance(asked, Classify) and not _why_not(asked):
        return _chosen(asked)
    why = f": {_why_not(asked)}" if isinstance(asked, Classify) else ""
    raise SpecError(
        f"a label alone does not say what {spelled(judge)!r} should have answered{why}; take {TEACHABLE}"
    )


def question_of(judge: Judge, sample: Sample) -> Prompt:
    """What the judge asks about a sample first, which is where its verdict is answered."""
    return planned_calls(asked_of(judge), sample)[0].prompt


def _why_not(judge: Classify) -> str:
    """Why its answer cannot be written, empty where it can."""
    if missing := [label for label in LABELS if label not in {each.name for each in judge.criterion.labels}]:
        return f"it has no label {missing[0]!r}"
    if judge.criterion.categories:
        return "it asks once for each category"
    return "it gives its reason first" if judge.explain == "before" else ""


def _chosen(judge: Classify) -> Answer:
    """The word for each label, or the letter that stands before it in the first order that is shown."""
    labels = judge.criterion.labels
    words = {
        label.name: label.answers[0] if label.answers else letter
        for letter, label in zip(ascii_uppercase, labels, strict=False)
    }
    return lambda sample, label: words[label]


def _scored(judge: Hallucination) -> Answer:
    """The JSON of a verdict: 0 or 1, and as reasons what people marked, else no more than the label says."""

    def written(sample: Sample, label: str) -> str:
        reasons = _reasons(sample, judge) if label == HALLUCINATED else [SUPPORTED]
        fields = {
            "reasons": [each[: judge.most_characters] for each in reasons],
            "score": int(label != FAITHFUL),
        }
        names = ("reasons", "score") if judge.order == "reasons_first" else ("score", "reasons")
        return json.dumps({name: fields[name] for name in names}, ensure_ascii=False, separators=(",", ":"))

    return written


def _reasons(sample: Sample, judge: Hallucination) -> list[str]:
    output, found = sample.output or "", list[str]()
    room = judge.most_characters - 24
    for span in sample.spans[: judge.most_reasons]:
        quote = " ".join(output[span.start : span.end].split())
        if quote and room > 8:
            found.append(f"not supported: {quote if len(quote) <= room else quote[: room - 1] + '…'}")
    return found or [UNSUPPORTED]
