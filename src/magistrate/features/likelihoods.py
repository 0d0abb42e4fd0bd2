"""How much more probable a context makes an output: token by token, word by word, sentence by sentence.

Everything is in nats, natural logarithms of probabilities. The gain of a token is its log-probability with
the context minus that without it: above 0 the context speaks for the token, below 0 against it. How probable
a text is at all depends on its style, and may mean the opposite in another kind of text; the difference keeps
its direction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from magistrate.constraints.quote import edges
from magistrate.errors import InputError
from magistrate.features.splitting import sentences

if TYPE_CHECKING:
    import numpy as np

    from magistrate.engines.base import Likelihood


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
        """What the context adds, summed over the tokens."""
        return self.with_context - self.without

    @property
    def mean_gain(self) -> float:
        """What the context adds, per token."""
        return self.gain / self.n


@dataclass(frozen=True, eq=False, slots=True)
class Gains:
    """One text, its tokens' `offsets` (half-open, characters) and their log-probabilities.

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
        """Every word that a token ends in, with the punctuation behind it; of scripts without spaces every
        character. None is white space only."""
        return self._over(_words(self.text))

    def sentences(self, language: str = "en") -> list[Gained]:
        """Every sentence that holds a token; `language` is an ISO 639 code."""
        return self._over(sentences(self.text, language))

    def signals(self) -> dict[str, float]:
        """The figures of the whole output, by name.

        `gain_mean` and `gain_lowest_word` (the lowest sum over a word) in nats, `gain_negative_share` in
        [0, 1], and the mean log-probability of a token `logprob_with_context` and `logprob_without`.
        """
        return {
            "gain_mean": self.mean,
            "gain_lowest_word": min(word.gain for word in self.words()),
            "gain_negative_share": self.negative_share,
            "logprob_with_context": float(self.with_context.mean()),
            "logprob_without": float(self.without.mean()),
        }

    def _over(self, places: Sequence[tuple[int, int]]) -> list[Gained]:
        """The sums over the tokens of each place; a token belongs where its last character stands."""
        from bisect import bisect_right

        starts = [start for start, _ in places]
        owned: list[list[int]] = [[] for _ in places]
        for token, (_, end) in enumerate(self.offsets):
            if places:  # a token of white space alone counts for what stands before it
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
    """Both likelihoods of one text put side by side.

    Raises `InputError` where they are of different texts or tokens, or have none.
    """
    if with_context.text != without.text or with_context.offsets != without.offsets:
        raise InputError("the likelihoods with and without context are of different texts or tokens")
    if not with_context.offsets:
        raise InputError("a text without tokens has no likelihood")
    return Gains(with_context.text, with_context.offsets, with_context.logprobs, without.logprobs)


def _words(text: str) -> list[tuple[int, int]]:
    """Words with the punctuation that follows them without a space; opening marks go with what follows."""
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
