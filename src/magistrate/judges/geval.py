"""The judge `geval`: a criterion, steps to follow, and the expected grade over the tokens of a scale.

G-Eval (Liu and others 2023, arXiv:2303.16634). The steps are pinned: given, or written once by a model into a
file, and then part of the judge's digest, so that they do not drift from run to run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from magistrate._yaml import read_document
from magistrate.constraints import Constraint, constraint
from magistrate.constraints.schema import closed_object, short_text
from magistrate.engines.base import Engine, Sampling
from magistrate.errors import InvalidOutput, SpecError
from magistrate.judges.base import Call, JudgeInfo
from magistrate.judges.question import Answers, Label, choose_label
from magistrate.judges.template import builtin_prompt, fields_of
from magistrate.judges.verdicts import LABELS, READS, absolute, check_threshold
from magistrate.types import Outcome, Prompt, Sample, Verdict

FAITHFULNESS = (
    "Faithfulness: the context supports every statement of the text. Nothing in it is added, contradicted or "
    "credited to somebody else, even if it may be true; other words for the same fact are faithful."
)
FAITHFULNESS_STEPS = (
    "Split the text into its single statements.",
    "For each statement find the words of the context that say the same, or from which it follows.",
    "Compare numbers, dates, names, units, conditions and negations letter for letter.",
    "Take any statement that is contradicted or that the context does not hold as a fault.",
    "The text meets the criterion only if no statement has a fault.",
)
MET = ("met", "not_met")
SCALES = (2, 3, 5)
LEAST_STEPS, MOST_STEPS, STEP_CHARACTERS = 2, 6, 200


@dataclass(frozen=True)
class GEval:
    """Grades the output by `criteria` on a scale of 2 (yes or no; the default), 3 or 5, after `steps`.

    The grade is the mean over the scale's tokens, weighted by their probabilities among these tokens, in one
    forward pass; `mass` says how much probability they had together. An engine that only names its answer
    gives that grade. Without criteria it is faithfulness that is graded: labels and direction are then those
    of judges of faithfulness. By other criteria the labels are `met` and `not_met` and a high score is good.
    From `threshold` on the label is the one of high scores. `file` is what `magistrate judges steps` wrote:
    criteria, steps and perhaps a scale. Raises `SpecError` for steps without criteria, criteria beside a
    file, and a scale that is none.
    """

    criteria: str = ""
    steps: tuple[str, ...] = ()
    scale: int | None = None
    threshold: float = 0.5
    file: Path | None = None
    name: str = "geval"

    def __post_init__(self) -> None:
        check_threshold(self.threshold)
        if self.scale not in (None, *SCALES):
            raise SpecError(f"a scale has {', '.join(map(str, SCALES))} grades, got {self.scale}")
        if self.steps and not self.criteria:
            raise SpecError("steps go with criteria: geval:criteria=(…),steps=(…)+(…)")
        if self.file is not None and (self.criteria or self.steps):
            raise SpecError("criteria and steps stand in the file, or in the options, not in both")
        if self.file is not None:
            object.__setattr__(self, "file", absolute(self.file))
        for text in (self._asked.criteria, *self._asked.steps):
            if not text.strip() or any(line.startswith("===") for line in text.splitlines()):
                raise SpecError(
                    f"criteria and steps are texts without lines that begin with ===, got {text!r}"
                )

    @cached_property
    def _asked(self) -> Criteria:
        """Criteria, steps and scale as they are used; the file is read once."""
        if self.file is not None:
            return read_criteria(self.file)
        if not self.criteria:
            return Criteria(FAITHFULNESS, FAITHFULNESS_STEPS)
        return Criteria(self.criteria, self.steps)

    @property
    def n_grades(self) -> int:
        """How many grades the scale has: as asked for, else as the file says, else 2."""
        return self.scale or self._asked.scale or SCALES[0]

    @property
    def _faithfulness(self) -> bool:
        return self._asked.criteria == FAITHFULNESS

    @property
    def info(self) -> JudgeInfo:
        prompt, asked = builtin_prompt("geval"), self._asked
        content = repr((prompt.source, asked.criteria, asked.steps, self.n_grades))
        faithfulness = self._faithfulness
        return JudgeInfo(
            name=self.name,
            version=prompt.version,
            summary="one forward pass: the expected grade by a criterion and pinned steps"
            + (" (faithfulness)" if faithfulness else ""),
            labels=LABELS if faithfulness else MET,
            direction="minimize" if faithfulness else "maximize",
            threshold=self.threshold,
            reads=READS if faithfulness else (*READS, "expected"),
            requires=("context", "output") if faithfulness else ("output",),
            needs=frozenset({"choose"}),
            prompt=hashlib.sha256(content.encode()).hexdigest()[:12],
            constraint="choice",
        )

    def describe(self) -> dict[str, Any]:
        """What its info says, and what it grades by."""
        asked = self._asked
        return {**self.info.describe(), "criteria": asked.criteria, "steps": list(asked.steps)}

    def plan(self, sample: Sample) -> list[Call]:
        """One choice."""
        return [Call(self._prompt(sample))]

    async def judge(self, sample: Sample, engine: Engine) -> Outcome:
        labels = grade_labels(self.n_grades)
        found = await choose_label(engine, labels, lambda _: self._prompt(sample))
        quality = min(max(sum(found.probability(each.name) * each.score for each in labels), 0.0), 1.0)
        good, bad = self.info.labels
        score, high, low = (1 - quality, bad, good) if self._faithfulness else (quality, good, bad)
        label = high if score >= self.threshold else low
        probability = None
        if (
            found.probabilities is not None and self.n_grades == 2
        ):  # of more grades the mean is no probability
            probability = score if label == high else 1 - score
        return Verdict(
            sample_id=sample.id,
            judge=self.name,
            label=label,
            score=score,
            probability=probability,
            explanation=f"grade {1 + quality * (self.n_grades - 1):.2f} of 1 to {self.n_grades}",
            mass=found.mass,
            details={
                "method": found.method,
                "scale": self.n_grades,
                "grade": 1 + quality * (self.n_grades - 1),
                **({} if found.probabilities is None else {"probabilities": dict(found.probabilities)}),
            },
        )

    def _prompt(self, sample: Sample) -> Prompt:
        asked = self._asked
        words = {"criteria": asked.criteria, "steps": list(asked.steps), "reply": reply(self.n_grades)}
        nothing = {"expected": ""} if self._faithfulness else {}
        return builtin_prompt("geval").prompt({**nothing, **fields_of(sample, self.info.reads)}, words)


# --- the scale ------------------------------------------------------------------------------------


def grade_labels(n: int) -> tuple[Label, ...]:
    """The grades of a scale, the best first; each is answered by one token."""
    if n == 2:
        return Label("2", 1.0, answers=("Yes",)), Label("1", 0.0, answers=("No",))
    return tuple(Label(str(grade), (grade - 1) / (n - 1), answers=(str(grade),)) for grade in range(n, 0, -1))


def reply(n: int) -> str:
    """The end of the prompt: which grades there are."""
    if n == 2:
        return f"Does the text meet the criterion? {Answers(grade_labels(n)).reply()}"
    return (
        f"How far does the text meet the criterion? Reply with one number alone, from 1 (not at all) to {n} "
        "(in full)."
    )


# --- criteria in a file ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Criteria:
    """What is graded, the steps to follow, and the scale, None where the judge's own holds."""

    criteria: str
    steps: tuple[str, ...] = ()
    scale: int | None = None


