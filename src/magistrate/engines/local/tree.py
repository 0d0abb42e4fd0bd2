"""What is already in the cache, as a tree over its blocks, so that equal beginnings are read once."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict

import numpy as np

from magistrate.engines.local.blocks import BLOCK, BlockPool, Sequence

TOKEN_BYTES = 4
BLOCK_BYTES = BLOCK * TOKEN_BYTES


class Node:
    """One block of a text: its tokens as bytes, who holds it, and the blocks that followed it.

    Only a full block has children; `keys` are theirs in order, none of them the beginning of another.
    """

    __slots__ = ("children", "held", "key", "keys", "parent")

    def __init__(self, key: bytes, held: Sequence, parent: Node | None) -> None:
        self.key = key
        self.held = held
        self.parent = parent
        self.keys: list[bytes] = []
        self.children: dict[bytes, Node] = {}

    def nearest(self, key: bytes) -> tuple[Node | None, int]:
        """The child with the longest common beginning with `key`, and its length in bytes.

        It is a neighbour of the place where `key` would stand in order.
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


class PrefixTree:
    """Texts that were read, block by block; the least recently used block goes first, when `pool` needs one.

    A node that is used is moved to the end of `_order` after its children, so that whoever is evicted
    from the front has none left.
    """

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        pool.relieve = self.evict
        self._root = Node(b"", Sequence(), None)
        self._order: OrderedDict[Node, None] = OrderedDict()

    def __len__(self) -> int:
        """How many blocks are remembered."""
        return len(self._order)

    def match(self, tokens: np.ndarray) -> tuple[list[int], int]:
        """The blocks that hold the longest remembered beginning of `tokens` (int32 `[n]`), and its length.

        It stops two tokens short of the whole: the last must be computed for its logits, and a row of
        one token takes another attention kernel, whose last bits would differ from a first reading's.
        """
        path, length = self._walk(tokens)
        return [node.held.blocks[0] for node in path], length

    def longest(self, tokens: np.ndarray) -> Sequence:
        """A new sequence with what `match` finds, which counts as a use of it."""
        path, length = self._walk(tokens)
        for node in reversed(path):
            self._order.move_to_end(node)
        return self._pool.share([node.held.blocks[0] for node in path], length)

    def keep(self, tokens: np.ndarray, sequence: Sequence) -> None:
        """Remember that `sequence` holds `tokens` (int32 `[n]`, from its first on)."""
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
        """Give up the least recently used block that nobody else holds; False where there is none."""
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
            return parent.children[parent.keys[place]]  # a longer one that begins so serves as well
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
    """How many leading tokens two token arrays have in common."""
    n = min(len(a), len(b))
    different = np.flatnonzero(a[:n] != b[:n])
    return int(different[0]) if len(different) else n
