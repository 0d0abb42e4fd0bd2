"""A transformers model whose keys and values are stored in the blocks of our cache."""

from __future__ import annotations

import contextlib
import inspect
import io
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from magistrate import _fork
from magistrate.engines.embedded.backend import Row, RowOutput, do_nothing
from magistrate.engines.embedded.prefix_cache import BLOCK, BlockPool, CachedSequence, PrefixCache
from magistrate.engines.embedded.verbs import log_softmax
from magistrate.engines.models import ModelCard
from magistrate.engines.transformers.attention import (
    NAME,
    ROUNDED,
    BlockStore,
    Forward,
    ShapeProbe,
    attend,
    plan_forward,
    running,
)
from magistrate.errors import ModelError

CACHE_BYTES = 512 * 1024 * 1024
GPU_SHARE = 0.5  # the cache's share of the GPU memory that the weights leave free
CHECKED_TOKENS = 80  # processed with and without blocks after loading, to compare
# Largest mean difference of log-probabilities, in nats, in that comparison.
TOLERANCE = {torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.2}


def load(
    folder: Path, card: ModelCard, *, device: str, dtype: str, threads: int, cache_bytes: int | None
) -> TorchBackend:
    """Load a model and check that its answers in blocks are the same as without them.

    Raises `ModelError` if transformers cannot load the folder or the answers differ, which means that the
    model keeps more state of a text than keys and values.
    """
    _fork.only_one("transformers")
    if device == "cpu":
        torch.set_num_threads(threads)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # hides a progress bar that cannot be disabled
            model = transformers.AutoModelForCausalLM.from_pretrained(
                folder, dtype=dtype, local_files_only=True, trust_remote_code=False, use_safetensors=True
            )
            model = model.to(device).eval()
    except Exception as error:  # the library may raise anything
        message = " ".join(str(error).split())[:400]
        raise ModelError(f"transformers cannot load {folder} on {device}: {message}") from error
    try:
        backend = TorchBackend(model, cache_bytes)
    except ModelError as error:
        raise ModelError(
            f"{card.name} cannot be used with a paged cache of keys and values: {error}"
        ) from error
    if card.vocab_size not in (None, backend.vocabulary):
        raise ModelError(
            f"{folder} declares a vocabulary of {card.vocab_size} tokens, but the model returns "
            f"{backend.vocabulary} logits; download it again"
        )
    return backend


