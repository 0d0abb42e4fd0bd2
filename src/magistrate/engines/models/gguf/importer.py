"""Child process that imports a GGUF into OpenVINO files in the same folder.

`python -m magistrate.engines.models.gguf.importer GGUF FREQUENCIES` writes `openvino_model.xml` and `.bin`
into the GGUF's folder. OpenVINO's importer ignores per-frequency factors of the rotary positions and may
store the frequencies in 16 bits, which is radians off after some thousand tokens. They are replaced if they
differ from those in the file FREQUENCIES (`.npy`, float32 `[head_size / 2]`). On failure the exit status is
1, with one line on standard error.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from magistrate.engines.disable_telemetry import import_openvino

if TYPE_CHECKING:
    import numpy as np


def main(gguf: str, frequencies: str) -> int:
    """Import the model, correct it if needed, and return the exit status."""
    import numpy as np

    try:
        import_openvino()
        import openvino_genai

        openvino_genai.LLMPipeline(gguf, "CPU", enable_save_ov_model=True)
        correct_rotations(Path(gguf).parent / "openvino_model.xml", np.load(frequencies))
    except Exception as error:  # the parent explains whatever the importer raises
        text = " ".join(str(error).split())
        print(f"{type(error).__name__}: {text[:500]}", file=sys.stderr)
        return 1
    return 0


def correct_rotations(path: Path, frequencies: np.ndarray) -> None:
    """Write `frequencies` into the model at `path`, unless it already has them."""
    import numpy as np

    openvino = import_openvino()
    model = openvino.Core().read_model(path)
    entrance, stored = _rotations(model)
    exact = stored.get_data()
    if exact.shape != (1, frequencies.size, 1):
        raise ValueError(f"expected {frequencies.size} rotation frequencies, found the shape {exact.shape}")
    wanted = frequencies.reshape(exact.shape)
    if exact.dtype == np.float32 and np.allclose(exact, wanted, rtol=1e-6, atol=0):
        return
    replacement = openvino.op.Constant(wanted)
    entrance.replace_source_output(replacement.output(0))
    model.validate_nodes_and_infer_types()
    scratch = path.with_name("corrected.xml")
    openvino.save_model(model, scratch, compress_to_fp16=False)
    del model, entrance, stored, exact
    scratch.with_suffix(".bin").replace(path.with_suffix(".bin"))
    scratch.replace(path)


def _rotations(model: Any) -> tuple[Any, Any]:
    """Return the only input through which all rotation frequencies come, and the constant that feeds it."""
    found = {}
    for node in model.get_ops():
        if node.get_type_name() == "Cos":
            # Cos <- Concat <- Transpose <- MatMul <- Broadcast <- (Convert <-) Constant
            above = node
            for _ in range(4):
                above = above.input_value(0).get_node()
            source = above.input_value(0).get_node()
            if source.get_type_name() == "Convert":
                source = source.input_value(0).get_node()
            found[above.get_friendly_name()] = (above.input(0), source)
    (entrance, source), *others = found.values()
    if others or source.get_type_name() != "Constant":
        raise ValueError(f"cannot find the rotation frequencies at {sorted(found)}")
    return entrance, source


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
