"""The network: a small encoder or language model, a head on an output's tokens, one on what sums it up."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import BertConfig, BertModel, LlamaConfig

from magistrate.detectors.encoding import CONTEXT, END, INPUT, OUTPUT, TYPES
from magistrate.errors import ModelError
from magistrate.train.detector.bases import model_type
from magistrate.train.detector.causal import Causal
from magistrate.train.folders import whole

PAD = 0
NOWHERE = -1  # the segment of padding
WEIGHTS = "model.safetensors"


class Network(nn.Module):
    """Token ids and type ids `[batch, length]` to logits of the tokens and of whole outputs.

    Answers `(tokens [batch, length], whole [batch, outputs])`, positive for what the context does not
    support; what stands for tokens that are not an output's means nothing. A context is read without its
    outputs, and each output with its context and itself, so that several can share one: `segments` are 0 for
    the context, 1 and up for outputs, `NOWHERE` for padding, and `positions` go on from the context's in
    each output. The logit of an output is learnt from its tokens' mean, each weighted by its softmax so that
    length changes nothing, and from the token that ends it.
    """

    def __init__(self, encoder: BertModel | Causal) -> None:
        super().__init__()
        self.encoder = encoder
        self.token = nn.Linear(encoder.config.hidden_size, 1)
        self.whole = nn.Linear(encoder.config.hidden_size, 1)
        self.mix = nn.Parameter(torch.tensor([1.0, 1.0, 0.0]))

    def forward(
        self,
        ids: Tensor,
        types: Tensor,
        segments: Tensor | None = None,
        positions: Tensor | None = None,
        outputs: int = 1,
    ) -> tuple[Tensor, Tensor]:
        if segments is None:
            segments = (types >= OUTPUT).long()
            # Of the others nothing sees what comes behind it, and any token may have the number of padding.
            if isinstance(self.encoder, BertModel):
                segments = torch.where(ids == PAD, NOWHERE, segments)
        here, there = segments.unsqueeze(2), segments.unsqueeze(1)
        seen = ((there == 0) | (here == there)).unsqueeze(1)
        hidden = self.encoder(
            input_ids=ids, token_type_ids=types, position_ids=positions, attention_mask=seen
        ).last_hidden_state
        tokens = self.token(hidden).squeeze(-1).float()
        sums = self.whole(hidden).squeeze(-1).float()
        of_output = (types >= OUTPUT) & (types < END)
        found = []
        for number in range(1, outputs + 1):
            mine = segments == number
            shares = torch.softmax(tokens.masked_fill(~(mine & of_output), -1e4), dim=-1)
            pooled = (shares * tokens).sum(-1)
            ending = (sums * (mine & (types == END))).sum(-1)
            found.append(self.mix[0] * pooled + self.mix[1] * ending + self.mix[2])
        return tokens, torch.stack(found, dim=1)


def from_base(folder: Path, *, checkpoints: bool = False) -> Network:
    """A network on the weights of a Hugging Face folder with new heads, or on those of `write_base`.

    A BERT's two segments become the types of this one, the first for the context, the second for the output,
    and all of it learns but its word embeddings. Of a Llama nothing learns but low-rank updates and types.
    With `checkpoints` activations are computed again where gradients need them. Raises `ModelError`.
    """
    causal = model_type(folder) == "llama"
    encoder = Causal(LlamaConfig.from_pretrained(folder)) if causal else _bert(folder)
    network = Network(encoder)
    try:
        weights = load_file(folder / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{folder / WEIGHTS} cannot be read: {error}") from error
    if "mix" in weights:
        network.load_state_dict(weights)
    elif isinstance(encoder, Causal):
        encoder.begin(weights, folder)
    else:
        _begin(encoder, weights, folder)
    if isinstance(encoder, Causal):
        encoder.adapt(checkpoints=checkpoints)
        return network
    encoder.embeddings.word_embeddings.weight.requires_grad_(False)
    if checkpoints:
        encoder.activation_checkpointing_enable({"use_reentrant": False})
    return network


def merged(network: Network) -> Network:
    """The network with what was learnt beside its weights made part of them."""
    if isinstance(network.encoder, Causal):
        network.encoder.merge()
    return network


def _bert(folder: Path) -> BertModel:
    config = BertConfig.from_pretrained(folder)
    config.type_vocab_size = TYPES
    # Dropout costs more than it brings: an example is seen a few times, and masks are slow on CPUs.
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0
    return BertModel(config, add_pooling_layer=False)


def _begin(encoder: BertModel, weights: dict[str, Tensor], folder: Path) -> None:
    weights = {name.removeprefix("bert."): value for name, value in weights.items()}
    name = "embeddings.token_type_embeddings.weight"
    first, second = weights[name][0], weights[name][-1]
    weights[name] = torch.stack([first if each in (CONTEXT, INPUT) else second for each in range(TYPES)])
    missing, _ = encoder.load_state_dict(weights, strict=False)
    if missing:
        raise ModelError(f"{folder} lacks weights of a BERT encoder: {', '.join(missing[:3])}")


def write_base(network: Network, tokenizer: Path, folder: Path) -> None:
    """Write a network, with its heads, as a folder that another training can begin with."""
    with whole(folder) as half:
        merged(network).encoder.config.save_pretrained(half)
        save_file({name: value.contiguous() for name, value in network.state_dict().items()}, half / WEIGHTS)
        shutil.copyfile(tokenizer, half / "tokenizer.json")