class TorchBackend:
    """Runs `model`, a causal language model of transformers in evaluation mode, on its device.

    `cache_bytes` limits keys and values. If it is None, they get 512 MiB, or on a GPU half of the free
    memory. Raises `ModelError` for a model whose attention cannot be replaced, and for one that answers
    differently in blocks.
    """

    def __init__(self, model: Any, cache_bytes: int | None = None) -> None:
        self.seconds = 0.0
        self._model = model
        self._device = next(model.parameters()).device
        self._picks = "logits_to_keep" in inspect.signature(model.forward).parameters
        ids = [number * 7919 % model.config.vocab_size for number in range(CHECKED_TOKENS)]
        whole = self._logits_without_blocks(ids)
        self.vocabulary = whole.shape[1]
        self._attend_in_blocks()
        self._store = self._allocate(self._probe_shapes(ids), cache_bytes)
        self.pool = BlockPool(self._store.blocks, self._store.copy)
        self.prefixes = PrefixCache(self.pool)
        self._check_against(whole, ids)

    def forward(self, rows: list[Row], meanwhile: Callable[[], None] = do_nothing) -> list[RowOutput]:
        for row in rows:
            self.pool.extend(row.sequence, len(row.tokens))
        start = time.perf_counter()
        plan = plan_forward(self._store, rows, self._device)
        ids, positions, wanted = _flat(rows)
        deep = any(row.capture is not None and row.capture.hidden for row in rows)
        with running(plan):
            if self._device.type == "cpu":
                self.seconds += time.perf_counter() - start
                meanwhile()
                start = time.perf_counter()
            logits, hidden = self._compute(ids, positions, wanted, deep)
            if self._device.type != "cpu":
                meanwhile()  # the GPU computes asynchronously
            outputs = self._outputs(rows, plan, logits.float().cpu(), hidden)
        for row in rows:
            row.sequence.length += len(row.tokens)
        self.seconds += time.perf_counter() - start
        return outputs

    def _outputs(self, rows: list[Row], plan: Forward, logits: Any, hidden: Any) -> list[RowOutput]:
        outputs, at = [], 0
        for number, row in enumerate(rows):
            own = slice(at, at + len(row.wanted))
            at += len(row.wanted)
            states = None
            if hidden is not None and row.capture is not None and row.capture.hidden:
                states = hidden[own].float().cpu().numpy()
            weights = plan.attention.get(number)
            read = row.sequence.length + row.wanted.stop
            attention = None if weights is None else torch.stack(weights)[..., :read].numpy()
            outputs.append(RowOutput(logits[own].numpy(), states, attention))
        return outputs

    def _compute(self, ids: list[int], positions: list[int], wanted: list[int], deep: bool) -> Any:
        """Return logits `[wanted, vocabulary]` and hidden states `[wanted, 1 + layers, width]` or None."""
        padding = -len(ids) % ROUNDED
        picked = torch.tensor(wanted + wanted[-1:] * (-len(wanted) % ROUNDED), device=self._device).long()
        options: dict[str, Any] = {"logits_to_keep": picked} if self._picks else {}
        with torch.inference_mode():
            out = self._model(
                input_ids=torch.tensor([ids + [0] * padding], device=self._device),
                position_ids=torch.tensor([positions + [0] * padding], device=self._device),
                use_cache=False,
                output_hidden_states=deep,
                **options,
            )
            logits = out.logits[0] if self._picks else out.logits[0, picked]
            n = len(wanted)
            return logits[:n], torch.stack(
                [each[0, picked[:n]] for each in out.hidden_states], 1
            ) if deep else None

    # --- setting up a loaded model -----------------------------------------------------------------------

    def _attend_in_blocks(self) -> None:
        transformers.AttentionInterface.register(NAME, attend)
        with contextlib.suppress(ValueError):
            self._model.set_attn_implementation(NAME)
        if self._model.config._attn_implementation != NAME:
            raise ModelError(f"the attention of {type(self._model).__name__} cannot be replaced")
        # Keep the last hidden state before the final norm: the last layer's output, as for every other layer.
        self._model.config.tie_last_hidden_states = False

    def _logits_without_blocks(self, ids: list[int]) -> np.ndarray:
        """Return logits float32 `[n, vocabulary]` of the model as transformers loads it."""
        with torch.inference_mode():
            out = self._model(input_ids=torch.tensor([ids], device=self._device), use_cache=False)
        return np.asarray(out.logits[0].float().cpu().numpy())

    def _probe_shapes(self, ids: list[int]) -> ShapeProbe:
        probe = ShapeProbe()
        with running(probe):
            _, hidden = self._compute(ids, list(range(len(ids))), [0], True)
        layers = int(self._model.config.num_hidden_layers)
        if hidden.shape[1] != 1 + layers:
            raise ModelError(f"it shows {hidden.shape[1]} hidden states of {layers} layers")
        if sorted(probe.keys) != list(range(layers)):
            raise ModelError(f"of its {layers} layers {len(probe.keys)} keep keys and values")
        return probe

    def _allocate(self, probe: ShapeProbe, cache_bytes: int | None) -> BlockStore:
        dtype = self._model.dtype
        shapes = (*probe.keys.values(), *probe.values.values())
        block = BLOCK * dtype.itemsize * sum(heads * size for heads, size in shapes)
        if cache_bytes is None:
            on_gpu = self._device.type == "cuda"
            cache_bytes = int(torch.cuda.mem_get_info(self._device)[0] * GPU_SHARE) if on_gpu else CACHE_BYTES
        return BlockStore(probe, max(cache_bytes // block, 8), dtype, self._device)

    def _check_against(self, whole: np.ndarray, ids: list[int]) -> None:
        """Process the same tokens in chunks and branches, and compare the logits. Raises `ModelError`."""
        first, second = CachedSequence(), CachedSequence()
        cut, fork = 37, 50
        (head,) = self.forward([Row(first, ids[:cut], range(cut))])
        second = self.pool.fork(first, cut)
        rest = [
            Row(first, ids[cut:fork], range(fork - cut)),
            Row(second, ids[cut:], range(CHECKED_TOKENS - cut)),
        ]
        short, long = self.forward(rest)
        found = np.concatenate([head.logits, long.logits])
        difference = max(
            float(np.abs(log_softmax(found) - log_softmax(whole)).mean()),
            float(np.abs(log_softmax(short.logits) - log_softmax(whole[cut:fork])).mean()),
        )
        self.pool.drop(first)
        self.pool.drop(second)
        self.seconds = 0.0
        if not difference < TOLERANCE.get(self._model.dtype, max(TOLERANCE.values())):
            raise ModelError(
                f"its answers differ from those without a cache by {difference:.2g} nats on average; it "
                "stores more than keys and values"
            )


def _flat(rows: list[Row]) -> tuple[list[int], list[int], list[int]]:
    """Return the rows' tokens concatenated, their positions, and the indices of the wanted ones."""
    ids: list[int] = []
    positions: list[int] = []
    wanted: list[int] = []
    for row in rows:
        wanted += [len(ids) + at for at in row.wanted]
        positions += range(row.sequence.length, row.sequence.length + len(row.tokens))
        ids += row.tokens
    return ids, positions, wanted
