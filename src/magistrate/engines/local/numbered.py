"""A cache whose library assigns the cells: sequences have numbers, and share what they have in common.

What lies where is the library's own business. Accounts are kept in blocks all the same, as if a shared block
that is written to were copied: that never comes to less than what the library uses.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, insort
from collections import Counter, OrderedDict
from typing import Protocol

import numpy as np

from magistrate.engines.local.backend import Pool
from magistrate.engines.local.blocks import BlockPool, OutOfBlocks, Sequence, blocks_for
from magistrate.engines.local.tree import shared_prefix


class Cells(Protocol):
    """What a library does with the cells of its cache, by the number of a sequence."""

    def copy(self, source: int, target: int, length: int) -> None:
        """Let the empty sequence `target` hold the first `length` tokens of `source` too."""
        ...

    def cut(self, number: int, length: int) -> None:
        """Forget what a sequence holds past its first `length` tokens."""
        ...


class SequencePool(BlockPool):
    """Numbers for sequences, at most `numbers` at a time, and `total` blocks by account.

    One number is kept back, so that a remembered text can be forked while all others are in use.
    """

    def __init__(self, total: int, numbers: int, cells: Cells) -> None:
        super().__init__(total, _no_copy)
        self.sequences = numbers - 1
        self._cells = cells
        self._numbers: dict[Sequence, int] = {}
        self._unused = list(range(numbers - 1, -1, -1))

    def number(self, sequence: Sequence) -> int:
        """The number of a sequence, which it has from now on. Raises `OutOfBlocks` where none is left."""
        if sequence not in self._numbers:
            while not self._unused:
                if self.relieve is None or not self.relieve():
                    raise OutOfBlocks(f"all {self.sequences + 1} sequences of the cache are in use")
            self._numbers[sequence] = self._unused.pop()
        return self._numbers[sequence]

    def fork(self, sequence: Sequence, length: int) -> Sequence:
        """The first `length` tokens of `sequence` as a new sequence that shares their cells."""
        forked = Sequence()
        number = self.number(forked)
        shared = self.share(sequence.blocks[: blocks_for(length)], length)
        forked.blocks, forked.length = shared.blocks, shared.length
        if length:
            self._cells.copy(self._numbers[sequence], number, length)
        return forked

    def truncate(self, sequence: Sequence, length: int) -> None:
        """Forget all tokens past the first `length`."""
        if length < sequence.length:
            self._cells.cut(self._numbers[sequence], length)
        super().truncate(sequence, length)

    def drop(self, sequence: Sequence) -> None:
        """Give up a sequence; it is empty afterwards, so dropping twice is harmless."""
        super().drop(sequence)
        if sequence in self._numbers:
            number = self._numbers.pop(sequence)
            self._cells.cut(number, 0)
            self._unused.append(number)


class PrefixList:
    """Texts that were read, each a sequence of its own; the least recently used goes first.

    None of them is the beginning of another. In order of their bytes the text with the longest common
    beginning is a neighbour of the place where one would stand. Together they hold at most `most` blocks, or
    the one that was read last: attention passes over every cell that is in use, whoever it belongs to.
    """

    def __init__(self, pool: BlockPool, most: int = sys.maxsize) -> None:
        self._pool: Pool = pool
        pool.relieve = self.evict
        self._most = most
        self._blocks: Counter[int] = Counter()
        self._texts: list[bytes] = []
        self._held: OrderedDict[bytes, Sequence] = OrderedDict()

    def __len__(self) -> int:
        """How many texts are remembered."""
        return len(self._texts)

    def match(self, tokens: np.ndarray) -> tuple[list[int], int]:
        """The blocks that hold the longest remembered beginning of `tokens` (int32 `[n]`), and its length,
        at most n - 2."""
        text, length = self._nearest(tokens)
        return (self._held[text].blocks[: blocks_for(length)] if length else []), length

    def longest(self, tokens: np.ndarray) -> Sequence:
        """A new sequence with what `match` finds, which counts as a use of it."""
        text, length = self._nearest(tokens)
        if not length:
            return Sequence()
        self._held.move_to_end(text)
        return self._pool.fork(self._held[text], length)

    def keep(self, tokens: np.ndarray, sequence: Sequence) -> None:
        """Remember that `sequence` holds `tokens` (int32 `[n]`, from its first on)."""
        text = tokens.astype(np.int32, copy=False).tobytes()
        place = bisect_left(self._texts, text)
        if place < len(self._texts) and self._texts[place].startswith(text):
            self._held.move_to_end(self._texts[place])  # a longer one that begins so serves as well
            return
        if place and text.startswith(self._texts[place - 1]):
            self._forget(self._texts[place - 1])
        self._held[text] = self._pool.fork(sequence, len(tokens))
        insort(self._texts, text)
        self._blocks.update(self._held[text].blocks)
        while len(self._blocks) > self._most and len(self._texts) > 1:
            self.evict()

    def evict(self) -> bool:
        """Give up the least recently used text; False where there is none."""
        if not self._held:
            return False
        self._forget(next(iter(self._held)))
        return True

    def _nearest(self, tokens: np.ndarray) -> tuple[bytes, int]:
        wanted = tokens[: max(len(tokens) - 2, 0)].astype(np.int32, copy=False)
        text = wanted.tobytes()
        place = bisect_left(self._texts, text)
        best, length = b"", 0
        for neighbour in self._texts[max(place - 1, 0) : place + 1]:
            shared = shared_prefix(np.frombuffer(neighbour, np.int32), wanted)
            if shared > length:
                best, length = neighbour, shared
        return best, length

    def _forget(self, text: bytes) -> None:
        del self._texts[bisect_left(self._texts, text)]
        for block in self._held[text].blocks:
            self._blocks[block] -= 1
            if not self._blocks[block]:
                del self._blocks[block]
        self._pool.drop(self._held.pop(text))


def _no_copy(source: int, target: int) -> None:
    """The library shares cells, also those of a block that is written to."""
