"""In which numbers a model's weights are kept, and how one asks for it: `name:f16`, `file.gguf:f16`."""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path
from typing import Literal, get_args

from magistrate.errors import SpecError

Weights = Literal["q8", "f16"]
USUAL: Weights = "q8"
WEIGHTS: tuple[Weights, ...] = get_args(Weights)


def named(name: str, weights: Weights) -> str:
    """What a model is called with these weights."""
    return name if weights == USUAL else f"{name}:{weights}"


def split(spec: str, names: Container[str]) -> tuple[str, Weights | None]:
    """A model's name or path, and the weights that its ending asks for, None where it has none.

    `names` are the catalogue's. Raises `SpecError` for an ending that is not known.
    """
    base, colon, ending = spec.rpartition(":")
    # A path may hold a colon itself, as "C:\\models" does.
    if not colon or "/" in ending or "\\" in ending or Path(spec).expanduser().exists():
        return spec, None
    for weights in WEIGHTS:
        if ending == weights:
            return base, weights
    if base in names or base.lower().endswith(".gguf") or Path(base).expanduser().exists():
        raise SpecError(
            f"unknown weights {ending!r} in {spec!r}; known: q8 (the usual: 8 bits) and f16 "
            f"(16 bits: closer to the original, larger, slower), as in {named(base, 'f16')}"
        )
    return spec, None
