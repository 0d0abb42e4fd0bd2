"""A model in OpenVINO with a paged key–value cache and raw logits for the rows that are wanted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from magistrate.engines.local.blocks import BLOCK, BlockPool, Sequence
from magistrate.engines.quiet import import_openvino
from magistrate.errors import ModelError

PRECISION = "f32"
CACHE_PRECISION = "f16"
INPUTS = {
    "input_ids",
    "position_ids",
    "past_lens",
    "subsequence_begins",
    "block_indices",
    "block_indices_begins",
    "max_context_len",
}
WANTED = "sampled_tokens_indices"


@dataclass(frozen=True, slots=True)
class Row:
    """`tokens` to append to `sequence`; `wanted` are the positions among them whose logits are needed."""

    sequence: Sequence
    tokens: list[int]
    wanted: range


class Backend(Protocol):
    """What the scheduler needs of a model."""

    vocabulary: int
    pool: BlockPool

    def forward(self, rows: list[Row]) -> list[np.ndarray]:
        """Append every row's tokens; answer its wanted logits as float32 `[len(wanted), vocabulary]`."""
        ...


class OpenVINOBackend:
    """Loads `openvino_model.xml` from `folder`, rewritten for paged attention.

    `cache_bytes` bounds the key–value cache. Raises `ModelError` where the model is not one that
    this rewrite understands.
    """

    def __init__(self, folder: Path, *, device: str, threads: int, cache_bytes: int) -> None:
        openvino = import_openvino()
        core = openvino.Core()
        if device.split(".")[0].split(":")[0] not in {name.split(".")[0] for name in core.available_devices}:
            raise ModelError(
                f"device {device!r} is not here; OpenVINO finds: {', '.join(core.available_devices)}"
            )
        try:
            model = core.read_model(folder / "openvino_model.xml")
            _page_attention(model)
            _gather_before_head(model)
            config = {
                "PERFORMANCE_HINT": "LATENCY",
                "KV_CACHE_PRECISION": CACHE_PRECISION,
                # Otherwise some processors compute in bf16, and verdicts depend on the machine.
                "INFERENCE_PRECISION_HINT": PRECISION,
                # Two single-threaded processes would otherwise pin themselves to the same core.
                "ENABLE_CPU_PINNING": False,
                "INFERENCE_NUM_THREADS": threads,
                "NUM_STREAMS": 1,
            }
            compiled = core.compile_model(model, device, config if device == "CPU" else {})
        except RuntimeError as error:
            raise ModelError(f"OpenVINO cannot load {folder}: {str(error).strip()[:400]}") from error
        self._names = {port.get_any_name() for port in compiled.inputs}
        if missing := INPUTS - self._names:
            raise ModelError(
                f"{folder} is not a causal language model: it lacks the inputs {sorted(missing)}"
            )
        self._tensor = openvino.Tensor
        self._request = compiled.create_infer_request()
        self._caches = _allocate_caches(openvino, compiled, self._request, cache_bytes)
        self.vocabulary = int(compiled.outputs[0].get_partial_shape()[-1].get_length())
        self.pool = BlockPool(len(self._caches[0]), self._copy_block)

    def forward(self, rows: list[Row]) -> list[np.ndarray]:
        padded = sum(len(row.tokens) for row in rows) == 1
        if padded:
            # A lone token takes another kernel whose last bits differ, so it gets company.
            rows = [*rows, Row(Sequence(), rows[0].tokens, range(0))]
        try:
            feeds, counts = self._feeds(rows)
            for name, values in feeds.items():
                self._request.set_tensor(name, self._tensor(values))
            self._request.infer()
            logits = self._request.get_output_tensor(0).data
            # The tensor is overwritten by the next forward, so what is handed out is a copy.
            logits = (
                logits.reshape(-1, self.vocabulary).copy() if logits.size else np.empty((0, self.vocabulary))
            )
        finally:
            if padded:
                self.pool.drop(rows[-1].sequence)
        pieces = np.split(logits.astype(np.float32, copy=False), np.cumsum(counts)[:-1])
        return pieces[: len(rows) - padded]

    def _feeds(self, rows: list[Row]) -> tuple[dict[str, np.ndarray], list[int]]:
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
        feeds: dict[str, np.ndarray] = {
            "input_ids": np.array(ids, np.int64),
            "position_ids": np.array(positions, np.int64),
            "past_lens": np.array(past, np.int32),
            "subsequence_begins": np.array(begins, np.int32),
            "block_indices": np.array(blocks, np.int32),
            "block_indices_begins": np.array(block_begins, np.int32),
            "max_context_len": np.array(longest, np.int32),
            WANTED: np.array(wanted, np.int64),
        }
        return feeds, [len(row.wanted) for row in rows]

    def _copy_block(self, source: int, target: int) -> None:
        for cache in self._caches:
            cache[target] = cache[source]


def _page_attention(model: Any) -> None:
    from openvino._offline_transformations import paged_attention_transformation

    paged_attention_transformation(model)


def _gather_before_head(model: Any) -> None:
    """Compute logits for wanted rows only: a Gather before the last matrix product."""
    from openvino import opset13 as ops

    node = model.get_results()[0].input_value(0).get_node()
    while node.get_type_name() != "MatMul":
        node = node.input_value(0).get_node()
    wanted = ops.parameter([-1], np.int64, name=WANTED)
    wanted.output(0).set_names({WANTED})
    gathered = ops.gather(node.input_value(0), wanted, ops.constant(0, np.int64))
    node.input(0).replace_source_output(gathered.output(0))
    model.add_parameters([wanted])
    model.validate_nodes_and_infer_types()


def _allocate_caches(openvino: Any, compiled: Any, request: Any, cache_bytes: int) -> list[np.ndarray]:
    """One array `[blocks, heads, BLOCK, head_size]` for every layer's keys and values."""
    ports = [port for port in compiled.inputs if "_cache." in port.get_any_name()]
    shapes = [[d.get_length() for d in list(port.get_partial_shape())[1:]] for port in ports]
    if not ports or any(len(shape) != 3 or shape[1] != BLOCK for shape in shapes):
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
