"""GGUF files in llama.cpp, in this process: any architecture, on what the library was compiled for."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from magistrate.errors import MissingExtra

if TYPE_CHECKING:
    from magistrate.engines.base import Engine
    from magistrate.engines.settings import EngineSettings

LIBRARIES = {"llama_cpp": "llama-cpp-python", "gguf": "gguf"}


def open_engine(model: str, settings: EngineSettings) -> Engine:
    """The engine on a GGUF file.

    Raises `MissingExtra` where llama-cpp-python is not installed, `SpecError` for settings of a server,
    `CapabilityError` where hidden states are asked for, `ModelError` for a file that cannot be used.
    """
    for module, package in LIBRARIES.items():
        if find_spec(module) is None:
            raise MissingExtra(package, "llamacpp")
    from magistrate.engines.llamacpp.engine import LACKS, LlamaCppEngine
    from magistrate.errors import CapabilityError

    settings.refuse("llamacpp", "base_url")
    if settings.hidden_states:
        raise CapabilityError(LACKS["hidden_states"])
    return LlamaCppEngine(model, device=settings.device, threads=settings.threads, timeout=settings.timeout)
