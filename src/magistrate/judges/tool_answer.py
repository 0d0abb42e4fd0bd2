"""The judge `tool_answer`: checks whether the final answer is faithful to the results of the tools."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from magistrate.engines.base import Engine
from magistrate.judges.auto import Auto
from magistrate.judges.base import Call, Judge, JudgeInfo, check_binary, planned_calls, run_judge
from magistrate.judges.tool_calls import (
    Event,
    Result,
    Said,
    UnreadableMessages,
    events_of,
    flattened,
    is_json,
    unreadable,
)
from magistrate.types import Abstention, Claim, Outcome, Sample, Turn, Verdict

NO_RESULTS = "there is no tool answer before the output, and the sample has no context"


def info_by(of: JudgeInfo, name: str, summary: str) -> JudgeInfo:
    """Describe a judge that applies another one to the results of tools."""
    return replace(
        of,
        name=name,
        version=1,
        summary=f"{summary}, by {of.name}",
        reads=tuple(dict.fromkeys(("context", "messages", *of.reads))),
        requires=("output",),
        prompt=f"{of.name}@{of.version}+{of.prompt}",
        calibrated_on=None,
    )


@dataclass(frozen=True)
class ToolAnswer:
    """Judges the output by `of`, with the tools' results as its context, after the sample's own.

    JSON results are given as lines of `path: value`. From the conversation only user and system messages
    are kept: earlier messages of the application are not a source. Abstains if the output or a source is
    program code, or JSON that cannot be written as lines, since judges of prose cannot read these.
    """

    of: Judge = field(default_factory=Auto)
    name: str = "tool_answer"

    def __post_init__(self) -> None:
        check_binary(self.of.info, "tool_answer")

    @property
    def info(self) -> JudgeInfo:
        return info_by(self.of.info, self.name, "compares the answer with the answers of tools")

    def plan(self, sample: Sample) -> list[Call]:
        """Return the calls of `of` for the sample with its results; empty if it cannot be judged."""
        reduced = self._read(sample)
        return [] if isinstance(reduced, Abstention) else list(planned_calls(self.of, reduced))

    async def judge(self, sample: Sample, engine: Engine) -> Outcome:
        reduced = self._read(sample)
        if isinstance(reduced, Abstention):
            return reduced
        found = await run_judge(self.of, reduced, engine)
        if not isinstance(found, Verdict):
            return replace(found, judge=self.name, message=f"{self.of.info.name}: {found.message}")
        claims = tuple(_restored(claim, reduced, sample) for claim in found.claims)
        details = {**found.details, "judged_by": self.of.info.name, "sources": list(reduced.context)}
        return replace(found, judge=self.name, claims=claims, details=details)

    def _read(self, sample: Sample) -> Sample | Abstention:
        """Return the sample with tool results as its context, or an abstention if it cannot be judged."""
        try:
            events = events_of(sample)
        except UnreadableMessages as error:
            return Abstention(sample.id, self.name, "missing_input", str(error))
        output = sample.output or ""
        if is_json(output):
            return Abstention(
                sample.id,
                self.name,
                "uncertain",
                "the output is only JSON, which a judge of prose cannot read",
            )
        if problem := unreadable(output):
            return Abstention(
                sample.id, self.name, "uncertain", f"the output {problem}, which a judge of prose cannot read"
            )
        return observed(sample, events, output, self.name)


def observed(sample: Sample, events: list[Event], output: str, name: str) -> Sample | Abstention:
    """Return a sample with this output and, as context, the sample's own and the tool results in `events`."""
    sources = [*sample.context, *(each.text for each in events if isinstance(each, Result))]
    if not any(text.strip() for text in sources):
        return Abstention(sample.id, name, "no_context", NO_RESULTS)
    for number, text in enumerate(sources, 1):
        if problem := unreadable(text):
            told = f"source {number} of {len(sources)} {problem}, which a judge of prose cannot read"
            return Abstention(sample.id, name, "uncertain", told)
    said = tuple(
        Turn(each.role, each.text)
        for each in events
        if isinstance(each, Said) and not each.by_assistant and each.text != sample.input
    )
    return replace(sample, output=output, context=tuple(map(flattened, sources)), messages=said, spans=())


def _restored(claim: Claim, reduced: Sample, sample: Sample) -> Claim:
    """Return a claim with its quote's position in the sample, or without one if the source was rewritten."""
    at = claim.context_index
    if at is None or not 0 <= at < len(reduced.sources):
        return claim
    text = reduced.sources[at]
    if text in sample.sources:
        return replace(claim, context_index=sample.sources.index(text))
    return replace(claim, context_index=None, context_quote=None)
