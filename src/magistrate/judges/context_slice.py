"""A sample with only some pieces of its context, and the way back to where quotes stand in the whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from magistrate.features.splitting import Piece, merged
from magistrate.types import Claim, Outcome, Sample, Verdict

Found = TypeVar("Found", bound=Outcome)


@dataclass(frozen=True, slots=True)
class ContextSlice:
    """`sample` with the given pieces of its context instead of the whole."""

    sample: Sample
    pieces: tuple[Piece, ...]

    @classmethod
    def whole(cls, sample: Sample) -> ContextSlice:
        """All of the context."""
        return cls(sample, tuple(Piece(index, 0, len(text)) for index, text in enumerate(sample.context)))

    @property
    def reduced(self) -> Sample:
        """The sample that a judge is given."""
        return replace(self.sample, context=tuple(piece.of(self.sample.context) for piece in self.pieces))

    def restored(self, outcome: Found) -> Found:
        """The outcome with the quotes of its claims where they stand in the sample itself."""
        if not isinstance(outcome, Verdict):
            return outcome
        return replace(outcome, claims=tuple(self._claim(claim) for claim in outcome.claims))

    def _claim(self, claim: Claim) -> Claim:
        index, quote = claim.context_index, claim.context_quote
        if index is None or quote is None:
            return claim
        if index >= len(self.pieces):  # what was said is not cut
            return replace(claim, context_index=index - len(self.pieces) + len(self.sample.context))
        piece = self.pieces[index]
        moved = replace(quote, start=quote.start + piece.start, end=quote.end + piece.start)
        return replace(claim, context_index=piece.index, context_quote=moved)


def left_out(sample: Sample, pieces: Sequence[Piece]) -> int:
    """How many characters of the context, white space not counted, stand in none of the pieces."""
    return sum(map(_ink, sample.context)) - sum(
        _ink(piece.of(sample.context)) for piece in merged(pieces, sample.context)
    )


def _ink(text: str) -> int:
    return sum(map(len, text.split()))
