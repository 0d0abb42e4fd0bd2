"""Log-probabilities of an output's tokens: how a context changes them, and what the generator recorded.

All values are in nats, natural logarithms of probabilities. The gain of a token is its log-probability with
the context minus that without it: above 0 the context makes the token more probable, below 0 less. The
probability of a text also depends on its style, and may mean the opposite in another kind of text; the
difference keeps its direction.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import exp, fsum, inf, log
from typing import TYPE_CHECKING, Any

from magistrate.constraints.quote import edges
from magistrate.errors import InputError
from magistrate.features.splitting import sentences
from magistrate.types import Sample

if TYPE_CHECKING:
    import numpy as np

    from magistrate.engines.base import Likelihood
KEY = "logprobs"
LISTED = 5  # tokens that are listed
EVEN = log(0.5)
LOWEST = -1e6  # nats; generators write far more than this even for an impossible token
SLACK = 1e-3  # tolerance above 0: servers round, so a probability of 1 may come out slightly larger


@dataclass(frozen=True, slots=True)
class Gained:
    """Characters `[start, end)` of the output: log-probabilities in nats, summed over their `n` tokens."""

    start: int
    end: int
    n: int
    with_context: float
    without: float

    @property
    def gain(self) -> float:
        """The gain, summed over the tokens."""
        return self.with_context - self.without

    @property
    def mean_gain(self) -> float:
        """The gain per token."""
        return self.gain / self.n


@dataclass(frozen=True, eq=False, slots=True)
class Gains:
    """A text, its tokens' `offsets` (half-open, characters) and their log-probabilities.

    `with_context` and `without`: float64 `[n]`, in nats.
    """

    text: str
    offsets: tuple[tuple[int, int], ...]
    with_context: np.ndarray
    without: np.ndarray

    @property
    def by_token(self) -> np.ndarray:
        """float64 `[n]`: the gain of each token."""
        found: np.ndarray = self.with_context - self.without
        return found

    @property
    def mean(self) -> float:
        """The mean gain of a token."""
        return float(self.by_token.mean())

    @property
    def negative_share(self) -> float:
        """The share, in [0, 1], of tokens that the context makes less probable."""
        return float((self.by_token < 0).mean())

    def words(self) -> list[Gained]:
        """Return every word that a token ends in, with trailing punctuation; none is white space only.

        In scripts without spaces every character is a word.
        """
        return self._over(_words(self.text))

    def sentences(self, language: str = "en") -> list[Gained]:
        """Return every sentence that holds a token; `language` is an ISO 639 code."""
        return self._over(sentences(self.text, language))

    def signals(self) -> dict[str, float]:
        """Return the measurements of the whole output, by name.

        `gain_mean` and `gain_lowest_word` (the lowest sum over a word) are in nats, `gain_negative_share`
        in [0, 1]. `logprob_with_context` and `logprob_without` are mean log-probabilities per token.
        """
        return {
            "gain_mean": self.mean,
            "gain_lowest_word": min(word.gain for word in self.words()),
            "gain_negative_share": self.negative_share,
            "logprob_with_context": float(self.with_context.mean()),
            "logprob_without": float(self.without.mean()),
        }

    def _over(self, places: Sequence[tuple[int, int]]) -> list[Gained]:
        """Sum over the tokens of each place; a token belongs to the place of its last character."""
        from bisect import bisect_right

        starts = [start for start, _ in places]
        owned: list[list[int]] = [[] for _ in places]
        for token, (_, end) in enumerate(self.offsets):
            if places:  # a token of only white space counts for the text before it
                owned[max(bisect_right(starts, max(end - 1, 0)) - 1, 0)].append(token)
        return [
            Gained(
                start,
                end,
                len(tokens),
                float(self.with_context[tokens].sum()),
                float(self.without[tokens].sum()),
            )
            for (start, end), tokens in zip(places, owned, strict=True)
            if tokens
        ]


def gains(with_context: Likelihood, without: Likelihood) -> Gains:
    """Combine both likelihoods of one text.

    Raises `InputError` if they are of different texts or tokens, or have no tokens.
    """
    if with_context.text != without.text or with_context.offsets != without.offsets:
        raise InputError("the likelihoods with and without context have different texts or tokens")
    if not with_context.offsets:
        raise InputError("a text without tokens has no likelihood")
    return Gains(with_context.text, with_context.offsets, with_context.logprobs, without.logprobs)


def _words(text: str) -> list[tuple[int, int]]:
    """Return words with their trailing punctuation; opening marks go with the word after them."""
    found: list[tuple[int, int]] = []
    open_from: int | None = None
    for start, end in pairwise(edges(text, "words")):
        piece = text[start:end]
        if piece.isspace():
            open_from = None
            continue
        spoken = any(character.isalnum() for character in piece)
        if not spoken and found and found[-1][1] == start:
            found[-1] = (found[-1][0], end)
        elif not spoken:
            open_from = start if open_from is None else open_from
            if end == len(text) or text[end].isspace():
                found.append((open_from, end))
                open_from = None
        else:
            found.append((start if open_from is None else open_from, end))
            open_from = None
    return found


@dataclass(frozen=True, slots=True)
class Recorded:
    """Log-probabilities in nats, one per token, and the offsets of the tokens in the output.

    `offsets` are half-open and in characters. None if no tokens were recorded, or if they do not match the
    output.
    """

    logprobs: tuple[float, ...]
    offsets: tuple[tuple[int, int], ...] | None

    @property
    def mean(self) -> float:
        """The mean per token, in nats, at most 0."""
        return fsum(self.logprobs) / len(self.logprobs)

    @property
    def least(self) -> float:
        """The log-probability of the least probable token, in nats."""
        return min(self.logprobs)

    @property
    def perplexity(self) -> float:
        """exp(-mean), at least 1; clipped to a finite float."""
        return exp(min(-self.mean, 700.0))

    @property
    def doubt(self) -> float:
        """1 - exp(mean), in [0, 1]: one minus the geometric mean of the tokens' probabilities."""
        return 1 - exp(self.mean)

    def placed(self) -> list[tuple[int, int, float]]:
        """Return every token with a place in the output, with its log-probability."""
        pairs = zip(self.offsets or (), self.logprobs, strict=False)
        return [(start, end, each) for (start, end), each in pairs if start < end]

    def least_probable(self, output: str) -> list[tuple[int, int, float]]:
        """Return the least probable tokens with a probability of at most .5, in the order of the output."""
        doubtful = [each for each in self.placed() if each[2] <= EVEN and output[each[0] : each[1]].strip()]
        return sorted(sorted(doubtful, key=lambda each: each[2])[:LISTED])

    def signals(self) -> dict[str, float]:
        """Return all measurements by name."""
        return {
            "recorded_logprob_mean": self.mean,
            "recorded_logprob_least": self.least,
            "recorded_perplexity": self.perplexity,
        }


