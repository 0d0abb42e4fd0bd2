"""A small language model as what a detector reads with: a Llama, tuned by low-rank updates.

Low-rank adaptation: Hu et al. 2021, arXiv:2106.09685.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaModel

from magistrate.detectors.encoding import TYPES
from magistrate.errors import ModelError
from magistrate.train.lora.loop import TARGETS, Settings

RANK, ALPHA = Settings().rank, Settings().alpha


class Causal(nn.Module):
    """Token ids and type ids to hidden states, each of what comes before it and is in its row of the mask.

    Types are embeddings of their own that are added to those of the tokens, and begin at zero. Dropout is
    left out, so that a training that was stopped goes on to the same weights.
    """

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        config.use_cache = False
        self.config = config
        self.model = LlamaModel(config)
        self.types = nn.Embedding(TYPES, config.hidden_size)
        nn.init.zeros_(self.types.weight)

    def forward(
        self, input_ids: Tensor, token_type_ids: Tensor, position_ids: Tensor | None, attention_mask: Tensor
    ) -> Any:
        order = torch.arange(input_ids.shape[1], device=input_ids.device)
        before = order.unsqueeze(0) <= order.unsqueeze(1)
        return self.model(
            inputs_embeds=self.model.embed_tokens(input_ids) + self.types(token_type_ids),
            position_ids=position_ids,
            attention_mask=attention_mask & before,
        )

    def begin(self, weights: dict[str, Tensor], folder: Path) -> None:
        """Take the weights of a language model's folder."""
        named = {name.removeprefix("model."): value for name, value in weights.items()}
        missing, _ = self.model.load_state_dict(named, strict=False)
        if missing:
            raise ModelError(f"{folder} lacks weights of a Llama: {', '.join(missing[:3])}")

    def adapt(self, *, checkpoints: bool = False) -> None:
        """Freeze the model and put new low-rank updates, which change nothing yet, beside its matrices."""
        from peft import LoraConfig, inject_adapter_in_model

        config = LoraConfig(r=RANK, lora_alpha=ALPHA, lora_dropout=0.0, target_modules=list(TARGETS))
        inject_adapter_in_model(config, self.model)
        if checkpoints:
            self.model.activation_checkpointing_enable({"use_reentrant": False})

    def merge(self) -> None:
        """Add the updates to the matrices that they are beside, where there are any."""
        from peft.tuners.lora import LoraLayer

        for name, layer in list(self.model.named_modules()):
            if isinstance(layer, LoraLayer):
                layer.merge()
                self.model.set_submodule(name, layer.get_base_layer())
