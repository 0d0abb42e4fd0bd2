"""Structured generation: `generate` lets a model write an object of a given type."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack, overload

from magistrate import _async
from magistrate.constraints import constraint
from magistrate.engines.base import Engine, EngineSettings, Sampling
from magistrate.judges import registry
from magistrate.types import Prompt

T = TypeVar("T")


class GenerateOptions(TypedDict, total=False):
    """The options of `generate`, for type checkers."""

    model: str | Path | Engine | None
    base_url: str | None
    device: str | None
    threads: int | None
    timeout: float | None
    max_tokens: int
    temperature: float
    seed: int


@overload
async def agenerate(prompt: str | Prompt, type: type[T], **options: Unpack[GenerateOptions]) -> T: ...
@overload
async def agenerate(prompt: str | Prompt, type: None = None, **options: Unpack[GenerateOptions]) -> str: ...
@overload
async def agenerate(prompt: str | Prompt, type: Any, **options: Unpack[GenerateOptions]) -> Any: ...
async def agenerate(
    prompt: str | Prompt,
    type: Any = None,
    *,
    model: str | Path | Engine | None = None,
    base_url: str | None = None,
    device: str | None = None,
    threads: int | None = None,
    timeout: float | None = None,
    max_tokens: int = 512,
    temperature: float = 0.0,
    seed: int = 0,
) -> Any:
    """Let the model answer `prompt` in the form of `type`, and return an object of that type.

    `type` is a pydantic model, a dataclass, a `Literal`, an `Enum`, a JSON Schema, a compiled regular
    expression, a list of choices, a `Lark` grammar or a `Constraint`; without one, free text. `model` is a
    catalogue name, a path, words such as `openai:gpt-4o-mini` (`base_url` is the address of its server) or
    an engine. Temperature 0 is greedy; otherwise `seed` fixes the sampling. The answer always parses.
    Raises `ConstraintError` if a type has no bound, and `InvalidOutput` if a server without constraints
    wrote nothing that fits. `generate` is the same without `await`, also inside a running event loop.
    """
    asked = Prompt.of(prompt) if isinstance(prompt, str) else prompt
    shape = None if type is None else constraint(type)
    settings = EngineSettings(base_url=base_url, device=device, threads=threads, timeout=timeout)
    engine = await _async.in_thread(registry.engine, model, settings)
    sampling = Sampling(max_tokens=max_tokens, temperature=temperature, seed=seed)
    return (await engine.generate(asked, shape, sampling=sampling)).value


if TYPE_CHECKING:  # a decorator would keep only one of the overloads

    @overload
    def generate(prompt: str | Prompt, type: type[T], **options: Unpack[GenerateOptions]) -> T: ...
    @overload
    def generate(prompt: str | Prompt, type: None = None, **options: Unpack[GenerateOptions]) -> str: ...
    @overload
    def generate(prompt: str | Prompt, type: Any, **options: Unpack[GenerateOptions]) -> Any: ...
    def generate(prompt: str | Prompt, type: Any = None, **options: Unpack[GenerateOptions]) -> Any: ...

else:
    generate = _async.synchronous(agenerate)
