"""The engine protocol: the three verbs of every engine, the values they return, and its settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import exp, inf
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from magistrate.errors import CapabilityError, InvalidOutput, SpecError
from magistrate.types import Prompt, Usage

if TYPE_CHECKING:
    import numpy as np

    from magistrate.constraints import Constraint


Capability = Literal[
    "generate",
    "choose",
    "likelihood",
    "constraints",
    "data_isolation",
    "exact_probability",
    "trace",
    "capture",
    "hidden_states",
    "attention",
    "repeatable",  # the same call gives the same answer, so it can be cached
]
ChoiceMethod = Literal["exact", "top_k", "sampled", "label_only"]


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """An engine's description and capabilities. `fingerprint` is a sha256 of weights and arithmetic.
    `context_window` is in tokens. `ways` states how it does what can be done in several ways (such as
    `constraints` by `masks` or by `json_schema`), and what is unknown."""

    name: str
    model: str
    fingerprint: str
    context_window: int
    can: frozenset[Capability]
    ways: Mapping[str, str] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are sampled. Temperature 0 is greedy. `seed` fixes the draw for this request alone,
    whatever else is in the batch. `max_tokens` limits the length of the generated text."""

    max_tokens: int = 256
    temperature: float = 0.0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    trace: bool = False

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise SpecError(f"max_tokens must be at least 1, got {self.max_tokens}")
        if not 0 <= self.temperature < float("inf"):
            raise SpecError(f"temperature must be finite and not negative, got {self.temperature}")
        if self.seed < 0:
            raise SpecError(f"seed must not be negative, got {self.seed}")
        if not 0 < self.top_p <= 1:
            raise SpecError(f"top_p must be in (0, 1], got {self.top_p}")
        if not 0 <= self.min_p < 1:
            raise SpecError(f"min_p must be in [0, 1), got {self.min_p}")


GREEDY = Sampling()


@dataclass(frozen=True, slots=True)
class Option:
    """One answer of a choice: a label and the surfaces (spellings) that count as it."""

    label: str
    surfaces: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.surfaces or not all(self.surfaces):
            raise SpecError(f"option {self.label!r} needs at least one surface, and none may be empty")


@dataclass(frozen=True, slots=True)
class Capture:
    """The parts of the model's state that `choose` and `likelihood` return, for white-box signals.

    Entropies are always included. `top` is the number of most likely tokens; `hidden` adds the hidden
    states (needs the capability `hidden_states`); `attention` adds attention weights (needs `attention`).
    """

    top: int = 0
    hidden: bool = False
    attention: bool = False

    def __post_init__(self) -> None:
        if self.top < 0:
            raise SpecError(f"top must not be negative, got {self.top}")


