"""Examples as the network takes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from magistrate.train.detector.examples import UNKNOWN, Example
from magistrate.train.detector.network import NOWHERE, PAD


class Read(NamedTuple):
    """A batch as the network takes it, padded: `[examples, longest]`, the last two `[examples, outputs]`.

    `shares` are what each token counts: tokens of an output count as much as it does together, so that a long
    one teaches no more than a short one; 0 where the truth is unknown.
    """

    ids: Tensor
    types: Tensor
    segments: Tensor
    positions: Tensor
    truth: Tensor
    shares: Tensor
    labels: Tensor
    weights: Tensor


def tensors(batch: Sequence[Example], device: str = "cpu") -> Read:
    """Examples as tensors on a device."""
    shape = len(batch), max(each.length for each in batch)
    outputs = len(batch), max(len(each.answers) for each in batch)
    read = Read(
        ids=torch.full(shape, PAD),
        types=torch.zeros(shape, dtype=torch.long),
        segments=torch.full(shape, NOWHERE),
        positions=torch.zeros(shape, dtype=torch.long),
        truth=torch.full(shape, UNKNOWN),
        shares=torch.zeros(shape),
        labels=torch.zeros(outputs),
        weights=torch.zeros(outputs),
    )
    for row, each in enumerate(batch):
        at = first = len(each.before.ids)
        read.ids[row, :at] = torch.tensor(each.before.ids)
        read.types[row, :at] = torch.tensor(each.before.types)
        read.segments[row, :at] = 0
        read.positions[row, :at] = torch.arange(at)
        for number, answer in enumerate(each.answers):
            end = at + len(answer.text.ids)
            read.ids[row, at:end] = torch.tensor(answer.text.ids)
            read.types[row, at:end] = torch.tensor(answer.text.types)
            read.segments[row, at:end] = number + 1
            read.positions[row, at:end] = torch.arange(first, first + end - at)
            known = sum(value != UNKNOWN for value in answer.truth)
            read.truth[row, at : at + len(answer.truth)] = torch.tensor(answer.truth)
            if known:
                share = answer.weight / known
                read.shares[row, at : at + len(answer.truth)] = (
                    read.truth[row, at : at + len(answer.truth)] != UNKNOWN
                ) * share
            read.labels[row, number] = float(answer.hallucinated)
            read.weights[row, number] = answer.weight
            at = end
    return Read(*(each.to(device) for each in read))
