"""A GGUF under llama.cpp's C interface, all rows of a step in one batch over a unified cache."""

from __future__ import annotations

import ctypes
import time
import weakref
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from magistrate import _fork
from magistrate.engines.catalog import ModelCard
from magistrate.engines.local.backend import Answer, Row, nothing
from magistrate.engines.local.blocks import BLOCK
from magistrate.engines.local.numbered import PrefixList, SequencePool
from magistrate.errors import EngineError, ModelError

BATCH = 1024  # tokens in one call of the library; the scheduler seldom asks for more
ROUNDED = 256  # cells come in multiples of so many
MOST_CELLS = 1 << 20
# Tokens that are remembered: on a processor 12,800 in the cache take as long as a small model's products.
REMEMBERED, REMEMBERED_ON_GPU = 4096, 32768
CACHE_NUMBER = 2  # bytes of a number in the cache, which is f16
ALL_LAYERS = -1


def load(path: Path, card: ModelCard, *, on_gpu: bool, threads: int, cache_bytes: int) -> LlamaCppBackend:
    """A backend of a GGUF. Raises `ModelError` for one that llama.cpp cannot load, or cannot fork."""
    _fork.only_one("llama.cpp")
    backend = LlamaCppBackend(path, on_gpu=on_gpu, threads=threads, cache_bytes=cache_bytes)
    if card.vocab_size not in (None, backend.vocabulary):
        raise ModelError(
            f"{path} names {card.vocab_size} tokens, but the model answers with {backend.vocabulary} logits"
        )
    return backend


class Cells:
    """The cells of one context, by llama.cpp's own numbers of sequences."""

    def __init__(self, library: Any, context: Any) -> None:
        self._library = library
        self._memory = library.llama_get_memory(context)

    def copy(self, source: int, target: int, length: int) -> None:
        """Let `target` hold the first `length` tokens of `source` too; cells are shared, not copied."""
        self._library.llama_memory_seq_cp(self._memory, source, target, 0, length)

    def cut(self, number: int, length: int) -> None:
        """Forget what a sequence holds past its first `length` tokens."""
        if not self._library.llama_memory_seq_rm(self._memory, number, length, -1):
            raise EngineError(f"llama.cpp cannot cut a text of this model at {length} tokens")


