"""Judges that choose among labels: one forward pass per question gives the probability of each label."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

from magistrate.constraints import Constraint, constraint
from magistrate.engines.base import Capability, Engine, Sampling
from magistrate.errors import SpecError
from magistrate.judges.base import Call, JudgeInfo
from magistrate.judges.bound import Bound
from magistrate.judges.composite import gather_or_cancel
from magistrate.judges.question import (
    Answers,
    Explain,
    Label,
    LabelProbabilities,
    check_labels,
    choose_label,
    without_prior,
)
from magistrate.judges.template import Field, PromptTemplate, builtin_prompt, fields_of
from magistrate.types import (
    FAITHFUL,
    HALLUCINATED,
    Data,
    Direction,
    Outcome,
    Part,
    Prompt,
    Sample,
    Trusted,
    Verdict,
)

EXPLANATION_CHARACTERS = 280
EXPLANATION_TOKENS = 96
EXPLANATION_ROOM = EXPLANATION_TOKENS + 8  # the text may be tokenized differently when read again
WORDS = ("reply", "category", "description")
THRESHOLD = ("decision", "threshold")

LabelSpec = float | tuple[float, str] | Label


@dataclass(frozen=True)
class Criterion:
    """What a classifier asks: a prompt over fields of the sample, and the labels that answer it.

    `reads` are the fields that the prompt may show, `requires` the mandatory ones. With `categories` (name
    to description) the prompt is asked once per category. `reread` is a prompt that asks which label an
    explanation argues for. `copied` is the label of an output that equals one of its sources exactly; no
    model is called then. `model` is the model tuned on this prompt, used if the caller names none. Raises
    `SpecError` for a prompt that uses any other name.
    """

    prompt: PromptTemplate
    labels: tuple[Label, ...]
    summary: str = ""
    direction: Direction = "minimize"
    reads: tuple[str, ...] = ("output",)
    requires: tuple[str, ...] = ("output",)
    categories: tuple[tuple[str, str], ...] = ()
    reread: PromptTemplate | None = None
    copied: str | None = None
    model: str = ""

    def __post_init__(self) -> None:
        check_labels(self.labels)
        if reserved := sorted(set(self.reads) & set(WORDS)):
            raise SpecError(
                f"an input cannot be called {reserved[0]}: the name is used by the judge", key=("inputs",)
            )
        check_names(self.prompt, self.reads, ("reply", *(["category"] if self.categories else [])))
        if missing := set(self.requires) - set(self.reads):
            raise SpecError(
                f"{', '.join(sorted(missing))} is required but not among the inputs", key=("inputs",)
            )
        check_direction(self.direction, {label.name: label.score for label in self.labels})
        if self.copied is not None and self.copied not in [label.name for label in self.labels]:
            raise SpecError(f"{self.copied!r} is not one of the labels", key=("copied",))

    @cached_property
    def digest(self) -> str:
        """12 hexadecimal digits of the sha256 of the prompts, labels, fields, categories and direction."""
        reread = self.reread.digest if self.reread else None
        asked = (self.prompt.source, self.labels, self.reads, self.categories, reread, self.copied)
        content = repr((*asked, self.requires, self.direction))
        return hashlib.sha256(content.encode()).hexdigest()[:12]


def check_names(prompt: PromptTemplate, reads: Sequence[str], needs: Sequence[str]) -> None:
    """Raise `SpecError` if a prompt uses an unknown name, or lacks one of `needs`."""
    if unknown := sorted(prompt.names - set(reads) - set(WORDS)):
        raise SpecError(
            f"the prompt uses {{{{ {unknown[0]} }}}}, which is not among its inputs: {', '.join(reads)}",
            key=("prompt",),
        )
    for name in needs:
        if name not in prompt.names:
            raise SpecError(f"the prompt must use {{{{ {name} }}}}", key=("prompt",))


def direction_of(scores: Mapping[str, float]) -> Direction | None:
    """Return the direction that the labels' scores imply, None if they imply none."""
    if not {FAITHFUL, HALLUCINATED} <= scores.keys() or scores[FAITHFUL] == scores[HALLUCINATED]:
        return None
    return "minimize" if scores[FAITHFUL] < scores[HALLUCINATED] else "maximize"


