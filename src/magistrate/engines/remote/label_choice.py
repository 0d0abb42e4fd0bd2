"""Chooses a label: by exact path probabilities, by the likeliest first tokens, by draws, or in words."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from magistrate.constraints.constraint import unmarked
from magistrate.constraints.partial_json import read
from magistrate.engines.base import Attempt, Choice, Option, Sampling, UnusableAnswer
from magistrate.engines.remote.messages import with_attempts, with_instruction
from magistrate.engines.remote.replies import Reply
from magistrate.errors import InvalidOutput
from magistrate.types import Prompt, Usage

TINY = 1e-12
# Names of an answer that say nothing themselves: {"hallucinated": "No"} would say the opposite of "No".
KEYS = ("answer", "label", "verdict", "reply", "response")
BUDGET = 16  # tokens of a reply that names an option
ONLY = "Reply with nothing but one of these: "


# --- by log-probabilities ------------------------------------------------------------------------


def exact_choice(
    options: Sequence[Option],
    paths: Sequence[Sequence[float]],
    usage: Usage,
    notes: tuple[str, ...] = (),
) -> Choice:
    """The choice where all is known: `paths` are the log-probabilities of each option's surfaces."""
    # Relative to the likeliest path, so that options of vanishing mass can still be compared.
    likeliest = max(max(group) for group in paths)
    weights = [sum(math.exp(total - likeliest) for total in group) for group in paths]
    shares = {option.label: weight / sum(weights) for option, weight in zip(options, weights, strict=True)}
    mass = min(sum(weights) * math.exp(likeliest), 1.0)
    best = max(shares, key=shares.__getitem__)
    return Choice(best, shares, mass, "exact", usage, bound=0.0, notes=notes)


@dataclass(frozen=True, slots=True)
class TopToken:
    """One of the likeliest first tokens: its bytes and its natural log-probability."""

    text: bytes
    logprob: float


@dataclass(frozen=True, slots=True)
class LabelProbabilities:
    """Shares of the options in the order given, their mass together, and how far a share may be off."""

    shares: tuple[float, ...]
    mass: float
    bound: float


@dataclass(frozen=True, slots=True)
class _Known:
    """What is known of one option: the probability of its surfaces that are listed tokens (`seen`), the most
    that its longer surfaces may have (`begun`), the estimate for those (`likely`), and how many of its
    surfaces are not listed."""

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
    """The choice by the likeliest first tokens; None if the options have less than `least_mass` together."""
    found = label_probabilities(options, tokens)
    if found is None or found.mass < least_mass:
        return None
    shares = {option.label: share for option, share in zip(options, found.shares, strict=True)}
    best = max(shares, key=shares.__getitem__)
    return Choice(best, shares, found.mass, "top_k", usage, bound=found.bound, notes=notes)


def label_probabilities(options: Sequence[Option], tokens: Sequence[TopToken]) -> LabelProbabilities | None:
    """Shares by the first token, with the largest error that any of them can have.

    `tokens` are the likeliest first tokens; what is not listed is at most as probable as the least of them.
    A surface that is a listed token has its probability. A surface that a listed token begins has at most the
    probability of that token; that is the estimate, unless another option begins with it too. A surface whose
    token is not listed has at most the least listed probability, and all of those together what the list
    leaves. The bound follows from setting every option to its most with the others at their least, and the
    reverse. None if no option is among the listed.
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
    if mass <= TINY:
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
    # A token that begins another option's surface too, or is one, says nothing for either.
    own = {text for text in beginnings if not any(other.startswith(text) for other in others)}
    return _Known(seen, begun, sum(chances[text] for text in own - surfaces), unlisted)


def _deviation(known: Sequence[_Known], at: int, share: float, least: float, rest: float) -> float:
    """How far the true share of option `at` may be from `share`."""
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


# --- by replies in words -------------------------------------------------------------------------

AskLabel = Callable[[tuple[Attempt, ...], int | None], Awaitable[Reply]]
"""Asks for a label after refused attempts: drawn with a seed, or the likeliest where the seed is None."""


def label_asker(
    ask: Callable[[Prompt, Sampling], Awaitable[Reply]], prompt: Prompt, options: Sequence[Option]
) -> AskLabel:
    """Asks with `prompt`, and after a refused attempt lists the answers that are allowed."""
    allowed = ONLY + ", ".join(option.surfaces[0].strip() for option in options)

    async def asked(attempts: tuple[Attempt, ...], seed: int | None) -> Reply:
        again = with_instruction(with_attempts(prompt, attempts), allowed) if attempts else prompt
        if seed is None:
            return await ask(again, Sampling(max_tokens=BUDGET))
        return await ask(again, Sampling(max_tokens=BUDGET, temperature=1.0, seed=seed))

    return asked


async def label_only_choice(ask: AskLabel, options: Sequence[Option], *, retries: int) -> Choice:
    """The label that the model replies with, asked `retries` times more at most if it names none.

    Raises `UnusableAnswer` if it never does: no label is made up.
    """
    attempts: list[Attempt] = []
    usage = Usage()
    while True:
        reply = await ask(tuple(attempts), None)
        usage += reply.usage
        try:
            best = _label_of(reply, options)
        except InvalidOutput as error:
            if len(attempts) >= retries:
                raise UnusableAnswer(str(error), reply.text, attempts, reply.thinking, usage) from None
            attempts.append(Attempt(reply.text, str(error)))
            continue
        return Choice(best, None, None, "label_only", usage, thinking=reply.thinking, notes=reply.notes)


async def sampled_choice(ask: AskLabel, options: Sequence[Option], *, draws: int) -> Choice:
    """Shares of the labels among `draws` replies.

    `mass` is the share of the replies that named a label. Raises `UnusableAnswer` if less than half did.
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
        message = f"only {total} of {draws} draws name an answer; the last of the others: {last.problem}"
        raise UnusableAnswer(message, last.text, unnamed[:-1], "", usage)
    shares = {option.label: drawn[option.label] / total for option in options}
    best = max(shares, key=shares.__getitem__)
    return Choice(best, shares, total / draws, "sampled", usage)


def _label_of(reply: Reply, options: Sequence[Option]) -> str:
    if reply.finish == "length":
        raise InvalidOutput("the model's tokens ran out before it had named an answer", reply.text)
    return label_named(reply.text, options)


def label_named(text: str, options: Sequence[Option]) -> str:
    """The label that a reply in words names: one of its surfaces, or its name, and nothing else.

    White space around it is ignored, and letter case, one full stop behind it and one pair of quotation marks
    around it. JSON counts if it is an object with one of `KEYS` alone whose value is such a text. Raises
    `InvalidOutput` for everything else: words beside an answer may take it back.
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
    """The text in JSON such as `{"answer": "Yes"}`; None if the reply is something else."""
    if not text.lstrip().startswith("{"):
        return None
    found = read(text).value
    if not isinstance(found, dict) or len(found) != 1:
        return None
    ((key, value),) = found.items()
    return value if key in KEYS and isinstance(value, str) else None
