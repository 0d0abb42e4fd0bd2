"""`LocalEngine`, the embedded engine: a small model on this machine, in OpenVINO."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from magistrate.engines.base import Capability, EngineInfo
from magistrate.engines.embedded.cores import available_cores
from magistrate.engines.embedded.in_process import EXACT, MOST_ACTIVE, MOST_WAITING, WAYS, InProcessEngine
from magistrate.engines.embedded.openvino_backend import ACTIVATION_GROUP, CACHE_PRECISION, PRECISION, load
from magistrate.engines.models import describe, locate
from magistrate.errors import SpecError

if TYPE_CHECKING:
    from magistrate.engines.embedded.backend import Backend

CACHE_BYTES = 512 * 1024 * 1024


class LocalEngine(InProcessEngine):
    """A model on this machine.

    `model` is a catalogue name, a GGUF file or an OpenVINO folder. `device` is an OpenVINO device (default
    `CPU`), `threads` the number of cores (default: all that this process may use), and `cache_bytes` the
    size of the key-value cache. `most_active` limits the requests computed together, `most_waiting` the
    unanswered ones (more raise `EngineBusy`), and `timeout` the seconds of a request (`EngineTimeout` after
    that; default: no limit). `hidden_states` makes them available to `Capture`. Weights are loaded at the
    first request. Raises `ModelError` if the weights are not on this machine.
    """

    lacks: ClassVar[Mapping[Capability, str]] = {
        "attention": "the local engine cannot return attention weights, because paged attention does not "
        "keep them; use transformers:FOLDER",
        "hidden_states": "hidden states are not available: create the engine with LocalEngine(…, "
        "hidden_states=True)",
    }

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
        hidden_states: bool = False,
    ) -> None:
        folder = locate(model)
        self.device = device or os.environ.get("MAGISTRATE_DEVICE", "CPU")
        self.threads = available_cores() if threads is None else threads
        if min(self.threads, cache_bytes) < 1:
            raise SpecError(f"threads and cache_bytes must be at least 1, got {threads} and {cache_bytes}")
        self._cache_bytes = cache_bytes
        self._hidden_states = hidden_states
        super().__init__(
            folder,
            describe(folder),
            most_active=most_active,
            most_waiting=most_waiting,
            timeout=timeout,
        )

    @cached_property
    def info(self) -> EngineInfo:
        """The model, fingerprint, context window and capabilities; loads no weights."""
        arithmetic = (
            f"openvino {version('openvino')} {self.device} {PRECISION} cache {CACHE_PRECISION} "
            f"activations in groups of {ACTIVATION_GROUP}"
        )
        can: frozenset[Capability] = EXACT.union(
            {"repeatable"}, {"hidden_states"} if self._hidden_states else ()
        )
        return self._described("local", arithmetic, can, WAYS)

    def _load(self) -> Backend:
        return load(
            self.folder,
            self._card,
            device=self.device,
            threads=self.threads,
            cache_bytes=self._cache_bytes,
            hidden_states=self._hidden_states,
        )