def check_direction(direction: Direction, scores: Mapping[str, float]) -> None:
    """Raise `SpecError` if a direction contradicts the scores of the labels."""
    meant = direction_of(scores)
    if meant not in (None, direction):
        raise SpecError(
            f"direction is {direction!r}, but {FAITHFUL!r} scores {scores[FAITHFUL]:g} and {HALLUCINATED!r} "
            f"{scores[HALLUCINATED]:g}: set direction to {meant!r}, or swap the scores",
            key=("direction",),
        )


def label(name: str, spec: LabelSpec) -> Label:
    """Make a label from `score`, `(score, description)` or a `Label`."""
    if isinstance(spec, Label):
        return spec
    score, description = spec if isinstance(spec, tuple) else (spec, "")
    return Label(name, float(score), description)


def classifier(
    name: str,
    prompt: str,
    labels: Mapping[str, LabelSpec],
    *,
    inputs: Sequence[str] = ("output",),
    categories: Mapping[str, str] | None = None,
    direction: Direction | None = None,
    version: int = 1,
    summary: str = "",
    **options: Any,
) -> Classify:
    """Make a judge that chooses among labels.

    `classifier("tone", "Is it polite?\\n{{ output }}\\n{{ reply }}", {"polite": 0, "rude": (1,
    "insults")})`

    `prompt` is a Jinja template over `inputs` (fields of a sample, or keys of its metadata; a trailing
    question mark makes one optional). `{{ reply }}` marks the place of the list of answers. A label has a
    score in [0, 1], or a score and a description. `direction` says whether a low score is good (`minimize`)
    or a high one (`maximize`). By default it follows from the scores of faithful and hallucinated, and is
    `minimize` for other labels. `options` are those of `Classify`.
    """
    template = PromptTemplate(name, version, with_section(prompt))
    answers = tuple(label(each, spec) for each, spec in labels.items())
    meant = direction_of({each.name: each.score for each in answers})
    criterion = Criterion(
        prompt=template,
        labels=answers,
        summary=summary,
        direction=direction or meant or "minimize",
        reads=tuple(each.removesuffix("?") for each in inputs),
        requires=tuple(each for each in inputs if not each.endswith("?")),
        categories=tuple((categories or {}).items()),
    )
    return Classify(criterion, **options)


def with_section(prompt: str) -> str:
    """Return the prompt with a user section; a prompt without sections is all the user's message."""
    return prompt if re.search(r"^=== \w+$", prompt, re.MULTILINE) else f"=== user\n{prompt}"