def read_criteria(path: Path) -> Criteria:
    """The criteria in a YAML file. Raises `SpecError`, with line and key, for what is wrong in it."""
    from pydantic import BaseModel, ConfigDict, Field

    class CriteriaFile(BaseModel):
        model_config = ConfigDict(extra="forbid")
        criteria: Annotated[str, Field(min_length=1, max_length=20_000)]
        steps: Annotated[list[str], Field(max_length=50)] = []
        scale: int | None = None
        written_by: str = ""

    document = read_document(path)
    found = document.read_as(CriteriaFile)
    if found.scale not in (None, *SCALES):
        raise document.error(("scale",), f"a scale has {', '.join(map(str, SCALES))} grades")
    return Criteria(found.criteria.strip(), tuple(found.steps), found.scale)


def criteria_text(criteria: str, steps: Sequence[str], written_by: str) -> str:
    """The YAML file that `read_criteria` reads."""
    import json

    listed = "\n".join(f"  - {json.dumps(step, ensure_ascii=False)}" for step in steps)
    return (
        "# What the judge `geval` grades by: --judge geval:file=THIS.yaml\n"
        "# The steps are part of the judge. Whoever changes them has another judge with another digest.\n"
        f"criteria: {json.dumps(criteria, ensure_ascii=False)}\n"
        f"steps:\n{listed}\n"
        f"written_by: {json.dumps(written_by, ensure_ascii=False)}\n"
    )


async def write_steps(criteria: str, engine: Engine) -> tuple[str, ...]:
    """The steps that a model writes for criteria, to be looked at and kept.

    Raises `InvalidOutput` where it writes the same step over and over.
    """
    words = {"criteria": criteria, "least": LEAST_STEPS, "most": MOST_STEPS}
    written = await engine.generate(
        builtin_prompt("geval_steps").prompt({}, words),
        steps_shape(),
        sampling=Sampling(max_tokens=MOST_STEPS * (STEP_CHARACTERS // 2) + 32),
    )
    steps = tuple(dict.fromkeys(each.strip() for each in written.value["steps"] if each.strip()))
    if len(steps) < LEAST_STEPS:
        raise InvalidOutput(
            f"the model wrote {len(steps)} different steps; write them by hand, or ask another model",
            written.text,
        )
    return steps


def steps_shape() -> Constraint:
    """The schema of the steps that a model writes."""
    steps = {
        "type": "array",
        "items": short_text(STEP_CHARACTERS),
        "minItems": LEAST_STEPS,
        "maxItems": MOST_STEPS,
    }
    return constraint(closed_object({"steps": steps}))
