"""Judge one output: `judge` and `ajudge`. Nothing is stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from magistrate import _async
from magistrate._work import check_limit
from magistrate.datasets.rows import RowError
from magistrate.datasets.samples import to_sample
from magistrate.engines.base import Engine, EngineSettings
from magistrate.engines.none import NONE
from magistrate.errors import DatasetError
from magistrate.judges import registry
from magistrate.judges.base import Judge
from magistrate.runs.execute import check_stream, judge_one
from magistrate.runs.limits import DEADLINE
from magistrate.types import Outcome, Sample

EXAMPLE = (
    "judge(output='what the model wrote', context=['what it must be faithful to'], input='what was asked')"
)


@_async.explained(EXAMPLE)
async def ajudge(
    *,
    output: str | None = None,
    context: str | Sequence[str] = (),
    input: str | None = None,
    expected: str | None = None,
    messages: Sequence[Mapping[str, Any]] = (),
    judge: str | Judge = registry.DEFAULT_JUDGE,
    model: str | Path | Engine | None = None,
    base_url: str | None = None,
    device: str | None = None,
    threads: int | None = None,
    timeout: float | None = None,
    deadline: float = DEADLINE,
    id: str = "sample",
) -> Outcome:
    """Judge one output: `judge(output=…, context=[…], input=…)`.

    With `messages`, a conversation of `{"role": …, "content": …}`, the output may also rely on the
    messages; without `output`, it is the assistant's last message. `expected` is for judges with a
    reference. Returns a `Verdict`, a `Failure` or an `Abstention`. `judge` is a name or an object. `model`
    is a catalogue name, a path, a model of another kind of engine such as `openai:gpt-4o-mini` (`base_url`
    is the address of its server), or an engine. `deadline` is in seconds. A judge of kind `code` uses no
    model, so no engine is loaded, whatever `model` is. `magistrate.judge` is the same without `await`, also
    inside a running event loop.
    """
    sample = sample_of(
        output=output, context=context, input=input, expected=expected, messages=messages, id=id
    )
    return await ajudge_sample(
        sample,
        judge=judge,
        model=model,
        base_url=base_url,
        device=device,
        threads=threads,
        timeout=timeout,
        deadline=deadline,
    )


judge = _async.synchronous(ajudge)


async def ajudge_sample(
    sample: Sample,
    *,
    judge: str | Judge = registry.DEFAULT_JUDGE,
    model: str | Path | Engine | None = None,
    base_url: str | None = None,
    device: str | None = None,
    threads: int | None = None,
    timeout: float | None = None,
    deadline: float = DEADLINE,
) -> Outcome:
    """Judge one sample. The options are those of `ajudge`."""
    asked = _default() if judge == registry.DEFAULT_JUDGE else registry.judge(judge)
    given: dict[str, Any] = {"base_url": base_url, "device": device, "threads": threads, "timeout": timeout}
    engine: Engine = NONE
    if asked.info.asks or any(each is not None for each in (model, *given.values())):
        registry.warn_unasked([asked], model)
        engine = await _async.in_thread(registry.engine_for, [asked], model, EngineSettings(**given))
    check_stream([asked], engine.info)
    check_limit("deadline", deadline)
    return await judge_one(sample, asked, engine, deadline=deadline)


judge_sample = _async.synchronous(ajudge_sample)


@cache
def _default() -> Judge:
    """The default judge, made once: it cannot be changed, and keeps nothing of its calls."""
    return registry.judge(registry.DEFAULT_JUDGE)


def sample_of(
    *,
    output: str | None,
    context: str | Sequence[str] = (),
    input: str | None = None,
    expected: str | None = None,
    messages: Sequence[Mapping[str, Any]] = (),
    id: str = "sample",
) -> Sample:
    """Return a sample of texts and a conversation. Raises `DatasetError` if there is no output to judge."""
    row = {
        "output": output,
        "context": context,
        "input": input,
        "expected": expected,
        "messages": list(messages),
    }
    try:
        return to_sample(row, id=id)
    except RowError as error:
        raise DatasetError(f"this cannot be judged: {error}") from None
