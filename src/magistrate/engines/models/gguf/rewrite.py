"""Rewrite a GGUF of any quantization so that OpenVINO's importer reads it correctly.

The importer reads F16 and Q8_0 correctly. It misreads Q4_1, fails on Q5_0 (which files called Q4_K_M
contain) and on most K-quants, and silently ignores unknown tensors and settings. So every matrix becomes
Q8_0 unless it is already F16 or Q8_0, everything else becomes F32, and anything that would be ignored is an
error here.

With f16 weights a matrix gets the values of its Q8_0 form, rounded to F16, so that both kinds of weights
are the same model with the same self-test. A few matrices become F16 with q8 weights too: OpenVINO
quantizes the activations that are multiplied with 8-bit weights, and the error of these products would
reach the logits undamped (docs/design/007-spared-matrices.md).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from magistrate.engines.models.catalogue import Weights
from magistrate.engines.models.disk import Report
from magistrate.engines.models.updates import NO_UPDATES, Update
from magistrate.errors import MissingExtra, ModelError

if TYPE_CHECKING:
    import numpy as np

ARCHITECTURES = ("llama", "qwen2", "qwen3")
ROPE_FACTORS = "rope_freqs.weight"
_KNOWN = re.compile(
    r"(token_embd|output_norm|rope_freqs)\.weight|output\.(weight|bias)"
    r"|blk\.\d+\.(attn_norm|ffn_norm|attn_q_norm|attn_k_norm)\.weight"
    r"|blk\.\d+\.(attn_q|attn_k|attn_v|attn_output|ffn_gate|ffn_up|ffn_down)\.(weight|bias)"
)
_SKIPPED = ("general.architecture", "general.file_type", "general.quantization_version")
_SLICE = 1 << 24  # weights converted to 32-bit floats at a time
_FILE_TYPES: Mapping[Weights, int] = {"q8": 7, "f16": 1}


@dataclass(frozen=True, slots=True)
class Source:
    """A GGUF opened for reading: its metadata as plain values and its tensors, memory-mapped, not loaded."""

    path: Path
    architecture: str
    metadata: Mapping[str, Any]
    fields: Mapping[str, Any]
    tensors: tuple[Any, ...]

    @property
    def context_length(self) -> int:
        """The longest text that the model was trained for, in tokens."""
        return int(self.metadata[f"{self.architecture}.context_length"])

    @property
    def head_size(self) -> int:
        """The width of one attention head."""
        known, prefix = self.metadata, f"{self.architecture}."
        usual = known[f"{prefix}embedding_length"] // known[f"{prefix}attention.head_count"]
        return int(known.get(f"{prefix}attention.key_length", usual))

    @property
    def vocab_size(self) -> int:
        """The number of rows of the embedding table, which is the width of the logits."""
        table = next(tensor for tensor in self.tensors if tensor.name == "token_embd.weight")
        return int(table.shape[1])


def opened(path: Path) -> Source:
    """Open a GGUF and check that the importer supports all of it. Raises `ModelError`."""
    try:
        from gguf import GGUFReader
    except ModuleNotFoundError:
        raise MissingExtra("gguf", "local") from None
    try:
        reader = GGUFReader(path)
        fields = {name: field for name, field in reader.fields.items() if not name.startswith("GGUF.")}
        metadata = {name: field.contents() for name, field in fields.items()}
    except Exception as error:  # untrusted bytes: the reader may raise anything
        raise ModelError(
            f"{path.name} cannot be read as GGUF ({type(error).__name__}: {error}): it is damaged, "
            "incomplete, or another format; download it again"
        ) from error
    architecture = str(metadata.get("general.architecture", ""))
    source = Source(path, architecture, metadata, fields, tuple(reader.tensors))
    _check(source)
    return source


def _check(source: Source) -> None:
    name, architecture = source.path.name, source.architecture
    advice = "use an OpenVINO folder of this model instead"
    if architecture not in ARCHITECTURES:
        raise ModelError(
            f"{name} has the architecture {architecture!r}; supported are {', '.join(ARCHITECTURES)}; "
            f"{advice}"
        )
    known = {key.removeprefix(f"{architecture}."): value for key, value in source.metadata.items()}
    if known.get("split.count", 0) > 1:
        raise ModelError(f"{name} is one part of a split GGUF; merge the parts first, or {advice}")
    unread = sorted({tensor.name for tensor in source.tensors if not _KNOWN.fullmatch(tensor.name)})
    if unread:
        raise ModelError(f"{name} has parts that OpenVINO would ignore ({', '.join(unread[:3])}); {advice}")
    scaling = known.get("rope.scaling.type", "none")
    if scaling != "none":
        raise ModelError(f"{name} scales positions by {scaling!r}, which OpenVINO would ignore; {advice}")
    needed = ("block_count", "context_length", "embedding_length", "attention.head_count")
    missing = [key for key in needed if key not in known]
    if missing or not any(tensor.name == "token_embd.weight" for tensor in source.tensors):
        raise ModelError(f"{name} lacks {', '.join(missing) or 'its embedding table'}: it is damaged")
    if known.get("rope.dimension_count", source.head_size) != source.head_size:
        raise ModelError(f"{name} rotates only a part of each head, which OpenVINO would ignore; {advice}")


def bytes_needed(source: Source, weights: Weights) -> int:
    """Return the bytes needed for the rewritten file and the imported one."""
    return int(sum(plan.nbytes for plan in _plans(source, weights)) * 2.1) + (64 << 20)


def frequencies(source: Source) -> np.ndarray:
    """Return the rotary frequencies in radians per position: float32 `[head_size / 2]`."""
    import numpy as np

    half = source.head_size // 2
    base = float(source.metadata.get(f"{source.architecture}.rope.freq_base", 10_000.0))
    turns = base ** (-np.arange(half) / half)
    for tensor in source.tensors:
        if tensor.name == ROPE_FACTORS:
            turns = turns / np.asarray(tensor.data, dtype=np.float64).reshape(half)
    return turns.astype(np.float32)


def rewrite(
    source: Source, target: Path, weights: Weights, report: Report, updates: Mapping[str, Update] = NO_UPDATES
) -> None:
    """Write `source` to `target` for the importer, one tensor after the other; reports the stage `convert`.

    `updates` are added to the matrices with those names. Raises `ModelError` if the model has no such
    matrix. Memory use is one rewritten tensor (at most the embedding table) and a slice of it in floats.
    """
    from gguf import GGUFValueType, GGUFWriter

    writer = GGUFWriter(target, source.architecture)
    for name, field in source.fields.items():
        if name not in _SKIPPED:
            kind = field.types[0]
            nested = field.types[-1] if kind == GGUFValueType.ARRAY else None
            writer.add_key_value(name, source.metadata[name], kind, sub_type=nested)
    writer.add_file_type(_FILE_TYPES[weights])
    writer.add_quantization_version(2)
    if unknown := sorted(updates.keys() - {tensor.name for tensor in source.tensors}):
        raise ModelError(f"{source.path.name} has no {unknown[0]} to update: it is another model")
    plans = _plans(source, weights, updates)
    for plan in plans:
        writer.add_tensor_info(plan.name, plan.shape, plan.dtype, plan.nbytes, plan.raw)
    total, done = sum(plan.nbytes for plan in plans), 0
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for plan in plans:
            writer.write_tensor_data(plan.read())
            done += plan.nbytes
            report("convert", done, total)
    finally:
        writer.close()


@dataclass(frozen=True, slots=True)
class _Plan:
    """How one tensor will be written: `shape` and `dtype` of the array that `read` returns."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    nbytes: int
    raw: Any
    read: Callable[[], np.ndarray]


