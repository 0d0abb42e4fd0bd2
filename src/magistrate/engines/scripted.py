"""An engine that answers from a script, for tests, demonstrations and authors of judges."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from magistrate.engines.base import (
    GREEDY,
    Capability,
    Capture,
    Captured,
    Choice,
    EngineInfo,
    Generation,
    Likelihood,
    Option,
    Sampling,
    check_options,
    require,
)
from magistrate.errors import CapabilityError, EngineGone, InvalidOutput, OverLength, SpecError
from magistrate.types import Prompt, Usage

if TYPE_CHECKING:
    from magistrate.constraints import Constraint

Answer = str | Mapping[str, float] | Sequence[float] | BaseException
Script = Callable[[Prompt], Any] | Iterable[Answer]

EVERYTHING: frozenset[Capability] = frozenset(
    {"generate", "choose", "likelihood", "constraints", "data_isolation", "exact_probability"}
)


class ScriptedEngine:
    """Answers each call with the next answer of `script`, or with the result of `script(prompt)`.

    The function may be async. A text answers `generate`, label probabilities answer `choose` (their sum is
    the mass), a list of natural log-probabilities answers `likelihood`; an exception is raised. `prompts`
    stores the prompts of all calls. Each answer is delayed by `delay` seconds. Words are counted as tokens;
    a prompt with more than `context_window` of them raises `OverLength`. `name` is the model's name and
    determines the fingerprint. `state(prompt, text)` returns the state for `Capture`, with text "" for a
    choice; `can` lists which parts it has.
    """

    def __init__(
        self,
        script: Script,
        *,
        can: frozenset[Capability] = EVERYTHING,
        context_window: int = 100_000,
        delay: float = 0.0,
        name: str = "script",
        state: Callable[[Prompt, str], Captured] | None = None,
    ) -> None:
        if "repeatable" in can and name == "script":
            raise SpecError("a script that promises the same answers again needs a unique name: name=…")
        if isinstance(script, str | Mapping):
            raise SpecError(
                f"a script must be a list of answers or a function, got the single answer {script!r}"
            )
        self._ask = script if callable(script) else None
        self._answers = iter(()) if callable(script) else iter(script)
        self._delay = delay
        self._state = state
        self.prompts: list[Prompt] = []
        fingerprint = hashlib.sha256(f"scripted {name}".encode()).hexdigest()
        self.info = EngineInfo("scripted", name, fingerprint, context_window, can)

    async def count(self, prompt: Prompt) -> int:
        """Return the number of words of the prompt."""
        return _words(prompt)

    async def generate(
        self, prompt: Prompt, constraint: Constraint | None = None, *, sampling: Sampling = GREEDY
    ) -> Generation:
        """Return the scripted text, validated under a constraint as a real engine's would be."""
        if constraint is not None:
            constraint.require_bounds()
        text = await self._answer(prompt, str)
        value = text if constraint is None else constraint.parse(text)
        usage = Usage(calls=1, prompt=_words(prompt), generated=len(text.split()))
        return Generation(text, value, "stop", usage=usage)

    async def choose(
        self, prompt: Prompt, options: Sequence[Option], *, capture: Capture | None = None
    ) -> Choice:
        """Return the scripted probabilities, renormalized over the options."""
        check_options(options)
        captured = self._captured(capture, prompt, "")
        given = await self._answer(prompt, Mapping)
        mass = sum(given.get(option.label, 0.0) for option in options)
        if not 0 < mass <= 1 + 1e-9 or min(given.values()) < 0:
            raise InvalidOutput(
                f"the script's probabilities of the options sum to {mass}; the sum must be in (0, 1], and "
                "none may be negative",
                str(given),
            )
        shares = {option.label: given.get(option.label, 0.0) / mass for option in options}
        usage = Usage(calls=1, prompt=_words(prompt))
        best = max(shares, key=shares.__getitem__)
        return Choice(best, shares, min(mass, 1.0), "exact", usage, captured)

    async def likelihood(self, prompt: Prompt, text: str, *, capture: Capture | None = None) -> Likelihood:
        """Return the scripted log-probabilities, one per word of `text`."""
        import numpy as np

        captured = self._captured(capture, prompt, text)
        given = await self._answer(prompt, Sequence)
        if isinstance(given, str):
            raise InvalidOutput(f"the script returned {given!r} instead of log-probabilities", given)
        logprobs = np.array(given, np.float64)
        offsets, end = [], 0
        for word in text.split():
            start = text.index(word, end)
            end = start + len(word)
            offsets.append((start, end))
        if len(offsets) != len(logprobs):
            raise InvalidOutput(
                f"the script has {len(logprobs)} log-probabilities for {len(offsets)} words", text
            )
        usage = Usage(calls=1, prompt=_words(prompt) + len(offsets))
        return Likelihood(text, tuple(range(len(offsets))), logprobs, tuple(offsets), usage, captured)

    def _captured(self, wish: Capture | None, prompt: Prompt, text: str) -> Captured | None:
        if wish is None:
            return None
        if self._state is None:
            raise CapabilityError("a scripted engine has no model state to capture: give state=…")
        wanted: set[Capability] = {"capture"}
        if wish.hidden:
            wanted.add("hidden_states")
        if wish.attention:
            wanted.add("attention")
        require(self.info, frozenset(wanted), "this capture")
        return self._state(prompt, text)

    async def _answer(self, prompt: Prompt, kind: Any) -> Any:
        self.prompts.append(prompt)
        if (words := _words(prompt)) > self.info.context_window:
            raise OverLength(f"this needs {words} tokens; the window is {self.info.context_window}")
        if self._delay:
            await asyncio.sleep(self._delay)
        if self._ask is not None:
            answer = self._ask(prompt)
            if inspect.isawaitable(answer):
                answer = await answer
        else:
            answer = next(self._answers, EngineGone("the script has no answers left"))
        if isinstance(answer, BaseException):
            raise answer
        if not isinstance(answer, kind):
            raise InvalidOutput(f"the script returned {answer!r} instead of a {kind.__name__}", str(answer))
        return answer


def _words(prompt: Prompt) -> int:
    return sum(len(message.text.split()) for message in prompt.messages)
