"""The network of a detector: an encoder that reads context and output together, a head on each token, and the
loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from transformers import BertConfig, BertModel

from magistrate.detectors.windows import SIDES
from magistrate.errors import ModelError
from magistrate.training.detector.examples import KINDS, SUPPORTED, UNKNOWN, UNKNOWN_TOKEN, WRONG, Example

WEIGHTS = "model.safetensors"


class Network(nn.Module):
    """int64 token ids, types and attention mask `[batch, length]` to logits `[batch, length, 1 + KINDS]`.

    The first logit says that the context does not support the token. The others, averaged over the tokens of
    a sentence, are the sentence's logits of *supported*, *contradicted* and *not in the text*: what the token
    says and what `[CLS]` says of the whole, both linear, so that the mean can be taken outside.
    """

    def __init__(self, encoder: BertModel) -> None:
        super().__init__()
        self.encoder = encoder
        width = encoder.config.hidden_size
        self.token = nn.Linear(width, 1)
        self.kind = nn.Linear(width, KINDS)
        self.whole = nn.Linear(width, KINDS)

    def forward(self, ids: Tensor, types: Tensor, mask: Tensor) -> Tensor:
        hidden = self.encoder(input_ids=ids, token_type_ids=types, attention_mask=mask).last_hidden_state
        kinds = self.kind(hidden) + self.whole(hidden[:, :1])
        return torch.cat([self.token(hidden), kinds], dim=-1)


def from_base(folder: Path) -> Network:
    """A network on the weights of a Hugging Face folder of a BERT with new heads, or on those of a `Network`.

    Word embeddings do not learn: they are half of a small encoder, and seldom words would drift. Raises
    `ModelError` where the weights cannot be read or some are missing.
    """
    config = BertConfig.from_pretrained(folder)
    if config.type_vocab_size < SIDES:
        raise ModelError(
            f"{folder} reads one text and not two: its type_vocab_size is {config.type_vocab_size}"
        )
    # Dropout costs more than it brings: an example is seen a few times, and masks are slow on CPUs.
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0
    network = Network(BertModel(config, add_pooling_layer=False))
    try:
        weights = load_file(folder / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{folder / WEIGHTS} cannot be read: {error}") from error
    if "kind.weight" in weights:
        network.load_state_dict(weights)
    else:
        weights = {name.removeprefix("bert."): value for name, value in weights.items()}
        missing, _ = network.encoder.load_state_dict(weights, strict=False)
        if missing := [name for name in missing if "position_ids" not in name]:
            raise ModelError(f"{folder} lacks weights of a BERT encoder: {', '.join(missing[:3])}")
    network.encoder.embeddings.word_embeddings.weight.requires_grad_(False)
    return network


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
