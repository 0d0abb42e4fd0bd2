"""Replies of servers: typed bodies, thoughts, texts that match their constraint, and choices of a label."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from magistrate.constraints import Constraint, partial_json, repair
from magistrate.constraints.constraint import shorter, unmarked
from magistrate.engines.base import Attempt, Choice, Generation, Option, Sampling, UnusableAnswer
from magistrate.engines.remote.messages import one_of, with_attempts, with_instruction
from magistrate.errors import InvalidOutput, SpecError
from magistrate.types import Prompt, Usage

Count = Annotated[int, Field(ge=0, le=10**9)]
Kind = TypeVar("Kind", bound=BaseModel)
T = TypeVar("T")


class Body(BaseModel):
    """A JSON object from a server. Undeclared fields are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)


def read(kind: type[Kind], body: Any, what: str) -> Kind:
    """Validate `body` as a `kind`. Raises `InvalidOutput` with the place of the first error."""
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(each) for each in first["loc"]) or "the answer"
        raise InvalidOutput(f"the server's answer is not a valid {what}: {place}: {first['msg']}") from None


def _not_nan(value: float) -> float:
    if math.isnan(value):
        raise ValueError("NaN is not a number")
    return value


Logprob = Annotated[float, Field(le=1e-3), AfterValidator(_not_nan)]  # may be infinite


# --- thoughts ------------------------------------------------------------------------------------

OPENING = re.compile(r"\s*(?:<(think|thinking|thought|reasoning)>|\[(THINK)\])")


def split_thinking(text: str, *, opened: bool = False) -> tuple[str, str]:
    """Split a model's text into thoughts and answer.

    Thoughts count only at the beginning of the text. A tag further on is part of the answer, which may
    quote the judged text. `opened` means that the prompt has already begun the thoughts, so that the text
    only ends them. Thoughts that never end leave no answer.

    >>> split_thinking("<think>Rain is wet.</think> Yes")
    ('Rain is wet.', 'Yes')
    >>> split_thinking('{"quote": "<think>"}')
    ('', '{"quote": "<think>"}')
    """
    match = OPENING.match(text)
    if match is None and not opened:
        return "", text
    start = 0 if match is None else match.end()
    name = "think" if match is None else match[1] or match[2]
    closing = "[/THINK]" if name == "THINK" else f"</{name}>"
    thoughts, ended, answer = text[start:].partition(closing)
    if not ended and match is None:
        return "", text  # not begun after all: a template may omit thoughts
    return thoughts.strip(), answer.lstrip()


# --- texts that match their constraint -----------------------------------------------------------

SHOWN = 2000  # characters of a repaired text that a note repeats
SHORTENED = (
    "an answer did not end in time, so the next one was limited to half: texts and lists at most half as long"
)


@dataclass(frozen=True, slots=True)
class Reply:
    """A text from a server, not yet validated; `thinking` came before it.

    `finish` is `length` if the token budget ended it. `notes` are remarks for the reader of the text.
    """

    text: str
    finish: Literal["stop", "length"]
    usage: Usage
    thinking: str = ""
    notes: tuple[str, ...] = ()


Ask = Callable[[tuple[Attempt, ...], Constraint | None], Awaitable[Reply]]
"""Asks for a text under a constraint, after these refused attempts."""


async def generate_validated(ask: Ask, constraint: Constraint | None, *, retries: int) -> Generation:
    """Return the first reply that `constraint` accepts; without a constraint, the first reply.

    `ask(attempts, constraint)` gets the rejected attempts, to show them to the model, and the constraint to
    enforce; after each answer that the token budget cut off, that is one with half the lengths. A reply
    that does not match is repaired if only one reading is possible. Otherwise the model is asked again, at
    most `retries` times. Raises `UnusableAnswer`, with all attempts and the total usage.
    """
    if constraint is None:
        free = await ask((), None)
        return Generation(
            free.text, free.text, free.finish, usage=free.usage, thinking=free.thinking, notes=free.notes
        )
    enforced, cut = constraint, False

    async def ask_again(attempts: tuple[Attempt, ...]) -> Reply:
        nonlocal enforced, cut
        enforced = shorter(enforced) if cut else enforced
        reply = await ask(attempts, enforced)
        cut = reply.finish == "length"
        return reply

    used = await _first_usable(ask_again, lambda reply: _validated(reply, constraint), retries)
    text, value, repaired = used.value
    notes = (*used.reply.notes, *repaired, *(() if enforced is constraint else (SHORTENED,)))
    return Generation(
        text,
        value,
        "stop",
        usage=used.usage,
        thinking=used.reply.thinking,
        attempts=used.attempts,
        notes=notes,
    )


