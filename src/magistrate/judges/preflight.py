"""Checks before a judge is asked: the sample has the fields that it reads, and fits the engine."""

from __future__ import annotations

from collections.abc import Sequence

from magistrate._deadline import check, checked
from magistrate._scratch import scratch
from magistrate.engines.base import Engine
from magistrate.judges.base import Call, Judge, JudgeInfo, PlansCalls
from magistrate.judges.template import value_of
from magistrate.types import FAITHFUL, HALLUCINATED, Abstention, AbstentionReason, Outcome, Sample

ADVICE = "To judge it in parts: windows:of=NAME or passages:of=NAME"
SPECIALS = 64  # tokens that a chat template may put around a message, at most


async def run_judge(judge: Judge, sample: Sample, engine: Engine) -> Outcome:
    """Check the sample, then judge it; an `Abstention` where a field is missing or a call does not fit."""
    check()
    info = judge.info
    for name in info.requires:
        if not present(sample, name, info.reads):
            reason, message = _missing(name, info)
            return Abstention(sample.id, info.name, reason, message)
    if short := await shortage(judge, sample, engine):
        return Abstention(sample.id, info.name, "over_length", f"{short}. {ADVICE}")
    with scratch():
        return await judge.judge(sample, engine)


def planned_calls(judge: Judge, sample: Sample) -> Sequence[Call]:
    """The calls that judging `sample` may take; none for a judge that does not plan them."""
    return tuple(judge.plan(sample)) if isinstance(judge, PlansCalls) else ()


async def shortage(judge: Judge, sample: Sample, engine: Engine, most: int = 0) -> str | None:
    """Why a call that judging `sample` may take does not fit its engine, in words; None where all do.

    `most` is how many tokens a call may take in all, 0 for as many as the engine's window has. Computes
    nothing but tokens.
    """
    for call in checked(planned_calls(judge, sample), 1):
        if not call.optional and (short := await unfit(call, engine, most)):
            return short
    return None


async def unfit(call: Call, engine: Engine, most: int = 0) -> str | None:
    """Why one call does not fit its engine, in words; None where it does."""
    asked = call.engine or engine
    window = min(asked.info.context_window, most or asked.info.context_window)
    room = window - call.answer - call.extra
    # A token stands for one byte at least, so that most prompts need not be counted to be known to fit.
    length = sum(len(part.text.encode("utf-8", "replace")) for m in call.prompt.messages for part in m.parts)
    if length + SPECIALS * (len(call.prompt.messages) + 1) <= room:
        return None
    tokens = await asked.count(call.prompt)
    if tokens <= room:
        return None
    what = "the limit" if window < asked.info.context_window else f"the context window of {asked.info.model}"
    return (
        f"a step takes {tokens + call.extra:,} tokens and {call.answer:,} for its answer; {what} is "
        f"{window:,}. Nothing was asked"
    )


def present(sample: Sample, name: str, reads: Sequence[str]) -> bool:
    """Whether a sample has anything but white space in a field.

    What was said before counts as context for a judge that `reads` it.
    """
    said = name == "context" and "messages" in reads
    value = sample.sources if said else value_of(sample, name)
    if isinstance(value, str):
        return bool(value.strip())
    return any(text.strip() for text in value)


def _missing(name: str, info: JudgeInfo) -> tuple[AbstentionReason, str]:
    if name == "context":
        told = f"judge {info.name!r} reads a context, and the sample has none"
        if set(info.labels) == {FAITHFUL, HALLUCINATED}:
            told += "; 'hallucination' does without"
        return "no_context", told
    if name == "output":
        return "no_output", "the output is empty: nothing was said that could be judged"
    return "missing_input", f"judge {info.name!r} reads {name!r}, and the sample has none"
