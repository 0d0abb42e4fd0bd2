"""Writes a detector's network, a BERT or MPNet with token heads, as an ONNX graph next to its weights."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from magistrate.detectors.weights import (
    BLOCK,
    EPSILON,
    MPNET_EPSILON,
    POSITIONS,
    RELATIVE,
    SCALE,
    TYPES,
    product_of,
    smooth_of,
)
from magistrate.errors import ModelError

STANDARD, MICROSOFT = helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)
VERSION = 10  # file format version, the first with these operators
NUMBERS = {"I8": TensorProto.INT8, "U8": TensorProto.UINT8, "F16": TensorProto.FLOAT16}  # as in safetensors
WORDS = "encoder.embeddings.word_embeddings.weight"
COMPUTED = "computed"  # instead of a file: tensors that whoever loads the graph must provide, see `products`
FURTHEST = 128  # tokens: greater distances share the last bucket of MPNet's relative positions
HALF, EIGHT = np.float32(0.5), np.float32(8)
HIDDEN = -1e9  # added to the attention scores of padding


def write_graph(weights: Path, heads: int, path: Path) -> None:
    """Write the network as a graph that refers to the weights in a safetensors file of the same folder.

    Weights of 4 bits that inputs are multiplied by are not read from it: `products` computes them.

    The graph takes int64 `ids`, `types`, `mask` `[batch, length]` and returns float32 `logits`
    `[batch, length, 4]`. `heads` is the number of attention heads of a layer that has lost none. Raises
    `ModelError` if a weight is missing.
    """
    try:
        onnx.save(_Builder(weights, heads).model(), path)
    except KeyError as error:
        raise ModelError(f"the weights of the detector lack {error}") from None


class _Builder:
    """Builds the graph layer by layer. Its methods take and return names of values."""

    def __init__(self, weights: Path, heads: int) -> None:
        self._weights = _places(weights)
        self._size = self._weights["encoder.embeddings.LayerNorm.weight"].dims[0] // heads  # of a head
        self._nodes: list[onnx.NodeProto] = []
        self._tensors: dict[str, onnx.TensorProto] = {}
        self._is_mpnet = any(RELATIVE in name for name in self._weights)
        self._epsilon = MPNET_EPSILON if self._is_mpnet else EPSILON
        self._buckets = self._near = ""
        self._smoothed: dict[str, str] = {}

    def model(self) -> onnx.ModelProto:
        hidden = self._embedded()
        if self._is_mpnet:
            self._buckets = self._bucketed()
            if f"encoder.encoder.{RELATIVE}.weight" in self._weights:
                self._near = self._relations(f"encoder.encoder.{RELATIVE}.weight")
        layer = 0
        while f"encoder.encoder.layer.{layer}.output.dense.weight" in self._weights:
            hidden = self._layer(f"encoder.encoder.layer.{layer}", hidden)
            layer += 1
        if not layer:
            raise KeyError("encoder.encoder.layer.0.output.dense.weight")
        first = self._op("Gather", hidden, self._constant(np.array([0])), axis=1)
        kinds = self._op("Add", self._exact("kind", hidden), self._exact("whole", first))
        logits = self._op("Concat", self._exact("token", hidden), kinds, axis=-1)
        self._nodes.append(helper.make_node("Identity", [logits], ["logits"]))
        given = [
            helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "length"])
            for name in ("ids", "types", "mask")
        ]
        answer = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "length", 4])
        graph = helper.make_graph(self._nodes, "detector", given, [answer], list(self._tensors.values()))
        return helper.make_model(graph, opset_imports=[STANDARD, MICROSOFT], ir_version=VERSION)

    def _embedded(self) -> str:
        words = self._rows(WORDS, "ids")
        length = self._op("Squeeze", self._op("Shape", "ids", start=1, end=2))
        places = self._op("Range", self._constant(np.int64(0)), length, self._constant(np.int64(1)))
        positions = self._rows(POSITIONS, self._op("Unsqueeze", places, self._constant(np.array([0]))))
        sides = self._rows(TYPES, "types")
        both = self._op("Add", self._op("Add", words, positions), sides)
        return self._normal("encoder.embeddings.LayerNorm", both)

    def _layer(self, name: str, hidden: str) -> str:
        query, key, value = (
            self._linear(f"{name}.attention.self.{part}", hidden) for part in ("query", "key", "value")
        )
        own = f"{name}.attention.self.{RELATIVE}.weight"
        near = self._relations(own) if own in self._weights else self._near
        heads = self._weights[f"{name}.attention.self.query.bias"].dims[0] // self._size
        seen = self._op(
            "MultiHeadAttention", query, key, value, "", self._seen(), near,
            domain=MICROSOFT.domain, num_heads=heads, mask_filter_value=HIDDEN,
        )  # fmt: skip
        attended = self._normal(
            f"{name}.attention.output.LayerNorm",
            self._op("Add", self._linear(f"{name}.attention.output.dense", seen), hidden),
        )
        wide = self._op("Gelu", self._linear(f"{name}.intermediate.dense", attended))
        return self._normal(
            f"{name}.output.LayerNorm",
            self._op("Add", self._linear(f"{name}.output.dense", wide), attended),
        )

    def _bucketed(self) -> str:
        """Return the buckets of the distances between all positions, int64 `[length, length]`."""
        buckets = next(each.dims[0] for name, each in self._weights.items() if RELATIVE in name)
        most = self._weights[POSITIONS].dims[0]
        of = np.array([bucket(place, buckets) for place in range(1 - most, most)])
        length = self._op("Squeeze", self._op("Shape", "ids", start=1, end=2))
        places = self._op("Range", self._constant(np.int64(0)), length, self._constant(np.int64(1)))
        columns = self._op("Unsqueeze", places, self._constant(np.array([0])))
        lines = self._op("Unsqueeze", places, self._constant(np.array([1])))
        between = self._op("Add", self._op("Sub", columns, lines), self._constant(np.int64(most - 1)))
        return self._op("Gather", self._constant(of), between)

    def _relations(self, table: str) -> str:
        """Return what MPNet adds to the attention between positions, float32 `[1, heads, length, length]`."""
        found = self._op("Gather", self._floats(table), self._buckets)
        turned = self._op("Transpose", found, perm=[2, 0, 1])
        return self._op("Unsqueeze", turned, self._constant(np.array([0])))

    def _seen(self) -> str:
        """Return the attention mask as int32: 1 for each token that is not padding."""
        return self._op("Cast", "mask", to=TensorProto.INT32)

    def _linear(self, name: str, given: str) -> str:
        """Add a matrix product; with integers, if the weight has 4 bits, or 8 bits in a BERT.

        What is multiplied is rounded to eight bits, and the weight to seven: processors without instructions
        for this add two products in 16 bits, which must not overflow. The values in an MPNet differ too much
        in size for eight bits, unless those of large columns are made smaller first.
        """
        weight = f"{name}.weight"
        if self._is_packed(weight):
            return self._product(name, given)
        if weight + SCALE not in self._weights or self._is_mpnet:
            return self._exact(name, given)
        half = self._op(
            "Mul", self._op("Cast", self._weight(weight), to=TensorProto.FLOAT), self._constant(HALF)
        )
        small = self._op("Cast", self._op("Round", half), to=TensorProto.INT8)
        scale = self._op("Cast", self._weight(weight + SCALE), to=TensorProto.FLOAT)
        double = self._op(
            "Squeeze", self._op("Div", scale, self._constant(HALF)), self._constant(np.array([1]))
        )
        turned = self._op("Transpose", small, perm=[1, 0])
        return self._op(
            "DynamicQuantizeMatMul",
            given,
            turned,
            double,
            "",
            self._floats(f"{name}.bias"),
            domain=MICROSOFT.domain,
        )

    def _product(self, name: str, given: str) -> str:
        """Add a product with a matrix of 4 bits. Its integers are computed when the graph is loaded."""
        weight = f"{name}.weight"
        rows, blocks, _ = self._weights[weight].dims
        if (smooth := smooth_of(weight)) in self._weights:
            if smooth not in self._smoothed:  # query, key and value have the same input
                self._smoothed[smooth] = self._op("Mul", given, self._floats(smooth))
            given = self._smoothed[smooth]
        integers, scales = product_of(weight)
        self._tensors[integers] = _computed(integers, TensorProto.INT8, [blocks * BLOCK, rows])
        self._tensors[scales] = _computed(scales, TensorProto.FLOAT, [rows])
        return self._op(
            "DynamicQuantizeMatMul", given, integers, scales, "", self._floats(f"{name}.bias"),
            domain=MICROSOFT.domain,
        )  # fmt: skip

    def _exact(self, name: str, given: str) -> str:
        """Add a matrix product with float32."""
        turned = self._op("Transpose", self._floats(f"{name}.weight"), perm=[1, 0])
        return self._op("Add", self._op("MatMul", given, turned), self._floats(f"{name}.bias"))

    def _rows(self, name: str, numbers: str) -> str:
        """Gather rows of a table by number `[batch, length]`. The table itself stays quantized."""
        found = self._op("Gather", self._weight(name), numbers)
        if name + SCALE not in self._weights:
            return self._op("Cast", found, to=TensorProto.FLOAT)
        scale = self._op("Gather", self._weight(name + SCALE), numbers)
        scale = self._op("Cast", scale, to=TensorProto.FLOAT)
        if not self._is_packed(name):
            return self._op("Mul", self._op("Cast", found, to=TensorProto.FLOAT), scale)
        last = self._constant(np.array([-1]))
        low = self._op("BitwiseAnd", found, self._constant(np.uint8(15)))
        high = self._op("BitShift", found, self._constant(np.uint8(4)), direction="RIGHT")
        halves = self._op(
            "Concat", self._op("Unsqueeze", low, last), self._op("Unsqueeze", high, last), axis=-1
        )
        numbers = self._op("Reshape", halves, self._constant(np.array([0, 0, 0, BLOCK])))
        centred = self._op("Sub", self._op("Cast", numbers, to=TensorProto.FLOAT), self._constant(EIGHT))
        values = self._op("Mul", centred, self._op("Unsqueeze", scale, last))
        return self._op("Reshape", values, self._constant(np.array([0, 0, -1])))

    def _is_packed(self, name: str) -> bool:
        """Return whether a matrix has 4 bits."""
        return bool(self._weights[name].data_type == TensorProto.UINT8)

    def _normal(self, name: str, given: str) -> str:
        """Add a layer normalisation."""
        scale, shift = self._floats(f"{name}.weight"), self._floats(f"{name}.bias")
        return self._op("LayerNormalization", given, scale, shift, axis=-1, epsilon=self._epsilon)

    def _floats(self, name: str) -> str:
        """Return a weight as float32, multiplied by its scales; computed once, when the graph is loaded."""
        found = self._op("Cast", self._weight(name), to=TensorProto.FLOAT)
        if name + SCALE not in self._weights:
            return found
        return self._op("Mul", found, self._op("Cast", self._weight(name + SCALE), to=TensorProto.FLOAT))

    def _weight(self, name: str) -> str:
        """Refer to a tensor in the file of weights."""
        self._tensors.setdefault(name, self._weights[name])
        return name

    def _constant(self, value: np.ndarray | np.generic) -> str:
        name = f"constant_{len(self._tensors)}"
        self._tensors[name] = numpy_helper.from_array(np.asarray(value), name)
        return name

    def _op(self, kind: str, *given: str, domain: str = "", **attributes: object) -> str:
        """Add a node and return its only output."""
        name = f"{kind}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, given, [name], name=name, domain=domain, **attributes))
        return name


def bucket(place: int, buckets: int) -> int:
    """Return the bucket of a relative position, as in T5 (Raffel et al. 2020), in both directions."""
    half, before = buckets // 2, buckets // 2 if place > 0 else 0
    far, exact = abs(place), buckets // 4
    if far < exact:
        return before + far
    steps = math.log(far / exact) / math.log(FURTHEST / exact) * (half - exact)
    return before + min(exact + int(steps), half - 1)


def _computed(name: str, kind: int, dims: list[int]) -> onnx.TensorProto:
    """Return a tensor that is provided when the graph is loaded."""
    tensor = TensorProto(name=name, data_type=kind, dims=dims)
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=COMPUTED)
    return tensor


def _places(path: Path) -> dict[str, onnx.TensorProto]:
    """Return the tensors of a safetensors file, each as a reference to its bytes in the file."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
    header.pop("__metadata__", None)
    found = {}
    for name, told in header.items():
        begin, end = told["data_offsets"]
        tensor = TensorProto(name=name, data_type=NUMBERS[told["dtype"]], dims=told["shape"])
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", path.name), ("offset", 8 + size + begin), ("length", end - begin)):
            tensor.external_data.add(key=key, value=str(value))
        found[name] = tensor
    return found
