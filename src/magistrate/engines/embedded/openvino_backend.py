"""A model in OpenVINO, rewritten for paged attention, that returns only the logits of the wanted rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from magistrate.engines.disable_telemetry import import_openvino
from magistrate.engines.embedded.backend import Row, RowOutput, do_nothing
from magistrate.engines.embedded.prefix_cache import BLOCK, BlockPool, CachedSequence, PrefixCache
from magistrate.engines.models.folder import ModelCard
from magistrate.engines.models.selftest import problem
from magistrate.errors import ModelError

PRECISION = "f32"
CACHE_PRECISION = "f16"
ACTIVATION_GROUP = 32  # activations that share a scale when multiplied with 8-bit weights
WANTED = "sampled_tokens_indices"
HIDDEN = "hidden_states"
INPUTS = {
    "input_ids",
    "position_ids",
    "past_lens",
    "subsequence_begins",
    "block_indices",
    "block_indices_begins",
    "max_context_len",
}


def load(
    folder: Path, card: ModelCard, *, device: str, threads: int, cache_bytes: int, hidden_states: bool
) -> OpenVINOBackend:
    """Load a model and run its self-test if the catalogue has one.

    Raises `ModelError` if the test fails: a wrong build or a damaged file must be an error, never a wrong
    verdict.
    """
    backend = OpenVINOBackend(
        folder, device=device, threads=threads, cache_bytes=cache_bytes, hidden_states=hidden_states
    )
    if card.vocab_size not in (None, backend.vocabulary):
        raise ModelError(
            f"{folder} declares a vocabulary of {card.vocab_size} tokens, but the model returns "
            f"{backend.vocabulary} logits; pull or download it again"
        )
    if found := _selftest_problem(backend, card):
        raise ModelError(
            f"{card.name} fails its self-test on {device}: {found}. Its files are damaged, or this OpenVINO "
            "computes wrong results: pull it again, or install the versions that the 'local' extra pins"
        )
    return backend


def _selftest_problem(backend: OpenVINOBackend, card: ModelCard) -> str | None:
    """Return the reason why the model fails its self-test; None if it passes or has none."""
    test = card.selftest
    if test is None:
        return None
    sequence = CachedSequence()
    (output,) = backend.forward([Row(sequence, list(test.tokens), range(len(test.tokens)))])
    found = problem(test, output.logits[list(test.positions)])
    backend.pool.drop(sequence)
    return found


class OpenVINOBackend:
    """Loads `openvino_model.xml` from `folder` and rewrites it for paged attention.

    `cache_bytes` limits the key-value cache. Raises `ModelError` for a model that the rewrite does not
    support.
    """

    def __init__(
        self, folder: Path, *, device: str, threads: int, cache_bytes: int, hidden_states: bool = False
    ) -> None:
        openvino = import_openvino()
        core = openvino.Core()
        if device.split(".")[0].split(":")[0] not in {name.split(".")[0] for name in core.available_devices}:
            raise ModelError(
                f"device {device!r} does not exist; OpenVINO finds: {', '.join(core.available_devices)}"
            )
        try:
            model = core.read_model(folder / "openvino_model.xml")
            use_paged_attention(model, hidden_states=hidden_states)
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
        self.prefixes = PrefixCache(self.pool)

    def forward(self, rows: list[Row], meanwhile: Callable[[], None] = do_nothing) -> list[RowOutput]:
        total = sum(len(row.tokens) for row in rows)
        padding = Row(CachedSequence(), [0] * (rounded(total) - total), range(0))
        try:
            feeds = self._feeds([*rows, padding] if padding.tokens else rows)
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
            self.pool.drop(padding.sequence)
        return self._outputs([len(row.wanted) for row in rows])

    def _outputs(self, counts: list[int]) -> list[RowOutput]:
        if not sum(counts):
            return [RowOutput(np.empty((0, self.vocabulary), np.float32), None) for _ in counts]
        # Not copied: 16 rows of a large vocabulary take several megabytes.
        logits = self._request.get_output_tensor(0).data.reshape(-1, self.vocabulary)
        logits = logits.astype(np.float32, copy=False)
        hidden = self._request.get_output_tensor(1).data if self._hidden_states else None
        outputs, start = [], 0
        for count in counts:
            own = slice(start, start + count)
            outputs.append(RowOutput(logits[own], None if hidden is None else hidden[own]))
            start += count
        return outputs

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
    """Return the size to which a batch of `n` tokens is padded: 2, 4, 8, then multiples of 8; 0 stays 0.

    A single token uses another kernel, whose last bits differ. And OpenVINO compiles and keeps kernels for
    every new size, which takes longer than computing a few more tokens.
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
    """Allocate arrays `[blocks, heads, BLOCK, head_size]`, two per layer: for keys and for values."""
    ports = [port for port in compiled.inputs if "_cache." in port.get_any_name()]
    layouts = [list(port.get_partial_shape())[1:] for port in ports]
    shapes = [[size.get_length() if size.is_static else -1 for size in layout] for layout in layouts]
    if not ports or any(len(shape) != 3 or shape[1] != BLOCK or min(shape) < 1 for shape in shapes):
        raise ModelError(
            f"the cache of this OpenVINO build has the layout {shapes[:2]}, not [heads, {BLOCK}, head size]; "
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


# --- rewriting the model ---------------------------------------------------------------------------


def use_paged_attention(model: Any, *, hidden_states: bool) -> None:
    """Rewrite `model` in place so that its first output is the logits `[wanted, (1,) vocabulary]`.

    With `hidden_states`, a second output `[wanted, 1 + layers, width]` contains the residual stream: the
    embedding, then each layer's output.
    """
    from openvino import opset13 as ops
    from openvino._offline_transformations import paged_attention_transformation

    paged_attention_transformation(model)
    head = model.get_results()[0].input_value(0).get_node()
    while head.get_type_name() != "MatMul":
        if not head.get_input_size():
            raise ModelError(
                "this model has no matrix product before its output, so it is not a language model"
            )
        head = head.input_value(0).get_node()
    wanted = ops.parameter([-1], np.int64, name=WANTED)
    wanted.output(0).set_names({WANTED})
    rows = ops.constant(0, np.int64)
    if hidden_states:
        states = [ops.gather(state, wanted, rows) for state in _residual_stream(model, head)]
        stacked = ops.concat([ops.reshape(state, ops.constant([0, 1, -1]), True) for state in states], 1)
        stacked.output(0).set_names({HIDDEN})
        model.add_results([ops.result(stacked)])
    head.input(0).replace_source_output(ops.gather(head.input_value(0), wanted, rows).output(0))
    model.add_parameters([wanted])
    model.validate_nodes_and_infer_types()


def _residual_stream(model: Any, head: Any) -> list[Any]:
    """Return the inputs of all layers and the output of the last one.

    Every layer normalizes the stream twice, before attention and before its feed-forward part, and the
    output head does so once more. A root-mean-square norm begins with a square, which identifies it.
    """
    width = head.input_value(0).get_partial_shape()[-1]
    squared = [
        node.input_value(0)
        for node in model.get_ordered_ops()
        if node.get_type_name() == "Power" and node.get_output_partial_shape(0)[-1] == width
    ]
    attentions = sum(node.get_type_name() == "PagedAttentionExtension" for node in model.get_ordered_ops())
    if len(squared) != 2 * attentions + 1:
        raise ModelError(
            f"hidden states cannot be found: {len(squared)} norms for {attentions} layers; "
            "load this model without hidden_states"
        )
    return squared[::2]