@dataclass(frozen=True)
class Classify:
    """Chooses among the labels of a criterion.

    `score` is the mean of the labels' scores, weighted by their probabilities. Between two labels
    `threshold` decides (by default midway between their scores); among more the most probable is chosen.
    `explain` adds a sentence. With `before` it is written first, and the label is chosen after it. With
    `after` it starts with the decided label, and the label is then chosen again from the sentence: a
    disagreement is recorded. `permute` averages over orders of the labels. `prior="empty_context"` divides
    out the prompt's answer for an empty context. An engine that only names its answer gives that label's
    score and no probability.
    """

    criterion: Criterion
    name: str = ""
    explain: Explain = "none"
    permute: bool = False
    prior: Literal["none", "empty_context"] = "none"
    threshold: float | None = None

    def __post_init__(self) -> None:
        if self.threshold is not None:
            if len(self.criterion.labels) != 2:
                raise SpecError("a threshold needs exactly two labels", key=THRESHOLD)
            low, high = sorted(each.score for each in self.criterion.labels)
            if not low < self.threshold < high:
                raise SpecError(
                    f"threshold must be in ({low:g}, {high:g}), got {self.threshold}", key=THRESHOLD
                )
        if self.prior != "none" and "context" not in self.criterion.reads:
            raise SpecError("prior needs a judge that reads the context", key=("prior",))
        if self.prior != "none" and self.explain == "before":
            raise SpecError(
                "prior cannot be combined with explain=before: an empty context has no explanation",
                key=("prior",),
            )
        if self.explain != "none" and self.criterion.categories:
            raise SpecError("explain is not supported with several categories", key=("explain",))

    @cached_property
    def constraint(self) -> Constraint:
        """One line of text, for the explanation."""
        return constraint(re.compile(f"[^\\r\\n]{{1,{EXPLANATION_CHARACTERS}}}"))

    @property
    def info(self) -> JudgeInfo:
        criterion = self.criterion
        needs: set[Capability] = {"choose"}
        if self.explain != "none":
            needs |= {"generate", "constraints"}
        if self.prior != "none":
            needs |= {"exact_probability"}  # a bare answer has no odds to divide
        return JudgeInfo(
            name=self._name,
            version=criterion.prompt.version,
            summary=criterion.summary,
            labels=tuple(each.name for each in criterion.labels),
            direction=criterion.direction,
            threshold=self._threshold,
            reads=criterion.reads,
            requires=criterion.requires,
            needs=frozenset(needs),
            prompt=criterion.digest,
            constraint=self.constraint.digest if self.explain != "none" else "choice",
            # One that learnt to answer at once has no reason to write first.
            models=frozenset({"" if self.explain == "before" else criterion.model}),
        )

    def describe(self) -> dict[str, Any]:
        """Return name, kind, direction, labels with scores, and the JSON Schema of the fields it reads."""
        return {**self.info.describe(), "scores": {each.name: each.score for each in self.criterion.labels}}

    def bind(self, mapping: Mapping[str, str]) -> Bound:
        """Return this judge with fields read from elsewhere, as in `bind({"output": "metadata.summary"})`."""
        return Bound(self, mapping)

    def plan(self, sample: Sample) -> list[Call]:
        """Return the calls for every question, for its prior, and for its explanation."""
        fields = fields_of(sample, self.criterion.reads)
        times = len(self.criterion.labels) if self.permute else 1
        asked = [self._prompt(fields, words)(self._answers) for words in self._questions]
        if self.explain == "before":
            (prompt,) = asked
            reason = Call(prompt.continued(Trusted("Reason:")), EXPLANATION_TOKENS)
            return [reason, Call(prompt.continued(*_reasoned("")), extra=EXPLANATION_ROOM, times=times)]
        calls = [Call(prompt, times=times) for prompt in asked]
        if self.prior != "none":
            empty = {**fields, "context": ("",), "messages": ()}
            calls += [
                Call(self._prompt(empty, words)(self._answers), times=times) for words in self._questions
            ]
        return calls if self.explain == "none" else [*calls, *self.explaining(sample)]

    def explaining(self, sample: Sample) -> list[Call]:
        """Return the calls for an explanation: one to write it, and one to choose the label from it."""
        (words,) = self._questions
        prompt = self._prompt(fields_of(sample, self.criterion.reads), words)(self._answers)
        openings = sorted(map(_opening, self.criterion.labels), key=len, reverse=True)
        written = [
            Call(prompt.continued(Trusted(each)), EXPLANATION_TOKENS, times=int(each == openings[0]))
            for each in openings
        ]
        again = Call(self._reread("…", Answers(self._reread_labels)), extra=EXPLANATION_ROOM)
        return [*written, again]

    async def explained(self, verdict: Verdict, sample: Sample, engine: Engine) -> Verdict:
        """Add an explanation to a verdict of any judge. Its label must be one of the criterion's.

        The sentence starts with the label, which is then chosen again from the sentence alone.
        """
        (words,) = self._questions
        prompt = self._prompt(fields_of(sample, self.criterion.reads), words)
        decided = next(each for each in self.criterion.labels if each.name == verdict.label)
        return await self._explained(verdict, decided, prompt, engine)

    async def judge(self, sample: Sample, engine: Engine) -> Outcome:
        if self.criterion.copied and (sample.output or "").strip() in [s.strip() for s in sample.sources]:
            return self._copied(sample)
        verdicts = await gather_or_cancel(self._decided(sample, engine, words) for words in self._questions)
        worst = self._worst(verdicts, key=lambda verdict: verdict.score)
        if not self.criterion.categories:
            return worst
        names = [name for name, _ in self.criterion.categories]
        scores = {name: verdict.score for name, verdict in zip(names, verdicts, strict=True)}
        return replace(
            worst,
            explanation=", ".join(f"{name} {score:.2f}" for name, score in scores.items()),
            mass=min((each.mass for each in verdicts if each.mass is not None), default=None),
            details={"method": worst.details["method"], "categories": scores},
        )

    # ------------------------------------------------------------------------------------------------

    @property
    def _name(self) -> str:
        return self.name or self.criterion.prompt.name

    @property
    def _answers(self) -> Answers:
        return Answers(self.criterion.labels)

    @property
    def _worst(self) -> Callable[..., Verdict]:
        return max if self.criterion.direction == "minimize" else min

    @property
    def _questions(self) -> list[dict[str, str]]:
        """The words that each question adds to the prompt: one entry per category, or a single one."""
        listed = [{"category": name, "description": text} for name, text in self.criterion.categories]
        return listed or [{"category": "", "description": ""}]

    def _prompt(self, fields: Mapping[str, Field], words: Mapping[str, str]) -> Callable[[Answers], Prompt]:
        template = self.criterion.prompt
        return lambda answers: template.prompt(fields, {**words, "reply": answers.reply(self.explain)})

    async def _decided(self, sample: Sample, engine: Engine, words: Mapping[str, str]) -> Verdict:
        fields = fields_of(sample, self.criterion.reads)
        asked = prompt = self._prompt(fields, words)
        explanation = None
        if self.explain == "before":
            explanation = await self._sentence(engine, asked(self._answers), "Reason:")
            spoken = _reasoned(explanation)

            def prompt(answers: Answers) -> Prompt:
                return asked(answers).continued(*spoken)

        labels = self.criterion.labels
        found = await choose_label(engine, labels, prompt, permute=self.permute)
        details: dict[str, Any] = {"method": found.method}
        if self.prior != "none":
            empty = self._prompt({**fields, "context": ("",), "messages": ()}, words)
            prior = await choose_label(engine, labels, empty, permute=self.permute)
            details |= {"raw_score": self._score(found), "prior": self._score(prior)}
            found = without_prior(found, prior)
        score = self._score(found)
        decided = self._label(found, score)
        if len(labels) > 2 and found.probabilities is not None:
            details["probabilities"] = dict(found.probabilities)
        verdict = Verdict(
            sample_id=sample.id,
            judge=self._name,
            label=decided.name,
            score=score,
            probability=None if found.probabilities is None else found.probability(decided.name),
            explanation=explanation,
            mass=found.mass,
            details=details,
        )
        return await self._explained(verdict, decided, asked, engine) if self.explain == "after" else verdict

    def _score(self, found: LabelProbabilities) -> float:
        score = sum(found.probability(each.name) * each.score for each in self.criterion.labels)
        return min(max(score, 0.0), 1.0)

    def _label(self, found: LabelProbabilities, score: float) -> Label:
        labels = self.criterion.labels
        if len(labels) > 2:
            return next(each for each in labels if each.name == found.best)
        low, high = sorted(labels, key=lambda each: each.score)
        threshold = self._threshold
        assert threshold is not None  # with two labels there is one
        return high if score >= threshold else low

    @property
    def _threshold(self) -> float | None:
        """The lowest score with the label of the higher score; None unless there are two labels."""
        scores = [each.score for each in self.criterion.labels]
        if len(scores) != 2:
            return None
        return sum(scores) / 2 if self.threshold is None else self.threshold

    async def _sentence(self, engine: Engine, prompt: Prompt, opening: str) -> str:
        written = await engine.generate(
            prompt.continued(Trusted(opening)),
            self.constraint,
            sampling=Sampling(max_tokens=EXPLANATION_TOKENS),
        )
        return written.text.strip()

    async def _explained(
        self, verdict: Verdict, decided: Label, prompt: Callable[[Answers], Prompt], engine: Engine
    ) -> Verdict:
        explanation = await self._sentence(engine, prompt(self._answers), _opening(decided))
        if not explanation:
            return verdict
        again = await choose_label(
            engine, self._reread_labels, lambda answers: self._reread(explanation, answers)
        )
        return replace(verdict, explanation=explanation, explanation_agrees=again.best == verdict.label)

    @property
    def _reread_labels(self) -> tuple[Label, ...]:
        """The labels for rereading. The general question lists them, since it does not repeat the prompt."""
        labels = self.criterion.labels
        return labels if self.criterion.reread else tuple(replace(each, answers=()) for each in labels)

    def _reread(self, explanation: str, answers: Answers) -> Prompt:
        template = self.criterion.reread or builtin_prompt("reread")
        return template.prompt({"explanation": explanation}, {"reply": answers.reply()})

    def _copied(self, sample: Sample) -> Verdict:
        found = next(each for each in self.criterion.labels if each.name == self.criterion.copied)
        because = "the output is identical to one of its sources"
        return Verdict(
            sample.id, self._name, found.name, found.score, explanation=because, details={"method": "rule"}
        )


def _opening(decided: Label) -> str:
    """Return the first words of an explanation of a label."""
    return decided.opening or f"{decided.answers[0] if decided.answers else decided.name}, because"


def _reasoned(explanation: str) -> tuple[Part, ...]:
    """Return the text between the prompt and the answer, when an explanation was written first."""
    return Trusted("Reason: "), Data(explanation, "explanation"), Trusted("\nAnswer:")
