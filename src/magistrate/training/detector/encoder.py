"""The encoder of a detector in training, a BERT or an MPNet: it computes what the detector's graph does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, linear, scaled_dot_product_attention

from magistrate.detectors.weights import BLOCK, EPSILON, LEAST_SCALE, MPNET_EPSILON, RELATIVE
from magistrate.errors import ModelError
from magistrate.training.detector.graph import HIDDEN, bucket


class Encoder(nn.Module):
    """Maps int64 ids, types and attention mask `[batch, length]` to float32 `[batch, length, width]`.

    `weights` are named as in a detector's folder, without their prefix `encoder.`. All sizes follow from
    them, so layers may have different numbers of attention heads and neurons; `heads` is that of a layer that
    has all. Positions relative to each other, those of an MPNet, have one table for all layers or one each.
    With 4 `bits`, as many as will be stored, matrices are rounded in every pass, so that training allows for
    it, and the tables of words and positions are not trained. Raises `ModelError` if a weight is missing or
    does not fit.
    """

    def __init__(self, weights: Mapping[str, Tensor], heads: int, bits: Literal[4, 8] = 8) -> None:
        super().__init__()
        self.heads, self.bits = heads, bits
        epsilon = MPNET_EPSILON if any(RELATIVE in name for name in weights) else EPSILON
        with torch.device("meta"):  # nothing is allocated before the weights are put in
            try:
                self.embeddings = _embeddings(weights, epsilon)
                self.encoder = _layers(weights, epsilon)
            except KeyError as error:
                raise ModelError(f"the encoder lacks the weight {error}") from None
        if missing := self.state_dict().keys() - weights.keys():
            raise ModelError(f"the encoder lacks weights: {', '.join(sorted(missing)[:3])}")
        own = {name: weights[name].detach().float().clone() for name in self.state_dict()}
        try:
            self.load_state_dict(own, assign=True)
        except RuntimeError as error:
            raise ModelError(f"the weights of the encoder do not fit together: {error}") from None
        self._buckets: Tensor | None = None
        if bits == 4:
            self.embeddings["position_embeddings"].weight.requires_grad_(False)
            for module in self.encoder.modules():
                if isinstance(module, nn.Linear) and module.in_features % BLOCK == 0:
                    module.__class__ = Rounded

    @property
    def width(self) -> int:
        """The size of a token's hidden state."""
        return int(self.embeddings["word_embeddings"].weight.shape[1])

    def forward(self, ids: Tensor, types: Tensor, mask: Tensor) -> Tensor:
        return self.hidden(ids, types, mask)[-1]

    def hidden(self, ids: Tensor, types: Tensor, mask: Tensor) -> list[Tensor]:
        """Return the hidden states after every layer."""
        parts = self.embeddings
        places = torch.arange(ids.shape[1], device=ids.device)
        embedded = parts["word_embeddings"](ids) + parts["position_embeddings"](places)
        found = [parts["LayerNorm"](embedded + parts["token_type_embeddings"](types))]
        hidden = (1 - mask[:, None, None, :].float()) * HIDDEN
        shared = self.encoder[RELATIVE].weight if RELATIVE in self.encoder else None
        for layer in self.encoder["layer"]:
            own = layer["attention"]["self"]
            table = own[RELATIVE].weight if RELATIVE in own else shared
            found.append(self._layer(layer, found[-1], hidden + self._near(table, places)))
        return found[1:]

    def _layer(self, layer: nn.Module, given: Tensor, added: Tensor) -> Tensor:
        attention, size = layer["attention"], self.width // self.heads
        query, key, value = (
            attention["self"][name](given).unflatten(-1, (-1, size)).transpose(1, 2)
            for name in ("query", "key", "value")
        )
        seen = scaled_dot_product_attention(query, key, value, attn_mask=added.to(query.dtype))
        output = attention["output"]
        attended = output["LayerNorm"](output["dense"](seen.transpose(1, 2).flatten(2)) + given)
        wide = gelu(layer["intermediate"]["dense"](attended))
        return layer["output"]["LayerNorm"](layer["output"]["dense"](wide) + attended)

    def _near(self, table: Tensor | None, places: Tensor) -> Tensor | float:
        """Return what is added to the attention between places `[1, heads, length, length]`, 0 in a BERT."""
        if table is None:
            return 0.0
        if self._buckets is None or self._buckets.device != places.device:
            most = self.embeddings["position_embeddings"].weight.shape[0]
            of = [bucket(place, table.shape[0]) for place in range(1 - most, most)]
            self._buckets = torch.tensor(of, device=places.device)
        middle = len(self._buckets) // 2
        return table[self._buckets[places[None] - places[:, None] + middle]].permute(2, 0, 1).unsqueeze(0)


