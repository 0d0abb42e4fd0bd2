"""An engine that caches answers by content, in one file that all runs share.

A call is repeated only if something that the answer depends on has changed: the engine's fingerprint, the
prompt with its boundaries between template and data, the constraint, the sampling, the options, or this
package's version. If the cache's file fails, judging continues without it. An answer that cannot be
restored exactly counts as a miss.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from magistrate import _fork
from magistrate._paths import default_cache
from magistrate._version import __version__
from magistrate.engines.base import (
    GREEDY,
    Attempt,
    Capability,
    Capture,
    Choice,
    Engine,
    EngineInfo,
    Generation,
    Likelihood,
    LoadingEngine,
    Option,
    Sampling,
    require,
)
from magistrate.engines.cache_file import CacheStats as CacheStats
from magistrate.engines.cache_file import CallCache as CallCache
from magistrate.types import Data, Prompt, Usage

if TYPE_CHECKING:
    from magistrate.constraints import Constraint

Answer = TypeVar("Answer", Generation, Choice, Likelihood)

FORMAT = 3  # of keys and values; another number changes every key
NEEDS: frozenset[Capability] = frozenset({"repeatable"})
REUSED = Usage(reused=1)
SAMPLING = tuple(field.name for field in fields(Sampling))

_opening = threading.Lock()
_open: dict[Path, CallCache] = {}


def call_cache(path: str | os.PathLike[str] | None = None) -> CallCache:
    """Return this process's only cache for a file (default: `cache.db` in Magistrate's folder).

    It is closed when the process ends. A cache that could not be opened is tried again.
    """
    place = (Path(path) if path is not None else default_cache()).absolute()
    with _opening:
        known = _open.get(place)
        if known is None or not known.usable:
            _open[place] = known = CallCache.open(place)
        return known


def _forget() -> None:
    """Drop the caches in a forked child: it must neither use nor close its parent's SQLite connections."""
    global _opening
    for each in _open.values():
        each.abandon()
    _opening = threading.Lock()


_fork.in_child(_forget)


@atexit.register
def _close_caches() -> None:
    for each in _open.values():
        each.close()


class Cached:
    """An engine that calls `engine` only for what is not in `cache`.

    A cached answer has the usage `Usage(reused=1)`, because nothing was spent. Calls that capture or trace
    the model's state and calls with engine-specific arguments are not cached; errors never are. Raises
    `CapabilityError` if the engine does not guarantee repeatable answers (`repeatable`), unless `force` is
    set.
    """

    def __init__(self, engine: Engine, cache: CallCache, *, force: bool = False) -> None:
        if not force:
            require(engine.info, NEEDS, "a cache of calls")
        self._engine = engine
        self.cache = cache

    @property
    def info(self) -> EngineInfo:
        """The wrapped engine's info."""
        return self._engine.info

    @property
    def loading(self) -> bool:
        """Whether the wrapped engine is loading its weights now."""
        return isinstance(self._engine, LoadingEngine) and self._engine.loading

    def beside(self, other: Engine) -> Engine:
        """Return `other` with the same cache if its answers are repeatable, else `other` itself."""
        return Cached(other, self.cache) if other.info.can >= NEEDS else other

    async def count(self, prompt: Prompt) -> int:
        """Forward to the wrapped engine; counts are not cached."""
        return await self._engine.count(prompt)

    async def generate(
        self,
        prompt: Prompt,
        constraint: Constraint | None = None,
        *,
        sampling: Sampling = GREEDY,
        **own: Any,
    ) -> Generation:
        """Generate as the wrapped engine does; a cached text is parsed again by the given constraint."""
        if sampling.trace or own:
            return await self._engine.generate(prompt, constraint, sampling=sampling, **own)
        under = None if constraint is None else (constraint.digest, constraint.kind, constraint.grammar)
        return await self._answer(
            call_key(self.info, "generate", prompt, [under, [getattr(sampling, name) for name in SAMPLING]]),
            lambda body: _generation(body, constraint),
            lambda: self._engine.generate(prompt, constraint, sampling=sampling),
            _generation_body,
        )

    async def choose(
        self, prompt: Prompt, options: Sequence[Option], *, capture: Capture | None = None, **own: Any
    ) -> Choice:
        """Choose as the wrapped engine does."""
        if capture is not None or own:
            return await self._engine.choose(prompt, options, capture=capture, **own)
        offered = [[option.label, list(option.surfaces)] for option in options]
        return await self._answer(
            call_key(self.info, "choose", prompt, offered),
            lambda body: _choice(body, options),
            lambda: self._engine.choose(prompt, options),
            _choice_body,
        )

    async def likelihood(
        self, prompt: Prompt, text: str, *, capture: Capture | None = None, **own: Any
    ) -> Likelihood:
        """Compute the likelihood as the wrapped engine does."""
        if capture is not None or own:
            return await self._engine.likelihood(prompt, text, capture=capture, **own)
        return await self._answer(
            call_key(self.info, "likelihood", prompt, text),
            lambda body: _likelihood(body, text),
            lambda: self._engine.likelihood(prompt, text),
            _likelihood_body,
        )

    async def _answer(
        self,
        key: bytes,
        read: Callable[[Any], Answer],
        ask: Callable[[], Awaitable[Answer]],
        body: Callable[[Answer], Any],
    ) -> Answer:
        if (found := self.cache.get(key)) is not None:
            try:
                answer = read(json.loads(found.decode("utf-8", "surrogatepass")))
            except Exception as error:  # an entry that cannot be restored is requested again
                self.cache.unread(key, error)
            else:
                return answer
        answer = await ask()
        self._keep(key, answer, body)
        return answer

    def _keep(self, key: bytes, answer: Answer, body: Callable[[Answer], Any]) -> None:
        """Store an answer if it can be restored later. Errors here never fail the call."""
        try:
            plain = body(answer)
            text = json.dumps(plain, ensure_ascii=False, separators=(",", ":"))
        except Exception as error:
            self.cache.refused(error)
            return
        if plain is not None:
            self.cache.put(key, text.encode("utf-8", "surrogatepass"), self.info.model)


