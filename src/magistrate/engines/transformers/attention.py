"""Attention of many texts at once over keys and values in blocks, put in place of a model's own.

All rows of a forward stand one behind the other in a batch of one. Their keys and values are written into the
blocks of their sequences, and rows of like size are attended to together, each over its own blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from magistrate.engines.embedded.backend import Row
from magistrate.engines.embedded.prefix_cache import BLOCK, blocks_for
from magistrate.errors import ModelError

NAME = "magistrate"  # how transformers knows it
ROUNDED = 8  # computed are multiples of so many tokens: the last bits of a product depend on odd sizes


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Rows attended to together: `[R]` of them, each with `q` tokens (padded) and `b` blocks (padded).

    `tokens` `[R, q]` are places in the forward, `positions` `[R, q]` those in the texts, `blocks` `[R, b]`
    where they lie; `real` `[m]` are the flat places in `[R, q]` that are no padding, `targets` `[m]` theirs
    in the forward. `watched` names rows whose attention is kept: by place in the group, the row's number in
    the forward, and its positions that are wanted.
    """

    tokens: Any
    positions: Any
    blocks: Any
    real: Any
    targets: Any
    watched: tuple[tuple[int, int, range], ...]


@dataclass(slots=True, eq=False)
class Forward:
    """One forward: where its tokens' keys and values go (`slots` `[T]`), and the rows in groups.

    `attention` gathers, by row, what its wanted positions looked at: of each layer `[heads, n, read]`.
    """

    store: Store
    slots: Any
    groups: list[Group]
    attention: dict[int, list[Any]] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Survey:
    """A forward that computes nothing: it notes the shapes `[heads, head size]` of every layer's keys and
    values."""

    keys: dict[int, tuple[int, int]] = field(default_factory=dict)
    values: dict[int, tuple[int, int]] = field(default_factory=dict)


class Store:
    """Keys and values of every layer: `[heads, blocks, BLOCK, head size]`."""

    def __init__(self, survey: Survey, blocks: int, dtype: Any, device: Any) -> None:
        def made(shape: tuple[int, int]) -> Any:
            # Zeros: what a mask hides is multiplied by nothing, which no number survives that is none.
            return torch.zeros((shape[0], blocks, BLOCK, shape[1]), dtype=dtype, device=device)

        self.blocks = blocks
        self.keys = {layer: made(shape) for layer, shape in survey.keys.items()}
        self.values = {layer: made(shape) for layer, shape in survey.values.items()}

    def copy(self, source: int, target: int) -> None:
        """Copy one block of every layer."""
        for tensor in (*self.keys.values(), *self.values.values()):
            tensor[:, target] = tensor[:, source]


_running: ContextVar[Forward | Survey] = ContextVar("forward")


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
    """Attention as transformers calls for it: `query` `[1, heads, T, size]`, `key` and `value` `[1, kv heads,
    T, size]`; answers `[1, T, heads, size]`."""
    running = _running.get()
    if others.get("s_aux") is not None or others.get("position_bias") is not None:
        raise ModelError("this model's attention has terms of its own (sinks or biases)")
    layer = module.layer_idx
    heads, total, size = query.shape[1], query.shape[2], value.shape[3]
    if isinstance(running, Survey):
        running.keys[layer] = (key.shape[1], key.shape[3])
        running.values[layer] = (value.shape[1], size)
        return query.new_zeros((1, total, heads, size)), None
    keys, values = running.store.keys[layer], running.store.values[layer]
    n = len(running.slots)
    keys.view(keys.shape[0], -1, keys.shape[3]).index_copy_(1, running.slots, key[0, :, :n])
    values.view(values.shape[0], -1, size).index_copy_(1, running.slots, value[0, :, :n])
    out = query.new_zeros((total, heads, size))
    for group in running.groups:
        scale = query.shape[3] ** -0.5 if scaling is None else scaling
        weights = _weights(group, query[0], keys, scale, softcap, sliding_window)
        mixed = torch.matmul(weights.flatten(2, 3), _read(values, group))
        kv, rows, per, q, _ = weights.shape
        mixed = mixed.view(kv, rows, per, q, size).permute(1, 3, 0, 2, 4).reshape(rows * q, heads, size)
        out[group.targets] = mixed[group.real]
        for place, number, wanted in group.watched:
            looked = weights[:, place, :, wanted.start : wanted.stop].flatten(0, 1)
            running.attention.setdefault(number, []).append(looked.float().cpu())
    return out[None], None


def _weights(
    group: Group, query: Any, keys: Any, scale: float, softcap: float | None, window: int | None
) -> Any:
    """How much each token looks where: `[kv heads, R, heads that share keys, q, read]`."""
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
    """What each row reads of one layer's keys or values: `[kv heads, R, read, size]`."""
    return cache[:, group.blocks].flatten(2, 3)


def planned(store: Store, rows: Sequence[Row], device: Any) -> Forward:
    """Where the tokens of `rows` go, whose sequences have blocks for them already but are not yet longer."""
    slots: list[int] = []
    alike: dict[tuple[int, int], list[int]] = {}
    begins = []
    for number, row in enumerate(rows):
        begin, new = row.sequence.length, len(row.tokens)
        begins.append(len(slots))
        slots += [row.sequence.blocks[at // BLOCK] * BLOCK + at % BLOCK for at in range(begin, begin + new)]
        alike.setdefault((_rounded(new), _doubled(blocks_for(begin + new))), []).append(number)
    groups = [
        _grouped([(number, rows[number], begins[number]) for number in numbers], q, blocks, device)
        for (q, blocks), numbers in alike.items()
    ]
    return Forward(store, torch.tensor(slots, device=device), groups)


def _grouped(members: list[tuple[int, Row, int]], q: int, blocks: int, device: Any) -> Group:
    shape = (len(members), q)
    tokens, positions = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    table = np.zeros((len(members), blocks), np.int64)
    real: list[int] = []
    targets: list[int] = []
    watched = []
    for place, (number, row, begin) in enumerate(members):
        new, past = len(row.tokens), row.sequence.length
        tokens[place, :new] = range(begin, begin + new)
        positions[place, :new] = range(past, past + new)
        held = row.sequence.blocks[: blocks_for(past + new)]
        table[place, : len(held)] = held
        real += range(place * q, place * q + new)
        targets += range(begin, begin + new)
        if row.capture is not None and row.capture.attention and len(row.wanted):
            watched.append((place, number, row.wanted))

    def tensor(values: Any) -> Any:
        return torch.as_tensor(values, device=device)

    return Group(
        tensor(tokens), tensor(positions), tensor(table), tensor(real), tensor(targets), tuple(watched)
    )


def running(forward: Forward | Survey) -> Any:
    """Let `attend` work for this forward; answers the token that `done` takes."""
    return _running.set(forward)


def done(token: Any) -> None:
    """Nothing is computed any more."""
    _running.reset(token)


def _rounded(n: int) -> int:
    """A lone token stays alone; other rows are padded."""
    return 1 if n == 1 else -(-n // ROUNDED) * ROUNDED


def _doubled(blocks: int) -> int:
    """The next power of two: what a row reads depends on nobody else then, and at most half is wasted."""
    return 1 << (blocks - 1).bit_length()
