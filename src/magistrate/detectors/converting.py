"""Child process: a Hugging Face classifier of torch weights as an OpenVINO graph.

`python -m magistrate.detectors.converting FOLDER TARGET.xml`. Only `config.json` and safetensors are read;
code that a folder brings along is never run. Exit status 1 with one line on standard error if it fails.
"""

from __future__ import annotations

import sys
from typing import Any

from magistrate.engines.disable_telemetry import import_openvino

FAMILIES = {
    "ForSequenceClassification": "AutoModelForSequenceClassification",
    "ForTokenClassification": "AutoModelForTokenClassification",
}
LENGTH = 16  # tokens of the example that is traced; both of its dimensions stay free


def main(folder: str, target: str) -> int:
    """Convert. Returns the exit status."""
    try:
        convert(folder, target)
    except Exception as error:  # whatever the libraries raise is for the parent to explain
        print(f"{type(error).__name__}: {' '.join(str(error).split())[:500]}", file=sys.stderr)
        return 1
    return 0


def convert(folder: str, target: str) -> None:
    """Write the graph of the classifier in `folder` to `target` and the `.bin` beside it."""
    openvino = import_openvino()
    import torch
    import transformers

    model = _loaded(transformers, folder)
    example = {name: torch.ones(1, LENGTH, dtype=torch.int64) for name in _inputs(model)}
    with torch.no_grad():
        graph = openvino.convert_model(model, example_input=example)
    for given, name in zip(graph.inputs, example, strict=True):
        given.get_tensor().set_names({name})
        given.get_node().set_partial_shape(openvino.PartialShape([-1, -1]))
    graph.validate_nodes_and_infer_types()
    openvino.save_model(graph, target, compress_to_fp16=False)


def _loaded(transformers: Any, folder: str) -> Any:
    config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    named = (config.architectures or [""])[0]
    kind = next((kind for ending, kind in FAMILIES.items() if named.endswith(ending)), None)
    if kind is None:
        raise ValueError(f"config.json names the architecture {named!r}; read are: *{', *'.join(FAMILIES)}")
    settings = {"use_safetensors": True, "local_files_only": True, "trust_remote_code": False}
    model = getattr(transformers, kind).from_pretrained(
        folder, config=config, attn_implementation="eager", dtype="float32", **settings
    )
    model.config.return_dict = False
    return model.eval()


def _inputs(model: Any) -> list[str]:
    """What the model reads, in the order of its arguments."""
    import inspect

    read = ["input_ids", "attention_mask"]
    if getattr(model.config, "type_vocab_size", 0) > 1:
        read.append("token_type_ids")
    return [name for name in inspect.signature(model.forward).parameters if name in read]


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
