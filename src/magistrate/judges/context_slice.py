"""A sample with only some pieces of its context, and the mapping of quotes back to the full context."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from magistrate.features.splitting import Piece, merged
from magistrate.types import Claim, Outcome, Sample, Verdict

Found = TypeVar("Found", bound=Outcome)


@dataclass(frozen=True, slots=True)
class ContextSlice:
    """A sample whose context is reduced to the given pieces."""

    sample: Sample
    pieces: tuple[Piece, ...]

    @classmethod
    def whole(cls, sample: Sample) -> ContextSlice:
        """Make a slice that holds all of the context."""
        return cls(sample, tuple(Piece(index, 0, len(text)) for index, text in enumerate(sample.context)))

    @property
    def reduced(self) -> Sample:
        """The sample with the reduced context, as a judge gets it."""
        return replace(self.sample, context=tuple(piece.of(self.sample.context) for piece in self.pieces))

    def restored(self, outcome: Found) -> Found:
        """Return the outcome with the quotes of its claims at their positions in the full sample."""
        if not isinstance(outcome, Verdict):
            return outcome
        return replace(outcome, claims=tuple(self._claim(claim) for claim in outcome.claims))

    def _claim(self, claim: Claim) -> Claim:
        index, quote = claim.context_index, claim.context_quote
        if index is None or quote is None:
            return claim
        if index >= len(self.pieces):  # messages follow the context and are not cut
            return replace(claim, context_index=index - len(self.pieces) + len(self.sample.context))
        piece = self.pieces[index]
        moved = replace(quote, start=quote.start + piece.start, end=quote.end + piece.start)
        return replace(claim, context_index=piece.index, context_quote=moved)


def left_out(sample: Sample, pieces: Sequence[Piece]) -> int:
    """Return the number of characters of the context that are in none of the pieces, without white space."""
    return sum(map(_ink, sample.context)) - sum(
        _ink(piece.of(sample.context)) for piece in merged(pieces, sample.context)
    )


def _ink(text: str) -> int:
    return sum(map(len, text.split()))
