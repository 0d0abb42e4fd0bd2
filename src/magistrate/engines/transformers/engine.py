"""`TransformersEngine`: any causal language model that transformers loads."""

from __future__ import annotations

from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from magistrate.engines.base import Capability, EngineInfo
from magistrate.engines.embedded.cores import available_cores
from magistrate.engines.embedded.in_process import EXACT, MOST_ACTIVE, MOST_WAITING, WAYS, InProcessEngine
from magistrate.engines.transformers.folder import locate, read_card
from magistrate.errors import SpecError

if TYPE_CHECKING:
    from magistrate.engines.embedded.backend import Backend

DTYPES = ("float32", "bfloat16", "float16")


class TransformersEngine(InProcessEngine):
    """A torch model, on the CPU or a GPU.

    `model` is a folder with `config.json`, tokenizer files and safetensors, or OWNER/NAME of a model hub.
    `device` is a torch device (default: `cuda` if available, else `cpu`), `dtype` one of `DTYPES` (default:
    `float32` on the CPU, the checkpoint's own on a GPU), `threads` the number of CPU cores for matrix
    products, and `cache_bytes` the size of the key-value cache (default: 512 MiB, on a GPU half of what the
    weights leave free). The other arguments are as in `LocalEngine`. Weights are loaded at the first
    request. Raises `ModelError` for a model that is incomplete or keeps more state of a text than keys and
    values.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        device: str | None = None,
        dtype: str | None = None,
        threads: int | None = None,
        cache_bytes: int | None = None,
        most_active: int = MOST_ACTIVE,
        most_waiting: int = MOST_WAITING,
        timeout: float | None = None,
    ) -> None:
        folder = locate(model)
        card, config = read_card(folder, model)
        self.device = _find_device(device)
        own = config.get("dtype", config.get("torch_dtype", "float32"))
        self.dtype = dtype or ("float32" if self.device == "cpu" else str(own))
        self.threads = available_cores() if threads is None else threads
        if self.dtype not in DTYPES:
            raise SpecError(f"dtype must be one of {', '.join(DTYPES)}, got {self.dtype!r}")
        if self.threads < 1 or (cache_bytes is not None and cache_bytes < 1):
            raise SpecError(f"threads and cache_bytes must be at least 1, got {threads} and {cache_bytes}")
        self._cache_bytes = cache_bytes
        # In a mixture of experts the size of products, and so their last bits, depends on the whole batch.
        self._repeats = (
            self.device == "cpu" and self.dtype == "float32" and not any("expert" in each for each in config)
        )
        super().__init__(folder, card, most_active=most_active, most_waiting=most_waiting, timeout=timeout)

    @cached_property
    def info(self) -> EngineInfo:
        """The model, fingerprint, context window and capabilities; loads no weights."""
        arithmetic = (
            f"torch {version('torch')} transformers {version('transformers')} {self.device} {self.dtype}"
        )
        can: frozenset[Capability] = EXACT.union(
            {"hidden_states", "attention"}, {"repeatable"} if self._repeats else ()
        )
        varying = "not claimed: the last bits of results may depend on what is computed in the same batch"
        ways = dict(WAYS) if self._repeats else {**WAYS, "repeatable": varying}
        return self._described("transformers", arithmetic, can, ways)

    def _load(self) -> Backend:
        from magistrate.engines.transformers.backend import load

        return load(
            self.folder,
            self._card,
            device=self.device,
            dtype=self.dtype,
            threads=self.threads,
            cache_bytes=self._cache_bytes,
        )


def _find_device(device: str | None) -> str:
    """Return the device by torch's name. Raises `SpecError` if it is not available."""
    import torch

    here = ["cpu"]
    if torch.cuda.is_available():
        here += ["cuda", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]
    if torch.backends.mps.is_available():
        here.append("mps")
    named = ("cuda" if "cuda" in here else "cpu") if device is None else device.lower()
    if named not in here:
        raise SpecError(f"device {device!r} does not exist; torch finds: {', '.join(here)}")
    return named