class Rounded(nn.Linear):
    """A linear layer that computes with its weights rounded to 4 bits, as they are stored."""

    def forward(self, given: Tensor) -> Tensor:
        return linear(given, _Rounded.apply(self.weight), self.bias)


class _Rounded(torch.autograd.Function):
    """`rounded`, with the gradient of weights that are not rounded."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor) -> Tensor:
        return rounded(matrix)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0]


def rounded(matrix: Tensor) -> Tensor:
    """Return a matrix as `packed` stores it: in blocks of columns, with the furthest value at -8."""
    blocks = matrix.unflatten(-1, (-1, BLOCK))
    least, most = blocks.aminmax(dim=-1, keepdim=True)
    scale = (torch.where(least.abs() > most, least, most) / -8).half().float()
    scale = torch.where(scale.abs() < LEAST_SCALE, LEAST_SCALE, scale)
    return blocks.div(scale).round_().clamp_(-8, 7).mul_(scale).flatten(-2)


def _embeddings(weights: Mapping[str, Tensor], epsilon: float) -> nn.ModuleDict:
    parts: dict[str, nn.Module] = {
        name: nn.Embedding(*weights[f"embeddings.{name}.weight"].shape)
        for name in ("word_embeddings", "position_embeddings", "token_type_embeddings")
    }
    return nn.ModuleDict({**parts, "LayerNorm": _norm(weights, "embeddings.LayerNorm", epsilon)})


def _layers(weights: Mapping[str, Tensor], epsilon: float) -> nn.ModuleDict:
    count = len({name.split(".")[2] for name in weights if name.startswith("encoder.layer.")})
    layers = nn.ModuleList(_layer(weights, f"encoder.layer.{at}", epsilon) for at in range(count))
    parts: dict[str, nn.Module] = {"layer": layers}
    if (shared := weights.get(f"encoder.{RELATIVE}.weight")) is not None:
        parts[RELATIVE] = nn.Embedding(*shared.shape)
    return nn.ModuleDict(parts)


def _layer(weights: Mapping[str, Tensor], name: str, epsilon: float) -> nn.ModuleDict:
    attention: dict[str, nn.Module] = {
        part: _linear(weights, f"{name}.attention.self.{part}") for part in ("query", "key", "value")
    }
    if (table := weights.get(f"{name}.attention.self.{RELATIVE}.weight")) is not None:
        attention[RELATIVE] = nn.Embedding(*table.shape)
    return nn.ModuleDict(
        {
            "attention": nn.ModuleDict(
                {
                    "self": nn.ModuleDict(attention),
                    "output": _output(weights, f"{name}.attention.output", epsilon),
                }
            ),
            "intermediate": nn.ModuleDict({"dense": _linear(weights, f"{name}.intermediate.dense")}),
            "output": _output(weights, f"{name}.output", epsilon),
        }
    )


def _output(weights: Mapping[str, Tensor], name: str, epsilon: float) -> nn.ModuleDict:
    norm = _norm(weights, f"{name}.LayerNorm", epsilon)
    return nn.ModuleDict({"dense": _linear(weights, f"{name}.dense"), "LayerNorm": norm})


def _linear(weights: Mapping[str, Tensor], name: str) -> nn.Linear:
    outputs, inputs = weights[f"{name}.weight"].shape
    return nn.Linear(inputs, outputs)


def _norm(weights: Mapping[str, Tensor], name: str, epsilon: float) -> nn.LayerNorm:
    return nn.LayerNorm(weights[f"{name}.weight"].shape[0], eps=epsilon)
