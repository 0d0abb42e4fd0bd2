"""The writing roles of an arena: the examiner writes questions, entrants answer them.

Both are judges whose verdict holds the written text. So runs store their calls, resume them and apply
limits to them. A call that fails is a failure, never an empty text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from magistrate.constraints import Constraint, constraint
from magistrate.constraints.quote import quote_schema, quoted
from magistrate.constraints.schema import closed_object, short_text
from magistrate.engines.base import Engine, Sampling, in_role
from magistrate.errors import InvalidOutput
from magistrate.judges.base import Call, JudgeInfo
from magistrate.judges.template import builtin_prompt, fields_of
from magistrate.types import Outcome, Prompt, Sample, Verdict

ANSWERED, ASKED = "answered", "asked"
TEXT = "text"  # key of a verdict's details: the written text
SUPPORT = "support"  # key of the passage: its words and their place in the document
QUESTION, QUESTION_TOKENS = 200, 400  # characters of the question; tokens of it and the quote


@dataclass(frozen=True)
class Entrant:
    """A model that answers the questions of an arena; the verdict is `answered` and holds the answer.

    An answer cut off after `tokens` tokens, or a blank one, is a failure.
    """

    name: str
    engine: Engine | None = None
    tokens: int = 300

    @property
    def info(self) -> JudgeInfo:
        asked = "" if self.engine is None else self.engine.info.fingerprint
        pinned = repr((builtin_prompt("answer").digest, asked, self.tokens))
        return JudgeInfo(
            name=self.name,
            summary="answers questions from their context",
            labels=(ANSWERED,),
            direction="maximize",
            reads=("input", "context"),
            requires=("input",),
            needs=frozenset({"generate"}),
            prompt=hashlib.sha256(pinned.encode()).hexdigest()[:12],
        )

    def plan(self, sample: Sample) -> list[Call]:
        """Return the call for the answer."""
        return [Call(self._prompt(sample), self.tokens, engine=self.engine)]

    async def judge(self, sample: Sample, engine: Engine) -> Outcome:
        written = await in_role(engine, self.engine).generate(
            self._prompt(sample), sampling=Sampling(max_tokens=self.tokens)
        )
        if written.finish == "length" or not written.text.strip():
            told = "was cut off at the token limit" if written.text.strip() else "is blank"
            raise InvalidOutput(f"the answer {told}", written.text)
        text = written.text.strip()
        return Verdict(sample.id, self.name, ANSWERED, 1.0, explanation=text, details={TEXT: text})

    def _prompt(self, sample: Sample) -> Prompt:
        return builtin_prompt("answer").prompt(fields_of(sample, ("context", "messages", "input")))


@dataclass(frozen=True)
class Examiner:
    """Writes one question on the context, and quotes the sentences that answer it, verbatim by constraint."""

    name: str = "examiner"
    engine: Engine | None = None

    @property
    def info(self) -> JudgeInfo:
        template = builtin_prompt("examiner")
        return JudgeInfo(
            name=self.name,
            version=template.version,
            summary="writes a question about a document, with the words that answer it",
            labels=(ASKED,),
            direction="maximize",
            reads=("context",),
            requires=("context",),
            needs=frozenset({"generate", "constraints"}),
            prompt=template.digest,
            constraint="question+quote",
        )

    def plan(self, sample: Sample) -> list[Call]:
        """Return the call for the question."""
        return [Call(self._prompt(sample), QUESTION_TOKENS, engine=self.engine)]

    async def judge(self, sample: Sample, engine: Engine) -> Outcome:
        shape = _shape(quote_schema("context", "sentences", sample.context))
        written = await in_role(engine, self.engine).generate(
            self._prompt(sample),
            shape.over(context=sample.context),
            sampling=Sampling(max_tokens=QUESTION_TOKENS),
        )
        if written.finish == "length" or written.steered:
            raise InvalidOutput("the question was cut off at the token limit", written.text)
        question = str(written.value["question"]).strip()
        if not question:
            raise InvalidOutput("the question is blank", written.text)
        words = quoted(written.value["support"], "context", "sentences", sample.context)
        place = [words.source_index, words.start, words.end]
        return Verdict(
            sample.id,
            self.name,
            ASKED,
            1.0,
            explanation=question,
            details={TEXT: question, SUPPORT: {"words": str(words), "at": place}},
        )

    def _prompt(self, sample: Sample) -> Prompt:
        return builtin_prompt("examiner").prompt(fields_of(sample, ("context",)))


def _shape(support: Mapping[str, Any]) -> Constraint:
    fields = {"support": support, "question": short_text(QUESTION)}
    return constraint(closed_object(fields))
