"""The transformers engine: torch models in this process, from a folder or from a model hub."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from magistrate.errors import MissingExtra

if TYPE_CHECKING:
    from magistrate.engines.base import Engine, EngineSettings

LIBRARIES = ("torch", "transformers")


def open_engine(model: str, settings: EngineSettings) -> Engine:
    """Open the engine for a folder of a causal language model, or for OWNER/NAME of a model hub.

    Hidden states and attention can always be captured. Raises `MissingExtra` if torch or transformers is
    not installed, `SpecError` for settings of a server, and `ModelError` for a model that is incomplete or
    whose cache cannot be stored in blocks.
    """
    for module in LIBRARIES:
        if find_spec(module) is None:
            raise MissingExtra(module, "transformers")
    from magistrate.engines.transformers.engine import TransformersEngine

    settings.refuse("transformers", "base_url")
    return TransformersEngine(
        model, device=settings.device, threads=settings.threads, timeout=settings.timeout
    )