class LlamaCppBackend:
    """Loads `path` and makes one context with as many cells as `cache_bytes` has room for."""

    def __init__(self, path: Path, *, on_gpu: bool, threads: int, cache_bytes: int) -> None:
        self._library = library = _quiet_library()
        settings = library.llama_model_default_params()
        settings.n_gpu_layers = ALL_LAYERS if on_gpu else 0
        model = library.llama_model_load_from_file(str(path).encode(), settings)
        if not model:
            raise ModelError(
                f"llama.cpp cannot load {path}: it is damaged, or of a kind that it does not know"
            )
        try:
            if why := _obstacle(library, model):
                raise ModelError(f"{path.name} cannot be judged with by llama.cpp: {why}")
            context, cells = self._context(model, threads, cache_bytes)
            if not context:
                raise ModelError(f"llama.cpp has no memory for a cache of {cells} tokens; lower cache_bytes")
        except BaseException:
            library.llama_model_free(model)
            raise
        self._batch = library.llama_batch_init(BATCH, 0, 1)
        self._running = context
        # Not at the interpreter's end: the engine's thread may still compute then.
        weakref.finalize(self, _free, library, self._batch, context, model).atexit = False
        self.vocabulary = int(library.llama_vocab_n_tokens(library.llama_model_get_vocab(model)))
        self.seconds = 0.0
        numbers = int(library.llama_n_seq_max(context))
        self.pool = SequencePool(cells // BLOCK, numbers, Cells(library, context))
        self.prefixes = PrefixList(self.pool, (REMEMBERED_ON_GPU if on_gpu else REMEMBERED) // BLOCK)

    def forward(self, rows: list[Row], meanwhile: Callable[[], None] = nothing) -> list[Answer]:
        for row in rows:
            self.pool.extend(row.sequence, len(row.tokens))
        meanwhile()  # the library computes in this very thread
        start = time.perf_counter()
        entries = [
            (token, position, self.pool.number(row.sequence), at in row.wanted)
            for row in rows
            for at, (position, token) in enumerate(enumerate(row.tokens, row.sequence.length))
        ]
        parts = [self._decoded(entries[at : at + BATCH]) for at in range(0, len(entries), BATCH)]
        logits = parts[0] if len(parts) == 1 else np.concatenate(parts)
        answers, at = [], 0
        for row in rows:
            row.sequence.length += len(row.tokens)
            answers.append(Answer(logits[at : at + len(row.wanted)], None))
            at += len(row.wanted)
        self.seconds += time.perf_counter() - start
        return answers

    def _decoded(self, entries: list[tuple[int, int, int, bool]]) -> np.ndarray:
        """Logits float32 `[wanted, vocabulary]`, a copy: the next call overwrites the library's own."""
        batch, wanted = self._batch, 0
        for at, (token, position, number, asked) in enumerate(entries):
            batch.token[at] = token
            batch.pos[at] = position
            batch.n_seq_id[at] = 1
            batch.seq_id[at][0] = number
            batch.logits[at] = asked
            wanted += asked
        batch.n_tokens = len(entries)
        if status := self._library.llama_decode(self._running, batch):
            raise EngineError(f"llama.cpp could not compute {len(entries)} tokens (llama_decode: {status})")
        if not wanted:
            return np.empty((0, self.vocabulary), np.float32)
        pointer = self._library.llama_get_logits(self._running)
        return np.ctypeslib.as_array(pointer, (wanted * self.vocabulary,)).reshape(wanted, -1).copy()

    def _context(self, model: Any, threads: int, cache_bytes: int) -> tuple[Any, int]:
        library = self._library
        settings = library.llama_context_default_params()
        cells = max(cache_bytes // _bytes_a_token(library, model), ROUNDED)
        cells = min(cells, MOST_CELLS) // ROUNDED * ROUNDED
        settings.n_ctx = cells
        settings.n_batch = BATCH
        settings.n_seq_max = library.llama_max_parallel_sequences()
        settings.n_outputs_max = settings.n_outputs_max_per_seq = BATCH
        settings.n_threads = settings.n_threads_batch = threads
        settings.kv_unified = True  # sequences share cells, and any may have all of them
        settings.swa_full = True  # a text may be cut behind the window
        return library.llama_init_from_model(model, settings), cells


def _quiet_library() -> Any:
    library: Any = import_module("llama_cpp")
    library.llama_log_set(_silence(library), ctypes.c_void_p(0))
    library.llama_backend_init()
    return library


_silent: list[Any] = []  # the library keeps no reference to what it calls


def _silence(library: Any) -> Any:
    if not _silent:
        _silent.append(library.llama_log_callback(lambda level, text, data: None))
    return _silent[0]


def _obstacle(library: Any, model: Any) -> str:
    """Why a model's texts cannot be forked and cut; empty where they can."""
    if library.llama_model_has_encoder(model) or not library.llama_model_has_decoder(model):
        return "it is an encoder, or has one"
    if library.llama_model_is_recurrent(model) or library.llama_model_is_hybrid(model):
        return "it keeps a state beside keys and values, which cannot be cut"
    return "it is a diffusion model" if library.llama_model_is_diffusion(model) else ""


def _bytes_a_token(library: Any, model: Any) -> int:
    """What keys and values of a token take: heads share the embedding's width unless the file says theirs."""
    kind = _said(library, model, "general.architecture")
    usual = library.llama_model_n_embd(model) // max(library.llama_model_n_head(model), 1)
    widths = [_said(library, model, f"{kind}.attention.{part}_length") for part in ("key", "value")]
    width = sum(int(each) if each.isdigit() else usual for each in widths)
    heads = max(library.llama_model_n_head_kv(model), 1)
    return int(library.llama_model_n_layer(model) * heads * width * CACHE_NUMBER)


def _said(library: Any, model: Any, key: str) -> str:
    """What the file says under a name; empty where it says nothing."""
    text = ctypes.create_string_buffer(128)
    n = library.llama_model_meta_val_str(model, key.encode(), text, len(text))
    return text.value.decode("utf-8", "replace") if n >= 0 else ""


def _free(library: Any, batch: Any, context: Any, model: Any) -> None:
    library.llama_batch_free(batch)
    library.llama_free(context)
    library.llama_model_free(model)