@dataclass(frozen=True, slots=True)
class _Used(Generic[T]):
    """The first usable reply, the value parsed from it, the attempts before it, and the total usage."""

    reply: Reply
    value: T
    attempts: tuple[Attempt, ...]
    usage: Usage


async def _first_usable(
    ask: Callable[[tuple[Attempt, ...]], Awaitable[Reply]], read: Callable[[Reply], T], retries: int
) -> _Used[T]:
    """Return the first reply of `1 + retries` for which `read` does not raise `InvalidOutput`.

    Raises `UnusableAnswer` if there is none.
    """
    attempts: list[Attempt] = []
    usage = Usage()
    while True:
        reply = await ask(tuple(attempts))
        usage += reply.usage
        try:
            return _Used(reply, read(reply), tuple(attempts), usage)
        except InvalidOutput as error:
            if len(attempts) >= retries:
                tried = f" (asked {len(attempts) + 1} times)" if attempts else ""
                message = f"{error}{tried}"
                raise UnusableAnswer(message, reply.text, attempts, reply.thinking, usage) from error
            attempts.append(Attempt(reply.text, str(error)))


def _validated(reply: Reply, constraint: Constraint) -> tuple[str, Any, tuple[str, ...]]:
    """Return a text that the constraint accepts, its value, and notes on repairs."""
    if reply.finish == "length":
        raise InvalidOutput("the answer was cut off at the token limit; it must be shorter", reply.text)
    try:
        return reply.text, constraint.parse(reply.text), ()
    except InvalidOutput:
        plain = repair(reply.text, replace(constraint, build=None))
    text = json.dumps(plain, ensure_ascii=False) if constraint.kind == "json" else str(plain)
    note = f"the answer was repaired; the original was: {reply.text[:SHOWN]}"
    return text, constraint.parse(text), (note,)


# --- labels by log-probabilities -----------------------------------------------------------------

LEAST_MASS = 1e-12  # smallest total mass of the options; with less, nothing is known about them


Path = tuple[int, ...]  # tokens that spell a surface


def token_paths(
    options: Sequence[Option], paths: Mapping[str, Path], end: Path | None = None
) -> list[list[Path]]:
    """Return the paths of every option's surfaces, without duplicates.

    A path that is a prefix of another gets `end`, the tokens that end an answer. Raises `SpecError` for an
    empty path, for one that two options share, and, if `end` is None, for one that is a prefix of another
    option's.
    """
    owner: dict[Path, str] = {}
    for option in options:
        for surface in option.surfaces:
            path = paths[surface]
            others = (paths[each] for other in options if other is not option for each in other.surfaces)
            if not path or any((each if end else each[: len(path)]) == path for each in others):
                clash = "the same as" if end else "begins"
                raise SpecError(
                    f"the surface {surface!r} of option {option.label!r} has no tokens in this model, or "
                    f"{clash} another option's; spell one differently"
                )
            owner[path] = option.label

    def ended(path: Path) -> Path:
        longer = any(other != path and other[: len(path)] == path for other in owner)
        return (*path, *(end or ())) if longer else path

    return [[ended(path) for path in owner if owner[path] == option.label] for option in options]


@dataclass(frozen=True, slots=True)
class TopToken:
    """One of the most likely first tokens: its bytes and its natural log-probability."""

    text: bytes
    logprob: float


class TopTokenBody(Body):
    """One of the most likely tokens, as listed by servers."""

    token: str
    logprob: Logprob
    bytes: list[Annotated[int, Field(ge=0, le=255)]] | None = None

    @property
    def value(self) -> TopToken:
        """The token's bytes and its log-probability."""
        text = self.token.encode() if self.bytes is None else bytes(self.bytes)
        return TopToken(text, self.logprob)


@dataclass(frozen=True, slots=True)
class LabelProbabilities:
    """Shares of the options in the given order, their total mass, and the largest error of a share."""

    shares: tuple[float, ...]
    mass: float
    bound: float


