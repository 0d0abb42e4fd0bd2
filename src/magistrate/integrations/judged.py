"""Shared code of all adapters: a judge that a framework can call, and its verdict as plain values.

Magistrate's scores follow the judge's `direction`: for judges of faithfulness 1 means hallucinated.
Frameworks differ, so every adapter states the direction of its value, and the evidence includes both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from magistrate import _async, _logging
from magistrate.api.judge import judge_sample
from magistrate.datasets.rows import RowError
from magistrate.datasets.samples import to_sample
from magistrate.engines.base import Engine, EngineSettings
from magistrate.engines.remote.options import check_address
from magistrate.errors import DatasetError, EngineGone, MissingPackage, NoVerdict, SpecError
from magistrate.judges import registry
from magistrate.judges.base import FIELDS, Judge, JudgeInfo
from magistrate.runs.prepare import recipe
from magistrate.types import (
    FAITHFUL,
    HALLUCINATED,
    Abstention,
    Claim,
    Direction,
    Failure,
    Outcome,
    Sample,
    Span,
    Verdict,
)

HALF = 0.5  # default threshold of a judge without its own
Model = str | Path | Engine | None


class Adapted:
    """A judge and its model, for a framework that calls it sample by sample.

    `judge` is a name or an object. `model` is a catalogue name, a path, a word such as
    `openai:gpt-4o-mini`, or an engine. `base_url` is the address of the server of a named model. Nothing is
    loaded or called before the first sample. Raises `SpecError` for an unknown judge, and for an address
    that is invalid, contains a secret or belongs to no model server.
    """

    def __init__(self, judge: str | Judge, model: Model, base_url: str | None = None) -> None:
        self.judge = registry.judge(judge)
        self.model = model
        self.settings = _settings(model, base_url)
        registry.warn_unasked([self.judge], model)

    @property
    def info(self) -> JudgeInfo:
        """The judge's info."""
        return self.judge.info

    @property
    def engine(self) -> Engine:
        """The judge's engine, created once per process."""
        return registry.engine_for([self.judge], self.model, self.settings)

    def sample(
        self, values: Mapping[str, Any], *, id: str = "sample", mapping: Mapping[str, str] | None = None
    ) -> Sample:
        """Return the sample of a row with the column names of data sets. Judges abstain if it has no
        output.

        Raises `DatasetError` if a value has the wrong type.
        """
        row = {name: value for name, value in values.items() if value is not None}
        try:
            return to_sample(row, id=id, mapping=mapping, need_output=False)
        except RowError as error:
            raise DatasetError(f"this cannot be judged: {error}") from None

    def read(self, item: Any, row_of: Callable[[Any], Mapping[str, Any]]) -> Sample:
        """Return the sample of a framework's object, by its columns. Raises `DatasetError` for another
        type.
        """
        try:
            return self.sample(row_of(item))
        except RowError as error:
            raise DatasetError(f"this cannot be judged: {error}") from None

    def outcome(self, sample: Sample) -> Outcome:
        """Return the verdict, failure or abstention. An engine that is gone gives a failure too.

        Raises errors of the judge or its model: `SpecError`, `CapabilityError`, `ModelError`.
        """
        try:
            return judge_sample(sample, judge=self.judge, model=self.engine)
        except EngineGone as error:
            return Failure(sample.id, self.info.name, "engine_error", _logging.error_text(error))

    async def aoutcome(self, sample: Sample) -> Outcome:
        """Return the outcome like `outcome`, on our own event loop, whatever loops the framework opens or
        closes.
        """
        return await _async.in_thread(self.outcome, sample)

    @property
    def extra(self) -> tuple[str, ...]:
        """The inputs that the judge reads besides the fields of a sample, such as log-probabilities."""
        return tuple(name for name in self.info.reads if name not in FIELDS)

    @property
    def threshold(self) -> float:
        """The judge's own threshold of its score, in [0, 1]."""
        own = getattr(self.judge, "threshold", None)
        return float(own) if isinstance(own, int | float) else HALF

    def name(self, direction: Direction) -> str:
        """Return the name of the value. It states what 1 means, so that it is not mistaken for the
        opposite.

        >>> Adapted("novelty", None).name("minimize"), Adapted("novelty", None).name("maximize")
        ('novelty_hallucination', 'novelty_faithfulness')
        """
        own = self.info.name
        if HALLUCINATED not in self.info.labels:
            return own
        measured = "hallucination" if direction == "minimize" else "faithfulness"
        return own if measured in own else f"{own}_{measured}"

    def value(self, verdict: Verdict, direction: Direction) -> float:
        """Return the score in [0, 1], inverted if the judge's direction is the other one."""
        return verdict.score if direction == self.info.direction else 1 - verdict.score

    def passes(self, verdict: Verdict) -> bool:
        """Return whether the judge accepts the output: it is faithful, or its score is on the good side of
        the threshold.

        A score equal to the threshold counts as high, as it does for the judges.
        """
        if verdict.label in (FAITHFUL, HALLUCINATED):
            return verdict.label == FAITHFUL
        return (verdict.score >= self.threshold) == (self.info.direction == "maximize")

    def evidence(self, verdict: Verdict) -> dict[str, Any]:
        """Return a verdict's evidence as plain JSON values. Offsets are of characters, `[start, end)`."""
        return {
            "judge": verdict.judge,
            "label": verdict.label,
            "score": verdict.score,
            "score_direction": self.info.direction,
            "probability": verdict.probability,
            "explanation": verdict.explanation,
            "explanation_agrees": verdict.explanation_agrees,
            "claims": [_claim(claim) for claim in verdict.claims],
            "recipe": self.recipe,
        }

    @property
    def recipe(self) -> str:
        """The recipe that determines the value, on one line."""
        return recipe(self.judge, self.engine, seed=0, n=1).line()


