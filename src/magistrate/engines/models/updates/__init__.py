"""Low-rank updates of catalogue models, one folder per update; functions to read and write their files.

For a matrix M of the GGUF of shape `[outputs, inputs]`, a file has the int8 matrices `M.down` `[rank,
inputs]` and `M.up` `[outputs, rank]`, and float32 scales `M.down_scale` and `M.up_scale` `[rank]`. The
update added to M is `(up * up_scale) @ (down * down_scale[:, None])`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from magistrate.errors import ModelError

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, slots=True)
class Update:
    """The update of one matrix: float32 `up` `[outputs, rank]` times `down` `[rank, inputs]`."""

    up: np.ndarray
    down: np.ndarray

    def rows(self, part: slice) -> np.ndarray:
        """Return some rows of the update, float32."""
        found: np.ndarray = self.up[part] @ self.down
        return found


NO_UPDATES: Mapping[str, Update] = MappingProxyType({})


def read_updates(path: Path) -> Mapping[str, Update]:
    """Return the updates in a file by matrix name. Raises `ModelError` if it cannot be read."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        held = load_file(path)
        return {
            name: Update(
                held[f"{name}.up"] * held[f"{name}.up_scale"],
                held[f"{name}.down"] * held[f"{name}.down_scale"][:, None],
            )
            for name in sorted(key.removesuffix(".up") for key in held if key.endswith(".up"))
        }
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise ModelError(f"{path} cannot be read as an update of weights: {error}") from error


def write_updates(
    updates: Mapping[str, Update], path: Path, others: Mapping[str, np.ndarray] = MappingProxyType({})
) -> None:
    """Write updates with 8 bits per number, and `others`, replacement weights, with 16 bits."""
    import numpy as np
    from safetensors.numpy import save_file

    values = {name: value.astype(np.float16) for name, value in others.items()}
    for name, update in updates.items():
        for key, matrix, axis in (("up", update.up, 0), ("down", update.down, 1)):
            scale = (np.abs(matrix).max(axis=axis).clip(1e-12) / 127).astype(np.float32)
            values[f"{name}.{key}"] = np.rint(matrix / np.expand_dims(scale, axis)).astype(np.int8)
            values[f"{name}.{key}_scale"] = scale
    save_file(values, path)
