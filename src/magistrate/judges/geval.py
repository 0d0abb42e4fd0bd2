"""The judge `geval`: a criterion, steps to follow, and the expected grade over the tokens of a scale.

G-Eval (Liu and others 2023, arXiv:2303.16634). The steps are fixed: given by the caller, or written once by
a model into a file. They are part of the judge's digest and do not change between runs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from magistrate._yaml import DIALECT, read_document
from magistrate.constraints import Constraint, constraint
from magistrate.constraints.schema import closed_object, short_text
from magistrate.engines.base import Engine, Sampling
from magistrate.errors import InvalidOutput, SpecError
from magistrate.judges.base import LABELS, READS, Call, JudgeInfo, absolute, check_threshold
from magistrate.judges.question import Answers, Label, choose_label
from magistrate.judges.template import builtin_prompt, fields_of
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
UNWRITTEN = frozenset(map(chr, (*range(0x7F, 0xA0), 0x2028, 0x2029, 0xFEFF, 0xFFFE, 0xFFFF)))
LEAST_STEPS, MOST_STEPS, STEP_CHARACTERS = 2, 6, 200


@dataclass(frozen=True)
class GEval:
    """Grades the output by `criteria` on a scale of 2 (yes or no; the default), 3 or 5, after `steps`.

    The grade is the mean over the scale's tokens, weighted by their probabilities, from one forward pass.
    `mass` is the total probability of these tokens. An engine that only names its answer gives that grade.
    Without criteria faithfulness is graded, with the labels and direction of faithfulness judges. With
    other criteria the labels are `met` and `not_met` and a high score is good. At `threshold` and above the
    label is the one of high scores. `file` is written by `magistrate judges steps` and holds criteria,
    steps and an optional scale. Raises `SpecError` for steps without criteria, criteria together with a
    file, and an unknown scale.
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
            raise SpecError(f"scale must be {', '.join(map(str, SCALES))} grades, got {self.scale}")
        if self.steps and not self.criteria:
            raise SpecError("steps need criteria: geval:criteria=(…),steps=(…)+(…)")
        if self.file is not None and (self.criteria or self.steps):
            raise SpecError("give criteria and steps either in the file or as options, not both")
        if self.file is not None:
            object.__setattr__(self, "file", absolute(self.file))
        for text in (self._asked.criteria, *self._asked.steps):
            if not text.strip() or any(line.startswith("===") for line in text.splitlines()):
                raise SpecError(
                    f"criteria and steps must be texts without lines that start with ===, got {text!r}"
                )
            if "\ue000" in text:
                raise SpecError("criteria and steps cannot contain the character U+E000")

    @cached_property
    def _asked(self) -> Criteria:
        """Criteria, steps and scale in use; the file is read once."""
        if self.file is not None:
            return read_criteria(self.file)
        if not self.criteria:
            return Criteria(FAITHFULNESS, FAITHFULNESS_STEPS)
        return Criteria(self.criteria, self.steps)

    @property
    def n_grades(self) -> int:
        """The number of grades: from the option `scale`, else from the file, else 2."""
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
            summary="one forward pass: the expected grade by a criterion and fixed steps"
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
        """Return `info.describe()` with criteria and steps."""
        asked = self._asked
        return {**self.info.describe(), "criteria": asked.criteria, "steps": list(asked.steps)}

    def plan(self, sample: Sample) -> list[Call]:
        """Return one choice."""
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
        ):  # with more grades the mean is no probability
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
    """Return the grades of a scale, the best first. Each is answered by one token."""
    if n == 2:
        return Label("2", 1.0, answers=("Yes",)), Label("1", 0.0, answers=("No",))
    return tuple(Label(str(grade), (grade - 1) / (n - 1), answers=(str(grade),)) for grade in range(n, 0, -1))


def reply(n: int) -> str:
    """Return the end of the prompt, which lists the grades."""
    if n == 2:
        return f"Does the text meet the criterion? {Answers(grade_labels(n)).reply()}"
    return (
        f"How far does the text meet the criterion? Reply with one number alone, from 1 (not at all) to {n} "
        "(in full)."
    )


# --- criteria in a file ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Criteria:
    """The criteria, the steps to follow, and the scale (None for the judge's own)."""

    criteria: str
    steps: tuple[str, ...] = ()
    scale: int | None = None


class CriteriaFile(BaseModel):
    """Criteria and steps of the judge `geval`."""

    model_config = ConfigDict(extra="forbid")
    criteria: str = Field(
        min_length=1, max_length=20_000, description="What is graded, in a sentence or two."
    )
    steps: list[str] = Field([], max_length=50, description="What the model goes through before the grade.")
    scale: int | None = Field(None, description="The number of grades: 2 (the default), 3 or 5.")
    written_by: str = Field("", description="The model that wrote the steps.")


def schema() -> dict[str, Any]:
    """Return the JSON Schema of a file with criteria and steps, for editors."""
    return {"$schema": DIALECT, **CriteriaFile.model_json_schema(), "title": "Criteria and steps of geval"}


def read_criteria(path: Path) -> Criteria:
    """Read criteria from a YAML file. Raises `SpecError`, with line and key, for mistakes in it."""
    document = read_document(path)
    found = document.read_as(CriteriaFile)
    if found.scale not in (None, *SCALES):
        raise document.error(("scale",), f"scale must be {', '.join(map(str, SCALES))} grades")
    return Criteria(found.criteria.strip(), tuple(found.steps), found.scale)


def criteria_text(criteria: str, steps: Sequence[str], written_by: str) -> str:
    """Return the content of the YAML file that `read_criteria` reads."""
    import json

    def written(text: str) -> str:
        """JSON, with escapes also for what YAML does not let stand or folds into a blank."""
        said = json.dumps(text.encode("utf-8", "replace").decode(), ensure_ascii=False)
        return "".join(f"\\u{ord(each):04x}" if each in UNWRITTEN else each for each in said)

    listed = "\n".join(f"  - {written(step)}" for step in steps)
    return (
        "# Criteria and steps of the judge `geval`: --judge geval:file=THIS.yaml\n# The steps are part of "
        "the judge. If you change them, it is a different judge with a different digest.\ncriteria: "
        f"{written(criteria)}\nsteps:\n{listed}\nwritten_by: {written(written_by)}\n"
    )


async def write_steps(criteria: str, engine: Engine) -> tuple[str, ...]:
    """Let a model write steps for criteria, to be reviewed and kept.

    Raises `InvalidOutput` if it writes too few different steps.
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
    """Return the schema of the steps that a model writes."""
    steps = {
        "type": "array",
        "items": short_text(STEP_CHARACTERS),
        "minItems": LEAST_STEPS,
        "maxItems": MOST_STEPS,
    }
    return constraint(closed_object({"steps": steps}))
