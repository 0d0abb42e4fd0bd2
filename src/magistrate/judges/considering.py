"""What holds for every judge: a sample has what is read, and fits, or the judge abstains unasked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from magistrate._deadline import check, checked
from magistrate._scratch import scratch
from magistrate.engines.base import Engine, Generation
from magistrate.errors import InvalidOutput
from magistrate.judges.base import LISTS, Call, Judge, JudgeInfo
from magistrate.types import FAITHFUL, HALLUCINATED, Abstention, AbstentionReason, Outcome, Sample

if TYPE_CHECKING:
    from magistrate.constraints import Constraint

Answer = TypeVar("Answer")

ADVICE = "To judge it in parts: windows:of=NAME or passages:of=NAME"
SPECIALS = 64  # tokens that a chat template may put around a message, at most


async def considered(judge: Judge, sample: Sample, engine: Engine) -> Outcome:
    """The judge's outcome; an `Abstention` where a field is missing or a call cannot fit its engine."""
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


async def together(asked: Iterable[Coroutine[Any, Any, Answer]]) -> list[Answer]:
    """All answers in their order; where one fails the others are given up, and nothing is left running."""
    tasks = [asyncio.ensure_future(each) for each in asked]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


def written_freely(written: Generation, shape: Constraint) -> Any:
    """What a model wrote without being held to `shape`, read as if it were. Raises `InvalidOutput`."""
    if written.finish == "length":
        raise InvalidOutput("the answer was cut off where its tokens ran out", written.text)
    return shape.parse(written.text.strip())


def planned(judge: Judge, sample: Sample) -> Sequence[Call]:
    """The calls that judging `sample` may take; none known where the judge has no plan."""
    plan = getattr(judge, "plan", None)
    return tuple(plan(sample)) if plan is not None else ()


async def shortage(judge: Judge, sample: Sample, engine: Engine, most: int = 0) -> str | None:
    """Why a call that judging `sample` may take does not fit its engine, in words; None where all do.

    `most` is how many tokens a call may take in all, 0 for as many as the engine's window has. Computes
    nothing but tokens.
    """
    for call in checked(planned(judge, sample), 1):
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


def value_of(sample: Sample, name: str) -> str | tuple[str, ...]:
    """A field as a prompt shows it: text, or several; a name that is no field is looked up in metadata."""
    if name == "messages":
        return tuple(f"{turn.role}: {turn.text}" for turn in sample.messages)
    if name == "context":
        return sample.context if any(text.strip() for text in sample.context) else ()
    if name in LISTS:
        return tuple(getattr(sample, name))
    if name in ("input", "output", "expected"):
        return getattr(sample, name) or ""
    return _text(sample.metadata.get(name))


def fields_of(sample: Sample, names: Sequence[str]) -> dict[str, str | tuple[str, ...]]:
    """Several fields by name, as `PromptTemplate.prompt` takes them."""
    return {name: value_of(sample, name) for name in names}


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _missing(name: str, info: JudgeInfo) -> tuple[AbstentionReason, str]:
    if name == "context":
        told = f"judge {info.name!r} reads a context, and the sample has none"
        if set(info.labels) == {FAITHFUL, HALLUCINATED}:
            told += "; 'hallucination' does without"
        return "no_context", told
    if name == "output":
        return "no_output", "the output is empty: nothing was said that could be judged"
    return "missing_input", f"judge {info.name!r} reads {name!r}, and the sample has none"
