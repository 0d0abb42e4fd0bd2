"""How wrong a network is: on tokens, on sentences, and on whole outputs of which only the label is known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from magistrate.training.detector.examples import KINDS, SUPPORTED, UNKNOWN, UNKNOWN_TOKEN, WRONG, Example

TOKEN_SHARE = 0.3  # of the loss on tokens beside that on sentences
WRONG_TOKENS = 3.0  # times that a wrong token counts: they are few


class Batch(NamedTuple):
    """Examples as tensors on a device.

    `ids`, `types`, `mask` int64 `[batch, length]`; `sentence` int64 `[batch, length]`, the number of the
    sentence of each output token among all of the batch, -1 for other tokens; `truths` int64 `[sentences]`,
    `owner` int64 `[sentences]`, the example of each; `hallucinated` float `[batch]`; `tokens` float
    `[batch, length]`, -1 where nothing is known.
    """

    ids: Tensor
    types: Tensor
    mask: Tensor
    sentence: Tensor
    truths: Tensor
    owner: Tensor
    hallucinated: Tensor
    tokens: Tensor


def batch_of(rows: Sequence[Example], device: str = "cpu") -> Batch:
    """The examples, padded to the longest."""
    shape = len(rows), max(row.length for row in rows)
    ids, types, mask = (np.zeros(shape, np.int64) for _ in range(3))
    sentence, tokens = np.full(shape, -1, np.int64), np.full(shape, UNKNOWN_TOKEN, np.float32)
    truths: list[int] = []
    owner: list[int] = []
    for at, row in enumerate(rows):
        ids[at, : row.length] = row.ids
        types[at, row.second : row.length] = 1
        mask[at, : row.length] = 1
        tokens[at, row.bounds[0] : row.bounds[-1]] = row.tokens
        for begin, end, truth in zip(row.bounds, row.bounds[1:], row.truths, strict=False):
            sentence[at, begin:end] = len(truths)
            truths.append(truth)
            owner.append(at)
    hallucinated = np.array([row.hallucinated for row in rows], np.float32)
    arrays = (ids, types, mask, sentence, np.array(truths), np.array(owner), hallucinated, tokens)
    return Batch(*(torch.from_numpy(each).to(device) for each in arrays))


def sentence_logits(logits: Tensor, batch: Batch) -> Tensor:
    """The mean of each sentence's tokens, `[sentences, KINDS]`."""
    inside = batch.sentence >= 0
    number = batch.sentence[inside]
    sums = logits.new_zeros(len(batch.truths), KINDS).index_add(0, number, logits[..., 1:][inside])
    return sums / torch.bincount(number, minlength=len(batch.truths)).unsqueeze(1).clamp(min=1)


def loss_of(logits: Tensor, batch: Batch) -> Tensor:
    """The mean loss of a batch, each of its examples counting alike.

    A sentence's loss is the cross entropy of its kind; where only *wrong* is known, that of not being
    supported. Where it is not known which sentences of an output are wrong, the output's loss is that of all
    being supported, taken as independent.
    """
    logits = logits.float()
    shares = torch.log_softmax(sentence_logits(logits, batch), dim=-1)
    supported = shares[:, SUPPORTED]
    known = torch.where(
        batch.truths < KINDS,
        shares.gather(1, batch.truths.clamp(max=KINDS - 1).unsqueeze(1)).squeeze(1),
        torch.logsumexp(shares[:, 1:], dim=1),
    )
    count = len(batch.ids)
    one = torch.zeros(count, device=logits.device)
    is_known = batch.truths != UNKNOWN
    of_known = one.index_add(0, batch.owner[is_known], -known[is_known])
    all_supported = one.index_add(0, batch.owner, supported).clamp(max=-1e-4)
    has_unknown = one.index_add(0, batch.owner, (~is_known).float()) > 0
    loss = torch.where(has_unknown, -torch.log(-torch.expm1(all_supported)), of_known).mean()
    told = batch.tokens >= 0
    if told.any():
        wanted = batch.tokens[told]
        weights = 1 + (WRONG_TOKENS - 1) * wanted
        loss = loss + TOKEN_SHARE * binary_cross_entropy_with_logits(logits[..., 0][told], wanted, weights)
    return loss


def output_scores(logits: Tensor, batch: Batch) -> Tensor:
    """Log-odds that an output is hallucinated, `[batch]`: those of its worst sentence."""
    shares = torch.log_softmax(sentence_logits(logits.float(), batch), dim=-1)
    odds = torch.logsumexp(shares[:, 1:], dim=1) - shares[:, SUPPORTED]
    worst = torch.full((len(batch.ids),), -torch.inf, device=logits.device)
    return worst.scatter_reduce(0, batch.owner, odds, "amax")


assert WRONG == KINDS
