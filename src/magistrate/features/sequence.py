"""A long run of words, of which common subsequences with short ones are found fast."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from magistrate._deadline import check

LONGEST = 256  # words of the other run that are aligned together: memory grows with the product
ABSENT = LONGEST + 1


class WordSequence:
    """Words in their order, as numbers."""

    def __init__(self, words: Sequence[str]) -> None:
        import numpy as np

        self._numbers: dict[str, int] = {}
        self._words = np.fromiter(
            (self._numbers.setdefault(word, len(self._numbers)) for word in words), np.int32, len(words)
        )

    def shared(self, words: Sequence[str]) -> Iterator[int]:
        """The numbers of those of `words` that are in a longest common subsequence with this.

        Of more than `LONGEST` words each stretch of so many is aligned by itself.
        """
        for begin in range(0, len(words), LONGEST):
            check()
            for at in self._aligned(words[begin : begin + LONGEST]):
                yield begin + at

    def _aligned(self, words: Sequence[str]) -> Iterator[int]:
        import numpy as np
        from rapidfuzz.distance import LCSseq

        # Words that only one side has change nothing, so the others alone are compared, as characters.
        letters: dict[int, int] = {}
        written = [
            ABSENT if number is None else letters.setdefault(number, len(letters) + 1)
            for number in map(self._numbers.get, words)
        ]
        if not letters:
            return
        table = np.zeros(len(self._numbers), np.uint32)
        table[list(letters)] = list(letters.values())
        found = table[self._words]
        mine = found[found > 0].tobytes().decode("utf-32")
        for block in LCSseq.opcodes("".join(map(chr, written)), mine):
            if block.tag == "equal":
                yield from range(block.src_start, block.src_end)