@dataclass(frozen=True, slots=True)
class Captured:
    """The model's state at `n` positions: for each, the distribution of the next token.

    `top_tokens`: int32 `[n, top]`, most likely first; `top_logprobs`: float64 `[n, top]`, in nats;
    `entropies`: float64 `[n]`, in nats; `hidden`: float32 `[n, 1 + layers, width]` or None, the embedding
    and each layer's output for the preceding token; `attention`: float32 `[layers, heads, n, read]` or
    None, with rows that sum to 1 over the `read` positions. `places` maps the prompt's data parts by name
    to half-open position ranges, if attention was captured.
    """

    top_tokens: np.ndarray
    top_logprobs: np.ndarray
    entropies: np.ndarray
    hidden: np.ndarray | None
    attention: np.ndarray | None = None
    places: Mapping[str, tuple[tuple[int, int], ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TraceStep:
    """One generated token with an explanation.

    `text` is the output so far. `wanted` are the model's own most likely tokens with their probabilities.
    `removed_mass` is the probability in [0, 1] that the mask removed. `chosen` is the appended text.
    `forced` means that only one continuation was allowed, so no forward pass was needed.
    """

    text: str
    wanted: tuple[tuple[str, float], ...]
    removed_mass: float
    chosen: str
    forced: bool


@dataclass(frozen=True, slots=True)
class Attempt:
    """A text of the model that could not be used, and the reason."""

    text: str
    problem: str


@dataclass(frozen=True, slots=True)
class Generation:
    """Text that a model generated. `value` is the parsed object under a constraint, else the text.

    `finish` is `stop` if the text is complete and `length` if the budget ended it. The latter cannot happen
    under a constraint: there `steered` is True if the end was steered to fit the budget. `thinking` is the
    reasoning before the text, `attempts` are the texts rejected before it, and `notes` are remarks for the
    reader. `usage` includes the attempts.
    """

    text: str
    value: Any
    finish: Literal["stop", "length"]
    steered: bool = False
    tokens: tuple[int, ...] = ()
    usage: Usage = Usage()
    trace: tuple[TraceStep, ...] = ()
    thinking: str = ""
    attempts: tuple[Attempt, ...] = ()
    notes: tuple[str, ...] = ()


class UnusableAnswer(InvalidOutput):
    """Every answer of the model was unusable, even after it was asked again.

    `text` is the last text, `attempts` are the earlier ones, `thinking` came before the last text, and
    `usage` is the total usage.
    """

    def __init__(
        self, message: str, text: str, attempts: Sequence[Attempt], thinking: str, usage: Usage
    ) -> None:
        super().__init__(message, text)
        self.attempts = tuple(attempts)
        self.thinking = thinking
        self.usage = usage


@dataclass(frozen=True, slots=True)
class Choice:
    """Probabilities of the offered labels.

    `probabilities` sum to 1 over the labels, in the order offered; None with method `label_only`. `mass` in
    [0, 1] is their total before renormalizing. `best` is the most likely label. `bound` in [0, 1] is the
    largest possible error of a probability: 0 with method `exact`, None if unknown (as for `sampled`).
    """

    best: str
    probabilities: Mapping[str, float] | None
    mass: float | None
    method: ChoiceMethod
    usage: Usage = Usage()
    captured: Captured | None = None
    bound: float | None = None
    thinking: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Likelihood:
    """The probability of a given text. `logprobs`: float64 `[n]`, natural logarithms, one per token;
    `offsets`: half-open character offsets of each token in the text."""

    text: str
    tokens: tuple[int, ...]
    logprobs: np.ndarray
    offsets: tuple[tuple[int, int], ...]
    usage: Usage = field(default=Usage())
    captured: Captured | None = None
    notes: tuple[str, ...] = ()

    @property
    def total(self) -> float:
        """The log-probability of the whole text, in nats."""
        return float(self.logprobs.sum())


class Engine(Protocol):
    """An engine that implements the three verbs. Every method may raise `EngineError` or `OverLength`."""

    @property
    def info(self) -> EngineInfo: ...

    async def count(self, prompt: Prompt) -> int:
        """Return the number of tokens of `prompt`, without computing anything else."""
        ...

    async def generate(
        self, prompt: Prompt, constraint: Constraint | None = None, *, sampling: Sampling = GREEDY
    ) -> Generation: ...

    async def choose(
        self, prompt: Prompt, options: Sequence[Option], *, capture: Capture | None = None
    ) -> Choice: ...

    async def likelihood(
        self, prompt: Prompt, text: str, *, capture: Capture | None = None
    ) -> Likelihood: ...


@runtime_checkable
class EngineWrapper(Protocol):
    """An engine that forwards its calls to another one and records them or answers some from a cache."""

    def beside(self, other: Engine) -> Engine:
        """Return `other` with the same wrapper: in the same record, or in front of the same cache."""


@runtime_checkable
class SharedEngine(Protocol):
    """An engine with several users, each of whom may have their own concurrency limit."""

    def sharing(self, concurrency: int) -> Engine:
        """Return the same engine for a user with at most `concurrency` concurrent calls."""


@runtime_checkable
class LoadingEngine(Protocol):
    """An engine whose first call may wait until its model is loaded."""

    @property
    def loading(self) -> bool:
        """Whether the model is being loaded now."""


def in_role(engine: Engine, other: Engine | None) -> Engine:
    """Return `other`, wrapped as `engine` is so that its calls are recorded; `engine` if it is None."""
    if other is None:
        return engine
    return engine.beside(other) if isinstance(engine, EngineWrapper) else other


def exact_choice(
    options: Sequence[Option],
    logprobs: Sequence[Sequence[float]],
    usage: Usage,
    *,
    captured: Captured | None = None,
    notes: tuple[str, ...] = (),
) -> Choice:
    """Return the exact choice from the log-probabilities of each option's token paths.

    Raises `InvalidOutput` if all are minus infinity: then no option is more likely than another.
    """
    # Relative to the most likely path, so that options of vanishing mass can still be compared.
    likeliest = max(max(group) for group in logprobs)
    if likeliest == -inf:
        raise InvalidOutput("the model gives no probability to any of the answers")
    weights = [sum(exp(total - likeliest) for total in group) for group in logprobs]
    whole = sum(weights)
    shares = {option.label: weight / whole for option, weight in zip(options, weights, strict=True)}
    best = max(shares, key=shares.__getitem__)
    mass = min(whole * exp(likeliest), 1.0)
    return Choice(best, shares, mass, "exact", usage, captured, bound=0.0, notes=notes)


def check_options(options: Sequence[Option]) -> None:
    """Raise `SpecError` for options that no engine could tell apart."""
    if len(options) < 2:
        raise SpecError(f"a choice needs at least two options, got {len(options)}")
    labels = [option.label for option in options]
    if len(set(labels)) != len(labels):
        raise SpecError(f"option labels must differ, got {labels}")
    surfaces = [surface for option in options for surface in option.surfaces]
    if len(set(surfaces)) != len(surfaces):
        raise SpecError(f"a surface may belong to only one label, got {surfaces}")


def require(info: EngineInfo, needs: frozenset[Capability], who: str) -> None:
    """Raise `CapabilityError` before anything is spent if the engine lacks a capability that `who` needs."""
    missing = sorted(needs - info.can)
    if missing:
        raise CapabilityError(
            f"{who} needs {', '.join(missing)}, which engine {info.name!r} ({info.model}) does not offer; "
            f"it can: {', '.join(sorted(info.can))}"
        )


# --- settings -------------------------------------------------------------------------------------

DEFAULT = "default"  # the name of the engine of judges that name no other one
CONCURRENCY = 16  # concurrent calls, unless a number is given
OPTIONS = {
    "base_url": "--base-url",
    "device": "--device",
    "threads": "--threads",
    "timeout": "--timeout",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Settings of an engine besides its name; None means not given.

    `base_url` is the address of a server, such as `http://127.0.0.1:8080/v1`. `device` and `threads` are
    for models in this process. `hidden_states` requests an engine that can return them. A call may take
    `timeout` seconds. A user of the engine has at most `concurrency` concurrent calls; all users without a
    number share 16. Settings that differ only in `concurrency` are equal, because they name the same
    engine. Raises `SpecError` for invalid values.
    """

    base_url: str | None = None
    device: str | None = None
    threads: int | None = None
    hidden_states: bool = False
    timeout: float | None = None
    concurrency: int | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if self.threads is not None and self.threads < 1:
            raise SpecError(f"threads must be at least 1, got {self.threads}")
        if self.timeout is not None and not 0 < self.timeout < inf:
            raise SpecError(f"timeout must be a finite number of seconds above 0, got {self.timeout}")
        if self.concurrency is not None and self.concurrency < 1:
            raise SpecError(f"concurrency must be at least 1, got {self.concurrency}")

    def refuse(self, who: str, *names: str) -> None:
        """Raise `SpecError` if one of these settings is given: no setting is silently ignored."""
        for each in fields(self):
            if each.name in names and getattr(self, each.name) != each.default:
                told = OPTIONS.get(each.name, each.name)
                raise SpecError(f"{who} does not support {told}; remove it")