def recorded_logprobs(sample: Sample) -> Recorded:
    """Read the log-probabilities in a sample's metadata.

    Raises `InputError`, with the reason, if there are none or they are not numbers.
    """
    where = f"sample {sample.id!r}: metadata[{KEY!r}]"
    if KEY not in sample.metadata:
        raise InputError(f"{where} is missing; it must have the generator's own log-probabilities")
    tokens, numbers, first = _columns(_decoded(sample.metadata[KEY]), where)
    if len(numbers) <= first:
        raise InputError(f"{where} is empty")
    logprobs = tuple(_number(each, at, where) for at, each in enumerate(numbers) if at >= first)
    offsets = None if tokens is None else _offsets(tokens, sample.output or "")
    return Recorded(logprobs, None if offsets is None else offsets[first:])


def _decoded(given: Any) -> Any:
    """Parse a text that is a JSON list or object; return anything else unchanged."""
    try:
        found = json.loads(given) if isinstance(given, str) else given
    except (ValueError, RecursionError):
        return given
    return found if isinstance(found, list | dict) else given


def _columns(given: Any, where: str) -> tuple[Sequence[Any] | None, Sequence[Any], int]:
    """Return the tokens (None if absent), their numbers, and the index of the first token with a number."""
    if isinstance(given, Mapping) and "token_logprobs" in given:
        tokens, numbers = given.get("tokens"), given["token_logprobs"]
        if not _is_list(numbers) or (tokens is not None and not _is_list(tokens)):
            raise InputError(f"{where} must have lists as tokens and token_logprobs")
        if tokens is not None and len(tokens) != len(numbers):
            raise InputError(f"{where} has {len(tokens)} tokens and {len(numbers)} log-probabilities")
        # The first token of a text has no log-probability.
        return tokens, numbers, 1 if numbers and numbers[0] is None else 0
    if isinstance(given, Mapping) and "content" in given:
        given = given["content"]
    if not _is_list(given):
        raise InputError(
            f"{where} must be a list of numbers or of objects with 'token' and 'logprob', "
            f"got {type(given).__name__}"
        )
    if not any(isinstance(each, Mapping) for each in given):
        return None, given, 0
    for at, each in enumerate(given):
        if not isinstance(each, Mapping) or "logprob" not in each:
            raise InputError(f"{where}[{at}] has no 'logprob'")
    tokens = [each.get("token") for each in given]
    return tokens, [each["logprob"] for each in given], 0


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _number(value: Any, at: int, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not -inf < value < inf:
        raise InputError(f"{where}[{at}] must be a finite number, got {value!r}")
    if value < LOWEST:
        raise InputError(f"{where}[{at}] is below {LOWEST:,.0f}, too low for a log-probability")
    if value > SLACK:
        raise InputError(
            f"{where}[{at}] is {value}: a log-probability is at most 0; these may be probabilities"
        )
    return min(float(value), 0.0)


def _offsets(tokens: Sequence[Any], output: str) -> tuple[tuple[int, int], ...] | None:
    """Return the tokens' offsets; None unless they join to the output, up to surrounding white space."""
    if not all(isinstance(token, str) for token in tokens):
        return None
    joined = "".join(tokens)
    if joined.strip() != output.strip():
        return None
    at = (len(output) - len(output.lstrip())) - (len(joined) - len(joined.lstrip()))
    found = []
    for token in tokens:
        start, at = at, at + len(token)
        found.append((min(max(start, 0), len(output)), min(max(at, 0), len(output))))
    return tuple(found)
