"""Bookkeeping of the key-value cache: blocks shared between sequences, and cached prefixes.

A sequence is a list of blocks of `BLOCK` tokens. `BlockPool` counts the holders of each block and copies a
shared one before it is written (copy on write). `PrefixCache` stores the texts that were processed as a
tree of blocks, so that a prefix shared by several prompts is computed once. The least recently used blocks
are evicted when the pool needs space.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable

import numpy as np

BLOCK = 32  # tokens per block; OpenVINO's CPU kernel fixes this size for f16 caches
TOKEN_BYTES = 4
BLOCK_BYTES = BLOCK * TOKEN_BYTES


class OutOfBlocks(Exception):
    """Every block is in use by requests in flight."""


class CachedSequence:
    """The cached tokens of one text: a list of blocks and the number of tokens in them."""

    __slots__ = ("blocks", "length")

    def __init__(self) -> None:
        self.blocks: list[int] = []
        self.length = 0


def blocks_for(tokens: int) -> int:
    """Return the number of blocks that `tokens` tokens take."""
    return -(-tokens // BLOCK)


class BlockPool:
    """Allocates `total` blocks, shares them between sequences and copies a shared one before it is written.

    `copy(source, target)` copies the contents of one block. `evict()` is called when no block is free; it
    releases something and returns whether it did.
    """

    def __init__(
        self, total: int, copy: Callable[[int, int], None], evict: Callable[[], bool] | None = None
    ) -> None:
        self.total = total
        self.evict = evict
        self._copy = copy
        self._references = [0] * total
        self._free = list(range(total - 1, -1, -1))

    @property
    def free(self) -> int:
        """The number of free blocks."""
        return len(self._free)

    def holders(self, block: int) -> int:
        """Return the number of sequences that hold the block."""
        return self._references[block]

    def share(self, blocks: list[int], length: int) -> CachedSequence:
        """Return a new sequence of `length` tokens that holds the same `blocks`."""
        shared = CachedSequence()
        shared.blocks = list(blocks)
        shared.length = length
        for block in blocks:
            self._references[block] += 1
        return shared

    def fork(self, sequence: CachedSequence, length: int) -> CachedSequence:
        """Return a new sequence of the first `length` tokens of `sequence`, sharing their blocks."""
        return self.share(sequence.blocks[: blocks_for(length)], length)

    def truncate(self, sequence: CachedSequence, length: int) -> None:
        """Remove all tokens after the first `length`."""
        keep = blocks_for(length)
        self._release(sequence.blocks[keep:])
        del sequence.blocks[keep:]
        sequence.length = length

    def drop(self, sequence: CachedSequence) -> None:
        """Free a sequence. It is empty afterwards, so dropping it twice is harmless."""
        self._release(sequence.blocks)
        sequence.blocks = []
        sequence.length = 0

    def extend(self, sequence: CachedSequence, tokens: int) -> None:
        """Allocate space for `tokens` more tokens. Raises `OutOfBlocks` and leaves the sequence valid."""
        if tokens and sequence.length % BLOCK and self._references[sequence.blocks[-1]] > 1:
            shared = sequence.blocks[-1]
            own = self._take()
            self._copy(shared, own)
            sequence.blocks[-1] = own
            # Allocating a block may have evicted the other holder, so the shared block may be free now.
            self._release([shared])
        while len(sequence.blocks) < blocks_for(sequence.length + tokens):
            sequence.blocks.append(self._take())

    def _take(self) -> int:
        while not self._free:
            if self.evict is None or not self.evict():
                raise OutOfBlocks(f"all {self.total} blocks of the cache are in use")
        block = self._free.pop()
        self._references[block] = 1
        return block

    def _release(self, blocks: list[int]) -> None:
        for block in blocks:
            self._references[block] -= 1
            if not self._references[block]:
                self._free.append(block)


class Node:
    """One block of a text: its tokens as bytes (`key`), a sequence that holds it, and the blocks that follow.

    Only a full block has children. `keys` are the children's keys, sorted. No key is a prefix of another.
    """

    __slots__ = ("children", "held", "key", "keys", "parent")

    def __init__(self, key: bytes, held: CachedSequence, parent: Node | None) -> None:
        self.key = key
        self.held = held
        self.parent = parent
        self.keys: list[bytes] = []
        self.children: dict[bytes, Node] = {}

    def nearest(self, key: bytes) -> tuple[Node | None, int]:
        """Return the child with the longest common prefix with `key`, and the length of that prefix in bytes.

        In sorted order it is a neighbour of the position where `key` would be inserted.
        """
        if key in self.children:
            return self.children[key], len(key)
        place = bisect_left(self.keys, key)
        wanted = np.frombuffer(key, np.int32)
        best, length = None, 0
        for neighbour in self.keys[max(place - 1, 0) : place + 1]:
            shared = TOKEN_BYTES * shared_prefix(np.frombuffer(neighbour, np.int32), wanted)
            if shared > length:
                best, length = self.children[neighbour], shared
        return best, length


class PrefixCache:
    """A tree of blocks of processed texts; evicts the least recently used block when `pool` needs one.

    A used node moves to the end of `_order` after its children, so nodes at the front are leaves.
    """

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        pool.evict = self.evict
        self._root = Node(b"", CachedSequence(), None)
        self._order: OrderedDict[Node, None] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of cached blocks."""
        return len(self._order)

    def match(self, tokens: np.ndarray) -> tuple[list[int], int]:
        """Return the blocks of the longest cached prefix of `tokens` (int32 `[n]`) and its length in tokens.

        The length is at most n - 2: the last token must be computed for its logits, and a row of one token
        uses another attention kernel, whose last bits would differ from those of the first pass.
        """
        path, length = self._walk(tokens)
        return [node.held.blocks[0] for node in path], length

    def longest(self, tokens: np.ndarray) -> CachedSequence:
        """Return a new sequence with the result of `match`, and mark its blocks as used."""
        path, length = self._walk(tokens)
        for node in reversed(path):
            self._order.move_to_end(node)
        return self._pool.share([node.held.blocks[0] for node in path], length)

    def keep(self, tokens: np.ndarray, sequence: CachedSequence) -> None:
        """Cache the blocks of `sequence`, which holds `tokens` (int32 `[n]`, from its first token on)."""
        text = tokens.astype(np.int32, copy=False).tobytes()
        node, path = self._root, []
        for index, block in enumerate(sequence.blocks[: -(-len(text) // BLOCK_BYTES)]):
            key = text[index * BLOCK_BYTES : (index + 1) * BLOCK_BYTES]
            child = node.children.get(key) or self._insert(node, key, block)
            path.append(child)
            node = child
        for node in reversed(path):
            self._order[node] = None
            self._order.move_to_end(node)

    def evict(self) -> bool:
        """Free the least recently used block that no request holds; return False if there is none."""
        for node in self._order:
            if not node.children and self._pool.holders(node.held.blocks[0]) == 1:
                self._remove(node)
                return True
        return False

    def _walk(self, tokens: np.ndarray) -> tuple[list[Node], int]:
        usable = max(len(tokens) - 2, 0)
        text = tokens[:usable].astype(np.int32, copy=False).tobytes()
        node, path, length = self._root, [], 0
        while length < len(text):
            key = text[length : length + BLOCK_BYTES]
            child, shared = node.nearest(key)
            if child is None:
                break
            path.append(child)
            length += shared
            if shared < BLOCK_BYTES:
                break
            node = child
        return path, length // TOKEN_BYTES

    def _insert(self, parent: Node, key: bytes, block: int) -> Node:
        place = bisect_left(parent.keys, key)
        if place < len(parent.keys) and parent.keys[place].startswith(key):
            return parent.children[parent.keys[place]]  # a longer one with this prefix is equivalent
        if place and key.startswith(parent.keys[place - 1]):
            self._remove(parent.children[parent.keys[place - 1]])
        node = Node(key, self._pool.share([block], len(key) // TOKEN_BYTES), parent)
        parent.children[key] = node
        insort(parent.keys, key)
        return node

    def _remove(self, node: Node) -> None:
        assert node.parent is not None and not node.children
        del self._order[node]
        del node.parent.children[node.key]
        del node.parent.keys[bisect_left(node.parent.keys, node.key)]
        self._pool.drop(node.held)


def shared_prefix(a: np.ndarray, b: np.ndarray) -> int:
    """Return the length of the common prefix of two token arrays."""
    n = min(len(a), len(b))
    different = np.flatnonzero(a[:n] != b[:n])
    return int(different[0]) if len(different) else n