def _plans(source: Source, weights: Weights, updates: Mapping[str, Update] = NO_UPDATES) -> list[_Plan]:
    return [
        _plan(tensor, "f16" if _keeps_f16(source, tensor.name) else weights, updates.get(tensor.name))
        for tensor in source.tensors
        if tensor.name != ROPE_FACTORS
    ]


def _keeps_f16(source: Source, name: str) -> bool:
    """Return whether a matrix is F16 even with q8 weights: head, value projections, the last layer."""
    layer = re.match(r"blk\.(\d+)\.", name)
    if layer is None:
        tied = all(tensor.name != "output.weight" for tensor in source.tensors)
        return name == ("token_embd.weight" if tied else "output.weight")
    last = int(source.metadata[f"{source.architecture}.block_count"]) - 1
    return int(layer[1]) == last or name.endswith(".attn_v.weight")


def _plan(tensor: Any, weights: Weights, update: Update | None) -> _Plan:
    import numpy as np
    from gguf import GGMLQuantizationType
    from gguf.quants import quant_shape_to_byte_shape

    f32, f16, q8 = (GGMLQuantizationType[name] for name in ("F32", "F16", "Q8_0"))
    shape = tuple(int(size) for size in reversed(tensor.shape))
    matrix = len(shape) >= 2
    kept = ((f16, q8) if weights == "q8" else (f16,)) if matrix else (f32,)
    if tensor.tensor_type in kept and update is None:
        data = tensor.data
        return _Plan(
            tensor.name, data.shape, data.dtype, int(tensor.n_bytes), tensor.tensor_type, lambda: data
        )
    if matrix and weights == "q8" and shape[-1] % 32 == 0:
        stored = quant_shape_to_byte_shape(shape, q8)
        size = int(np.prod(stored))
        return _Plan(
            tensor.name,
            stored,
            np.dtype(np.uint8),
            size,
            q8,
            lambda: _to_q8(tensor, stored, q8, update),
        )
    size = int(np.prod(shape)) * (2 if matrix else 4)
    if matrix:
        return _Plan(
            tensor.name,
            shape,
            np.dtype(np.float16),
            size,
            f16,
            lambda: _to_f16(tensor, shape, q8, update),
        )
    return _Plan(tensor.name, shape, np.dtype(np.float32), size, f32, lambda: _to_f32(tensor.data, tensor))


