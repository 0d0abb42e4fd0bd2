"""Texts that are already in the cache, so that a prompt with the same beginning need not be read again."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np

from magistrate.engines.local.blocks import BlockPool, Sequence


class PrefixCache:
    """Finished prompts, least recently used first; each holds its blocks until it is evicted."""

    def __init__(self, pool: BlockPool, capacity: int = 64) -> None:
        self._pool = pool
        self._capacity = capacity
        self._entries: OrderedDict[int, tuple[np.ndarray, Sequence]] = OrderedDict()
        self._next = 0

    def longest(self, tokens: np.ndarray) -> Sequence:
        """A new sequence with the longest cached beginning of `tokens` (int32 `[n]`), maybe empty.

        It stops two tokens short of the whole: the last must be computed for its logits, and a row of
        one token takes another attention kernel, whose last bits would differ from a first reading's.
        """
        best, length = None, 0
        for key, (cached, _) in self._entries.items():
            shared = shared_prefix(cached, tokens)
            if shared > length:
                best, length = key, shared
        length = min(length, len(tokens) - 2)
        if best is None or length < 1:
            return Sequence()
        self._entries.move_to_end(best)
        return self._pool.fork(self._entries[best][1], length)

    def keep(self, tokens: np.ndarray, sequence: Sequence) -> None:
        """Remember that `sequence` holds `tokens`; entries that are beginnings of it go."""
        for key, (cached, old) in list(self._entries.items()):
            shared = shared_prefix(cached, tokens)
            if shared == len(tokens):
                self._entries.move_to_end(key)
                return
            if shared == len(cached):
                del self._entries[key]
                self._pool.drop(old)
        while len(self._entries) >= self._capacity:
            self.evict()
        self._entries[self._next] = (tokens, self._pool.fork(sequence, len(tokens)))
        self._next += 1

    def evict(self) -> bool:
        """Give up the least recently used entry; False where there is none."""
        if not self._entries:
            return False
        _, (_, sequence) = self._entries.popitem(last=False)
        self._pool.drop(sequence)
        return True


def shared_prefix(a: np.ndarray, b: np.ndarray) -> int:
    """How many leading tokens two token arrays have in common."""
    n = min(len(a), len(b))
    different = np.flatnonzero(a[:n] != b[:n])
    return int(different[0]) if len(different) else n
