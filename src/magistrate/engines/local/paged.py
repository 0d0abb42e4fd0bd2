"""Rewrites a model for serving: paged attention, logits and hidden states of wanted rows only."""

from __future__ import annotations

from typing import Any

import numpy as np

from magistrate.errors import ModelError

WANTED = "sampled_tokens_indices"
HIDDEN = "hidden_states"


def page(model: Any, *, hidden_states: bool) -> None:
    """Change `model` in place; its first output is then the logits `[wanted, (1,) vocabulary]`.

    With `hidden_states` a second output `[wanted, 1 + layers, width]` holds the residual stream: the
    embedding, then what each layer leaves.
    """
    from openvino import opset13 as ops
    from openvino._offline_transformations import paged_attention_transformation

    paged_attention_transformation(model)
    head = model.get_results()[0].input_value(0).get_node()
    while head.get_type_name() != "MatMul":
        if not head.get_input_size():
            raise ModelError("this model has no matrix product before its output; it is no language model")
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
    """What goes into each layer, and what the last one leaves.

    Every layer normalizes the stream twice, before attention and before its feed-forward part, and the
    head once more; a root-mean-square norm begins with a square.
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