@dataclass(frozen=True, slots=True)
class _Known:
    """What the listed tokens tell about one option: the probability of its surfaces that are listed tokens
    (`seen`), the most that its longer surfaces may have (`begun`), the estimate for those (`likely`), and
    how many of its surfaces are not listed."""

    seen: float
    begun: float
    likely: float
    unlisted: int


def top_k_choice(
    options: Sequence[Option],
    tokens: Sequence[TopToken],
    usage: Usage,
    notes: tuple[str, ...] = (),
    *,
    least_mass: float = 0.0,
) -> Choice | None:
    """Choose by the most likely first tokens; None if the options' total mass is less than `least_mass`."""
    found = label_probabilities(options, tokens)
    if found is None or found.mass < least_mass:
        return None
    shares = {option.label: share for option, share in zip(options, found.shares, strict=True)}
    best = max(shares, key=shares.__getitem__)
    return Choice(best, shares, found.mass, "top_k", usage, bound=found.bound, notes=notes)


def label_probabilities(options: Sequence[Option], tokens: Sequence[TopToken]) -> LabelProbabilities | None:
    """Compute shares by the first token, with the largest error that any of them can have.

    `tokens` are the most likely first tokens; an unlisted token is at most as probable as the least of
    them. A surface that is a listed token has its probability. A surface that begins with a listed token
    has at most the probability of that token, which is also the estimate unless another option begins with
    it too. A surface whose token is unlisted has at most the least listed probability, and all of those
    together at most the mass that the list leaves. The bound follows from setting each option to its
    maximum with the others at their minimum, and the reverse. None if no option is listed.
    """
    if not tokens:
        return None
    chances: dict[bytes, float] = {}
    for token in tokens:
        chances[token.text] = max(chances.get(token.text, 0.0), min(math.exp(token.logprob), 1.0))
    rest = max(0.0, 1.0 - sum(chances.values()))
    least = min(min(chances.values()), rest)
    known = [_known(option, options, chances, least) for option in options]
    estimates = [each.seen + each.likely for each in known]
    mass = sum(estimates)
    if mass <= LEAST_MASS:
        return None
    shares = tuple(estimate / mass for estimate in estimates)
    bound = max(_deviation(known, at, shares[at], least, rest) for at in range(len(known)))
    return LabelProbabilities(shares, min(mass, 1.0), min(bound, 1.0))


def _known(option: Option, options: Sequence[Option], chances: dict[bytes, float], least: float) -> _Known:
    surfaces = {surface.encode() for surface in option.surfaces}
    others = {surface.encode() for other in options if other is not option for surface in other.surfaces}
    seen, begun, unlisted = 0.0, 0.0, 0
    beginnings: set[bytes] = set()
    for surface in surfaces:
        if surface in chances:
            seen += chances[surface]
            continue
        parts = [text for text in chances if text and surface.startswith(text)]
        if not parts:
            unlisted += 1
            continue
        begun += max(least, *(chances[text] for text in parts))
        beginnings.add(max(parts, key=len))
    # A token that begins another option's surface too, or is one, is evidence for neither.
    own = {text for text in beginnings if not any(other.startswith(text) for other in others)}
    return _Known(seen, begun, sum(chances[text] for text in own - surfaces), unlisted)


def _deviation(known: Sequence[_Known], at: int, share: float, least: float, rest: float) -> float:
    """Return how far the true share of option `at` may be from `share`."""
    others = [each for place, each in enumerate(known) if place != at]
    most = _most([known[at]], least, rest)
    low = known[at].seen
    others_most, others_low = _most(others, least, rest), sum(each.seen for each in others)
    highest = most / (most + others_low) if most > 0 else 0.0
    lowest = low / (low + others_most) if low > 0 else 0.0
    return max(highest - share, share - lowest, 0.0)


def _most(known: Sequence[_Known], least: float, rest: float) -> float:
    sure = sum(each.seen + each.begun for each in known)
    return sure + min(sum(each.unlisted for each in known) * least, rest)


# --- labels by replies in words ------------------------------------------------------------------

# Keys that carry no meaning of their own: {"hallucinated": "No"} would be the opposite of "No".
KEYS = ("answer", "label", "verdict", "reply", "response")
BUDGET = 16  # tokens for a reply that names an option