def told(outcome: Outcome) -> str:
    """Return an outcome in words: the label with its reason and claims, or why there is no verdict."""
    match outcome:
        case Failure():
            return f"{outcome.judge} has no verdict: failed ({outcome.code}): {outcome.message}"
        case Abstention():
            return f"{outcome.judge} has no verdict: abstained ({outcome.reason}): {outcome.message}"
    because = f": {outcome.explanation}" if outcome.explanation else ""
    return "\n".join([outcome.label + because, *map(_told_claim, outcome.claims)])


def verdict_of(outcome: Outcome) -> Verdict:
    """Return the verdict. Raises `NoVerdict` with the reason if there is none."""
    if isinstance(outcome, Verdict):
        return outcome
    raise NoVerdict(told(outcome), outcome)


def missing(error: ModuleNotFoundError, module: str, package: str) -> Exception:
    """Return the error to raise if a framework cannot be imported: what to install, or what it lacks
    itself.
    """
    return MissingPackage(package) if (error.name or "").partition(".")[0] == module else error


def check_direction(direction: str | None, own: Direction) -> Direction:
    """Return the direction of a value; None means the judge's own. Raises `SpecError` for other words."""
    match direction:
        case None:
            return own
        case "minimize" | "maximize":
            return direction
    raise SpecError(f"direction must be 'minimize' or 'maximize', got {direction!r}")


def _claim(claim: Claim) -> dict[str, Any]:
    return {
        "kind": claim.kind,
        "output_quote": _quote(claim.output_quote, claim.output_text),
        "context_quote": _quote(claim.context_quote, claim.context_text),
        "context_index": claim.context_index,
        "reasoning": claim.reasoning,
        "probability": claim.probability,
    }


def _settings(model: Model, base_url: str | None) -> EngineSettings:
    if base_url is None:
        return EngineSettings()
    if model is None:
        raise SpecError("base_url needs a model on that server: model='openai:MODEL'")
    if not isinstance(model, str | Path):
        raise SpecError(
            f"{type(model).__name__} is an engine with its own address; remove base_url, or give a model by "
            "name: model='openai:MODEL'"
        )
    # Checked early: frameworks record the arguments of a metric, and an address could contain a key.
    how = "use http://HOST:PORT/v1, as in base_url='http://127.0.0.1:8080/v1'"
    check_address(base_url.strip(), "an environment variable, such as OPENAI_API_KEY,", how)
    return EngineSettings(base_url=base_url)


def _quote(span: Span | None, text: str | None) -> dict[str, Any] | None:
    return None if span is None else {"start": span.start, "end": span.end, "text": text, "kind": span.kind}


def _told_claim(claim: Claim) -> str:
    theirs = "" if claim.context_text is None else f"; the context: “{claim.context_text}”"
    because = f" ({claim.reasoning})" if claim.reasoning else ""
    return f"- {claim.kind}: “{claim.output_text}”{theirs}{because}"
