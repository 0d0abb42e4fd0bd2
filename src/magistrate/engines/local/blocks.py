"""Which blocks of the key–value cache belong to whom: reference counts and copy on write."""

from __future__ import annotations

import sys
from collections.abc import Callable

BLOCK = 32  # tokens in a block; the size that OpenVINO's CPU kernel fixes for f16 caches


class OutOfBlocks(Exception):
    """Every block is in use by requests in flight."""


class Sequence:
    """Tokens of one text held in the cache: a list of blocks and how many tokens they hold."""

    __slots__ = ("blocks", "length")

    def __init__(self) -> None:
        self.blocks: list[int] = []
        self.length = 0


def blocks_for(tokens: int) -> int:
    """How many blocks `tokens` tokens take."""
    return -(-tokens // BLOCK)


class BlockPool:
    """Hands out blocks, shares them between sequences and copies a shared one before it is written.

    `copy(source, target)` copies one block's contents; `relieve()` is asked to give something up
    when no block is free and answers whether it did. Any number of sequences can share its blocks.
    """

    sequences = sys.maxsize

    def __init__(
        self, total: int, copy: Callable[[int, int], None], relieve: Callable[[], bool] | None = None
    ) -> None:
        self.total = total
        self.relieve = relieve
        self._copy = copy
        self._references = [0] * total
        self._free = list(range(total - 1, -1, -1))

    @property
    def free(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free)

    def holders(self, block: int) -> int:
        """How many sequences hold that block."""
        return self._references[block]

    def share(self, blocks: list[int], length: int) -> Sequence:
        """A new sequence that holds `blocks` too; they contain its `length` tokens."""
        shared = Sequence()
        shared.blocks = list(blocks)
        shared.length = length
        for block in blocks:
            self._references[block] += 1
        return shared

    def fork(self, sequence: Sequence, length: int) -> Sequence:
        """The first `length` tokens of `sequence` as a new sequence that shares their blocks."""
        return self.share(sequence.blocks[: blocks_for(length)], length)

    def truncate(self, sequence: Sequence, length: int) -> None:
        """Forget all tokens past the first `length`."""
        keep = blocks_for(length)
        self._release(sequence.blocks[keep:])
        del sequence.blocks[keep:]
        sequence.length = length

    def drop(self, sequence: Sequence) -> None:
        """Give up a sequence; it is empty afterwards, so dropping twice is harmless."""
        self._release(sequence.blocks)
        sequence.blocks = []
        sequence.length = 0

    def extend(self, sequence: Sequence, tokens: int) -> None:
        """Make room for `tokens` more tokens; raises `OutOfBlocks` and leaves the sequence valid."""
        if tokens and sequence.length % BLOCK and self._references[sequence.blocks[-1]] > 1:
            shared = sequence.blocks[-1]
            own = self._take()
            self._copy(shared, own)
            sequence.blocks[-1] = own
            # Making room may have taken away whoever shared it, so it may be nobody's now.
            self._release([shared])
        while len(sequence.blocks) < blocks_for(sequence.length + tokens):
            sequence.blocks.append(self._take())

    def _take(self) -> int:
        while not self._free:
            if self.relieve is None or not self.relieve():
                raise OutOfBlocks(f"all {self.total} blocks of the cache are in use")
        block = self._free.pop()
        self._references[block] = 1
        return block

    def _release(self, blocks: list[int]) -> None:
        for block in blocks:
            self._references[block] -= 1
            if not self._references[block]:
                self._free.append(block)