AskLabel = Callable[[tuple[Attempt, ...], int | None], Awaitable[Reply]]
"""Asks for a label after refused attempts: drawn with a seed, or the likeliest where the seed is None."""


def label_asker(
    ask: Callable[[Prompt, Sampling], Awaitable[Reply]], prompt: Prompt, options: Sequence[Option]
) -> AskLabel:
    """Return a function that asks with `prompt`; after a rejected attempt it lists the allowed answers."""
    allowed = one_of([option.surfaces[0].strip() for option in options])

    async def ask_label(attempts: tuple[Attempt, ...], seed: int | None) -> Reply:
        again = with_instruction(with_attempts(prompt, attempts), allowed) if attempts else prompt
        if seed is None:
            return await ask(again, Sampling(max_tokens=BUDGET))
        return await ask(again, Sampling(max_tokens=BUDGET, temperature=1.0, seed=seed))

    return ask_label


async def label_only_choice(ask: AskLabel, options: Sequence[Option], *, retries: int) -> Choice:
    """Return the label that the model replies with; if it names none, ask at most `retries` more times.

    Raises `UnusableAnswer` if it never does: no label is invented.
    """
    used = await _first_usable(
        lambda attempts: ask(attempts, None), lambda reply: _label_of(reply, options), retries
    )
    thinking, notes = used.reply.thinking, used.reply.notes
    return Choice(used.value, None, None, "label_only", used.usage, thinking=thinking, notes=notes)


async def sampled_choice(ask: AskLabel, options: Sequence[Option], *, draws: int) -> Choice:
    """Return the label frequencies among `draws` replies.

    `mass` is the share of the replies that named a label. Raises `UnusableAnswer` if fewer than half did.
    """
    drawn: Counter[str] = Counter()
    usage, unnamed = Usage(), list[Attempt]()
    for seed in range(draws):
        try:
            reply = await ask((), seed)
        except InvalidOutput as error:
            usage += getattr(error, "usage", Usage(calls=1))
            unnamed.append(Attempt(error.text, str(error)))
            continue
        usage += reply.usage
        try:
            drawn[_label_of(reply, options)] += 1
        except InvalidOutput as error:
            unnamed.append(Attempt(reply.text, str(error)))
    total = drawn.total()
    if 2 * total < draws or not total:
        last = unnamed[-1]
        message = f"only {total} of {draws} samples contain an answer; the last one without: {last.problem}"
        raise UnusableAnswer(message, last.text, unnamed[:-1], "", usage)
    shares = {option.label: drawn[option.label] / total for option in options}
    best = max(shares, key=shares.__getitem__)
    return Choice(best, shares, total / draws, "sampled", usage)


def _label_of(reply: Reply, options: Sequence[Option]) -> str:
    if reply.finish == "length":
        raise InvalidOutput("the model reached the token limit before it gave an answer", reply.text)
    return label_named(reply.text, options)


def label_named(text: str, options: Sequence[Option]) -> str:
    """Return the label that a reply in words names: one of its surfaces or its name, and nothing else.

    Surrounding white space, letter case, one final full stop and one pair of quotation marks are ignored.
    JSON counts if it is an object with a single key from `KEYS` whose value is such a text. Raises
    `InvalidOutput` for everything else, because extra words may contradict the answer.
    """
    owners: dict[str, set[str]] = {}
    for option in options:
        for surface in (*option.surfaces, option.label):
            owners.setdefault(surface.strip().casefold(), set()).add(option.label)
    value = _value(text)
    spellings = (text.strip(), *unmarked(text)) if value is None else (value.strip(),)
    labels = set[str]().union(*(owners.get(each.casefold(), set()) for each in spellings))
    if len(labels) != 1:
        offered = ", ".join(option.surfaces[0].strip() for option in options)
        raise InvalidOutput(f"the reply is not exactly one of these answers: {offered}", text)
    return labels.pop()


def _value(text: str) -> str | None:
    """Return the text in JSON such as `{"answer": "Yes"}`, or None if the reply is something else."""
    if not text.lstrip().startswith("{"):
        return None
    found = partial_json.read(text).value
    if not isinstance(found, dict) or len(found) != 1:
        return None
    ((key, value),) = found.items()
    return value if key in KEYS and isinstance(value, str) else None
