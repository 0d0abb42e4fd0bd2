"""The network of a Hugging Face classifier, run by OpenVINO.

Torch weights are converted once, in a child process: `python -m magistrate.detectors.hf_network FOLDER
TARGET.xml`. It reads only `config.json` and safetensors and never runs code from the folder.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from magistrate._paths import models_dir
from magistrate._work import PerProcess, check, held
from magistrate.engines.disable_telemetry import import_openvino
from magistrate.engines.embedded.cores import available_cores
from magistrate.engines.models import child, disk
from magistrate.errors import ModelError, require_extra

if TYPE_CHECKING:
    import numpy as np

READY = ("openvino_model.xml", "model.onnx", "onnx/model.onnx")
TORCH = "model.safetensors"
READ = ("input_ids", "attention_mask", "token_type_ids")
ROWS = 8  # windows per batch
CONVERSION = 1  # raise it whenever the same weights would give another graph


class Graph:
    """A compiled network on token ids. `per_token` is set if it has an output per token, not per pair."""

    def __init__(self, path: Path) -> None:
        openvino = import_openvino()
        try:
            core = openvino.Core()
            model = core.read_model(path)
            self.inputs = {_named(given): given.get_partial_shape() for given in model.inputs}
            answer = next((out for out in model.outputs if "logits" in out.get_names()), model.outputs[0])
            self.per_token = len(answer.get_partial_shape()) == 3
            # One pass at a time, on all cores.
            settings = {
                "PERFORMANCE_HINT": "LATENCY",
                "INFERENCE_NUM_THREADS": available_cores(),
                "ENABLE_CPU_PINNING": False,
                "INFERENCE_PRECISION_HINT": "f32",
            }
            self._compiled = PerProcess(lambda: openvino.Core().compile_model(path, "CPU", settings))
            self._compiled.get()
            self._answer = model.outputs.index(answer)
            self._turn = PerProcess(threading.Lock)
            self._turn.get()
        except Exception as error:  # the package raises nothing more specific
            raise ModelError(f"{path} cannot be loaded: {' '.join(str(error).split())[:300]}") from error
        if unread := sorted(set(self.inputs) - set(READ)):
            raise ModelError(
                f"{path} needs the inputs {', '.join(unread)}; a text classifier has only {', '.join(READ)}"
            )

    def logits(self, rows: Iterable[Mapping[str, Sequence[int]]]) -> Iterator[np.ndarray]:
        """Yield the logits of each row, float32 `[classes]` or `[tokens, classes]`, in small batches.

        A row maps the names of the inputs to ids. Raises `ModelError` for results that are not finite.
        """
        import numpy as np

        left = iter(rows)
        while some := list(islice(left, self._rows)):
            check()
            longest = self.length or max(len(row["input_ids"]) for row in some)
            given = {
                name: np.array([[*row[name], *[0] * (longest - len(row[name]))] for row in some], np.int64)
                for name in self.inputs
            }
            with held(self._turn.get()):
                answers = self._compiled.get().create_infer_request().infer(given)[self._answer]
            if not np.isfinite(answers).all():
                raise ModelError(
                    "the classifier returned values that are not numbers: its weights are damaged"
                )
            for row, each in zip(some, answers, strict=True):
                yield np.array(each[: len(row["input_ids"])] if self.per_token else each)

    @property
    def length(self) -> int:
        """The number of tokens it reads if the export fixed it, else 0."""
        shape = self.inputs["input_ids"]
        return 0 if shape[1].is_dynamic else int(shape[1].get_length())

    @property
    def _rows(self) -> int:
        shape = self.inputs["input_ids"]
        return ROWS if shape[0].is_dynamic else int(shape[0].get_length())


def weights_of(folder: Path) -> Path:
    """Return the file that holds the network. Raises `ModelError` if there is no supported one."""
    for name in (*READY, TORCH):
        if (folder / name).is_file():
            return folder / name
    pickled = [path.name for path in sorted(folder.glob("*.bin"))]
    why = f"; {pickled[0]} may contain code and is not read: save it as safetensors" if pickled else ""
    raise ModelError(f"{folder} has no network: it needs one of {', '.join((*READY, TORCH))}{why}")


def graph_of(folder: Path) -> Path:
    """Return the file that `Graph` reads. Torch weights are converted once and cached by their hash.

    Raises `MissingExtra` without the extra `local`, or without `train` if a conversion is needed, and
    `ModelError` if the conversion fails.
    """
    require_extra("local", "openvino")
    weights = weights_of(folder)
    if weights.name != TORCH:
        return weights
    digest = disk.sha256(weights)
    target = models_dir() / f"classifier-{digest[:16]}-v{CONVERSION}"
    made = target / READY[0]
    if made.is_file():
        return made
    require_extra("train", "torch", "transformers")
    with disk.claimed(target) as scratch:
        if not made.is_file():
            half = scratch / "model"
            half.mkdir()
            arguments = ["-m", "magistrate.detectors.hf_network", str(folder.resolve()), str(half / READY[0])]
            quiet = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "PYTHONWARNINGS": "ignore"}
            ended = child.run(arguments, scratch, "convert", None, disk.quiet, quiet)
            if ended.status != 0:
                raise ModelError(f"{folder} cannot be converted: {ended.reason()}")
            disk.publish(half, target, scratch)
    return made


def _named(given: Any) -> str:
    """Return the known name of an input; converters may add others."""
    names: set[str] = given.get_names()
    return next((name for name in READ if name in names), min(names, default="?"))


FAMILIES = {
    "ForSequenceClassification": "AutoModelForSequenceClassification",
    "ForTokenClassification": "AutoModelForTokenClassification",
}
LENGTH = 16  # tokens of the traced example; both dimensions stay dynamic


def main(folder: str, target: str) -> int:
    """Convert a folder. Returns the exit status."""
    try:
        convert(folder, target)
    except Exception as error:  # any error of the libraries, reported by the parent process
        print(f"{type(error).__name__}: {' '.join(str(error).split())[:500]}", file=sys.stderr)
        return 1
    return 0


def convert(folder: str, target: str) -> None:
    """Write the graph of the classifier in `folder` to `target`, and the `.bin` next to it."""
    openvino = import_openvino()
    import torch
    import transformers

    model = _loaded(transformers, folder)
    example = {name: torch.ones(1, LENGTH, dtype=torch.int64) for name in _input_names(model)}
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
        raise ValueError(
            f"config.json has the architecture {named!r}; supported are: *{', *'.join(FAMILIES)}"
        )
    settings = {"use_safetensors": True, "local_files_only": True, "trust_remote_code": False}
    model = getattr(transformers, kind).from_pretrained(
        folder, config=config, attn_implementation="eager", dtype="float32", **settings
    )
    model.config.return_dict = False
    return model.eval()


def _input_names(model: Any) -> list[str]:
    """Return the inputs of the model, in the order of its arguments."""
    import inspect

    read = ["input_ids", "attention_mask"]
    if getattr(model.config, "type_vocab_size", 0) > 1:
        read.append("token_type_ids")
    return [name for name in inspect.signature(model.forward).parameters if name in read]


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
