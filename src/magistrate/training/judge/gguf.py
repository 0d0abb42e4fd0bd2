"""Writes a tuned model as the GGUF file that the embedded engine reads."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from magistrate.engines.models.gguf.rewrite import ARCHITECTURES, opened
from magistrate.engines.models.gguf.tokenizer import CONTROL, PRE_TYPES, UNUSED, USER_DEFINED
from magistrate.engines.models.updates import Update
from magistrate.errors import ModelError

if TYPE_CHECKING:
    import numpy as np

NORMAL = 1  # GGUF's number for an ordinary token
Numbers = Literal["q8_0", "f16"]
FILE_TYPES: Mapping[Numbers, int] = {"q8_0": 7, "f16": 1}
_OUTSIDE = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_INSIDE = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_ADAPTED = re.compile(r"base_model\.model\.model\.layers\.(\d+)\.(.+)\.lora_A\.weight")
_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)")


def obstacle(config: Any, tokenizer: Path) -> str:
    """Return why a model with this configuration and tokenizer cannot be a GGUF; empty if it can."""
    if config.model_type not in ARCHITECTURES:
        return f"it is a {config.model_type}; the embedded engine supports {', '.join(ARCHITECTURES)}"
    if _rope(config).get("rope_type", "default") != "default":
        return f"it scales positions by {_rope(config)['rope_type']!r}"
    return (
        "" if _pre_type(tokenizer) else ("its tokenizer splits text by a rule that the embedded engine lacks")
    )


def write_gguf(
    model: Any,
    target: Path,
    tokenizer: Path,
    *,
    name: str,
    like: Path | None = None,
    numbers: Numbers = "q8_0",
) -> None:
    """Write a merged model with its tokenizer. `like` is the GGUF that it was made from, if any.

    Matrices are written in the format `numbers`, everything else as 32-bit floats. Raises `ModelError` if
    there is an `obstacle`.
    """
    from gguf import GGMLQuantizationType, GGUFWriter
    from gguf.quants import quantize

    if why := obstacle(model.config, tokenizer):
        raise ModelError(f"{name} cannot be written as GGUF: {why}")
    kinds = {each: GGMLQuantizationType[each.upper()] for each in FILE_TYPES}
    writer = GGUFWriter(target, model.config.model_type)
    try:
        _describe(writer, model.config, tokenizer, like)
        writer.add_string("general.name", name)
        writer.add_file_type(FILE_TYPES[numbers])
        writer.add_quantization_version(2)
        for tensor, values in tensors(model):
            kind = kinds[numbers if values.shape[-1] % 32 == 0 else "f16"]
            if values.ndim < 2:
                writer.add_tensor(tensor, values)
            else:
                writer.add_tensor(tensor, quantize(values, kind), raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()


def tensors(model: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Yield every weight with its GGUF name, as float32, with rotary rows in GGUF's order."""
    import numpy as np

    config = model.config
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for name, value in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = np.ascontiguousarray(value.detach().float().cpu().numpy())
        layer = _LAYER.fullmatch(name)
        if layer is None and name not in _OUTSIDE:
            raise ModelError(f"the weight {name} has no name in the GGUF format")
        if layer is None:
            yield _OUTSIDE[name], values
            continue
        if layer[2] not in _INSIDE:
            raise ModelError(f"the weight {name} has no name in the GGUF format")
        part = _INSIDE[layer[2]]
        if config.model_type == "llama" and part in heads:
            values = _interleaved(values, heads[part])
        yield f"blk.{layer[1]}.{part}.{layer[3]}", values


def updates_of(adapter: Path, config: Any) -> dict[str, Update]:
    """Return the adapter in a folder, as PEFT writes it, as updates of the matrices of a GGUF."""
    import numpy as np
    from safetensors.numpy import load_file

    told, values = _json(adapter / "adapter_config.json"), load_file(adapter / "adapter_model.safetensors")
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    found = {}
    for key in values:
        layer = _ADAPTED.fullmatch(key)
        if layer is None:
            continue
        part = _INSIDE[layer[2]]
        up = values[key.replace("lora_A", "lora_B")] * np.float32(told["lora_alpha"] / told["r"])
        if config.model_type == "llama" and part in heads:
            up = _interleaved(up, heads[part])
        found[f"blk.{layer[1]}.{part}.weight"] = Update(up, values[key])
    return found


