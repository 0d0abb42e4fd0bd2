"""The state of a training on disk, written whole or not at all, and memory that a training keeps."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from magistrate.errors import ModelError

MMAP_MAX, TRIM_THRESHOLD = -4, -1  # numbers of glibc's options, from malloc.h
LARGE = 2**31 - 1


def save_state(path: Path, state: Mapping[str, Any]) -> None:
    """Write the state of a training, at once or not at all."""
    import torch

    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    with part.open("wb") as file:
        torch.save(dict(state), file)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def load_state(path: Path, device: str) -> dict[str, Any] | None:
    """The state at `path`, on `device`; None if there is none. Raises `ModelError` if it is damaged."""
    import torch

    if not path.is_file():
        return None
    try:
        state: dict[str, Any] = torch.load(path, weights_only=True, map_location=device)
        if not isinstance(state, dict):
            raise TypeError(f"it holds a {type(state).__name__}")
    except Exception as error:  # whatever the library stumbles over
        told = " ".join(str(error).split())[:200]
        raise ModelError(f"{path} cannot be read ({told}); to begin anew: --force") from error
    return state


def keep_freed_memory() -> None:
    """Have glibc keep freed memory. A training step frees and allocates the same large arrays again and
    again; fetching fresh pages for each took half of the time. Elsewhere than with glibc it does nothing."""
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(MMAP_MAX, 0)
        mallopt(TRIM_THRESHOLD, LARGE)
