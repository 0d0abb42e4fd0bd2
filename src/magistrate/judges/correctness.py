"""The judge `correctness`: compares the output with the expected answer, by code where possible."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from magistrate._work import alone
from magistrate.engines.base import Engine
from magistrate.judges.base import Call, JudgeInfo
from magistrate.judges.question import Answers, Label, choose_label
from magistrate.judges.template import builtin_prompt, fields_of
from magistrate.types import Abstention, Outcome, Prompt, Sample, Verdict

CORRECT, INCORRECT, NOT_ATTEMPTED = "correct", "incorrect", "not_attempted"
GRADES = (
    Label(CORRECT, 1.0, "it says what a reference says, and nothing that contradicts it"),
    Label(INCORRECT, 0.0, "it says something else, or contradicts the reference in part"),
    Label(NOT_ATTEMPTED, 0.0, "it gives no answer: it declines, or says that it does not know"),
)
EDGES = " \t\r\n.,;:!?\"'“”‘’«»"
ARTICLES = ("the ", "a ", "an ")
LONGEST_VALUE = 80  # characters: longer texts are not parsed as a single number or date
THOUSANDS = re.compile(r"\d[.,]\d{3}(?!\d)")  # in some countries 1.500 is 1.5, in others 1,500
FAR = 0.05  # relative difference beyond which two numbers cannot be roundings of each other
SAME = 1e-9


@dataclass(frozen=True)
class Correctness:
    """Decides whether the output agrees with `expected`: `correct`, `incorrect` or `not_attempted`.

    Code decides first, without a model. It applies if the output is a reference up to case, white space and
    surrounding punctuation, or if both are a single number with its unit or a single full date, and are
    equal or clearly different. Otherwise a model chooses among the three grades in one forward pass. The
    score is the probability of `correct`; a high score is good. `references` is the metadata key of further
    right answers; matching any of them counts. `extra` says whether content beyond the reference is ignored
    (`ignore`) or makes an answer incorrect (`forbid`). A contradiction always does. `permute` averages over
    orders of the grades.
    """

    extra: Literal["ignore", "forbid"] = "ignore"
    references: str = "references"
    permute: bool = False
    name: str = "correctness"

    @property
    def info(self) -> JudgeInfo:
        prompt = builtin_prompt("correctness")
        content = repr((prompt.source, GRADES, self.extra, self.references))
        return JudgeInfo(
            name=self.name,
            version=prompt.version,
            summary="compares the output with the expected answer: by code if possible, else with one model "
            "call",
            labels=tuple(each.name for each in GRADES),
            direction="maximize",
            reads=("input", "expected", self.references, "output"),
            requires=("output",),
            needs=frozenset({"choose"}),
            prompt=hashlib.sha256(content.encode()).hexdigest()[:12],
            constraint="choice",
        )

    def plan(self, sample: Sample) -> list[Call]:
        """Return one call, made once per order; empty if code decides or there is no reference."""
        right = self._right(sample)
        if not right or by_code(sample.output or "", right) is not None:
            return []
        return [Call(self._prompt(sample, right, Answers(GRADES)), times=len(GRADES) if self.permute else 1)]

    async def judge(self, sample: Sample, engine: Engine) -> Outcome:
        right = self._right(sample)
        if not right:
            told = (
                f"judge {self.name!r} needs 'expected' or metadata.{self.references}, but the sample has "
                "neither"
            )
            return Abstention(sample.id, self.name, "missing_input", told)
        with alone():
            decided = by_code(sample.output or "", right)
        if decided is not None:
            label, because = decided
            score = float(label == CORRECT)
            return Verdict(
                sample.id, self.name, label, score, explanation=because, details={"method": "rule"}
            )
        found = await choose_label(
            engine, GRADES, lambda answers: self._prompt(sample, right, answers), permute=self.permute
        )
        details: dict[str, Any] = {"method": found.method, "references": len(right)}
        if found.probabilities is not None:
            details["probabilities"] = dict(found.probabilities)
        return Verdict(
            sample_id=sample.id,
            judge=self.name,
            label=found.best,
            score=min(max(found.probability(CORRECT), 0.0), 1.0),
            probability=None if found.probabilities is None else found.probability(found.best),
            mass=found.mass,
            details=details,
        )

    def _right(self, sample: Sample) -> tuple[str, ...]:
        """Return all right answers, the expected one first."""
        more = sample.metadata.get(self.references)
        several = more if isinstance(more, list | tuple) else [more]
        texts = [sample.expected, *(str(each) for each in several if isinstance(each, str | int | float))]
        return tuple(dict.fromkeys(text for text in texts if text and text.strip()))

    def _prompt(self, sample: Sample, right: Sequence[str], answers: Answers) -> Prompt:
        fields = {**fields_of(sample, ("input", "output")), "references": tuple(right)}
        words = {"extra": self.extra, "several": len(right) > 1, "reply": answers.reply()}
        return builtin_prompt("correctness").prompt(fields, words)


# --- comparison by code ---------------------------------------------------------------------------


def by_code(output: str, right: Sequence[str]) -> tuple[str, str] | None:
    """Return the grade and the reason if code can decide; None if a model is needed.

    >>> by_code("Paris.", ["paris"]), by_code("1,000 m", ["1 km"])
    (('correct', 'it is the expected text'), ('correct', 'the number is the same'))
    >>> by_code("2021-05-03", ["May 4, 2021"]), by_code("about 5", ["5"])
    (('incorrect', 'the date is different'), None)
    """
    mine = single_value(output)
    verdicts = [_compared(output, mine, each) for each in right]
    if found := next((each for each in verdicts if each is not None and each[0] == CORRECT), None):
        return found
    return verdicts[0] if None not in verdicts else None


def _compared(output: str, mine: tuple[Any, ...] | None, expected: str) -> tuple[str, str] | None:
    theirs = single_value(expected)
    if mine is not None and theirs is not None and mine[0] == theirs[0]:
        value, other = mine[1], theirs[1]
        if mine[0][0] == "date":
            same = value == other
            return (CORRECT, "the date is the same") if same else (INCORRECT, "the date is different")
        if mine[2] and theirs[2] and value != other:
            return INCORRECT, "the year is different"
        gap = abs(value - other) / (max(abs(value), abs(other)) or 1.0)
        if gap <= SAME:
            return CORRECT, "the number is the same"
        if abs(gap - 0.999) <= SAME and (THOUSANDS.search(output) or THOUSANDS.search(expected)):
            return None
        return (INCORRECT, "the number is different") if gap > FAR else None
    return (CORRECT, "it is the expected text") if text_form(output) == text_form(expected) != "" else None


def text_form(text: str) -> str:
    """Normalize a text: fold case, collapse white space, drop outer punctuation and a leading article."""
    folded = unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).casefold())
    words = " ".join(folded.split()).strip(EDGES)
    return next((words[len(each) :] for each in ARTICLES if words.startswith(each)), words)


def single_value(text: str) -> tuple[Any, ...] | None:
    """Parse a text that is only a number or a full date.

    Returns its kind, its value, and for a number whether it looks like a year. None for anything more, for
    a rough number, and for dates that countries read differently.
    """
    from magistrate.features.facts import dates_and_numbers
    from magistrate.features.words import worded

    bare = text.strip().rstrip(".!").strip()
    if not bare or len(bare) > LONGEST_VALUE:
        return None
    dates, numbers = dates_and_numbers(worded(bare))
    if len(dates) + len(numbers) != 1:
        return None
    span = dates[0].span if dates else numbers[0].span
    if span.end != len(bare) or bare[: span.start] not in ("", "-", "−", "+"):
        return None
    if numbers:
        (number,) = numbers
        if number.code is not None or number.about:
            return None
        return ("number", number.measure), number.value * number.worth, False
    (date,) = dates
    if span.start:
        return None
    if date.is_year and len(bare) == 4:
        return ("number", None), float(date.year or 0), True  # or a four-digit number
    if None in (date.year, date.month, date.day):
        return None
    return ("date",), (date.year, date.month, date.day)
