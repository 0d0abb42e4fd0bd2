"""Paged attention for transformers: an attention function over keys and values stored in our blocks.

All rows of a forward pass are concatenated in a batch of one. Their keys and values are written into the
blocks of their sequences. Attention is computed for groups of rows of similar size, each row over its own
blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from magistrate.engines.embedded.backend import Row
from magistrate.engines.embedded.prefix_cache import BLOCK, blocks_for
from magistrate.errors import ModelError

NAME = "magistrate"  # of the attention function, as registered with transformers
ROUNDED = 8  # sizes are padded to multiples of this, because the last bits of a product depend on odd sizes


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """`R` rows whose attention is computed together, padded to `q` tokens and `b` blocks each.

    `tokens` `[R, q]` are indices into the forward pass, `positions` `[R, q]` positions in the texts, and
    `blocks` `[R, b]` the rows' blocks. `real` `[m]` are the flat indices into `[R, q]` that are not
    padding, and `targets` `[m]` their indices in the forward pass. `captured` lists the rows whose
    attention is captured: the index in the group, the row's index in the forward pass, and its wanted
    positions.
    """

    tokens: Any
    positions: Any
    blocks: Any
    real: Any
    targets: Any
    captured: tuple[tuple[int, int, range], ...]


@dataclass(slots=True, eq=False)
class Forward:
    """One forward pass: the slots `[T]` of its tokens' keys and values, and its groups of rows.

    `attention` collects the weights of the wanted positions by row: one `[heads, n, read]` per layer.
    """

    store: BlockStore
    slots: Any
    groups: list[Group]
    attention: dict[int, list[Any]] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class ShapeProbe:
    """A forward pass without attention that records the shapes `[heads, head size]` of keys and values."""

    keys: dict[int, tuple[int, int]] = field(default_factory=dict)
    values: dict[int, tuple[int, int]] = field(default_factory=dict)


class BlockStore:
    """The keys and values of every layer: `[heads, blocks, BLOCK, head size]`."""

    def __init__(self, probe: ShapeProbe, blocks: int, dtype: Any, device: Any) -> None:
        def allocated(shape: tuple[int, int]) -> Any:
            # Zeros, because masked values are multiplied by zero, which turns NaN and infinity into NaN.
            return torch.zeros((shape[0], blocks, BLOCK, shape[1]), dtype=dtype, device=device)

        self.blocks = blocks
        self.keys = {layer: allocated(shape) for layer, shape in probe.keys.items()}
        self.values = {layer: allocated(shape) for layer, shape in probe.values.items()}

    def copy(self, source: int, target: int) -> None:
        """Copy one block of every layer."""
        for tensor in (*self.keys.values(), *self.values.values()):
            tensor[:, target] = tensor[:, source]


_running: ContextVar[Forward | ShapeProbe] = ContextVar("forward")


def attend(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    scaling: float | None = None,
    softcap: float | None = None,
    sliding_window: int | None = None,
    **others: Any,
) -> tuple[Any, None]:
    """Compute attention: the function that transformers calls.

    `query` is `[1, heads, T, size]`, `key` and `value` are `[1, kv heads, T, size]`. The result is `[1, T,
    heads, size]`.
    """
    current = _running.get()
    if others.get("s_aux") is not None or others.get("position_bias") is not None:
        raise ModelError("this model's attention has additional terms (sinks or biases)")
    layer = module.layer_idx
    heads, total, size = query.shape[1], query.shape[2], value.shape[3]
    if isinstance(current, ShapeProbe):
        current.keys[layer] = (key.shape[1], key.shape[3])
        current.values[layer] = (value.shape[1], size)
        return query.new_zeros((1, total, heads, size)), None
    keys, values = current.store.keys[layer], current.store.values[layer]
    n = len(current.slots)
    keys.view(keys.shape[0], -1, keys.shape[3]).index_copy_(1, current.slots, key[0, :, :n])
    values.view(values.shape[0], -1, size).index_copy_(1, current.slots, value[0, :, :n])
    out = query.new_zeros((total, heads, size))
    for group in current.groups:
        scale = query.shape[3] ** -0.5 if scaling is None else scaling
        weights = _weights(group, query[0], keys, scale, softcap, sliding_window)
        mixed = torch.matmul(weights.flatten(2, 3), _read(values, group))
        kv, rows, per, q, _ = weights.shape
        mixed = mixed.view(kv, rows, per, q, size).permute(1, 3, 0, 2, 4).reshape(rows * q, heads, size)
        out[group.targets] = mixed[group.real]
        for place, number, wanted in group.captured:
            looked = weights[:, place, :, wanted.start : wanted.stop].flatten(0, 1)
            current.attention.setdefault(number, []).append(looked.float().cpu())
    return out[None], None


def _weights(
    group: Group, query: Any, keys: Any, scale: float, softcap: float | None, window: int | None
) -> Any:
    """Return attention weights `[kv heads, R, heads that share keys, q, read]`."""
    rows, q = group.tokens.shape
    kv, size = keys.shape[0], keys.shape[3]
    asked = query[:, group.tokens].view(kv, -1, rows, q, size).transpose(1, 2)
    per = asked.shape[2]
    read = _read(keys, group)
    scores = torch.matmul(asked.reshape(kv, rows, per * q, size), read.transpose(2, 3)) * scale
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    places = torch.arange(read.shape[2], device=scores.device)
    hidden = places > group.positions[:, :, None]
    if window is not None:
        hidden |= places <= group.positions[:, :, None] - window
    scores = scores.view(kv, rows, per, q, -1).masked_fill_(hidden[None, :, None], float("-inf"))
    return torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)


def _read(cache: Any, group: Group) -> Any:
    """Return one layer's keys or values in each row's blocks: `[kv heads, R, read, size]`."""
    return cache[:, group.blocks].flatten(2, 3)


def plan_forward(store: BlockStore, rows: Sequence[Row], device: Any) -> Forward:
    """Plan a forward pass over `rows`.

    Their sequences must have blocks for the new tokens already, but not yet the new length.
    """
    slots: list[int] = []
    by_size: dict[tuple[int, int], list[int]] = {}
    begins = []
    for number, row in enumerate(rows):
        begin, new = row.sequence.length, len(row.tokens)
        begins.append(len(slots))
        slots += [row.sequence.blocks[at // BLOCK] * BLOCK + at % BLOCK for at in range(begin, begin + new)]
        by_size.setdefault((_rounded(new), _doubled(blocks_for(begin + new))), []).append(number)
    groups = [
        _grouped([(number, rows[number], begins[number]) for number in numbers], q, blocks, device)
        for (q, blocks), numbers in by_size.items()
    ]
    return Forward(store, torch.tensor(slots, device=device), groups)


def _grouped(members: list[tuple[int, Row, int]], q: int, blocks: int, device: Any) -> Group:
    shape = (len(members), q)
    tokens, positions = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    table = np.zeros((len(members), blocks), np.int64)
    real: list[int] = []
    targets: list[int] = []
    captured = []
    for place, (number, row, begin) in enumerate(members):
        new, past = len(row.tokens), row.sequence.length
        tokens[place, :new] = range(begin, begin + new)
        positions[place, :new] = range(past, past + new)
        held = row.sequence.blocks[: blocks_for(past + new)]
        table[place, : len(held)] = held
        real += range(place * q, place * q + new)
        targets += range(begin, begin + new)
        if row.capture is not None and row.capture.attention and len(row.wanted):
            captured.append((place, number, row.wanted))

    def tensor(values: Any) -> Any:
        return torch.as_tensor(values, device=device)

    return Group(
        tensor(tokens), tensor(positions), tensor(table), tensor(real), tensor(targets), tuple(captured)
    )


@contextmanager
def running(forward: Forward | ShapeProbe) -> Iterator[None]:
    """Make `attend` work on this forward pass."""
    token = _running.set(forward)
    try:
        yield
    finally:
        _running.reset(token)


def _rounded(n: int) -> int:
    """Return the padded size of a row; a single token is not padded."""
    return 1 if n == 1 else -(-n // ROUNDED) * ROUNDED


def _doubled(blocks: int) -> int:
    """Return the next power of two: a row's padding is independent of others and wastes at most half."""
    return 1 << (blocks - 1).bit_length()
