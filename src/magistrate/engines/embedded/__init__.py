"""The embedded engine: a small model in this process, on OpenVINO.

Other in-process engines also use its scheduler, prefix cache, decoder and tokenizer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from magistrate.engines.base import Engine, EngineSettings


def open_engine(model: str, settings: EngineSettings) -> Engine:
    """Open the embedded engine for a catalogue name, a GGUF file or an OpenVINO folder.

    Raises `SpecError` for settings of a server, and `ModelError` if the weights are not on this machine.
    """
    from magistrate.engines.embedded.engine import LocalEngine
    from magistrate.errors import SpecError

    if settings.base_url is not None:
        raise SpecError("--base-url is the address of a server; add its model: --model openai:MODEL")
    return LocalEngine(
        model,
        device=settings.device,
        threads=settings.threads,
        timeout=settings.timeout,
        hidden_states=settings.hidden_states,
    )
