"""How much a model has to compute and to read for a token, counted in its own graph."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from magistrate.engines.disable_telemetry import import_openvino
from magistrate.errors import ModelError


@dataclass(frozen=True, slots=True)
class Geometry:
    """`gflop`: 10^9 operations for a token that is read, in products with weights, without the head (which
    a prompt needs for its last token only). `step_bytes`: what one decoding step reads of the weights as
    they are stored, the head included. `int8`: the weights are stored in 8 bits, so that products may be
    computed in 8 bits."""

    gflop: float
    step_bytes: int
    int8: bool


def geometry(folder: Path) -> Geometry:
    """The geometry of an OpenVINO folder. Raises `ModelError` where no products with weights are found."""
    openvino = import_openvino()
    try:
        model = openvino.Core().read_model(folder / "openvino_model.xml")
    except RuntimeError as error:
        raise ModelError(f"OpenVINO cannot read {folder}: {str(error).strip()[:300]}") from error
    head = _above(model.get_results()[0], "MatMul")
    weights, step_bytes, int8 = 0, 0, False
    for node in model.get_ops():
        if node.get_type_name() != "MatMul":
            continue
        constants = _constants(node.input_value(1).get_node())
        if not constants:
            continue  # a product of two activations
        step_bytes += sum(_bytes(constant) for constant in constants)
        int8 |= any(constant.get_output_element_type(0).bitwidth == 8 for constant in constants)
        if node.get_friendly_name() != head.get_friendly_name():
            weights += prod(node.input_value(1).get_shape())
    if not weights:
        raise ModelError(f"{folder} has no matrix products with weights; is it a language model?")
    return Geometry(2 * weights / 1e9, step_bytes, int8)


def _above(node: Any, kind: str) -> Any:
    """The nearest node of that type on the way up the first inputs."""
    while node.get_type_name() != kind:
        if not node.get_input_size():
            raise ModelError("the model's result does not come from a matrix product")
        node = node.input_value(0).get_node()
    return node


def _constants(node: Any) -> list[Any]:
    """The constants that a node is made of; none where it depends on what the model is given."""
    if node.get_type_name() == "Constant":
        return [node]
    found: list[Any] = []
    for at in range(node.get_input_size()):
        below = _constants(node.input_value(at).get_node())
        if not below:
            return []
        found += below
    return found


def _bytes(constant: Any) -> int:
    bits = int(constant.get_output_element_type(0).bitwidth)
    return (int(prod(constant.get_output_shape(0))) * bits + 7) // 8
