"""Which of several answers: from the likeliest first tokens, from draws, or from one reply in words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from magistrate.constraints.partial_json import read
from magistrate.constraints.repair import unmarked
from magistrate.engines.base import Option
from magistrate.errors import InvalidOutput

TINY = 1e-12
# Names of an answer that say nothing themselves: {"hallucinated": "No"} would say the opposite of "No".
KEYS = ("answer", "label", "verdict", "reply", "response")


@dataclass(frozen=True, slots=True)
class Token:
    """One of the tokens that may come first: its bytes, and its natural log-probability."""

    text: bytes
    logprob: float


@dataclass(frozen=True, slots=True)
class Listed:
    """The likeliest first tokens; what is not listed is at most as probable as the least of them."""

    tokens: tuple[Token, ...]


@dataclass(frozen=True, slots=True)
class Weights:
    """Shares of the options in the order given, what they had together, and how far a share may be off."""

    shares: tuple[float, ...]
    mass: float
    bound: float


@dataclass(frozen=True, slots=True)
class _Known:
    """What is known of one option: probability seen, what its longer surfaces may have, tokens unlisted."""

    seen: float
    begun: float
    likely: float
    unlisted: int


def from_listed(options: Sequence[Option], listed: Listed) -> Weights | None:
    """Shares by the first token, with the largest error that any of them can have.

    A surface that is a listed token has its probability. One that a listed token begins has at most the
    probability of that token, and that is taken for it where no other option begins so; a surface whose token
    is not listed has at most the least listed probability, and all of those together what the list leaves.
    The bound follows from putting every option at its most with the others at their least, and the reverse.
    None where no option is among the listed.
    """
    if not listed.tokens:
        return None
    chances: dict[bytes, float] = {}
    for token in listed.tokens:
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
    return Weights(shares, min(mass, 1.0), min(bound, 1.0))


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


def named(text: str, options: Sequence[Option]) -> str:
    """The label that a reply in words names, by saying one of its surfaces, or its name, and nothing else.

    White space around it counts for nothing, nor letter case, nor one full stop behind it or one pair of
    quotation marks around it. JSON counts where it is an object with one of `KEYS` alone, and its value is
    such a text. Raises `InvalidOutput` for everything else: words beside an answer may take it back.
    """
    owners: dict[str, set[str]] = {}
    for option in options:
        for surface in (*option.surfaces, option.label):
            owners.setdefault(surface.strip().casefold(), set()).add(option.label)
    said = _value(text)
    spellings = (text.strip(), *unmarked(text)) if said is None else (said.strip(),)
    labels = set[str]().union(*(owners.get(each.casefold(), set()) for each in spellings))
    if len(labels) != 1:
        offered = ", ".join(option.surfaces[0].strip() for option in options)
        raise InvalidOutput(f"the reply is not exactly one of these answers: {offered}", text)
    return labels.pop()


def _value(text: str) -> str | None:
    """The text that JSON such as `{"answer": "Yes"}` holds; None where the reply is something else."""
    if not text.lstrip().startswith("{"):
        return None
    found = read(text).value
    if not isinstance(found, dict) or len(found) != 1:
        return None
    ((key, value),) = found.items()
    return value if key in KEYS and isinstance(value, str) else None
