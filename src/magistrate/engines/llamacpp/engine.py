"""Any GGUF that llama.cpp loads, behind the three verbs."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Mapping
from functools import cached_property
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from magistrate.engines.base import Capability, EngineInfo
from magistrate.engines.llamacpp.gguf import opened
from magistrate.engines.local.cores import available_cores
from magistrate.engines.local.scheduled import EXACT, MOST_ACTIVE, MOST_WAITING, WAYS, ScheduledEngine
from magistrate.errors import ModelError, SpecError

if TYPE_CHECKING:
    from magistrate.engines.local.backend import Backend

CACHE_BYTES = 512 * 1024 * 1024
LACKS: Mapping[Capability, str] = {
    "attention": "llama.cpp does not say where its model looks; an engine transformers:FOLDER does",
    "hidden_states": "llama.cpp does not show what its layers leave; the embedded engine and "
    "transformers:FOLDER do",
}


class LlamaCppEngine(ScheduledEngine):
    """A GGUF file in llama.cpp.

    `device` is `cpu` or `gpu` (default: the GPU where the library was compiled for one); `threads` how many
    cores to use; `cache_bytes` the size of the key-value cache. The rest is as with `LocalEngine`. Weights
    are mapped at the first request. Raises `ModelError` for a file that is no GGUF or whose tokenizer cannot
    be read.
    """

    lacks: ClassVar[Mapping[Capability, str]] = LACKS

    def __init__(
        self,
        model: str | Path,
        *,
        device: str | None = None,
        threads: int | None = None,
        cache_bytes: int = CACHE_BYTES,
        most_active: int = MOST_ACTIVE,
        most_waiting: int = MOST_WAITING,
        timeout: float | None = None,
    ) -> None:
        self.path = Path(model).expanduser()
        if not self.path.is_file():
            raise SpecError(f"there is no file {self.path}; llamacpp needs a GGUF file: llamacpp:FILE.gguf")
        self.device = _checked(device)
        self.threads = available_cores() if threads is None else threads
        if min(self.threads, cache_bytes) < 1:
            raise SpecError(f"threads and cache_bytes must be at least 1, got {threads} and {cache_bytes}")
        self._cache_bytes = cache_bytes
        with tempfile.TemporaryDirectory(prefix="magistrate-") as scratch:
            super().__init__(
                Path(scratch),
                opened(self.path, Path(scratch)),
                most_active=most_active,
                most_waiting=most_waiting,
                timeout=timeout,
            )

    @cached_property
    def info(self) -> EngineInfo:
        """What this engine is; loads no weights."""
        card = self._card
        arithmetic = f"llama-cpp-python {version('llama-cpp-python')} {self.device} cache f16"
        fingerprint = hashlib.sha256(f"{card.fingerprint} {arithmetic}".encode()).hexdigest()
        if card.context_length is None:
            raise ModelError(f"{self.path} does not say how long its context window is")
        varying = (
            "no: what weights are multiplied by is rounded, and depends on what else is computed with it"
        )
        ways = {**WAYS, "repeatable": varying}
        return EngineInfo("llamacpp", card.name, fingerprint, card.context_length, EXACT, ways)

    def _load(self) -> Backend:
        from magistrate.engines.llamacpp.backend import load

        return load(
            self.path,
            self._card,
            on_gpu=self.device == "gpu",
            threads=self.threads,
            cache_bytes=self._cache_bytes,
        )


def _checked(device: str | None) -> str:
    """`cpu` or `gpu`. Raises `SpecError` for others, and for a GPU that the library was not compiled for."""
    here = ["cpu", *(["gpu"] if import_module("llama_cpp").llama_supports_gpu_offload() else [])]
    named = here[-1] if device is None else device.lower()
    if named not in here:
        raise SpecError(
            f"device {device!r} is not here; this llama-cpp-python was compiled for: {', '.join(here)}"
        )
    return named
