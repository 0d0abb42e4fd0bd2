"""From a trained network to the folder that judges: OpenVINO, weights in eight bits."""

from __future__ import annotations

import logging
import shutil
import warnings
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import torch

from magistrate.detectors.folder import CARD, MANIFEST, NETWORK, TOKENIZER, WEIGHTS, Manifest, digest_of
from magistrate.engines.quiet import import_nncf, import_openvino
from magistrate.train.detector.network import Network, merged
from magistrate.train.folders import whole
from magistrate.train.lora.bases import quiet_transformers

LENGTH = 64


def write_folder(
    network: Network, tokenizer: Path, folder: Path, told: dict[str, Any], card: str
) -> Manifest:
    """Write a detector, all of it or nothing; `told` are the manifest's values but for its files.

    Weights are symmetric 8-bit integers with a scale for each row; what they multiply stays in floating
    point, or is quantized as it comes where the processor is faster so.
    """
    with whole(folder) as half:
        _convert(network, half / NETWORK)
        shutil.copyfile(tokenizer, half / TOKENIZER)
        files = {name: digest_of(half / name) for name in (NETWORK, WEIGHTS, TOKENIZER)}
        manifest = Manifest.model_validate({**told, "files": files}, strict=False)
        (half / MANIFEST).write_text(manifest.text(), encoding="utf-8")
        (half / CARD).write_text(card, encoding="utf-8")
    return manifest


def _convert(network: Network, path: Path) -> None:
    openvino, nncf = import_openvino(), import_nncf()
    quiet_transformers()  # tracing looks at all that a model has, also at what its library warns of
    merged(network).eval()
    ids = torch.ones(1, LENGTH, dtype=torch.long)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the converter's own use of what torch calls old
        converted = openvino.convert_model(network, example_input=(ids, torch.zeros_like(ids)))
    for found, name in zip(converted.inputs, ("ids", "types"), strict=True):
        found.get_tensor().set_names({name})
        found.get_node().set_partial_shape(openvino.PartialShape([-1, -1]))
    for answer, name in zip(converted.outputs, ("tokens", "sample"), strict=True):
        answer.get_tensor().set_names({name})
    converted.validate_nodes_and_infer_types()
    nncf.set_log_level(logging.ERROR)
    with redirect_stdout(StringIO()):  # it draws a bar where a command's own answer goes
        compressed = nncf.compress_weights(converted, mode=nncf.CompressWeightsMode.INT8_SYM)
    openvino.save_model(compressed, str(path), compress_to_fp16=True)
