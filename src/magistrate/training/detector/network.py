"""The network of a detector: an encoder that reads context and output together, and a head on each token."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import BertConfig, BertModel

from magistrate.detectors.windows import SIDES
from magistrate.errors import ModelError
from magistrate.training.detector.examples import KINDS

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
