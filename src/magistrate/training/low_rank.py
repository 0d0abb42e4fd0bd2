"""Low-rank updates of a model's matrices (LoRA: Hu et al. 2021, arXiv:2106.09685), with merged weights."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
PREFIX = "base_model.model."  # prefix of layer names in adapters of the PEFT library


class LowRank(nn.Module):
    """A linear layer with the weight `W + scale * up @ down`, of which `down` and `up` are trained.

    `down` is `[rank, inputs]`; `up` is `[outputs, rank]` and starts at 0. `merge` computes the sum once per
    update instead of once per forward pass, so a pass costs the same as without an adapter.
    """

    def __init__(self, linear: nn.Linear, rank: int, scale: float, dtype: torch.dtype) -> None:
        super().__init__()
        outputs, inputs = linear.weight.shape
        self.scale, self.dtype = scale, dtype
        self.register_buffer("weight", linear.weight.detach(), persistent=False)
        bias = None if linear.bias is None else linear.bias.detach().to(dtype)
        self.register_buffer("bias", bias, persistent=False)
        self.down = nn.Parameter(torch.empty(rank, inputs, device=linear.weight.device))
        self.up = nn.Parameter(torch.zeros(outputs, rank, device=linear.weight.device))
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))
        self._merged = self.weight.to(dtype)

    @torch.no_grad()
    def merge(self, *, share: float = 1.0) -> None:
        """Recompute the merged weight with the update times `share`; 0 gives the base."""
        weight = self.weight.float()
        self._merged = torch.addmm(weight, self.up, self.down, alpha=share * self.scale).to(self.dtype)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = _Merged.apply(x, self._merged, self.down, self.up, self.scale)
        return found if self.bias is None else found + self.bias.to(found.dtype)


class _Merged(torch.autograd.Function):
    """`x @ merged.T`, with gradients for the factors of the update."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, merged: Tensor, down: Tensor, up: Tensor, scale: float) -> Tensor:
        x = x.to(merged.dtype)
        ctx.save_for_backward(x, merged, down, up)
        ctx.scale = scale
        return nn.functional.linear(x, merged)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, merged, down, up = ctx.saved_tensors
        (grad,) = grads
        rows, entered = grad.flatten(0, -2), x.flatten(0, -2)
        of_down = (rows @ up.to(grad.dtype)).T @ entered
        of_up = rows.T @ (entered @ down.to(grad.dtype).T)
        back = grad @ merged if ctx.needs_input_grad[0] else None
        return back, None, ctx.scale * of_down.float(), ctx.scale * of_up.float(), None


def dtype_of(device: str) -> torch.dtype:
    """Return the fastest number format: 16 bits, except on CPUs without units for it."""
    fast = device != "cpu" or torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported()
    return torch.bfloat16 if fast else torch.float32


def attach(model: nn.Module, rank: int, alpha: int, dtype: torch.dtype) -> dict[str, LowRank]:
    """Replace the linear layers of a model's attention and feed-forward parts. Returns them by name.

    Everything else is computed in `dtype` and not trained.
    """
    model.requires_grad_(False)
    found = {}
    for name, module in list(model.named_modules()):
        if name.rpartition(".")[2] in TARGETS and isinstance(module, nn.Linear):
            found[name] = LowRank(module, rank, alpha / rank, dtype)
            setattr(model.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2], found[name])
    for module in model.modules():
        if not isinstance(module, LowRank):
            for key, value in module.named_parameters(recurse=False):
                setattr(module, key, nn.Parameter(value.to(dtype), requires_grad=False))
    return found


def write_adapter(layers: Mapping[str, LowRank], folder: Path, *, alpha: int, base: str) -> None:
    """Write the trained updates in the format of the PEFT library."""
    folder.mkdir(parents=True)
    values = {}
    for name, each in layers.items():
        values[f"{PREFIX}{name}.lora_A.weight"] = each.down.detach().cpu().contiguous()
        values[f"{PREFIX}{name}.lora_B.weight"] = each.up.detach().cpu().contiguous()
    save_file(values, folder / WEIGHTS, metadata={"format": "pt"})
    told = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": next(iter(layers.values())).down.shape[0],
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted({name.rpartition(".")[2] for name in layers}),
        "inference_mode": True,
    }
    (folder / CONFIG).write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")


@torch.no_grad()
def merged(model: nn.Module, folder: Path) -> nn.Module:
    """Add the adapter in a folder to the weights of the model, and return the model."""
    told = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    values = load_file(folder / WEIGHTS)
    for name in (key.removesuffix(".lora_A.weight") for key in values if key.endswith(".lora_A.weight")):
        layer = model.get_submodule(name.removeprefix(PREFIX))
        down, up = (values[f"{name}.lora_{letter}.weight"] for letter in "AB")
        assert isinstance(layer, nn.Linear)
        layer.weight += (told["lora_alpha"] / told["r"]) * (up @ down)
    return model
