"""A model in OpenVINO with a paged key–value cache and raw logits for the rows that are wanted."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from magistrate.engines.disable_telemetry import import_openvino
from magistrate.engines.local.backend import Answer, Row, nothing
from magistrate.engines.local.blocks import BLOCK, BlockPool, Sequence
from magistrate.engines.local.paged import WANTED, page
from magistrate.engines.local.tree import PrefixTree
from magistrate.errors import ModelError

PRECISION = "f32"
CACHE_PRECISION = "f16"
ACTIVATION_GROUP = 32  # activations that share a scale where they meet 8-bit weights
INPUTS = {
    "input_ids",
    "position_ids",
    "past_lens",
    "subsequence_begins",
    "block_indices",
    "block_indices_begins",
    "max_context_len",
}


class OpenVINOBackend:
    """Loads `openvino_model.xml` from `folder`, rewritten for paged attention.

    `cache_bytes` bounds the key–value cache. Raises `ModelError` where the model is not one that
    this rewrite understands.
    """

    def __init__(
        self, folder: Path, *, device: str, threads: int, cache_bytes: int, hidden_states: bool = False
    ) -> None:
        openvino = import_openvino()
        core = openvino.Core()
        if device.split(".")[0].split(":")[0] not in {name.split(".")[0] for name in core.available_devices}:
            raise ModelError(
                f"device {device!r} is not here; OpenVINO finds: {', '.join(core.available_devices)}"
            )
        try:
            model = core.read_model(folder / "openvino_model.xml")
            page(model, hidden_states=hidden_states)
            compiled = core.compile_model(model, device, _configuration(threads) if device == "CPU" else {})
        except RuntimeError as error:
            raise ModelError(f"OpenVINO cannot load {folder}: {str(error).strip()[:400]}") from error
        self._ports = {port.get_any_name(): port for port in compiled.inputs}
        if missing := INPUTS - self._ports.keys():
            raise ModelError(
                f"{folder} is not a causal language model: it lacks the inputs {sorted(missing)}"
            )
        self.seconds = 0.0
        self._tensor = openvino.Tensor
        self._hidden_states = hidden_states
        self._request = compiled.create_infer_request()
        self._caches = _allocate_caches(openvino, compiled, self._request, cache_bytes)
        self.vocabulary = int(compiled.outputs[0].get_partial_shape()[-1].get_length())
        self.pool = BlockPool(len(self._caches[0]), self._copy_block)
        self.prefixes = PrefixTree(self.pool)

    def forward(self, rows: list[Row], meanwhile: Callable[[], None] = nothing) -> list[Answer]:
        total = sum(len(row.tokens) for row in rows)
        company = Row(Sequence(), [0] * (rounded(total) - total), range(0))
        try:
            feeds = self._feeds([*rows, company] if company.tokens else rows)
            for name, values in feeds.items():
                self._request.set_tensor(self._ports[name], self._tensor(values, shared_memory=True))
            start = time.perf_counter()
            self._request.start_async()
            try:
                meanwhile()
            finally:
                self._request.wait()
                self.seconds += time.perf_counter() - start
        finally:
            self.pool.drop(company.sequence)
        return self._answers([len(row.wanted) for row in rows])

    def _answers(self, counts: list[int]) -> list[Answer]:
        if not sum(counts):
            return [Answer(np.empty((0, self.vocabulary), np.float32), None) for _ in counts]
        # Not copied: 16 rows of a large vocabulary are several megabytes.
        logits = self._request.get_output_tensor(0).data.reshape(-1, self.vocabulary)
        logits = logits.astype(np.float32, copy=False)
        hidden = self._request.get_output_tensor(1).data if self._hidden_states else None
        answers, start = [], 0
        for count in counts:
            own = slice(start, start + count)
            answers.append(Answer(logits[own], None if hidden is None else hidden[own]))
            start += count
        return answers

    def _feeds(self, rows: list[Row]) -> Mapping[str, np.ndarray]:
        ids: list[int] = []
        positions: list[int] = []
        past: list[int] = []
        begins, block_begins = [0], [0]
        blocks: list[int] = []
        wanted: list[int] = []
        longest = 0
        for row in rows:
            self.pool.extend(row.sequence, len(row.tokens))
        for row in rows:
            sequence, start = row.sequence, len(ids)
            ids += row.tokens
            positions += range(sequence.length, sequence.length + len(row.tokens))
            past.append(sequence.length)
            begins.append(len(ids))
            sequence.length += len(row.tokens)
            blocks += sequence.blocks
            block_begins.append(len(blocks))
            longest = max(longest, sequence.length)
            wanted += [start + index for index in row.wanted]
        wanted += wanted[-1:] * (rounded(len(wanted)) - len(wanted))
        return {
            "input_ids": np.array(ids, np.int64),
            "position_ids": np.array(positions, np.int64),
            "past_lens": np.array(past, np.int32),
            "subsequence_begins": np.array(begins, np.int32),
            "block_indices": np.array(blocks, np.int32),
            "block_indices_begins": np.array(block_begins, np.int32),
            "max_context_len": np.array(longest, np.int32),
            WANTED: np.array(wanted, np.int64),
        }

    def _copy_block(self, source: int, target: int) -> None:
        for cache in self._caches:
            cache[target] = cache[source]


def rounded(n: int) -> int:
    """The next size that is computed: 2, 4, 8, then every multiple of 8; 0 stays 0.

    A lone token takes another kernel, whose last bits differ, so it gets company. And for every size that
    it has not met, OpenVINO compiles kernels, which takes longer than a few tokens more, and keeps them.
    """
    if n <= 8:
        return 1 << max(n - 1, 1).bit_length() if n else 0
    return -(-n // 8) * 8


def _configuration(threads: int) -> dict[str, Any]:
    return {
        "PERFORMANCE_HINT": "LATENCY",
        "KV_CACHE_PRECISION": CACHE_PRECISION,
        # Otherwise some processors compute in bf16, and verdicts depend on the machine.
        "INFERENCE_PRECISION_HINT": PRECISION,
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": ACTIVATION_GROUP,
        # Two single-threaded processes would otherwise pin themselves to the same core.
        "ENABLE_CPU_PINNING": False,
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
    }


def _allocate_caches(openvino: Any, compiled: Any, request: Any, cache_bytes: int) -> list[np.ndarray]:
    """One array `[blocks, heads, BLOCK, head_size]` for every layer's keys and values."""
    ports = [port for port in compiled.inputs if "_cache." in port.get_any_name()]
    layouts = [list(port.get_partial_shape())[1:] for port in ports]
    shapes = [[size.get_length() if size.is_static else -1 for size in layout] for layout in layouts]
    if not ports or any(len(shape) != 3 or shape[1] != BLOCK or min(shape) < 1 for shape in shapes):
        raise ModelError(
            f"this OpenVINO build lays out its cache as {shapes[:2]}, not [heads, {BLOCK}, head size]; "
            "install the version that the 'local' extra pins"
        )
    itemsize: Callable[[Any], int] = lambda port: port.get_element_type().size  # noqa: E731
    block_bytes = sum(int(np.prod(shape)) * itemsize(port) for port, shape in zip(ports, shapes, strict=True))
    blocks = max(cache_bytes // block_bytes, 4)
    caches = []
    for port, shape in zip(ports, shapes, strict=True):
        tensor = openvino.Tensor(port.get_element_type(), openvino.Shape([blocks, *shape]))
        tensor.data[...] = 0
        request.set_tensor(port.get_any_name(), tensor)
        caches.append(tensor.data)
    return caches
