"""The domain types as frozen values: samples, prompts and outcomes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal

from magistrate import _text
from magistrate.errors import InputError, NoVerdict

FAITHFUL = "faithful"
HALLUCINATED = "hallucinated"

Direction = Literal["minimize", "maximize"]
ASSISTANTS = ("assistant", "ai", "model", "bot")  # roles in files whose messages are judged

ClaimKind = Literal["contradiction", "unsupported", "agreement"]
FailureCode = Literal[
    "invalid_output",
    "rate_limited",
    "timeout",
    "refused",
    "engine_error",
    "budget",
    "cancelled",
    "task_error",
    "not_recorded",
]
AbstentionReason = Literal["over_length", "no_context", "no_output", "missing_input", "uncertain"]


# --- samples ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Span:
    """Half-open character offsets `[start, end)` into a text, with the kind of the marked text."""

    start: int
    end: int
    kind: str = HALLUCINATED


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of a conversation that is part of a sample."""

    role: str
    text: str


@dataclass(frozen=True, slots=True)
class Sample:
    """One text to judge (`output`) and the text that it must be faithful to (`context`).

    `context` and `alternatives` are tuples of texts; a single text raises `InputError`. `label` is a person's
    decision, `faithful` or `hallucinated`, if there is one; `spans` are offsets into
    `output`. `output` is None only before a task has produced it. `messages` are the conversation before
    the output; the output may rely on them as on the context.
    """

    id: str
    output: str | None
    context: tuple[str, ...] = ()
    input: str | None = None
    expected: str | None = None
    messages: tuple[Turn, ...] = ()
    alternatives: tuple[str, ...] = ()
    label: str | None = None
    spans: tuple[Span, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("context", "alternatives"):
            if isinstance(getattr(self, name), str):
                raise InputError(f"{name} is a text, but must be a tuple of texts: {name}=(text,)")

    def answered(self) -> Sample:
        """Return this sample with the assistant's last message as its output, if it has no output.

        Earlier messages stay in `messages`. An output that is also the last message is removed from them.
        """
        output, messages = self.output, self.messages
        while messages and messages[-1].role.lower() in ASSISTANTS and output in (None, messages[-1].text):
            output, messages = messages[-1].text, messages[:-1]
        return self if messages == self.messages else replace(self, output=output, messages=messages)

    @property
    def sources(self) -> tuple[str, ...]:
        """All texts that the output may rely on: the contexts, then the text of every message."""
        return (*self.context, *(turn.text for turn in self.messages))


# --- prompts ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Trusted:
    """Template text, written by the judge's author; it may instruct the model."""

    text: str


@dataclass(frozen=True, slots=True)
class Data:
    """Untrusted text: never parsed as template, special token or turn. `name` is its field."""

    text: str
    name: str = "data"


Part = Trusted | Data


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a prompt. If the last message has the role `assistant`, the model continues it."""

    role: Literal["system", "user", "assistant"]
    parts: tuple[Part, ...]

    @property
    def text(self) -> str:
        """All parts as one string."""
        return "".join(part.text for part in self.parts)


@dataclass(frozen=True, slots=True)
class Prompt:
    """Messages of trusted template text and untrusted data parts."""

    messages: tuple[Message, ...]

    @classmethod
    def of(cls, text: str) -> Prompt:
        """Make a single user message of trusted text."""
        return cls((Message("user", (Trusted(text),)),))

    def continued(self, *parts: Part) -> Prompt:
        """Return this prompt with a prefix of the assistant's answer added."""
        return Prompt((*self.messages, Message("assistant", parts)))

    def data(self) -> Iterator[Data]:
        """Yield every data part, in order."""
        for message in self.messages:
            for part in message.parts:
                if isinstance(part, Data):
                    yield part


# --- outcomes -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens and calls spent.

    `cached` of the `prompt` tokens needed no computation. `forced` of the `generated` tokens were the only
    ones allowed and were not sampled. `reused` calls were answered from the cache; they are not among
    `calls` and spent nothing.
    """

    calls: int = 0
    prompt: int = 0
    cached: int = 0
    generated: int = 0
    forced: int = 0
    reused: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.calls + other.calls,
            self.prompt + other.prompt,
            self.cached + other.cached,
            self.generated + other.generated,
            self.forced + other.forced,
            self.reused + other.reused,
        )


@dataclass(frozen=True, slots=True)
class Step:
    """One engine call on the way to an outcome, kept as evidence.

    `result` holds plain JSON values: the text of a generation, or the probabilities of a choice.
    """

    verb: Literal["generate", "choose", "likelihood"]
    prompt: tuple[tuple[str, str], ...]
    result: Mapping[str, Any]
    usage: Usage
    seconds: float


@dataclass(frozen=True, slots=True)
class Claim:
    """One statement of the output, with its position and the evidence for or against it.

    `output_quote` is a position in the sample's output, whose text is `output_text`. `context_quote` is a
    position in `sample.sources[context_index]`, whose text is `context_text`; its kind is the kind of the
    quoted text. `probability` is the engine's probability of `kind`, in [0, 1], None if it had none.
    """

    kind: ClaimKind
    output_quote: Span
    context_quote: Span | None = None
    context_index: int | None = None
    reasoning: str = ""
    probability: float | None = None
    output_text: str = ""
    context_text: str | None = None


@dataclass(frozen=True, slots=True)
class Recipe:
    """All that determines a result: the same recipe gives the same bytes."""

    judge: str
    model: str
    fingerprint: str
    prompt: str
    constraint: str
    seed: int
    n: int
    package: str

    def line(self) -> str:
        """Return the recipe on one line, to be printed with every result."""
        pinned = f"#{self.fingerprint[:12]}" if self.fingerprint else ""  # code has no fingerprint
        return (
            f"judge={self.judge} model={self.model}{pinned} prompt={self.prompt} "
            f"constraint={self.constraint} seed={self.seed} n={self.n} magistrate={self.package}"
        )


@dataclass(frozen=True, slots=True)
class CalibratedOn:
    """The labelled data that a judge's calibration was fitted to, and the aim of its threshold.

    `scores` are calibrated scores of that data, as `magistrate.metrics.calibration.reference` takes them;
    None if the calibration file does not hold them. `aim` is None if the label is the more probable one.
    """

    dataset: str
    scores: tuple[float, ...] | None = None
    aim: str | None = None


@dataclass(frozen=True, slots=True)
class Scoring:
    """How to read a judge's scores; stored with every run.

    `direction` says whether a low score is good (`minimize`: 1 means hallucinated) or a high one
    (`maximize`: 0 means hallucinated). `labels` are the possible labels of its verdicts. At `threshold`, in
    [0, 1], and above the verdict is the label of high scores: hallucinated under `minimize`, faithful under
    `maximize`. It is None if the label is decided in another way. `calibrated_on` describes the data of the
    calibration file, None without one.
    """

    direction: Direction
    labels: tuple[str, ...] = ()
    threshold: float | None = None
    calibrated_on: CalibratedOn | None = None

    @property
    def turned(self) -> bool:
        """Whether a low score means hallucinated, so that rankings use 1 - score."""
        return self.direction == "maximize"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A judge's decision on one sample.

    `score` is in [0, 1]; for hallucination judges 1 means hallucinated. `probability` is the engine's own
    probability of `label`, in [0, 1], or None if the engine had none. `mass` is the total probability of
    the offered answers before renormalizing. `explanation_agrees` is False if the label chosen again from
    the explanation alone was a different one.
    """

    sample_id: str
    judge: str
    label: str
    score: float
    probability: float | None = None
    explanation: str | None = None
    explanation_agrees: bool | None = None
    mass: float | None = None
    claims: tuple[Claim, ...] = field(default=(), repr=False)
    details: Mapping[str, Any] = field(default_factory=dict, repr=False)
    steps: tuple[Step, ...] = field(default=(), repr=False)
    usage: Usage = field(default=Usage(), repr=False)
    seconds: float = field(default=0.0, repr=False)

    def _repr_html_(self) -> str:
        facts = [("score", f"{self.score:.3f}"), ("probability", _text.percent(self.probability))]
        facts += [("judge", self.judge), ("sample", self.sample_id)]
        colour = _text.MARK.get(self.label, _text.NEUTRAL)
        quotes = [(claim.kind, claim.output_text, claim.context_text) for claim in self.claims]
        noted = self.details.get("heat")
        heat = _text.heat(noted) if isinstance(noted, Mapping) else ""
        return _text.card(self.label, colour, facts, self.explanation, quotes, heat)

    def __str__(self) -> str:
        line = f"{self.label} (score {self.score:.3f}, probability {_text.percent(self.probability)})"
        return f"{line}: {_text.shorten(self.explanation)}" if self.explanation else line


ONLY_OF_VERDICTS = frozenset(each.name for each in fields(Verdict)) - {"sample_id", "judge"}


def _no_verdict(outcome: Failure | Abstention, name: str) -> AttributeError:
    """Return the error for reading `name` from an outcome without a verdict."""
    if name not in ONLY_OF_VERDICTS:
        return AttributeError(f"{type(outcome).__name__!r} object has no attribute {name!r}")
    return NoVerdict(
        f"there is no {name}: {outcome.judge} on sample {outcome.sample_id!r} {outcome}; check "
        "isinstance(outcome, magistrate.Verdict) first",
        outcome,
    )


@dataclass(frozen=True, slots=True)
class Failure:
    """A judgement that could not be made. It counts as failed, never as a label.

    Reading what only a verdict has (`label`, `score`, `probability`) raises `NoVerdict` with the message.
    """

    sample_id: str
    judge: str
    code: FailureCode
    message: str
    steps: tuple[Step, ...] = field(default=(), repr=False)
    usage: Usage = field(default=Usage(), repr=False)
    seconds: float = field(default=0.0, repr=False)

    def _repr_html_(self) -> str:
        return _text.card(f"failed: {self.code}", _text.NEUTRAL, [("judge", self.judge)], self.message)

    def __str__(self) -> str:
        return f"failed ({self.code}): {_text.shorten_inside(self.message)}"

    if not TYPE_CHECKING:  # type checkers still report that there is no such attribute

        def __getattr__(self, name: str) -> Any:
            raise _no_verdict(self, name)


@dataclass(frozen=True, slots=True)
class Abstention:
    """A judge that declined, with the reason. It counts as abstained, never as a label.

    Reading what only a verdict has (`label`, `score`, `probability`) raises `NoVerdict` with the reason.
    """

    sample_id: str
    judge: str
    reason: AbstentionReason
    message: str
    steps: tuple[Step, ...] = field(default=(), repr=False)
    usage: Usage = field(default=Usage(), repr=False)
    seconds: float = field(default=0.0, repr=False)

    def _repr_html_(self) -> str:
        return _text.card(f"abstained: {self.reason}", _text.NEUTRAL, [("judge", self.judge)], self.message)

    def __str__(self) -> str:
        return f"abstained ({self.reason}): {_text.shorten_inside(self.message)}"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise _no_verdict(self, name)


Outcome = Verdict | Failure | Abstention
