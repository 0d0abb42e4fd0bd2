"""A detector's network, a BERT encoder with a head on each token, as an OpenVINO graph."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from magistrate.engines.disable_telemetry import import_openvino
from magistrate.engines.embedded.cores import available_cores
from magistrate.errors import ModelError

if TYPE_CHECKING:
    import numpy as np

Weights = Mapping[str, "np.ndarray"]
SCALE = ".scale"  # of a matrix of 8-bit integers: what each of its rows is multiplied by
LEAST_ROWS = 8  # of a matrix that is kept as 8-bit integers: heads are not
LEAST_SCALE = 1e-6  # float16 has no much smaller number


def read_weights(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a safetensors file by their names. Raises `ModelError` for another file."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        return dict(load_file(path))
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{path} cannot be read as weights: {error}") from None


def write_weights(weights: Weights, path: Path) -> None:
    """Write float arrays as safetensors: matrices as 8-bit integers with scales, all else as float16."""
    import numpy as np
    from safetensors.numpy import save_file

    found: dict[str, np.ndarray] = {}
    for name, value in weights.items():
        if value.ndim == 2 and value.shape[0] >= LEAST_ROWS:
            found[name], found[name + SCALE] = rounded(value)
        else:
            found[name] = value.astype(np.float16)
    save_file(found, path)


def rounded(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A float matrix as 8-bit integers in [-127, 127] and the float16 scale of each row."""
    import numpy as np

    scale = np.maximum(np.abs(matrix).max(axis=1, keepdims=True) / 127, LEAST_SCALE).astype(np.float16)
    return np.clip(np.rint(matrix / scale.astype(np.float32)), -127, 127).astype(np.int8), scale


def float_weights(weights: Weights) -> dict[str, np.ndarray]:
    """The weights as float32, scales multiplied in."""
    import numpy as np

    return {
        name: value.astype(np.float32)
        * (weights[name + SCALE].astype(np.float32) if name + SCALE in weights else 1)
        for name, value in weights.items()
        if not name.endswith(SCALE)
    }


def cpu_settings() -> dict[str, Any]:
    """How OpenVINO compiles a network for the CPU: one pass at a time, on all cores."""
    return {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": available_cores(),
        "ENABLE_CPU_PINNING": False,
    }


def graph(weights: Weights, heads: int) -> Any:
    """The network: int64 `ids`, `types`, `mask` `[batch, length]` to float32 `logits` `[batch, length, 4]`.

    `heads` is how many attention heads a layer has. Raises `ModelError` where a weight is missing or has a
    shape that does not fit.
    """
    try:
        return _Builder(weights, heads).model()
    except KeyError as error:
        raise ModelError(f"the weights of the detector lack {error}") from None
    except (RuntimeError, ValueError) as error:
        raise ModelError(f"the weights of the detector do not fit together: {error}") from None


class _Builder:
    """Puts the graph together, layer by layer."""

    def __init__(self, weights: Weights, heads: int) -> None:
        import numpy as np

        self.openvino = import_openvino()
        from openvino import opset13 as ops

        self._np, self._ops, self._weights, self._heads = np, ops, weights, heads

    def model(self) -> Any:
        np, ops = self._np, self._ops
        ids, types, mask = (ops.parameter([-1, -1], np.int64, name=name) for name in ("ids", "types", "mask"))
        hidden = self._embedded(ids, types)
        shape = ops.unsqueeze(ops.unsqueeze(ops.convert(mask, "f32"), 1), 1)
        hidden_from = ops.multiply(ops.subtract(shape, np.float32(1)), np.float32(1e9))
        layer = 0
        while f"encoder.encoder.layer.{layer}.output.dense.weight" in self._weights:
            hidden = self._layer(f"encoder.encoder.layer.{layer}", hidden, hidden_from)
            layer += 1
        if not layer:
            raise KeyError("encoder.encoder.layer.0.output.dense.weight")
        first = ops.gather(hidden, np.array([0]), np.int64(1))
        kinds = ops.add(self._linear("kind", hidden), self._linear("whole", first))
        logits = ops.concat([self._linear("token", hidden), kinds], -1)
        result = ops.result(logits)
        model = self.openvino.Model([result], [ids, types, mask], "detector")
        for found, name in zip(model.inputs, ("ids", "types", "mask"), strict=True):
            found.get_tensor().set_names({name})
        model.outputs[0].get_tensor().set_names({"logits"})
        return model

    def _embedded(self, ids: Any, types: Any) -> Any:
        np, ops = self._np, self._ops
        words = self._rows("encoder.embeddings.word_embeddings.weight", ids)
        length = ops.gather(ops.shape_of(ids), np.int64(1), np.int64(0))
        places = ops.range(np.int64(0), length, np.int64(1), "i64")
        positions = ops.unsqueeze(self._rows("encoder.embeddings.position_embeddings.weight", places), 0)
        sides = self._rows("encoder.embeddings.token_type_embeddings.weight", types)
        return self._normal("encoder.embeddings.LayerNorm", ops.add(ops.add(words, positions), sides))

    def _layer(self, name: str, hidden: Any, mask: Any) -> Any:
        ops = self._ops
        query, key, value = (
            self._split(self._linear(f"{name}.attention.self.{part}", hidden))
            for part in ("query", "key", "value")
        )
        seen = ops.scaled_dot_product_attention(query, key, value, mask)
        joined = ops.reshape(ops.transpose(seen, [0, 2, 1, 3]), [0, 0, -1], True)
        attended = self._normal(
            f"{name}.attention.output.LayerNorm",
            ops.add(self._linear(f"{name}.attention.output.dense", joined), hidden),
        )
        wide = ops.gelu(self._linear(f"{name}.intermediate.dense", attended), "erf")
        return self._normal(
            f"{name}.output.LayerNorm", ops.add(self._linear(f"{name}.output.dense", wide), attended)
        )

    def _split(self, hidden: Any) -> Any:
        """`[batch, length, width]` to `[batch, heads, length, width of a head]`."""
        ops = self._ops
        return ops.transpose(ops.reshape(hidden, [0, 0, self._heads, -1], True), [0, 2, 1, 3])

    def _linear(self, name: str, given: Any) -> Any:
        ops = self._ops
        found = ops.matmul(given, self._matrix(f"{name}.weight"), False, True)
        return ops.add(found, self._floats(f"{name}.bias"))

    def _matrix(self, name: str) -> Any:
        """A matrix; one of 8-bit integers stays so, and is multiplied by its scales."""
        ops = self._ops
        if name + SCALE not in self._weights:
            return ops.constant(self._weights[name].astype(self._np.float32))
        whole = ops.convert(ops.constant(self._weights[name]), "f32")
        return ops.multiply(whole, self._floats(name + SCALE))

    def _rows(self, name: str, numbers: Any) -> Any:
        """Rows of a table by their numbers."""
        np, ops = self._np, self._ops
        if name + SCALE not in self._weights:
            return ops.gather(self._floats(name), numbers, np.int64(0))
        found = ops.convert(ops.gather(ops.constant(self._weights[name]), numbers, np.int64(0)), "f32")
        return ops.multiply(found, ops.gather(self._floats(name + SCALE), numbers, np.int64(0)))

    def _normal(self, name: str, given: Any) -> Any:
        """Layer normalisation."""
        np, ops = self._np, self._ops
        found = ops.mvn(given, np.array([-1]), True, 1e-12, "inside_sqrt")
        return ops.add(ops.multiply(found, self._floats(f"{name}.weight")), self._floats(f"{name}.bias"))

    def _floats(self, name: str) -> Any:
        return self._ops.constant(self._weights[name].astype(self._np.float32))