def call_key(info: EngineInfo, verb: str, prompt: Prompt, rest: Any) -> bytes:
    """Return the key of a call, 32 bytes: the sha256 of a JSON document that describes it unambiguously.

    Every part of the prompt is listed separately and marked as template or data. So moving a boundary, or
    moving text from one to the other, gives another key.
    """
    asked = [
        [
            message.role,
            [
                ["data", part.name, part.text] if isinstance(part, Data) else [part.text]
                for part in message.parts
            ],
        ]
        for message in prompt.messages
    ]
    whole = [FORMAT, __version__, info.name, info.model, info.fingerprint, verb, asked, rest]
    # Not in ASCII: two lone surrogates and the character that they would form together are different texts.
    text = json.dumps(whole, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


# --- answers as plain values, and back ------------------------------------------------------------
# Floats go through `repr`, which restores the same bits. None means that the answer is not cached.


def _generation_body(answer: Generation) -> Any:
    if answer.trace:
        return None
    tokens = [int(token) for token in answer.tokens]
    return {
        "text": answer.text,
        "finish": answer.finish,
        "steered": bool(answer.steered),
        "tokens": tokens,
        "thinking": answer.thinking,
        "attempts": [[each.text, each.problem] for each in answer.attempts],
        "notes": list(answer.notes),
    }


def _generation(body: Any, constraint: Constraint | None) -> Generation:
    text, finish = body["text"], body["finish"]
    if not isinstance(text, str) or finish not in ("stop", "length"):
        raise ValueError("no generation")
    value = text if constraint is None else constraint.parse(text)
    return Generation(
        text,
        value,
        finish,
        bool(body["steered"]),
        tuple(body["tokens"]),
        REUSED,
        thinking=str(body["thinking"]),
        attempts=tuple(Attempt(str(text), str(problem)) for text, problem in body["attempts"]),
        notes=_notes(body),
    )


def _choice_body(answer: Choice) -> Any:
    if answer.captured is not None:
        return None
    given = answer.probabilities
    shares = None if given is None else [[label, float(share)] for label, share in given.items()]
    mass = None if answer.mass is None else float(answer.mass)
    return {
        "best": answer.best,
        "shares": shares,
        "mass": mass,
        "method": answer.method,
        "bound": None if answer.bound is None else float(answer.bound),
        "thinking": answer.thinking,
        "notes": list(answer.notes),
    }


def _choice(body: Any, options: Sequence[Option]) -> Choice:
    best, given, mass, method = body["best"], body["shares"], body["mass"], body["method"]
    labels = [option.label for option in options]
    if best not in labels or method not in ("exact", "top_k", "sampled", "label_only"):
        raise ValueError("no choice among these options")
    shares = None if given is None else {str(label): float(share) for label, share in given}
    if shares is not None and not shares.keys() <= set(labels):
        raise ValueError("probabilities of other labels")
    bound = None if body["bound"] is None else float(body["bound"])
    return Choice(
        best,
        shares,
        None if mass is None else float(mass),
        method,
        REUSED,
        bound=bound,
        thinking=str(body["thinking"]),
        notes=_notes(body),
    )


def _likelihood_body(answer: Likelihood) -> Any:
    import numpy as np

    if answer.captured is not None:
        return None
    return {
        "tokens": [int(token) for token in answer.tokens],
        "logprobs": np.asarray(answer.logprobs, np.float64).tolist(),
        "offsets": [[int(start), int(end)] for start, end in answer.offsets],
        "notes": list(answer.notes),
    }


def _likelihood(body: Any, text: str) -> Likelihood:
    import numpy as np

    tokens, offsets = tuple(body["tokens"]), tuple((start, end) for start, end in body["offsets"])
    logprobs = np.array(body["logprobs"], np.float64)
    if logprobs.shape != (len(tokens),):
        raise ValueError("a log-probability for every token is needed")
    return Likelihood(text, tokens, logprobs, offsets, REUSED, notes=_notes(body))


def _notes(body: Any) -> tuple[str, ...]:
    return tuple(str(note) for note in body["notes"])
