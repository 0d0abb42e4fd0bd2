"""A detector's weights: as stored in its folder, and as a low-rank update of its encoder.

All encoders use BERT's weight names here, after `encoder.`; `mpnet_name` translates MPNet's.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from magistrate.engines.models.updates import read_updates
from magistrate.errors import ModelError

Weights = Mapping[str, np.ndarray]
SCALE = ".scale"  # suffix of the row scales of a matrix of 8-bit integers
LEAST_ROWS = 8  # rows of a matrix stored as 8-bit integers, at least; heads have fewer
LEAST_SCALE = 1e-6  # close to the smallest float16
RELATIVE = "encoder.encoder.relative_attention_bias.weight"  # MPNet only: `[buckets, heads]`
TYPES = "encoder.embeddings.token_type_embeddings.weight"
POSITIONS = "encoder.embeddings.position_embeddings.weight"
EPSILON, MPNET_EPSILON = 1e-12, 1e-5  # of layer normalisation in BERT and MPNet
MPNET_PADDING = 2  # rows of MPNet's position table before the first token's
MPNET = {
    "attention.attn.q.": "attention.self.query.",
    "attention.attn.k.": "attention.self.key.",
    "attention.attn.v.": "attention.self.value.",
    "attention.attn.o.": "attention.output.dense.",
    "attention.LayerNorm.": "attention.output.LayerNorm.",
}


def read_weights(path: Path) -> dict[str, np.ndarray]:
    """Read the arrays of a safetensors file, by name. Raises `ModelError` for another file."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        return dict(load_file(path))
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{path} cannot be read as weights: {error}") from None


def write_weights(weights: Weights, path: Path) -> None:
    """Write float arrays as safetensors: matrices as 8-bit integers with scales, all else as float16."""
    from safetensors.numpy import save_file

    found: dict[str, np.ndarray] = {}
    for name, value in weights.items():
        if value.ndim == 2 and value.shape[0] >= LEAST_ROWS and name != RELATIVE:
            found[name], found[name + SCALE] = rounded(value)
        else:
            found[name] = value.astype(np.float16)
    save_file(found, path)


def rounded(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Quantize a float matrix: return 8-bit integers in [-127, 127] and the float16 scale of each row."""
    scale = np.maximum(np.abs(matrix).max(axis=1, keepdims=True) / 127, LEAST_SCALE).astype(np.float16)
    return np.clip(np.rint(matrix / scale.astype(np.float32)), -127, 127).astype(np.int8), scale


def float_weights(weights: Weights) -> dict[str, np.ndarray]:
    """Return the weights as float32, with scales multiplied in."""
    return {
        name: value.astype(np.float32)
        * (weights[name + SCALE].astype(np.float32) if name + SCALE in weights else 1)
        for name, value in weights.items()
        if not name.endswith(SCALE)
    }


def mpnet_name(name: str) -> str:
    """Return the name used here for one of MPNet's weights, given with or without the prefix `mpnet.`."""
    name = name.removeprefix("mpnet.")
    for theirs, ours in MPNET.items():
        name = name.replace(theirs, ours)
    return f"encoder.{name}"


def mpnet_weights(weights: Weights) -> dict[str, np.ndarray]:
    """Return MPNet's weights as float32 under the names used here, without its heads. Token types are 0."""
    found = {
        mpnet_name(name): value.astype(np.float32)
        for name, value in weights.items()
        if "embeddings." in name or "encoder." in name
    }
    found.pop("encoder.embeddings.position_ids", None)
    found[POSITIONS] = found[POSITIONS][MPNET_PADDING:]
    found[TYPES] = np.zeros((2, found[POSITIONS].shape[1]), np.float32)
    return found


def updated(base: Weights, update: Path) -> dict[str, np.ndarray]:
    """Return an encoder's weights with a file's updates added, and its replacements put in.

    Sums are computed in float64, so that all machines round them alike. Raises `ModelError` if the update
    belongs to another encoder.
    """
    found = dict(base)
    for name, each in read_updates(update).items():
        if name not in found or found[name].shape != (len(each.up), each.down.shape[1]):
            raise ModelError(f"{update} is an update for another encoder: {name} does not fit")
        added = each.up.astype(np.float64) @ each.down.astype(np.float64)
        found[name] = (found[name] + added).astype(np.float32)
    for name, value in replaced(update).items():
        found[name] = value
    return found


def replaced(update: Path) -> dict[str, np.ndarray]:
    """Return the weights that a file of updates replaces, float32: norms, types, heads."""
    return {
        name: value.astype(np.float32)
        for name, value in read_weights(update).items()
        if name.rpartition(".")[2] not in ("up", "down", "up_scale", "down_scale")
    }
