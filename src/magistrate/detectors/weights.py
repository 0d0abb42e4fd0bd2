"""A detector's weights: as stored in its folder, and as a low-rank update of its encoder.

All encoders use BERT's weight names here, after `encoder.`; `mpnet_name` translates MPNet's.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import numpy as np

from magistrate.engines.models.updates import read_updates
from magistrate.errors import ModelError

Weights = Mapping[str, np.ndarray]
SCALE = ".scale"  # suffix of the scales of a matrix of integers: one a row of 8 bits, one a block of 4 bits
SMOOTH = ".smooth"  # suffix of what an input is multiplied by before it is rounded to 8 bits
LEVELS = 64  # of a weight in a product of integers, so that adding two products in 16 bits does not overflow
LEAST_ROWS = 8  # rows of a matrix stored as integers, at least; heads have fewer
BLOCK = 64  # columns that share a scale, of 4-bit integers
LEAST_SCALE = 1e-6  # close to the smallest float16
RELATIVE = "relative_attention_bias"  # in the name of MPNet's tables `[buckets, heads]`, one or one per layer
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


def write_weights(weights: Weights, path: Path, bits: Literal[4, 8] = 8) -> None:
    """Write float arrays as safetensors: matrices as integers with scales, all else as float16.

    Matrices whose rows are not whole blocks have 8 bits in any case.
    """
    from safetensors.numpy import save_file

    found: dict[str, np.ndarray] = {}
    for name, value in weights.items():
        if value.ndim == 2 and value.shape[0] >= LEAST_ROWS and RELATIVE not in name:
            whole = bits == 4 and value.shape[1] % BLOCK == 0
            found[name], found[name + SCALE] = (packed if whole else rounded)(value)
        else:
            found[name] = value.astype(np.float16)
    save_file(found, path)


def rounded(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Quantize a float matrix: return 8-bit integers in [-127, 127] and the float16 scale of each row."""
    scale = np.maximum(np.abs(matrix).max(axis=1, keepdims=True) / 127, LEAST_SCALE).astype(np.float16)
    return np.clip(np.rint(matrix / scale.astype(np.float32)), -127, 127).astype(np.int8), scale


def packed(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Quantize a float matrix `[rows, columns]` to 4 bits, in blocks of columns with a scale each.

    Returns uint8 `[rows, blocks, BLOCK / 2]`, two integers of [-8, 7] plus 8 in each, the first one in its
    lower half, and float16 scales `[rows, blocks]`.
    """
    blocks = matrix.reshape(len(matrix), -1, BLOCK)
    least, most = blocks.min(axis=-1), blocks.max(axis=-1)
    # The value that is furthest from 0 becomes -8, so the scale may be negative.
    scale = np.where(np.abs(least) > most, least, most) / -8
    scale = np.where(np.abs(scale) < LEAST_SCALE, LEAST_SCALE, scale).astype(np.float16)
    numbers = np.rint(blocks / scale.astype(np.float32)[..., None]) + 8
    halves = np.clip(numbers, 0, 15).astype(np.uint8)
    return halves[..., ::2] | halves[..., 1::2] << 4, scale


def unpacked(numbers: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Return the float32 matrix that `packed` quantized."""
    halves = np.stack([numbers & 15, numbers >> 4], axis=-1).reshape(*numbers.shape[:2], BLOCK)
    values = (halves.astype(np.float32) - 8) * scale.astype(np.float32)[..., None]
    return values.reshape(len(numbers), -1)


def products(weights: Weights) -> dict[str, np.ndarray]:
    """Return the matrices of 4 bits that inputs are multiplied by, as their products are computed.

    For each the int8 matrix `[columns, rows]` and the float32 scale of each row, by the names that
    `product_of` returns. The columns of an input are multiplied before they are rounded (`SMOOTH`), so those
    of the matrix are divided.
    """
    found = {}
    for name, value in weights.items():
        if value.dtype != np.uint8 or not is_product(name):
            continue
        matrix = unpacked(value, weights[name + SCALE])
        if (smooth := weights.get(smooth_of(name))) is not None:
            matrix /= smooth.astype(np.float32)
        scale = np.maximum(np.abs(matrix).max(axis=1), LEAST_SCALE) / np.float32(LEVELS)
        matrix /= scale[:, None]
        integers, scales = product_of(name)
        found[integers] = np.ascontiguousarray(np.rint(matrix, out=matrix).astype(np.int8).T)
        found[scales] = scale
    return found


def is_product(name: str) -> bool:
    """Return whether a matrix is one of the layers, not a table."""
    return ".layer." in name


def product_of(name: str) -> tuple[str, str]:
    """Return the names of a weight's integers and of their scales, as its product is computed."""
    return f"{name}.integers", f"{name}.integers{SCALE}"


def smooth_of(name: str) -> str:
    """Return the name of what the input of a weight is multiplied by; query, key and value have the same."""
    own = name.removesuffix(".weight")
    for part in (".query", ".key", ".value"):
        own = own.removesuffix(part)
    return own + SMOOTH


def smoothed(most: np.ndarray) -> np.ndarray:
    """Return what an input is multiplied by, from the greatest absolute value of each of its columns.

    The root of it, as in SmoothQuant (Xiao et al. 2023, arXiv:2211.10438), with a geometric mean of 1.
    """
    root = np.sqrt(np.maximum(most, LEAST_SCALE))
    return np.asarray(np.exp(np.log(root).mean()) / root, np.float16)


def float_weights(weights: Weights) -> dict[str, np.ndarray]:
    """Return the weights as float32, with scales multiplied in, without what inputs are multiplied by."""
    found = {}
    for name, value in weights.items():
        if name.endswith((SCALE, SMOOTH)):
            continue
        if (scale := weights.get(name + SCALE)) is None:
            found[name] = value.astype(np.float32)
        elif value.dtype == np.uint8:
            found[name] = unpacked(value, scale)
        else:
            found[name] = value.astype(np.float32) * scale.astype(np.float32)
    return found


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
