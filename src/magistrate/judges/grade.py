"""Judges by schema: the model fills in an object, and a rule turns it into a score and a label."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from magistrate.constraints import Constraint, constraint
from magistrate.engines.base import Engine, Sampling
from magistrate.errors import InvalidOutput, SpecError
from magistrate.judges.base import Call, JudgeInfo
from magistrate.judges.classify import check_direction, check_names
from magistrate.judges.template import PromptTemplate, fields_of
from magistrate.types import Direction, Outcome, Prompt, Sample, Verdict


@dataclass(frozen=True)
class Form:
    """The object that the model fills in, and the rule that reads it.

    `schema` is a JSON Schema of an object. The number at its key `score` is mapped from `scale` to [0, 1].
    At `at_least` (in units of the scale) and above the label is `label`, below it `otherwise`.
    `explanation` is the key of a text, or of several, to show. Raises `SpecError` for keys that are not in
    the schema, and `ConstraintError` if the schema has no bound.
    """

    prompt: PromptTemplate
    schema: Mapping[str, Any]
    score: str
    scale: tuple[float, float]
    at_least: float
    label: str
    otherwise: str
    explanation: str | None = None
    summary: str = ""
    direction: Direction = "minimize"
    reads: tuple[str, ...] = ("output",)
    requires: tuple[str, ...] = ("output",)

    def __post_init__(self) -> None:
        check_names(self.prompt, self.reads, ("reply",))
        keys = self.schema.get("properties", {})
        for role, key in (("score", self.score), ("explanation", self.explanation)):
            if key is not None and key not in keys:
                place = ("decision", role) if role == "score" else (role,)
                raise SpecError(
                    f"{role} is {key!r}, which the schema does not have: {', '.join(keys)}", key=place
                )
            if key is not None and key not in self.schema.get("required", []):
                raise SpecError(f"the schema must require {key!r}, because it is the {role}", key=("schema",))
        check_direction(self.direction, {self.label: 1.0, self.otherwise: 0.0})
        low, high = self.scale
        if not low < high:
            raise SpecError(
                f"a scale must go from a smaller to a larger number, got {list(self.scale)}", key=("scale",)
            )
        if not low < self.at_least <= high:
            raise SpecError(
                f"at_least must be in ({low:g}, {high:g}], got {self.at_least:g}",
                key=("decision", "at_least"),
            )
        self.constraint.require_bounds()

    @cached_property
    def constraint(self) -> Constraint:
        """The schema as a constraint on the model's text."""
        return constraint(dict(self.schema))

    @cached_property
    def digest(self) -> str:
        """12 hexadecimal digits of the sha256 of prompt and rule."""
        rule = (self.score, self.scale, self.at_least, self.label, self.otherwise, self.reads)
        content = repr((self.prompt.source, *rule, self.requires, self.direction))
        return hashlib.sha256(content.encode()).hexdigest()[:12]

    @property
    def reply(self) -> str:
        """The end of the prompt: the keys in order, with their descriptions from the schema."""
        keys = self.schema["properties"].items()
        listed = "; ".join(f'"{key}"{_described(inner)}' for key, inner in keys)
        return f"Reply in JSON with these keys in this order: {listed}."


@dataclass(frozen=True)
class Grade:
    """Fills in a form about the sample in one generation of at most `max_tokens` tokens.

    The score is the number that the model wrote. It is not a probability, so the verdict has none.
    """

    form: Form
    name: str = ""
    max_tokens: int = 512

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise SpecError(f"max_tokens must be at least 1, got {self.max_tokens}")

    @property
    def info(self) -> JudgeInfo:
        form = self.form
        return JudgeInfo(
            name=self.name or form.prompt.name,
            version=form.prompt.version,
            summary=form.summary,
            labels=(form.otherwise, form.label),
            direction=form.direction,
            threshold=(form.at_least - form.scale[0]) / (form.scale[1] - form.scale[0]),
            reads=form.reads,
            requires=form.requires,
            needs=frozenset({"generate", "constraints"}),
            prompt=form.digest,
            constraint=form.constraint.digest,
        )

    def plan(self, sample: Sample) -> list[Call]:
        """Return one generation."""
        return [Call(self._prompt(sample), self.max_tokens)]

    async def judge(self, sample: Sample, engine: Engine) -> Outcome:
        form = self.form
        written = await engine.generate(
            self._prompt(sample), form.constraint, sampling=Sampling(max_tokens=self.max_tokens)
        )
        value = float(written.value[form.score])
        low, high = form.scale
        if not low <= value <= high:
            raise InvalidOutput(
                f"{form.score} is {value:g}, outside the scale {low:g} to {high:g}", written.text
            )
        explanation = written.value[form.explanation] if form.explanation else None
        return Verdict(
            sample_id=sample.id,
            judge=self.info.name,
            label=form.label if value >= form.at_least else form.otherwise,
            score=(value - low) / (high - low),
            explanation="; ".join(map(str, explanation)) if isinstance(explanation, list) else explanation,
            details={"written": written.value, "steered": written.steered},
        )

    def _prompt(self, sample: Sample) -> Prompt:
        return self.form.prompt.prompt(fields_of(sample, self.form.reads), {"reply": self.form.reply})


def _described(schema: Any) -> str:
    text = schema.get("description") if isinstance(schema, Mapping) else None
    return f" ({text})" if text else ""
