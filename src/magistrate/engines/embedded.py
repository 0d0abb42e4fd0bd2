"""The engine that is asked where no other is named."""

from __future__ import annotations

from magistrate.engines.base import Engine
from magistrate.engines.settings import EngineSettings


def open_engine(model: str, settings: EngineSettings) -> Engine:
    """The embedded engine on a catalogue name, a GGUF file or an OpenVINO folder. Raises `ModelError`."""
    from magistrate.engines.local.engine import LocalEngine

    settings.refuse("the embedded engine", "base_url")
    return LocalEngine(
        model,
        device=settings.device,
        threads=settings.threads,
        hidden_states=settings.hidden_states,
        timeout=settings.timeout,
    )
