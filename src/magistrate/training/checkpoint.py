"""The state of a training on disk, written atomically."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from magistrate.errors import InputError, ModelError

LOCK = ".lock"


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Hold the folder of a training's state. Raises `InputError` if another process trains there."""
    from filelock import FileLock, Timeout

    folder.mkdir(parents=True, exist_ok=True)
    try:
        held = FileLock(folder / LOCK).acquire(timeout=0)
    except Timeout:
        raise InputError(
            f"another process is training in {folder}: wait until it ends, or write to another folder"
        ) from None
    with held:
        yield


def save_state(path: Path, state: Mapping[str, Any]) -> None:
    """Write the state of a training atomically."""
    import torch

    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    with part.open("wb") as file:
        torch.save(dict(state), file)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def load_state(path: Path, device: str) -> dict[str, Any] | None:
    """Load the state at `path` onto `device`; None if there is none. Raises `ModelError` if it is damaged."""
    import torch

    if not path.is_file():
        return None
    try:
        state: dict[str, Any] = torch.load(path, weights_only=True, map_location=device)
        if not isinstance(state, dict):
            raise TypeError(f"it holds a {type(state).__name__}")
    except Exception as error:  # the library raises many types
        told = " ".join(str(error).split())[:200]
        raise ModelError(f"{path} cannot be read ({told}); to start over: --force") from error
    return state
