"""The judge `tool_schema`: checks that every tool call names a declared tool and has valid arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from magistrate.engines.base import Engine
from magistrate.errors import InputError, SpecError
from magistrate.judges.base import NO_LIMIT, JudgeInfo
from magistrate.judges.json_valid import INVALID, VALID, first_problem, schema_validator
from magistrate.judges.tool_calls import THE_READ, ToolCall, UnreadableMessages, calls_of, events_of, tools_of
from magistrate.types import Abstention, Outcome, Sample, Verdict

NO_TOOLS = "the sample does not declare its tools: give names with JSON Schemas as 'tools' in its metadata"
NO_CALLS = "the sample has no tool calls, neither in its messages nor as 'tool_calls' in its metadata"


@dataclass(frozen=True)
class ToolSchema:
    """Checks each tool call of a conversation against the tools that its sample declares.

    The tool must be declared, and the arguments must be a JSON object that is valid under its JSON Schema.
    The score is the share of valid calls, in [0, 1]; the label is `valid` if all are.
    """

    name: str = "tool_schema"

    @property
    def info(self) -> JudgeInfo:
        return JudgeInfo(
            name=self.name,
            summary="every tool call uses a declared tool, with arguments that fit its JSON Schema",
            labels=(VALID, INVALID),
            direction="maximize",
            threshold=1.0,
            reads=(*THE_READ, "tools", "tool_calls"),
            requires=(),
            kind="code",
            long=NO_LIMIT,
        )

    async def judge(self, sample: Sample, engine: Engine) -> Outcome:
        try:
            calls, tools = calls_of(events_of(sample)), tools_of(sample)
        except UnreadableMessages as error:
            return Abstention(sample.id, self.name, "missing_input", str(error))
        if not calls or not tools:
            missing = NO_TOOLS if calls else NO_CALLS
            return Abstention(sample.id, self.name, "missing_input", missing)
        checked = [(call, _wrong(call, tools)) for call in calls]
        wrong = [(call, problem) for call, problem in checked if problem]
        first = f"call {wrong[0][0].number}: {wrong[0][1]}" if wrong else ""
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        return Verdict(
            sample_id=sample.id,
            judge=self.name,
            label=INVALID if wrong else VALID,
            score=1 - len(wrong) / len(calls),
            explanation=f"{first}{more}"
            if wrong
            else f"all {len(calls)} calls fit the declarations of their tools",
            details={
                "calls": [
                    {"call": call.number, "tool": call.name, "problem": problem or None}
                    for call, problem in checked
                ],
                "tools": sorted(tools),
            },
        )


def _wrong(call: ToolCall, tools: dict[str, object]) -> str:
    """Return why a call is invalid, or an empty string."""
    if call.name not in tools:
        return f"there is no tool {call.name[:100]!r}"
    if call.problem:
        return f"{call.name[:100]}: {call.problem}"
    if not isinstance(tools[call.name], Mapping | bool):
        raise InputError(f"the declaration of tool {call.name[:100]!r} has no JSON Schema")
    try:
        problem = first_problem(schema_validator(tools[call.name], "its schema"), dict(call.arguments))
    except SpecError as error:
        raise InputError(f"the declaration of tool {call.name[:100]!r} cannot be used: {error}") from None
    return f"{call.name[:100]}: {problem}" if problem else ""