def _to_q8(tensor: Any, stored: tuple[int, ...], q8: Any, update: Update | None) -> np.ndarray:
    import numpy as np
    from gguf.quants import quantize

    out = np.empty(stored, np.uint8)
    for part in _row_slices(tensor):
        out[part] = quantize(_with_update(tensor, part, update), q8)
    return out


def _to_f16(tensor: Any, shape: tuple[int, ...], q8: Any, update: Update | None) -> np.ndarray:
    """Return the matrix with its Q8_0 values (if its width allows that format), rounded to 16 bits."""
    import numpy as np
    from gguf.quants import dequantize, quantize

    rounded = (tensor.tensor_type != q8 or update is not None) and shape[-1] % 32 == 0
    out = np.empty(shape, np.float16)
    for part in _row_slices(tensor):
        values = _with_update(tensor, part, update)
        if rounded:
            values = dequantize(quantize(values, q8), q8)
        if np.abs(values).max(initial=0.0) > np.finfo(np.float16).max:
            raise ModelError(f"the tensor {tensor.name} has weights too large for 16 bits; use q8 weights")
        out[part] = values
    return out


def _with_update(tensor: Any, part: slice, update: Update | None) -> np.ndarray:
    """Return some rows of a matrix in f32, with its update added."""
    values = _to_f32(tensor.data[part], tensor)
    return values if update is None else values + update.rows(part)


def _row_slices(tensor: Any) -> Iterator[slice]:
    """Yield slices of a matrix's rows that are small enough for a copy in floats."""
    rows, width = int(tensor.shape[1]), int(tensor.shape[0])
    step = max(1, _SLICE // width)
    return (slice(start, start + step) for start in range(0, rows, step))


def _to_f32(data: np.ndarray, tensor: Any) -> np.ndarray:
    import numpy as np
    from gguf.quants import dequantize

    try:
        return np.ascontiguousarray(dequantize(data, tensor.tensor_type), dtype=np.float32)
    except NotImplementedError as error:
        raise ModelError(
            f"the tensor {tensor.name} is quantized as {tensor.tensor_type.name}, which cannot be read; "
            "use a Q8_0, Q4_K_M or F16 file of this model"
        ) from error