def _interleaved(values: np.ndarray, heads: int) -> np.ndarray:
    """Reorder the rows of each head from halves (x1…, y1…) to pairs (x1, y1, …), GGUF's order for llama."""
    import numpy as np

    halves = values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape))


def _describe(writer: Any, config: Any, tokenizer: Path, like: Path | None) -> None:
    """Write metadata, copied from the GGUF `like` or taken from the configuration and the tokenizer."""
    if like is not None:
        _copied(writer, like)
        return
    kind = config.model_type
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    whole = {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": head,
        "attention.value_length": head,
        "rope.dimension_count": head,
        "vocab_size": config.vocab_size,
    }
    for key, value in whole.items():
        writer.add_uint32(f"{kind}.{key}", int(value))
    writer.add_float32(f"{kind}.attention.layer_norm_rms_epsilon", float(config.rms_norm_eps))
    writer.add_float32(f"{kind}.rope.freq_base", float(_rope(config).get("rope_theta", 10_000.0)))
    _words(writer, tokenizer, config.vocab_size)


def _copied(writer: Any, like: Path) -> None:
    from gguf import GGUFValueType

    source = opened(like)
    for name, field in source.fields.items():
        if name in (
            "general.architecture",
            "general.name",
            "general.file_type",
            "general.quantization_version",
        ):
            continue
        kind = field.types[0]
        nested = field.types[-1] if kind == GGUFValueType.ARRAY else None
        writer.add_key_value(name, source.metadata[name], kind, sub_type=nested)


def _words(writer: Any, folder: Path, size: int) -> None:
    """Write the tokenizer's fields."""
    content, settings = _json(folder / "tokenizer.json"), _json(folder / "tokenizer_config.json")
    model, added = content["model"], content.get("added_tokens", [])
    tokens = [f"[PAD{number}]" for number in range(size)]
    kinds = [UNUSED] * size
    for token, number in model["vocab"].items():
        tokens[number], kinds[number] = token, NORMAL
    for each in added:
        tokens[each["id"]] = each["content"]
        kinds[each["id"]] = CONTROL if each["special"] else USER_DEFINED
    merges = [each if isinstance(each, str) else " ".join(each) for each in model["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(_pre_type(folder))
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    for name, add in (("bos", writer.add_bos_token_id), ("eos", writer.add_eos_token_id)):
        named = settings.get(f"{name}_token")
        text = named.get("content") if isinstance(named, dict) else named
        if text in tokens:
            add(tokens.index(text))
    writer.add_add_bos_token(bool(settings.get("add_bos_token", False)))
    beside = folder / "chat_template.jinja"
    template = beside.read_text(encoding="utf-8") if beside.is_file() else settings.get("chat_template")
    if isinstance(template, str):
        writer.add_chat_template(template)


def _pre_type(folder: Path) -> str:
    """Return the name of the known rule by which a tokenizer splits text; empty if it is unknown."""
    content = _json(folder / "tokenizer.json")
    if content["model"].get("type") != "BPE" or content["model"].get("byte_fallback"):
        return ""
    found = _essence(content.get("pre_tokenizer"))
    return next((name for name, (cut, _) in PRE_TYPES.items() if _essence(cut) == found), "")


def _essence(cut: Any) -> Any:
    """Return a rule without the keys that change offsets only."""
    if isinstance(cut, list):
        return [_essence(each) for each in cut]
    if isinstance(cut, Mapping):
        return {key: _essence(each) for key, each in cut.items() if key != "trim_offsets"}
    return cut


def _rope(config: Any) -> Mapping[str, Any]:
    return getattr(config, "rope_parameters", None) or {}


def _json(path: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return value
