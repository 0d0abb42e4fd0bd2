"""A detector's weights as its folder keeps them: matrices of 8-bit integers in one safetensors file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from magistrate.errors import ModelError

Weights = Mapping[str, np.ndarray]
SCALE = ".scale"  # of a matrix of 8-bit integers: what each of its rows is multiplied by
LEAST_ROWS = 8  # of a matrix that is kept as 8-bit integers: heads are not
LEAST_SCALE = 1e-6  # float16 has no much smaller number


def read_weights(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a safetensors file by their names. Raises `ModelError` for another file."""
    try:
        return dict(load_file(path))
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{path} cannot be read as weights: {error}") from None


def write_weights(weights: Weights, path: Path) -> None:
    """Write float arrays as safetensors: matrices as 8-bit integers with scales, all else as float16."""
    found: dict[str, np.ndarray] = {}
    for name, value in weights.items():
        if value.ndim == 2 and value.shape[0] >= LEAST_ROWS:
            found[name], found[name + SCALE] = rounded(value)
        else:
            found[name] = value.astype(np.float16)
    save_file(found, path)


def rounded(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A float matrix as 8-bit integers in [-127, 127] and the float16 scale of each row."""
    scale = np.maximum(np.abs(matrix).max(axis=1, keepdims=True) / 127, LEAST_SCALE).astype(np.float16)
    return np.clip(np.rint(matrix / scale.astype(np.float32)), -127, 127).astype(np.int8), scale


def float_weights(weights: Weights) -> dict[str, np.ndarray]:
    """The weights as float32, scales multiplied in."""
    return {
        name: value.astype(np.float32)
        * (weights[name + SCALE].astype(np.float32) if name + SCALE in weights else 1)
        for name, value in weights.items()
        if not name.endswith(SCALE)
    }
