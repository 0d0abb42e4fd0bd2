"""An engine that records every call of another one as a step of the evidence."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from magistrate import _logging
from magistrate.engines.base import (
    GREEDY,
    Attempt,
    Capture,
    Choice,
    Engine,
    EngineInfo,
    Generation,
    Likelihood,
    Option,
    Sampling,
    UnusableAnswer,
)
from magistrate.errors import InvalidOutput
from magistrate.types import Prompt, Step, Usage

if TYPE_CHECKING:
    from magistrate.constraints import Constraint

Answer = TypeVar("Answer", Generation, Choice, Likelihood)


class Recorded:
    """Records every call as a `Step`, also a failed one. One is made for each judgement."""

    def __init__(
        self,
        engine: Engine,
        clock: Callable[[], float] = time.perf_counter,
        steps: list[Step] | None = None,
    ) -> None:
        self._engine = engine
        self._clock = clock
        self.steps: list[Step] = [] if steps is None else steps

    @property
    def info(self) -> EngineInfo:
        """The wrapped engine's."""
        return self._engine.info

    def beside(self, other: Engine) -> Recorded:
        """`other`, recording its calls among these steps, and cached if this engine is."""
        wrap = getattr(self._engine, "beside", None)
        return Recorded(other if wrap is None else wrap(other), self._clock, self.steps)

    @property
    def usage(self) -> Usage:
        """What all calls so far have spent."""
        return sum((step.usage for step in self.steps), Usage())

    async def count(self, prompt: Prompt) -> int:
        """As the wrapped engine; no step."""
        return await self._engine.count(prompt)

    async def generate(
        self, prompt: Prompt, constraint: Constraint | None = None, *, sampling: Sampling = GREEDY
    ) -> Generation:
        """As the wrapped engine."""

        def kept(answer: Generation) -> dict[str, Any]:
            facts: dict[str, Any] = {
                "text": _logging.without_keys(answer.text),
                "finish": answer.finish,
                "steered": answer.steered,
                "constraint": None if constraint is None else constraint.digest,
                **_noted(answer),
            }
            return {**facts, "trace": [asdict(step) for step in answer.trace]} if answer.trace else facts

        return await self._record(
            "generate", prompt, self._engine.generate(prompt, constraint, sampling=sampling), kept
        )

    async def choose(
        self, prompt: Prompt, options: Sequence[Option], *, capture: Capture | None = None
    ) -> Choice:
        """As the wrapped engine."""

        def kept(answer: Choice) -> dict[str, Any]:
            shares = None if answer.probabilities is None else dict(answer.probabilities)
            return {
                "best": answer.best,
                "probabilities": shares,
                "mass": answer.mass,
                "method": answer.method,
                **({} if answer.bound is None else {"bound": answer.bound}),
                **_noted(answer),
            }

        return await self._record(
            "choose", prompt, self._engine.choose(prompt, options, capture=capture), kept
        )

    async def likelihood(self, prompt: Prompt, text: str, *, capture: Capture | None = None) -> Likelihood:
        """As the wrapped engine."""
        return await self._record(
            "likelihood",
            prompt,
            self._engine.likelihood(prompt, text, capture=capture),
            lambda answer: {
                "text": text,
                "logprobs": [float(each) for each in answer.logprobs],
                **_noted(answer),
            },
        )

    async def _record(
        self,
        verb: Literal["generate", "choose", "likelihood"],
        prompt: Prompt,
        call: Awaitable[Answer],
        kept: Callable[[Answer], Mapping[str, Any]],
    ) -> Answer:
        shown = tuple((message.role, message.text) for message in prompt.messages)
        start = self._clock()
        try:
            answer = await call
        except BaseException as error:
            what = {"error": _logging.error_text(error)}
            spent = Usage(calls=1)
            if isinstance(error, InvalidOutput):
                what["text"] = _logging.without_keys(error.text)
            if isinstance(error, UnusableAnswer):
                spent = error.usage
                self._tell_before(verb, shown, error.attempts, error.thinking)
            self.steps.append(Step(verb, shown, what, spent, self._clock() - start))
            raise
        if isinstance(answer, Generation):
            self._tell_before(verb, shown, answer.attempts, answer.thinking)
        elif isinstance(answer, Choice):
            self._tell_before(verb, shown, (), answer.thinking)
        self.steps.append(Step(verb, shown, kept(answer), answer.usage, self._clock() - start))
        return answer

    def _tell_before(
        self,
        verb: Literal["generate", "choose", "likelihood"],
        shown: tuple[tuple[str, str], ...],
        attempts: Sequence[Attempt],
        thinking: str,
    ) -> None:
        """Record refused attempts and thoughts as steps; what they spent is counted with the answer."""
        for each in attempts:
            refused = {"text": _logging.without_keys(each.text), "error": _logging.without_keys(each.problem)}
            self.steps.append(Step(verb, shown, refused, Usage(), 0.0))
        if thinking:
            self.steps.append(Step(verb, shown, {"thinking": _logging.without_keys(thinking)}, Usage(), 0.0))


def in_role(engine: Engine, other: Engine | None) -> Engine:
    """`other`, with its calls recorded among those of `engine`; `engine` itself where there is no other."""
    if other is None:
        return engine
    return engine.beside(other) if isinstance(engine, Recorded) else other


def _noted(answer: Answer) -> dict[str, Any]:
    return {"notes": list(answer.notes)} if answer.notes else {}
